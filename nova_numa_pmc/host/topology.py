# SPDX-License-Identifier: Apache-2.0
"""Read the host's nodes, CPUs, caches, memory and huge pages from sysfs.

The libvirt hook reads these at every guest start, so few files are opened: five for the host,
three for each node, one for each core if SMT is on and one for each L3 cache. More are opened for
nodes with memory but without CPUs, and for hosts with huge pages. Files that a kernel does not
have (no NUMA, no SMT control, no huge pages) have defaults; a file that cannot be understood
raises :class:`TopologyError`, except where a function says that what it reads is then unknown.

Formats: the kernel's Documentation/ABI/stable/sysfs-devices-node and sysfs-devices-system-cpu
(``topology``), Documentation/ABI/testing/sysfs-devices-system-cpu (``cache/indexN``) and
sysfs-kernel-mm-hugepages, and, for the fields of ``meminfo``, Documentation/filesystems/proc.rst.

The memory of a node without CPUs may be a device's (a GPU's, which its driver has given to the
kernel) or of a slower tier (CXL, persistent memory). No file tells these apart on all kernels and
firmware, and neither is memory to start guests on, unless no node with CPUs has any (as in some
logical partitions of POWER). CPUs that are offline are CPUs of their node all the same.
"""

from __future__ import annotations

import os
import re

from nova_numa_pmc import model
from nova_numa_pmc.core.memory_domains import (
    DISTANCE_MAX,
    LOCAL_DISTANCE,
    REMOTE_DISTANCE,
    one_l3_positions,
)
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host.files import (
    CPUS,
    NODES,
    list_names,
    optional_cpus,
    parse_integer,
    read_cpus,
    read_integer,
    read_meminfo_bytes,
    read_text,
)
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    #: The CPUs of each L3 cache.
    _L3s = tuple[frozenset[int], ...]


#: Memory of a node that the kernel cannot free for guests. Unevictable and Mlocked (guests with
#: ``<locked/>``), Shmem (guests backed by memfd or shared memory) and AnonPages are left out,
#: because they contain guests' own memory, which is already promised and would be counted twice;
#: the operator's reserve per node is for what the host's daemons have of these. SecPageTables
#: (6.1) are KVM's nested page tables: they serve guests, but are not part of what is promised.
UNRECLAIMABLE_FIELDS = ('SUnreclaim', 'KernelStack', 'PageTables', 'SecPageTables')

_ONLINE = CPUS + '/online'
#: {property that isolates CPUs: the kernel's list of them}. The scheduler does not balance over
#: these CPUs. It does over those of nohz_full, or of isolcpus without its flag ``domain``.
ISOLATED = {
    'isolcpus= on the kernel command line': CPUS + '/isolated',
    'an isolated partition (cpuset.cpus.partition)': 'sys/fs/cgroup/cpuset.cpus.isolated',  # 6.7
}
_NODE = NODES + '/node%d'
_CPULIST = _NODE + '/cpulist'
_HUGE_PAGES = 'sys/kernel/mm/hugepages'


def read(root: str = '/') -> model.Topology:
    """Read the host's topology as it is now.

    With a kernel without NUMA, there is one node, 0, with all CPUs. A node's ``cpus`` are those
    that guests may use: online and not isolated (:func:`isolated_cpus`). ``cores`` contains every
    online CPU.

    :raises TopologyError: a file is malformed; the message names it
    """
    online = read_cpus(root, _ONLINE)
    node_ids = _node_ids(root)
    cpus_by_node = {node_id: cpus_of_node(node_id, root) for node_id in node_ids}
    meminfo, huge_pages = _NODE + '/meminfo', _NODE + '/hugepages'
    if not node_ids:
        node_ids, cpus_by_node = (0,), {0: online or frozenset()}
        meminfo, huge_pages = 'proc/meminfo', _HUGE_PAGES
    if online is None:
        online = frozenset[int]().union(*cpus_by_node.values())
    if not online:
        raise TopologyError('%s/online: no CPU is online' % os.path.join(root, CPUS))
    usable = online.difference(*isolated_cpus(root).values())
    sizes = _huge_page_sizes(root)
    nodes = []
    unseen = online  # a CPU that firmware puts on several nodes counts on the first
    for node_id, cpus in cpus_by_node.items():
        node = _read_node(root, node_id, cpus & unseen, meminfo.replace('%d', str(node_id)))
        directory = huge_pages.replace('%d', str(node_id))
        nodes.append(
            node._replace(
                cpus=node.online_cpus & usable,
                huge_pages=_read_huge_pages(root, directory, sizes, node.memory_bytes),
            )
        )
        unseen -= cpus
    if any(node.memory_bytes and node.online_cpus for node in nodes):
        nodes = [
            node._replace(is_far=bool(node.memory_bytes) and not _has_cpus(root, node))
            for node in nodes
        ]
    return model.Topology(tuple(nodes), _read_distances(root, node_ids), _read_cores(root, online))


def read_online(root: str = '/') -> frozenset[int]:
    """Return the host's online CPUs; empty if they cannot be read."""
    return optional_cpus(root, _ONLINE)


def isolated_cpus(root: str = '/') -> dict[str, frozenset[int]]:
    """Return {property: the CPUs that it isolates}, for the properties that isolate any.

    :raises TopologyError: a file cannot be read or understood
    """
    cpus_by_property = {name: read_cpus(root, path) for name, path in ISOLATED.items()}
    return {name: cpus for name, cpus in cpus_by_property.items() if cpus}


def cpus_of_node(node_id: int, root: str = '/') -> frozenset[int]:
    """Return a node's CPUs; empty if the node has none or does not exist.

    :raises TopologyError: the file cannot be read or understood
    """
    return read_cpus(root, _CPULIST % node_id) or frozenset()


def _node_ids(root: str) -> tuple[int, ...]:
    """Return the ids of the online nodes, ascending; they need not be contiguous."""
    try:
        names = os.listdir(os.path.join(root, NODES))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise TopologyError('%s: %s' % (os.path.join(root, NODES), error.strerror)) from error
    return tuple(
        sorted(int(name[4:]) for name in names if name[:4] == 'node' and is_number(name[4:]))
    )


def _read_node(root: str, node_id: int, online_cpus: frozenset[int], meminfo: str) -> model.Node:
    fields = read_meminfo_bytes(root, meminfo, ('MemTotal', 'MemFree', *UNRECLAIMABLE_FIELDS))
    if fields is None:
        return model.Node(node_id, frozenset(), online_cpus=online_cpus)
    if 'MemTotal' not in fields or 'MemFree' not in fields:
        raise TopologyError('%s: MemTotal or MemFree is missing' % os.path.join(root, meminfo))
    return model.Node(
        node_id,
        frozenset(),
        fields['MemTotal'],
        min(fields['MemFree'], fields['MemTotal']),
        sum(fields.get(field, 0) for field in UNRECLAIMABLE_FIELDS),
        online_cpus=online_cpus,
    )


def _has_cpus(root: str, node: model.Node) -> bool:
    """Return whether a node has CPUs, online or not; sysfs links to all that are present."""
    directory = os.path.join(root, _NODE % node.id)
    return bool(node.online_cpus) or any(
        name[:3] == 'cpu' and is_number(name[3:]) for name in list_names(directory)
    )


def _read_distances(root: str, node_ids: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the distances (SLIT) as rows and columns in the order of ``node_ids``.

    The kernel's rows contain only the online nodes.
    """
    rows = []
    for node_id in node_ids:
        path = '%s/node%d/distance' % (NODES, node_id)
        text = read_text(root, path)
        if text is None:
            row = tuple(
                LOCAL_DISTANCE if other == node_id else REMOTE_DISTANCE for other in node_ids
            )
        else:
            row = tuple(parse_integer(root, path, item, DISTANCE_MAX) for item in text.split())
        if len(row) != len(node_ids) or 0 in row:
            raise TopologyError(
                '%s: %a is not a list of %d distances from 1 to %d'
                % (os.path.join(root, path), (text or '')[:80], len(node_ids), DISTANCE_MAX)
            )
        rows.append(row)
    return tuple(rows)


def _read_cores(root: str, online: frozenset[int]) -> tuple[frozenset[int], ...]:
    """Return the online SMT siblings of each core, sorted by their lowest CPU."""
    smt = read_text(root, CPUS + '/smt/active')
    if smt == '0':
        return tuple(frozenset((cpu,)) for cpu in sorted(online))
    cores: list[frozenset[int]] = []
    seen_cpus: set[int] = set()
    for cpu in sorted(online):
        if cpu in seen_cpus:
            continue
        siblings = read_cpus(root, '%s/cpu%d/topology/thread_siblings_list' % (CPUS, cpu))
        core = ((siblings or frozenset()) & online - seen_cpus) | {cpu}
        cores.append(core)
        seen_cpus |= core
    return tuple(cores)


_CPU = CPUS + '/cpu%d/'
_L3 = 'cache/index3/'
#: Enough for every file with_caches here: /proc/cpuinfo has the vendor within its first 100 bytes.
_READ_MAX_BYTES = 4096


def with_caches(host: model.Topology, root: str = '/') -> model.Topology:
    """Return a host with its L3 caches, sockets and vendor filled in.

    :param host: as returned by :func:`read`
    """
    with_cpus = [node.online_cpus for node in host.nodes if node.online_cpus]
    if not with_cpus:
        return host
    l3s: tuple[_L3s, ...] = ()
    if _beginning(root, _CPU % min(with_cpus[0]) + _L3 + 'level') == '3':
        online = host.online_cpus
        known_l3s: list[frozenset[int]] = []
        l3s = tuple(_l3s_of(node.online_cpus, online, known_l3s, root) for node in host.nodes)
    host = host._replace(
        l3s=l3s,
        sockets=tuple(
            socket(min(node.online_cpus), root) if node.online_cpus else None
            for node in host.nodes
        )
        if len(with_cpus) > 1
        else (),
    )
    # Reading /proc/cpuinfo may wait 10 ms for the CPUs' frequencies (arch_freq_prepare_all() of
    # 4.14 to 5.16), so the vendor is with_caches only where it matters.
    if not one_l3_positions(host):
        return host
    vendor = re.search(r'^vendor_id\s*:(.*)$', _beginning(root, 'proc/cpuinfo'), re.MULTILINE)
    return host._replace(vendor=vendor[1].strip() if vendor else '')


def _l3s_of(
    cpus: frozenset[int], online: frozenset[int], known_l3s: list[frozenset[int]], root: str
) -> _L3s:
    """Return the L3 caches of some CPUs, or () if one of the CPUs does not report its cache.

    :param known_l3s: the caches found so far, to which new ones are appended
    """
    l3s: list[frozenset[int]] = []
    remaining = cpus
    while remaining:
        cpu = min(remaining)
        cache = next((l3 for l3 in known_l3s if cpu in l3), None)
        if cache is None:
            cache = optional_cpus(root, _CPU % cpu + _L3 + 'shared_cpu_list') & online
            if cpu not in cache:
                return ()
            known_l3s.append(cache)
        l3s.append(cache)
        remaining = remaining - cache
    return tuple(l3s)


def l3_id(cpu: int, root: str = '/') -> int | None:
    """Return the id of a CPU's L3 cache, or None if not reported."""
    cache = _CPU % cpu + _L3
    text = _beginning(root, cache + 'id')
    return int(text) if is_number(text) and _beginning(root, cache + 'level') == '3' else None


def socket(cpu: int, root: str = '/') -> int | None:
    """Return the id of a CPU's socket, or None if not reported."""
    text = _beginning(root, _CPU % cpu + 'topology/physical_package_id')
    return int(text) if is_number(text, 9) else None


def _beginning(root: str, path: str) -> str:
    """Return the beginning of a file, or '' if it does not exist or cannot be with_caches."""
    try:
        return read_text(root, path, _READ_MAX_BYTES) or ''
    except TopologyError:
        return ''


_WITH_CPUS = NODES + '/has_cpu'


def memory_only_nodes(root: str = '/') -> frozenset[int]:
    """Return the nodes that have memory but no CPUs.

    It is empty if this is not reported, or if no node has both: then there is no other memory.
    """
    with_cpus = optional_cpus(root, _WITH_CPUS)
    with_memory = nodes_with_memory(root) or frozenset()
    return with_memory - with_cpus if with_memory & with_cpus else frozenset()


def nodes_with_memory(root: str = '/') -> frozenset[int] | None:
    """Return the nodes with memory, which may be in a ``cpuset.mems``, or None if not reported."""
    return optional_cpus(root, NODES + '/has_memory') or None


def _huge_page_sizes(root: str) -> list[tuple[int, str]]:
    """Return (bytes of a page, name of its directory) of each size that the host has pages of.

    The largest size comes first: smaller pages fit into the memory that larger ones leave.
    """
    sizes = []
    for name in list_names(os.path.join(root, _HUGE_PAGES)):
        path = '%s/%s' % (_HUGE_PAGES, name)
        if read_integer(root, path + '/nr_hugepages'):
            digits = name.removeprefix('hugepages-').removesuffix('kB')
            sizes.append((parse_integer(root, path, digits, 1 << 40) << 10, name))
    return sorted([size for size in sizes if size[0]], reverse=True)


def _read_huge_pages(
    root: str, directory: str, sizes: list[tuple[int, str]], memory_bytes: int
) -> tuple[model.HugePages, ...]:
    """Return a node's huge pages, as far as its memory has room for them.

    :raises TopologyError: a file is malformed
    """
    pages = []
    for page_bytes, name in sizes:
        path = '%s/%s' % (directory, name)
        total = read_integer(root, path + '/nr_hugepages') or 0
        free = read_integer(root, path + '/free_hugepages') or 0
        total = min(total, memory_bytes // page_bytes)
        memory_bytes -= total * page_bytes
        if total:
            pages.append(model.HugePages(page_bytes, total, min(free, total)))
    return tuple(sorted(pages))
