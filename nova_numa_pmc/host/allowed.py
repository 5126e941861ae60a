# SPDX-License-Identifier: Apache-2.0
"""Determine which CPUs and memory nodes the control groups above a guest let it use: its grant.

A group's *effective* sets are what its own sets and those of all groups above it leave, without
CPUs that are offline or that another group has taken for a partition of its own. The grant of a
running guest is that of its machine's scope. Below the scope, the sets are libvirt's and ours. On
v1, it is that of the slice: libvirt copies the slice's sets into the scope, where CPUs that were
offline once stay missing, and we add them again.

A guest that has yet to start gets the sets of the slice to which its ``<resource><partition>``
maps (virSystemdMakeSliceName() in libvirt's src/util/virsystemd.c). If the first guest of a boot
is yet to create that slice, they are those of the slices above it; what the slice itself grants is
then known at ``started``, where a guest that may not use its place gets another one.

What else limits a guest (its XML, Nova's sets, isolation) is combined with its grant in
:mod:`pools`. The libvirt hook imports this module, so it imports only light modules.
"""

from __future__ import annotations

import os

from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import CpusetError
from nova_numa_pmc.host import cgroups, topology
from nova_numa_pmc.host.files import optional_cpus
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nova_numa_pmc import model
    from nova_numa_pmc.host.cgroups import GuestGroups

#: The partition of guests whose XML names none.
DEFAULT_PARTITION = '/machine'

_V1, _V2 = 'sys/fs/cgroup/cpuset', 'sys/fs/cgroup'
#: Files of a group's effective CPUs and memory nodes, on v2 and on v1.
_EFFECTIVE = (
    ('cpuset.cpus.effective', 'cpuset.mems.effective'),
    ('cpuset.effective_cpus', 'cpuset.effective_mems'),
)
#: Characters that libvirt leaves as they are in the name of a slice, apart from the dash.
_PLAIN = frozenset('0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:_.')
#: The longest name of a partition that is looked up; systemd's names of units are shorter.
_NAME_MAX = 255


def with_grants(guests: Iterable[model.Guest], root: str = '/') -> list[model.Guest]:
    """Return the guests with their grants; None in place of a set that limits nothing."""
    online = topology.read_online(root)
    with_memory = topology.nodes_with_memory(root) or frozenset()
    known: dict[str, tuple[frozenset[int], frozenset[int]]] = {}
    granted = []
    for guest in guests:
        groups = _groups_above(guest, root)
        if groups[-1] not in known:
            known[groups[-1]] = _innermost_sets(groups)
        cpus, mems = known[groups[-1]]
        granted.append(
            guest._replace(
                granted_cpus=_limit(cpus, online), granted_mems=_limit(mems, with_memory)
            )
        )
    return granted


def host_with_usable_cpus(root: str) -> model.Topology:
    """Read the topology, with the usable CPUs of libvirt's default partition as nodes' ``cpus``.

    :raises TopologyError: the host cannot be read
    """
    host = topology.with_caches(topology.read(root), root)
    granted_cpus, _ = _innermost_sets(partition_groups(DEFAULT_PARTITION, root))
    return host._replace(
        nodes=tuple(
            node._replace(
                cpus=node.cpus & granted_cpus if granted_cpus else node.cpus, usable_cpus=node.cpus
            )
            for node in host.nodes
        )
    )


def limits(guest: model.Guest, root: str = '/') -> list[str]:
    """Return, as text, which groups take CPUs or memory nodes from a guest."""
    cpus = topology.read_online(root)
    mems = topology.nodes_with_memory(root) or frozenset()
    texts = []
    for group in _groups_above(guest, root):
        group_cpus, group_mems = _effective(group)
        lost = []
        if group_cpus and group_cpus & cpus < cpus:
            cpus &= group_cpus
            lost.append('CPUs %s' % (format_cpulist(cpus) or 'none'))
        if group_mems and group_mems & mems < mems:
            mems &= group_mems
            lost.append('the memory of nodes %s' % (format_cpulist(mems) or 'none'))
        if lost:
            texts.append('%s allows only %s' % (group, ' and '.join(lost)))
    return texts


def partition_groups(partition: str, root: str = '/') -> list[str]:
    """Return the groups from the root group to a partition's own one, as far as they exist."""
    groups = [_hierarchy(root)]
    plain = _plain_groups(partition)
    exists = bool(plain) and os.path.isdir(os.path.join(groups[0], plain[0]))
    for name in plain if exists else slice_names(partition):
        # systemd (cg_escape()) and libvirt put '_' before names such as 'cpu.slice' or '_a.slice'.
        below = [os.path.join(groups[-1], prefix + name) for prefix in ('', '_')]
        found = next(filter(os.path.isdir, below), None)
        if found is None:
            break
        groups.append(found)
    return groups


def slice_names(partition: str) -> list[str]:
    """Return the slice of a partition and those above it, the outermost one first.

    '/machine/nort' → ['machine.slice', 'machine-nort.slice']; empty if it can have no slice.
    """
    name = _escape(partition.lstrip('/'))
    if not name or len(name) > _NAME_MAX:
        return []
    parts = name.split('-')
    if not all(parts):  # systemd refuses such a name
        return []
    return ['%s.slice' % '-'.join(parts[: end + 1]) for end in range(len(parts))]


def only_with_memory(groups: GuestGroups, mems: frozenset[int]) -> frozenset[int] | None:
    """Return the requested nodes except for those without memory; None if none of them has any.

    The kernel refuses nodes without memory (EINVAL) on v1 and, in older releases, on v2. Nodes
    that the groups above do not grant are left out as well.
    """
    with_memory = topology.nodes_with_memory(os.path.join(groups.proc, '../..'))
    for node_ids in (with_memory, _effective(groups.scope)[1]):
        mems = mems & node_ids if node_ids else mems
    return mems or None


def _limit(found: frozenset[int], every: frozenset[int]) -> frozenset[int] | None:
    """Return those of all CPUs or nodes that were found; None if that is unknown or no limit."""
    return found & every if found and not found >= every else None


def _groups_above(guest: model.Guest, root: str) -> list[str]:
    """Return the groups that limit a guest, the outermost first."""
    try:
        machine = cgroups.find_machine_group(guest.pid, 'cpuset', root)
    except CpusetError:  # it has yet to be put there, or has ended
        return partition_groups(guest.partition, root)
    innermost = machine.scope if machine.version == 2 else os.path.dirname(machine.scope)
    groups = [machine.base]
    for name in os.path.relpath(innermost, machine.base).split('/'):
        groups.append(os.path.join(groups[-1], name))
    return groups


def _hierarchy(root: str) -> str:
    """Return the directory of the root group with the cpuset controller."""
    v1 = os.path.join(root, _V1)
    return v1 if os.path.isdir(v1) else os.path.join(root, _V2)


def _effective(directory: str) -> tuple[frozenset[int], frozenset[int]]:
    """Return the effective CPUs and memory nodes of a group; empty if it has no cpuset."""
    for names in _EFFECTIVE:
        cpus, mems = (optional_cpus(directory, name) for name in names)
        if cpus:
            return cpus, mems
    return frozenset(), frozenset()


def _innermost_sets(groups: Sequence[str]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the effective CPUs and memory nodes of the innermost groups that have any."""
    cpus, mems = frozenset[int](), frozenset[int]()
    for group in reversed(groups):
        group_cpus, group_mems = _effective(group)
        cpus, mems = cpus or group_cpus, mems or group_mems
        if cpus and mems:
            break
    return cpus, mems


def _plain_groups(partition: str) -> list[str]:
    """Return the groups of a partition without systemd (virCgroupSetPartitionSuffix())."""
    names = [name for name in partition.split('/') if name]
    if '..' in names or '.' in names or len(partition) > _NAME_MAX:
        return []
    return [
        name
        if '.' in name or (not position and name in ('machine', 'system', 'user'))
        else name + '.partition'
        for position, name in enumerate(names)
    ]


def _escape(path: str) -> str:
    """Escape a partition as virSystemdEscapeName() does: '/' as '-', others as '\\xNN'."""
    return ''.join(
        '-'
        if character == '/'
        else character
        if character in _PLAIN and (position or character != '.')
        else ''.join('\\x%02x' % byte for byte in character.encode('utf-8', 'surrogateescape'))
        for position, character in enumerate(path)
    )
