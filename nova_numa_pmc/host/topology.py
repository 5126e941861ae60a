# SPDX-License-Identifier: Apache-2.0
"""Read the host's nodes, CPUs and huge pages from sysfs.

The libvirt hook reads this at every guest start, so it opens few files: five
for the host, three for each node, one for each core where SMT is on, and what
:mod:`memory_kinds` needs where a node has memory and no CPUs. Files
that a kernel does not have (no NUMA, no SMT control, no huge pages) have
defaults; a file that cannot be understood is a :class:`TopologyError`.

Formats: the kernel's Documentation/ABI/stable/sysfs-devices-node,
Documentation/ABI/testing/sysfs-devices-system-cpu and, for the fields of
``meminfo``, Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.core.memory_domains import DISTANCE_MAX, LOCAL_DISTANCE, REMOTE_DISTANCE
from nova_numa_pmc.cpulist import CPUS_MAX, HEX_DIGITS, format_cpulist, is_number
from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host.files import (
    AMOUNT_MAX,
    CPUS,
    NODES,
    meminfo_bytes,
    path_of,
    read_cpus,
    read_text,
    read_whole_number,
    whole_number,
)

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the kernel cannot give back to guests on this node. Left out, because they hold guests'
#: own memory, which is promised already and would count twice: Unevictable and Mlocked (guests
#: with ``<locked/>``), Shmem (guests backed by memfd or shared memory) and AnonPages. What the
#: host's daemons hold of these is what the operator's reserve per node is for.
#: SecPageTables (6.1) are KVM's nested page tables: for guests, but beyond what is promised.
UNRECLAIMABLE_FIELDS = ('SUnreclaim', 'KernelStack', 'PageTables', 'SecPageTables')

_ONLINE = CPUS + '/online'
_CPULIST = NODES + '/node%d/cpulist'
_HUGE_PAGES = 'sys/kernel/mm/hugepages'


def read(root: str = '/') -> model.Topology:
    """Read the host's topology as it is now.

    A kernel without NUMA is one node 0 with all CPUs. A node's ``cpus`` are those that guests
    may use: online, neither isolated nor nohz_full. ``cores`` holds every online CPU.

    :raises TopologyError: a file is malformed; the message names it
    """
    online = read_cpus(root, _ONLINE)
    isolated = read_cpus(root, CPUS + '/isolated') or frozenset()
    nohz_full = read_cpus(root, CPUS + '/nohz_full') or frozenset()
    numbers = _node_numbers(root)
    on_node = {number: cpus_of_node(number, root) for number in numbers}
    meminfo = NODES + '/node%d/meminfo'
    if not numbers:
        numbers, on_node, meminfo = (0,), {0: online or frozenset()}, 'proc/meminfo'
    if online is None:
        online = frozenset[int]().union(*on_node.values())
    if not online:
        raise TopologyError('%s/online: no CPU is online' % path_of(root, CPUS))
    usable = online - isolated - nohz_full
    on_node, problems = _on_one_node(root, on_node, online)
    nodes = tuple(
        _read_node(
            root,
            number,
            on_node[number] & usable,
            on_node[number],
            meminfo.replace('%d', str(number)),
        )
        for number in numbers
    )
    if any(node.memory_bytes and not node.online_cpus for node in nodes):
        from nova_numa_pmc.host import memory_kinds  # few hosts have such nodes

        nodes = memory_kinds.with_memory(nodes, root)
    totals = _huge_page_totals(root)
    if totals:
        from nova_numa_pmc.host import huge_pages  # few hosts have any

        nodes = huge_pages.nodes_with_huge_pages(root, nodes, totals)
    return model.Topology(
        nodes, _read_distances(root, numbers), _read_cores(root, online), problems=problems
    )


def _huge_page_totals(root: str) -> dict[str, int]:
    """Return {directory of a page size: pages} of the sizes of which the host has any.

    :raises TopologyError: a file is malformed
    """
    try:
        names = os.listdir(path_of(root, _HUGE_PAGES))
    except OSError:
        return {}
    pages = {
        name: read_whole_number(root, '%s/%s/nr_hugepages' % (_HUGE_PAGES, name), AMOUNT_MAX)
        for name in names
    }
    return {'%s/%s' % (_HUGE_PAGES, name): total for name, total in pages.items() if total}


def _on_one_node(
    root: str, on_node: Mapping[int, frozenset[int]], online: frozenset[int]
) -> tuple[dict[int, frozenset[int]], tuple[str, ...]]:
    """Leave each online CPU on one node, and report where firmware has it on others.

    :param on_node: {node id: its CPUs}
    :returns: ({node id: its online CPUs}, problems)
    """
    by_node: dict[int, frozenset[int]] = {}
    left = online
    problems: list[str] = []
    for number, cpus in on_node.items():
        twice = cpus & online - left
        if twice:
            problems.append(
                '%s: CPUs %s are also on another node, and counted there'
                % (path_of(root, _CPULIST % number), format_cpulist(twice))
            )
        by_node[number] = cpus & left
        left -= cpus
    if left:
        problems.append(
            '%s/node*/cpulist: CPUs %s are online and on no node: no guest is placed '
            'on them' % (path_of(root, NODES), format_cpulist(left))
        )
    return by_node, tuple(problems)


def read_online(root: str = '/') -> frozenset[int]:
    """Return the host's online CPUs; empty: they cannot be read."""
    try:
        return read_cpus(root, _ONLINE) or frozenset()
    except TopologyError:
        return frozenset()


def cpus_of_node(number: int, root: str = '/') -> frozenset[int]:
    """Read a node's CPUs; return an empty set where it has none or is absent.

    :raises TopologyError: the file cannot be read or understood
    """
    return read_cpus(root, _CPULIST % number) or frozenset()


def pci_device_node(address: str, root: str = '/') -> int | None:
    """Return the node that a PCI device '0000:3b:00.1' is attached to, None if not known.

    The kernel reads -1 where the firmware does not report it; a device that is gone is not known.

    :raises TopologyError: the address is no PCI address, or the file is malformed
    """
    address = address.lower()
    if not _is_pci_address(address):
        raise TopologyError('%a is not a PCI address like 0000:3b:00.1' % address[:40])
    path = 'sys/bus/pci/devices/%s/numa_node' % address
    text = read_text(root, path)
    if text is None or text == '-1':
        return None
    return whole_number(root, path, text, CPUS_MAX - 1)


def host_device_node(name: str, root: str = '/') -> int | None:
    """Return the node of a network interface 'eth0' or block device '/dev/nvme0n1'.

    None: not known, or no device of a bus (a bridge, a volume of several disks).

    :raises TopologyError: the file is malformed
    """
    kind = 'net'
    if name.startswith('/dev/'):
        path = os.path.realpath(path_of(root, name[1:]))  # /dev/disk/by-id/... and the like
        kind, name = 'block', os.path.basename(path)
    if not name or '/' in name or name in ('.', '..'):
        return None
    for above in ('device', 'device/device'):  # of an NVMe namespace first its controller
        path = 'sys/class/%s/%s/%s/numa_node' % (kind, name, above)
        text = read_text(root, path)
        if text is not None:
            return None if text == '-1' else whole_number(root, path, text, CPUS_MAX - 1)
    return None


def _is_pci_address(address: str) -> bool:
    parts = address.replace('.', ':').split(':')
    # A domain beyond four digits is how the kernel numbers Intel VMD's.
    return (
        len(parts) == 4
        and address.count('.') == 1
        and address[-2] == '.'
        and 4 <= len(parts[0]) <= 8
        and [len(part) for part in parts[1:]] == [2, 2, 1]
        and HEX_DIGITS.issuperset(''.join(parts))
    )


def _node_numbers(root: str) -> tuple[int, ...]:
    """Return the numbers of the online nodes, ascending; they need not be contiguous."""
    try:
        names = os.listdir(path_of(root, NODES))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise TopologyError('%s: %s' % (path_of(root, NODES), error.strerror)) from error
    return tuple(
        sorted(int(name[4:]) for name in names if name[:4] == 'node' and is_number(name[4:]))
    )


def _read_node(
    root: str, number: int, cpus: frozenset[int], online_cpus: frozenset[int], meminfo: str
) -> model.Node:
    fields = meminfo_bytes(root, meminfo, ('MemTotal', 'MemFree', *UNRECLAIMABLE_FIELDS))
    if fields is None:
        return model.Node(number, cpus, online_cpus=online_cpus)
    if 'MemTotal' not in fields or 'MemFree' not in fields:
        raise TopologyError('%s: contains no MemTotal or no MemFree' % path_of(root, meminfo))
    return model.Node(
        number,
        cpus,
        fields['MemTotal'],
        min(fields['MemFree'], fields['MemTotal']),
        sum(fields.get(field, 0) for field in UNRECLAIMABLE_FIELDS),
        online_cpus=online_cpus,
    )


def _read_distances(root: str, numbers: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the SLIT matrix by position; the kernel's rows hold the online nodes only."""
    rows = []
    for number in numbers:
        path = '%s/node%d/distance' % (NODES, number)
        text = read_text(root, path)
        if text is None:
            row = tuple(
                LOCAL_DISTANCE if other == number else REMOTE_DISTANCE for other in numbers
            )
        else:
            row = tuple(whole_number(root, path, item, DISTANCE_MAX) for item in text.split())
        if len(row) != len(numbers) or 0 in row:
            raise TopologyError(
                '%s: %a are not %d distances from 1 to %d'
                % (path_of(root, path), (text or '')[:80], len(numbers), DISTANCE_MAX)
            )
        rows.append(row)
    return tuple(rows)


def _read_cores(root: str, online: frozenset[int]) -> tuple[frozenset[int], ...]:
    """Return the online SMT siblings of each core, by lowest CPU."""
    smt = read_text(root, CPUS + '/smt/active')
    if smt is not None and smt == '0':
        return tuple(frozenset((cpu,)) for cpu in sorted(online))
    cores: list[frozenset[int]] = []
    seen: set[int] = set()
    for cpu in sorted(online):
        if cpu in seen:
            continue
        siblings = read_cpus(root, '%s/cpu%d/topology/thread_siblings_list' % (CPUS, cpu))
        core = ((siblings or frozenset()) & online - seen) | {cpu}
        cores.append(core)
        seen |= core
    return tuple(cores)
