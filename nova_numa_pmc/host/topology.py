# SPDX-License-Identifier: Apache-2.0
"""Read the host's nodes, CPUs and huge pages from sysfs.

The libvirt hook reads these at every guest start, so few files are opened: five for the host,
three for each node, one for each core if SMT is on, and those that :mod:`memory_kinds` needs if a
node has memory but no CPUs. Files that a kernel does not have (no NUMA, no SMT control, no huge
pages) have defaults; a file that cannot be understood raises :class:`TopologyError`.

Formats: the kernel's Documentation/ABI/stable/sysfs-devices-node,
Documentation/ABI/testing/sysfs-devices-system-cpu and, for the fields of
``meminfo``, Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.core.memory_domains import DISTANCE_MAX, LOCAL_DISTANCE, REMOTE_DISTANCE
from nova_numa_pmc.cpulist import format_cpulist, is_number
from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host.files import (
    CPUS,
    NODES,
    optional_cpus,
    parse_integer,
    read_cpus,
    read_integer,
    read_meminfo_bytes,
    read_text,
)

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping

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
_CPULIST = NODES + '/node%d/cpulist'
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
    meminfo = NODES + '/node%d/meminfo'
    if not node_ids:
        node_ids, cpus_by_node, meminfo = (0,), {0: online or frozenset()}, 'proc/meminfo'
    if online is None:
        online = frozenset[int]().union(*cpus_by_node.values())
    if not online:
        raise TopologyError('%s/online: no CPU is online' % os.path.join(root, CPUS))
    usable = online.difference(*isolated_cpus(root).values())
    cpus_by_node, problems = _keep_on_one_node(root, cpus_by_node, online)
    nodes = tuple(
        _read_node(
            root,
            node_id,
            cpus_by_node[node_id] & usable,
            cpus_by_node[node_id],
            meminfo.replace('%d', str(node_id)),
        )
        for node_id in node_ids
    )
    if any(node.memory_bytes and not node.online_cpus for node in nodes):
        from nova_numa_pmc.host import memory_kinds  # few hosts have such nodes

        nodes = memory_kinds.with_memory_kinds(nodes, root)
    totals = _huge_page_totals(root)
    if totals:
        from nova_numa_pmc.host import huge_pages  # few hosts have any

        nodes = huge_pages.with_huge_pages(root, nodes, totals)
    return model.Topology(
        nodes, _read_distances(root, node_ids), _read_cores(root, online), problems=problems
    )


def _huge_page_totals(root: str) -> dict[str, int]:
    """Return {directory of a page size: number of pages} for the sizes that the host has pages of.

    :raises TopologyError: a file is malformed
    """
    try:
        names = os.listdir(os.path.join(root, _HUGE_PAGES))
    except OSError:
        return {}
    pages = {
        name: read_integer(root, '%s/%s/nr_hugepages' % (_HUGE_PAGES, name)) for name in names
    }
    return {'%s/%s' % (_HUGE_PAGES, name): total for name, total in pages.items() if total}


def _keep_on_one_node(
    root: str, cpus_by_node: Mapping[int, frozenset[int]], online: frozenset[int]
) -> tuple[dict[int, frozenset[int]], tuple[str, ...]]:
    """Keep each online CPU on one node; report CPUs that firmware puts on several nodes or none.

    :param cpus_by_node: {node id: its CPUs}
    :returns: ({node id: its online CPUs}, problems)
    """
    online_by_node: dict[int, frozenset[int]] = {}
    remaining = online
    problems: list[str] = []
    for node_id, cpus in cpus_by_node.items():
        duplicates = cpus & online - remaining
        if duplicates:
            problems.append(
                '%s: CPUs %s are also on another node, and counted there'
                % (os.path.join(root, _CPULIST % node_id), format_cpulist(duplicates))
            )
        online_by_node[node_id] = cpus & remaining
        remaining -= cpus
    if remaining:
        problems.append(
            '%s/node*/cpulist: CPUs %s are online but on no node: no guest is placed '
            'on them' % (os.path.join(root, NODES), format_cpulist(remaining))
        )
    return online_by_node, tuple(problems)


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


def _read_node(
    root: str, node_id: int, cpus: frozenset[int], online_cpus: frozenset[int], meminfo: str
) -> model.Node:
    fields = read_meminfo_bytes(root, meminfo, ('MemTotal', 'MemFree', *UNRECLAIMABLE_FIELDS))
    if fields is None:
        return model.Node(node_id, cpus, online_cpus=online_cpus)
    if 'MemTotal' not in fields or 'MemFree' not in fields:
        raise TopologyError('%s: MemTotal or MemFree is missing' % os.path.join(root, meminfo))
    return model.Node(
        node_id,
        cpus,
        fields['MemTotal'],
        min(fields['MemFree'], fields['MemTotal']),
        sum(fields.get(field, 0) for field in UNRECLAIMABLE_FIELDS),
        online_cpus=online_cpus,
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
    if smt is not None and smt == '0':
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
