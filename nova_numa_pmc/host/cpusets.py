# SPDX-License-Identifier: Apache-2.0
"""Read the cpusets of a guest's control groups, and determine which of them are ours."""

from __future__ import annotations

import os

from nova_numa_pmc.cpulist import parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, CpusetError
from nova_numa_pmc.host import writes
from nova_numa_pmc.host.files import read_kernel_file
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from nova_numa_pmc.host.cgroups import GuestGroups


class Cpuset(Record):
    """A group's own sets; a group with an empty set (v2) inherits its parent's."""

    cpus: frozenset[int]
    mems: frozenset[int]


def read_cpusets(groups: GuestGroups) -> dict[str, Cpuset]:
    """Read the sets that each of a guest's groups has of its own, not those that it inherits.

    :returns: {directory: its sets} for the parent and the thread cgroups that still exist
    :raises GuestGone: the guest has ended
    :raises CpusetError: the parent, or a thread cgroup that still exists, cannot be read
    """
    return {directory: Cpuset(*sets) for directory, sets in _read_sets(groups, *Cpuset._fields)}


def read_own_cpus(groups: GuestGroups) -> dict[str, frozenset[int]]:
    """Read the CPUs, but not the mems, that each of a guest's groups has of its own.

    :returns: {directory: CPUs} for the parent and the thread cgroups that still exist
    :raises GuestGone, CpusetError: as :func:`read_cpusets`
    """
    return {directory: cpus for directory, (cpus,) in _read_sets(groups, 'cpus')}


def _read_sets(groups: GuestGroups, *kinds: str) -> Iterator[tuple[str, list[frozenset[int]]]]:
    for directory in (groups.parent, *groups.thread_cgroups):
        try:
            sets = [
                parse_cpulist(read_kernel_file(cpuset_path(directory, kind))) for kind in kinds
            ]
        except (OSError, CpuListError) as error:
            is_gone = writes.has_vanished(groups.scope, cpuset_path(directory, 'cpus'))
            if directory == groups.parent or not is_gone:
                raise CpusetError('%s: %s' % (directory, error)) from None
        else:
            yield directory, sets


def held_cpus(groups: GuestGroups) -> frozenset[int]:
    """Return the CPUs that a guest's own groups hold it to; empty if they hold it to none.

    :raises GuestGone, CpusetError: as :func:`read_cpusets`
    """
    cpusets = read_cpusets(groups)
    written_cpus = frozenset[int]().union(
        *(cpusets[directory].cpus for directory in written_groups(groups) if directory in cpusets)
    )
    parent_cpus = cpusets[groups.parent].cpus if groups.version == 2 else frozenset()
    return written_cpus & parent_cpus or written_cpus or parent_cpus


def is_held(
    groups: GuestGroups,
    cpus: frozenset[int],
    online: frozenset[int],
    set_by_others: Container[str] = frozenset(),
    needs_all_cpus: bool = False,
) -> bool:
    """Return whether a guest's groups hold it to ``cpus``; offline CPUs are disregarded.

    :param set_by_others: names of groups that others have set, which are disregarded
    :param needs_all_cpus: whether each group must have all of ``cpus``, not only a part
    :raises GuestGone, CpusetError: as :func:`read_own_cpus`
    """
    cpus_by_group = read_own_cpus(groups)
    if groups.writes_parent:
        cpus_by_group = {groups.parent: cpus_by_group[groups.parent]}
    else:
        parent_cpus = cpus_by_group.pop(groups.parent)
        is_narrowed = parent_cpus and parent_cpus & online <= cpus and cpus != online
        if groups.version == 2 and is_narrowed:
            return False  # still as at the guest's start: libvirt's commands would fail
    # A newly plugged vCPU has all CPUs, and has yet to be held.
    return all(
        group_cpus
        and (group_cpus & online == cpus or (not needs_all_cpus and group_cpus & online <= cpus))
        for directory, group_cpus in cpus_by_group.items()
        if os.path.basename(directory) not in set_by_others
    )


def cpusets_of_written_groups(groups: GuestGroups) -> list[Cpuset]:
    """Return the sets that the groups to which a guest's sets are written have of their own.

    :raises GuestGone, CpusetError: as :func:`read_cpusets`
    """
    cpusets = read_cpusets(groups)
    return [cpusets[directory] for directory in written_groups(groups) if directory in cpusets]


def common_cpus(groups: GuestGroups) -> frozenset[int] | None:
    """Return the CPUs that all groups have to which sets are written; None if they differ.

    :raises GuestGone, CpusetError: as :func:`read_cpusets`
    """
    sets = {cpuset.cpus for cpuset in cpusets_of_written_groups(groups)}
    return sets.pop() if len(sets) == 1 else None


def common_mems(groups: GuestGroups) -> frozenset[int]:
    """Return the mems that all groups have to which sets are written; empty if they differ.

    :raises GuestGone, CpusetError: as :func:`read_cpusets`
    """
    sets = {cpuset.mems for cpuset in cpusets_of_written_groups(groups)}
    return sets.pop() if len(sets) == 1 else frozenset()


def groups_set_by_others(
    groups: GuestGroups,
    cpusets: Mapping[str, Cpuset],
    cpus: frozenset[int],
    written_cpus: frozenset[int] = frozenset(),
) -> list[str]:
    """Return the names of the thread cgroups whose CPUs others have set.

    A subset or superset of ``cpus`` does not contradict it. Nor does a set that has no effect on
    the thread, which a libvirt command leaves behind if it fails to pin the thread.

    :param cpusets: as returned by :func:`read_cpusets`
    :param written_cpus: the CPUs that an earlier call of :func:`holding.hold` may have left
    """
    return [
        os.path.basename(directory)
        for directory, cpuset in cpusets.items()
        if directory != groups.parent
        and not (
            cpuset.cpus <= cpus
            or cpuset.cpus >= cpus
            or cpuset.cpus == written_cpus
            or _has_no_effect(groups, directory, cpuset.cpus)
        )
    ]


def _has_no_effect(groups: GuestGroups, directory: str, cpus: frozenset[int]) -> bool:
    """Return whether a set is disjoint from its parent's and therefore has no effect (v2)."""
    if groups.version != 2:
        return False
    try:
        effective = parse_cpulist(read_kernel_file(cpuset_path(directory, 'cpus') + '.effective'))
        return not cpus & effective
    except (OSError, CpuListError):
        return False


def written_groups(groups: GuestGroups) -> tuple[str, ...]:
    """Return the groups to which a guest's sets are written."""
    return (groups.parent,) if groups.writes_parent else groups.thread_cgroups


def cpuset_path(directory: str, kind: str) -> str:
    """Return the path of a group's file for a set of this kind, 'cpus' or 'mems'."""
    return os.path.join(directory, 'cpuset.' + kind)
