# SPDX-License-Identifier: Apache-2.0
"""Read the sets that a guest's control groups hold it to, and find out which are ours."""

from __future__ import annotations

import os

from nova_numa_pmc.cpulist import parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, CpusetError
from nova_numa_pmc.host import writes
from nova_numa_pmc.host.cgroups import GuestGroups
from nova_numa_pmc.host.files import read_kernel_file
from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping


class Cpuset(Record):
    """A group's own sets, as frozensets; an empty one (v2) inherits its parent's."""

    cpus: frozenset[int]
    mems: frozenset[int]


def read_cpusets(groups: GuestGroups) -> dict[str, Cpuset]:
    """Read the own sets of a guest's groups.

    :returns: {directory: its sets} of the target and the children that still exist
    :raises GuestGone, CpusetError: the target cannot be read
    """
    return {directory: Cpuset(*sets) for directory, sets in _read_sets(groups, *Cpuset._fields)}


def own_cpus(groups: GuestGroups) -> dict[str, frozenset[int]]:
    """Read the own CPUs of a guest's groups only.

    :returns: {directory: CPUs} of the target and the children that still exist
    :raises GuestGone, CpusetError: the target cannot be read
    """
    return {directory: cpus for directory, (cpus,) in _read_sets(groups, 'cpus')}


def _read_sets(groups: GuestGroups, *kinds: str) -> Iterator[tuple[str, list[frozenset[int]]]]:
    for directory in (groups.target, *groups.children):
        try:
            sets = [parse_cpulist(read_kernel_file(file_of(directory, kind))) for kind in kinds]
        except (OSError, CpuListError) as error:
            gone = writes.has_vanished(groups.scope, file_of(directory, 'cpus'))
            if directory == groups.target or not gone:
                raise CpusetError('%s: %s' % (directory, error)) from None
        else:
            yield directory, sets


def held_cpus(groups: GuestGroups) -> frozenset[int]:
    """Return the CPUs that a guest's own groups hold it to; empty: it is held to none.

    :raises GuestGone, CpusetError: as :func:`read_cpusets`
    """
    cpusets = read_cpusets(groups)
    own = frozenset[int]().union(
        *(cpusets[directory].cpus for directory in written_groups(groups) if directory in cpusets)
    )
    above = cpusets[groups.target].cpus if groups.version == 2 else frozenset()
    return own & above or own or above


def is_held(
    groups: GuestGroups,
    cpus: frozenset[int],
    online: frozenset[int],
    set_by_others: Container[str] = frozenset(),
    exactly: bool = False,
) -> bool:
    """Return whether a guest's groups hold it to ``cpus``, offline CPUs left out.

    :param set_by_others: names of groups that others have set
    :param exactly: a proper subset of ``cpus`` does not count
    :raises GuestGone, CpusetError: as :func:`own_cpus`
    """
    own = own_cpus(groups)
    above = own.pop(groups.target)
    if groups.writes_target:
        return above & online == cpus
    if groups.version == 2 and above and above & online <= cpus != online:
        return False  # the group that the start narrowed makes libvirt's commands fail
    # A new vCPU has all CPUs.
    return all(
        group_cpus
        and (group_cpus & online == cpus or (not exactly and group_cpus & online <= cpus))
        for directory, group_cpus in own.items()
        if os.path.basename(directory) not in set_by_others
    )


def own_sets(groups: GuestGroups) -> list[Cpuset]:
    """Return the own sets of the groups to which a guest's sets are written.

    :raises GuestGone, CpusetError: as :func:`read_cpusets`
    """
    cpusets = read_cpusets(groups)
    return [cpusets[directory] for directory in written_groups(groups) if directory in cpusets]


def our_set(groups: GuestGroups) -> Cpuset | None:
    """Return the set that an earlier write left in all groups.

    None: there is no such set.
    """
    sets = {own.cpus for own in own_sets(groups)}
    return Cpuset(sets.pop(), frozenset()) if len(sets) == 1 else None


def groups_set_by_others(
    groups: GuestGroups,
    cpusets: Mapping[str, Cpuset],
    cpus: frozenset[int],
    ours: frozenset[int] = frozenset(),
) -> list[str]:
    """List the names of the children whose CPUs others have set.

    A subset or superset of ``cpus`` does not contradict it. Neither does a set that the thread
    itself does not have: a libvirt command that failed to pin the thread leaves such a set.

    :param cpusets: as :func:`read_cpusets` returns
    :param ours: what an earlier call of :func:`cpuset.hold` may have left
    """
    return [
        os.path.basename(directory)
        for directory, own in cpusets.items()
        if directory != groups.target
        and not (
            own.cpus <= cpus
            or own.cpus >= cpus
            or own.cpus == ours
            or _is_idle(groups, directory, own.cpus)
        )
    ]


def _is_idle(groups: GuestGroups, directory: str, own: frozenset[int]) -> bool:
    """Return whether a set is disjoint from its parent's and therefore has no effect (v2)."""
    if groups.version != 2:
        return False
    try:
        return not own & parse_cpulist(read_kernel_file(file_of(directory, 'cpus') + '.effective'))
    except (OSError, CpuListError):
        return False


def written_groups(groups: GuestGroups) -> tuple[str, ...]:
    """Return the groups to which a guest's sets are written."""
    return (groups.target,) if groups.writes_target else groups.children


def file_of(directory: str, kind: str) -> str:
    """Return the path of a group's file of 'cpus' or 'mems'."""
    return os.path.join(directory, 'cpuset.' + kind)
