# SPDX-License-Identifier: Apache-2.0
"""Read the host's nodes, CPUs and huge pages from sysfs.

The libvirt hook reads this at every guest start, so it opens few files: five
for the host, three for each node, one for each core where SMT is on. Files
that a kernel does not have (no NUMA, no SMT control, no huge pages) have
defaults; a file that can't be understood is a :class:`TopologyError`.

Formats: the kernel's Documentation/ABI/stable/sysfs-devices-node,
Documentation/ABI/testing/sysfs-devices-system-cpu and, for the fields of
``meminfo``, Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.exceptions import CpuListError, TopologyError

#: Highest CPU or node number accepted plus one: libvirt's VIR_DOMAIN_CPUMASK_LEN,
#: twice what the largest kernels are built for.
MAX_CPUS = 16384

#: What the kernel can't give back to guests on this node. Left out, because they hold guests'
#: own memory, which is promised already and would count twice: Unevictable and Mlocked (guests
#: with ``<locked/>``), Shmem (guests backed by memfd or shared memory) and AnonPages. What the
#: host's daemons hold of these is what the operator's reserve per node is for.
#: SecPageTables (6.1) are KVM's nested page tables: for guests, but beyond what is promised.
UNRECLAIMABLE_FIELDS = ('SUnreclaim', 'KernelStack', 'PageTables', 'SecPageTables')

# The kernel's own LOCAL_DISTANCE and REMOTE_DISTANCE; a distance is a byte of ACPI's SLIT.
_LOCAL_DISTANCE, _REMOTE_DISTANCE, _MAX_DISTANCE = 10, 20, 255

_NODES = 'sys/devices/system/node'
_CPUS = 'sys/devices/system/cpu'
_HUGE_PAGES = 'sys/kernel/mm/hugepages'
_HEX_DIGITS = frozenset('0123456789abcdef')


def parse_cpulist(text):
    """Turn the kernel's list format ('0-3,8') into a frozenset of ints.

    Surrounding white space is ignored; an empty list is an empty set.

    :raises CpuListError: on anything but ascending ranges of numbers below
        :data:`MAX_CPUS`
    """
    text = text.strip()
    if not text:
        return frozenset()
    numbers, previous = [], -1
    for item in text.split(','):
        first, dash, last = item.partition('-')
        low = _list_number(first, item)
        high = _list_number(last, item) if dash else low
        if not previous < low <= high:
            raise CpuListError(f'{item!a} does not ascend')
        numbers += range(low, high + 1)
        previous = high
    return frozenset(numbers)


def _list_number(digits, item):
    # str.isdigit alone takes other scripts' digits, and int() takes '_', '+' and spaces.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        raise CpuListError(f'{item[:40]!a} is no number and no range')
    number = int(digits)
    if number >= MAX_CPUS:
        raise CpuListError(f'{item[:40]!a} is beyond the highest number accepted, {MAX_CPUS - 1}')
    return number


def format_cpulist(numbers):
    """Turn a set of ints into the kernel's list format, ascending and in the fewest ranges."""
    ranges = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ','.join(str(low) if low == high else f'{low}-{high}' for low, high in ranges)


def read(root='/'):
    """Read the host's topology as it is now.

    A kernel without NUMA is one node 0 with all CPUs. A node's ``cpus`` are those that guests
    may use: online, neither isolated nor nohz_full. ``cores`` holds every online CPU.

    :raises TopologyError: a file is malformed; the message names it
    """
    online = _read_cpus(root, f'{_CPUS}/online')
    isolated = _read_cpus(root, f'{_CPUS}/isolated') or frozenset()
    nohz_full = _read_cpus(root, f'{_CPUS}/nohz_full') or frozenset()
    numbers = _node_numbers(root)
    on_node = {number: cpus_of_node(number, root)
               for number in numbers}
    meminfo = f'{_NODES}/node%d/meminfo'
    if not numbers:
        numbers, on_node, meminfo = (0,), {0: online or frozenset()}, 'proc/meminfo'
    if online is None:
        online = frozenset().union(*on_node.values())
    if not online:
        raise TopologyError(f'{_path(root, _CPUS)}/online: no CPU is online')
    usable = online - isolated - nohz_full
    page_sizes = _huge_page_sizes(root)
    nodes = tuple(
        _read_node(root, number, on_node[number] & usable, on_node[number] & online,
                   meminfo.replace('%d', str(number)), page_sizes)
        for number in numbers)
    return model.Topology(nodes, _read_distances(root, numbers), _read_cores(root, online))


def cpus_of_node(number, root='/'):
    """Read a node's CPUs; return a frozenset, empty where it has none or is absent.

    :raises TopologyError: the file can't be read or understood
    """
    return _read_cpus(root, f'{_NODES}/node{number}/cpulist') or frozenset()


def device_node(address, root='/'):
    """Return the node that a PCI device ('0000:3b:00.1') is attached to, None if not known.

    The kernel says -1 where the firmware does not tell; a device that is gone is not known.

    :raises TopologyError: the address is no PCI address, or the file is malformed
    """
    address = address.lower()
    if not _is_pci_address(address):
        raise TopologyError(f'{address[:40]!a} is no PCI address like 0000:3b:00.1')
    path = f'sys/bus/pci/devices/{address}/numa_node'
    text = _read_text(root, path)
    if text is None or text.strip() == '-1':
        return None
    return _number(root, path, text.strip(), MAX_CPUS - 1)


def host_device_node(name, root='/'):
    """Return the node of a network interface ('eth0') or block device ('/dev/nvme0n1').

    None: not known, or no device of a bus (a bridge, a volume of several disks).

    :raises TopologyError: the file is malformed
    """
    kind = 'net'
    if name.startswith('/dev/'):
        path = os.path.realpath(_path(root, name[1:]))  # /dev/disk/by-id/... and the like
        kind, name = 'block', os.path.basename(path)
    if not name or '/' in name or name in ('.', '..'):
        return None
    for above in ('device', 'device/device'):  # of an NVMe namespace first its controller
        path = f'sys/class/{kind}/{name}/{above}/numa_node'
        text = _read_text(root, path)
        if text is not None:
            return None if text.strip() == '-1' else _number(root, path, text.strip(),
                                                             MAX_CPUS - 1)
    return None


def _is_pci_address(address):
    parts = address.replace('.', ':').split(':')
    # A domain beyond four digits is how the kernel numbers Intel VMD's.
    return (len(parts) == 4 and address.count('.') == 1 and address[-2] == '.'
            and 4 <= len(parts[0]) <= 8 and [len(part) for part in parts[1:]] == [2, 2, 1]
            and _HEX_DIGITS.issuperset(''.join(parts)))


def _node_numbers(root):
    """Return the numbers of the online nodes, ascending; they need not be contiguous."""
    try:
        names = os.listdir(_path(root, _NODES))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise TopologyError(f'{_path(root, _NODES)}: {error.strerror}') from error
    return tuple(sorted(int(name[4:]) for name in names
                        if name[:4] == 'node' and name[4:].isascii() and name[4:].isdigit()))


def _read_node(root, number, cpus, online_cpus, meminfo, page_sizes):
    text = _read_text(root, meminfo)
    if text is None:
        return model.Node(number, cpus, online_cpus=online_cpus)
    fields = _meminfo_bytes(root, meminfo, text)
    if 'MemTotal' not in fields or 'MemFree' not in fields:
        raise TopologyError(f'{_path(root, meminfo)}: no MemTotal or no MemFree in it')
    return model.Node(
        number, cpus, fields['MemTotal'], fields['MemFree'],
        sum(fields.get(field, 0) for field in UNRECLAIMABLE_FIELDS),
        _read_huge_pages(root, number, page_sizes), online_cpus)


def _meminfo_bytes(root, path, text):
    """Return {field: bytes} of the fields in use ('Node 0 MemTotal:  1024 kB')."""
    wanted = ('MemTotal', 'MemFree') + UNRECLAIMABLE_FIELDS
    fields = {}
    for line in text.splitlines():
        name, colon, value = line.partition(':')
        name = name.rpartition(' ')[2]
        if not colon or name not in wanted:
            continue
        digits, _, unit = value.strip().partition(' ')
        if unit != 'kB':
            raise TopologyError(f'{_path(root, path)}: {line[:80]!a} is not in kB')
        fields[name] = _number(root, path, digits, 1 << 50) << 10
    return fields


def _huge_page_sizes(root):
    """Return the directory names of the page sizes of which the host has any pages."""
    try:
        names = os.listdir(_path(root, _HUGE_PAGES))
    except OSError:
        return ()
    return tuple(sorted(name for name in names
                        if _read_pages(root, f'{_HUGE_PAGES}/{name}/nr_hugepages')))


def _read_huge_pages(root, number, page_sizes):
    pools = []
    for name in page_sizes:
        digits = name.removeprefix('hugepages-').removesuffix('kB')
        path = f'{_NODES}/node{number}/hugepages/{name}'
        page_bytes = _number(root, path, digits, 1 << 40) << 10
        total = _read_pages(root, f'{path}/nr_hugepages')
        if total:
            pools.append(model.HugePages(
                page_bytes, total, _read_pages(root, f'{path}/free_hugepages')))
    return tuple(sorted(pools))


def _read_pages(root, path):
    text = _read_text(root, path)
    return 0 if text is None else _number(root, path, text.strip(), 1 << 50)


def _read_distances(root, numbers):
    """Return the SLIT matrix by position; the kernel's rows hold the online nodes only."""
    rows = []
    for number in numbers:
        path = f'{_NODES}/node{number}/distance'
        text = _read_text(root, path)
        if text is None:
            row = tuple(_LOCAL_DISTANCE if other == number else _REMOTE_DISTANCE
                        for other in numbers)
        else:
            row = tuple(_number(root, path, item, _MAX_DISTANCE) for item in text.split())
        if len(row) != len(numbers) or 0 in row:
            raise TopologyError(f'{_path(root, path)}: {text.strip()[:80]!a} are not '
                                f'{len(numbers)} distances from 1 to {_MAX_DISTANCE}')
        rows.append(row)
    return tuple(rows)


def _read_cores(root, online):
    """Return the online SMT siblings of each core, by lowest CPU."""
    smt = _read_text(root, f'{_CPUS}/smt/active')
    if smt is not None and smt.strip() == '0':
        return tuple(frozenset((cpu,)) for cpu in sorted(online))
    cores, seen = [], set()
    for cpu in sorted(online):
        if cpu in seen:
            continue
        siblings = _read_cpus(root, f'{_CPUS}/cpu{cpu}/topology/thread_siblings_list')
        core = ((siblings or frozenset()) & online - seen) | {cpu}
        cores.append(core)
        seen |= core
    return tuple(cores)


def _read_cpus(root, path):
    """Return the set of CPUs in a list file, None without the file."""
    text = _read_text(root, path)
    # Kernels with nohz_full built in but not used print a null mask.
    if text is None or text.strip() == '(null)':
        return None if text is None else frozenset()
    try:
        return parse_cpulist(text)
    except CpuListError as error:
        raise TopologyError(f'{_path(root, path)}: {error}') from error


def _read_text(root, path):
    """Return a small file's text, None if the kernel has no such file (any more)."""
    path = _path(root, path)
    try:
        # A third of open()'s time, which counts with hundreds of files in the hook.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # sysfs files are a page at most, but lists of CPUs and proc files may be longer.
            text = os.read(descriptor, 1 << 16)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TopologyError(f'{path}: {error.strerror}') from error
    return text.decode('ascii', 'backslashreplace')


def _number(root, path, digits, most):
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20) or int(digits) > most:
        raise TopologyError(f'{_path(root, path)}: {digits[:40]!a} is no number up to {most}')
    return int(digits)


def _path(root, path):
    return os.path.join(root, path)
