# SPDX-License-Identifier: Apache-2.0
"""Hold a guest to CPUs, and bind its memory, by writes that are undone if one fails.

In the steady state, CPUs are narrow and memory is unbound. A guest that is bound to a full node is
killed by the OOM killer even if another node has free memory, whereas a guest whose vCPUs merely
run on a node fills it by first touch and then spills. ``cpuset.mems`` is therefore narrowed only
if the operator wants it, and only by the agent, which watches the nodes of bound guests.

CPUs are written to the same groups as libvirt writes them: those of the emulator, the vCPUs and
the I/O threads. Narrowing a group above them would make libvirt's commands fail: on v1 a vCPU
could not be plugged and a guest could not be started; on v2 ``virsh vcpupin`` could not use a CPU
outside of that group's set. So ``libvirt/`` is wide except for the moment before the vCPUs' groups
exist (v2), and a newly plugged vCPU is wide until our set is written again.
"""

from __future__ import annotations

import os

from nova_numa_pmc.cpulist import format_cpulist, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, CpusetError, GuestGone, PinnedByOthers
from nova_numa_pmc.host import allowed
from nova_numa_pmc.host.cgroups import bytes_elsewhere, memory_by_node
from nova_numa_pmc.host.cpusets import (
    FileChange,
    cpuset_path,
    groups_set_by_others,
    has_vanished,
    read_set,
    read_sets,
    write_file,
    write_or_undo,
)
from nova_numa_pmc.host.files import read_kernel_file, read_optional
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from nova_numa_pmc.host.cgroups import GuestGroups
    from nova_numa_pmc.host.cpusets import Writer

    #: Writes to be made, as (path, text).
    Steps = list[tuple[str, str]]

#: The kernel moves pages for cpusets in one ordered queue, for which every write to a cpuset or to
#: cgroup.procs on the host waits. Larger moves are made in batches, by move_pages(2).
FETCH_MAX_BYTES = 64 << 20


def hold(
    groups: GuestGroups,
    cpus: frozenset[int],
    written_cpus: frozenset[int] = frozenset(),
    write: Writer = write_file,
    set_by_others: Container[str] = frozenset(),
) -> tuple[FileChange, ...]:
    """Hold a guest to ``cpus``.

    :param cpus: not empty
    :param written_cpus: the CPUs that an earlier call left. A group with exactly these CPUs may be
        changed; any other set that does not contain the requested one is a pin by others
    :param set_by_others: names of groups ('vcpu0') whose CPUs others have set; these groups are
        left alone
    :returns: the changed files, in order; empty if everything was already as requested
    :raises PinnedByOthers: others have pinned the guest; nothing was written
    :raises GuestGone: the guest ended meanwhile
    :raises CpusetError: a write failed; the message names the file, the value, the error and what
        was or was not undone
    """
    if not cpus:
        raise CpusetError('%s: an empty set was requested' % groups.parent)
    own_cpus = read_sets(groups, 'cpus')
    conflicting = [
        name
        for name in groups_set_by_others(groups, own_cpus, cpus, written_cpus)
        if name not in set_by_others
    ]
    if conflicting:
        directory = os.path.join(groups.parent, conflicting[0])
        raise PinnedByOthers(
            '%s contains %s, which nova-numa-pmc did not write: the guest is left alone'
            % (cpuset_path(directory, 'cpus'), format_cpulist(own_cpus[directory]))
        )
    steps = _cpu_steps(groups, own_cpus, cpus, written_cpus, set_by_others)
    return write_or_undo(groups.scope, steps, write)


def bind_memory(
    groups: GuestGroups,
    mems: frozenset[int],
    fetch_max_bytes: int = FETCH_MAX_BYTES,
    write: Writer = write_file,
) -> tuple[str, tuple[FileChange, ...]]:
    """Bind a guest's memory to some nodes; the kernel moves its memory from other nodes along.

    The kernel moves what it can (before 5.15, nothing on v2). On v1 it moves memory only while
    ``memory_migrate`` is set.

    :param mems: node ids. Nodes without memory are left out, because the kernel refuses them on v1
        and, in older releases, on v2 (EINVAL)
    :param fetch_max_bytes: leave memory alone if more than this is on other nodes, or if that is
        unknown
    :returns: (why it was not bound, else '', the changed files)
    :raises GuestGone, CpusetError: as :func:`hold`
    """
    with_memory = allowed.only_with_memory(groups, mems)
    if with_memory is None:
        return 'none of them has memory', ()
    own_mems = read_sets(groups, 'mems')
    if any(
        own and not own >= with_memory
        for directory, own in own_mems.items()
        if directory != groups.parent
    ):
        return 'its nodes are set by others', ()
    bytes_by_node = memory_by_node(groups.pid, os.path.join(groups.proc, '../..'))
    if bytes_by_node is None:
        return 'its nodes are unknown', ()
    elsewhere_bytes = bytes_elsewhere(bytes_by_node, with_memory)
    if elsewhere_bytes > fetch_max_bytes:
        return 'too much to move at once', ()
    if groups.main not in own_mems:
        raise GuestGone('%s: the guest is ending' % groups.main)
    steps = [
        (cpuset_path(directory, 'mems'), format_cpulist(with_memory))
        for directory in own_mems
        if directory in groups.thread_cgroups
    ] + _widen_parent_steps(groups, own_mems, (with_memory,), 'mems')
    if elsewhere_bytes and groups.version == 1:
        migrate_file = os.path.join(groups.main, 'cpuset.memory_migrate')
        # If it cannot be read, the write will report why.
        before = read_optional('', migrate_file) or '0'
        steps = [(migrate_file, '1'), *steps, (migrate_file, before)]
    return '', write_or_undo(groups.scope, steps, write)


def unbind_memory(
    groups: GuestGroups, mems: frozenset[int], write: Writer = write_file
) -> tuple[FileChange, ...]:
    """Unbind the memory of a guest that :func:`bind_memory` left bound to ``mems``.

    Groups with any other set are left alone.

    :raises GuestGone, CpusetError: as :func:`hold`
    """
    own_mems = read_sets(groups, 'mems')
    unbound_text = '' if groups.version == 2 else format_cpulist(own_mems[groups.parent])
    steps = _widen_parent_steps(groups, own_mems, (mems,), 'mems') + [
        (cpuset_path(directory, 'mems'), unbound_text)
        for directory, own in own_mems.items()
        if directory in groups.thread_cgroups and mems and own == mems
    ]
    return write_or_undo(groups.scope, steps, write)


def release_cpus(
    groups: GuestGroups,
    written_cpus: frozenset[int],
    allowed_cpus: frozenset[int] | None = None,
    pinned_groups: Container[str] = (),
    write: Writer = write_file,
) -> tuple[FileChange, ...]:
    """Let a guest run on all CPUs that it may use, in groups that we have held to a set.

    This also undoes what was narrowed before ``started``, for a guest that is not held after all.

    :param written_cpus: that set; if no group has it, the commonest one counts as ours
    :param allowed_cpus: the CPUs that the guest may use; None: all
    :param pinned_groups: names of the groups that the guest's XML pins, which are left alone
    :raises GuestGone, CpusetError: as :func:`hold`
    """
    own_cpus = read_sets(groups, 'cpus')
    widening_steps = _widen_parent_steps(groups, own_cpus, (own_cpus[groups.parent],), 'cpus')
    wide_text = _wide_text(groups, own_cpus.pop(groups.parent), allowed_cpus)
    sets = {
        directory: own
        for directory, own in own_cpus.items()
        if os.path.basename(directory) not in pinned_groups
    }
    present = list(sets.values())
    if present and written_cpus not in present:
        written_cpus = max(present, key=present.count)
    return write_or_undo(
        groups.scope,
        widening_steps
        + [
            (cpuset_path(directory, 'cpus'), wide_text)
            for directory, cpus in sets.items()
            if cpus == written_cpus and (groups.version == 1 or cpus)
        ],
        write,
    )


def _wide_text(
    groups: GuestGroups, all_cpus: frozenset[int], allowed_cpus: frozenset[int] | None
) -> str:
    """Return the set of a group that may use all CPUs that its guest may use.

    :param all_cpus: those of the group above
    """
    if groups.version == 2:
        return format_cpulist(allowed_cpus) if allowed_cpus else _possible_cpus(groups)
    return format_cpulist(all_cpus & (allowed_cpus or all_cpus) or all_cpus)


def undo(groups: GuestGroups, changes: tuple[FileChange, ...], write: Writer = write_file) -> None:
    """Undo the changes that :func:`hold` made, the last first.

    A file that has been changed since is left alone.

    :raises GuestGone, CpusetError: as :func:`hold`
    """
    steps = []
    for change in reversed(changes):
        try:
            if parse_cpulist(read_set(change.path)) == parse_cpulist(change.after):
                steps.append((change.path, change.before))
        except (OSError, CpuListError) as error:
            if not has_vanished(groups.scope, change.path):
                raise CpusetError('%s: %s' % (change.path, error)) from None
    write_or_undo(groups.scope, steps, write)


def narrow_early(groups: GuestGroups, cpus: frozenset[int], write: Writer = write_file) -> bool:
    """Hold a guest's QEMU to ``cpus`` before its vCPUs have groups; do not verify the write.

    With v2, ``libvirt/`` is narrowed, unless it has groups of vCPUs or I/O threads; :func:`hold`
    later narrows the groups below it and widens it again. With v1, or without ``libvirt/``, QEMU's
    own group is narrowed.

    :returns: whether vCPUs are held by this as well
    :raises OSError, CpuListError: the file could not be read or written
    """
    if groups.version == 1 or groups.parent == groups.scope:
        narrow_group(groups.main, cpus, write)
        return False
    if groups.thread_cgroups == (groups.main,):
        narrow_group(groups.parent, cpus, write)
    return True


def narrow_group(directory: str, cpus: frozenset[int], write: Writer = write_file) -> None:
    """Hold one group to ``cpus``, unless its own set is narrower, as a pin is; do not verify.

    :raises OSError, CpuListError: the file could not be read or written
    """
    path = cpuset_path(directory, 'cpus')
    own_cpus = parse_cpulist(read_kernel_file(path))
    if not own_cpus or own_cpus > cpus:
        write(path, format_cpulist(cpus))


def _cpu_steps(
    groups: GuestGroups,
    own_cpus: Mapping[str, frozenset[int]],
    cpus: frozenset[int],
    written_cpus: frozenset[int],
    set_by_others: Container[str],
) -> Steps:
    text = format_cpulist(cpus)
    # A pin within the requested set is not changed.
    steps = _upper_steps(groups, cpus) + [
        (cpuset_path(directory, 'cpus'), text)
        for directory, own in own_cpus.items()
        if directory != groups.parent
        and os.path.basename(directory) not in set_by_others
        and (not own or own >= cpus or own == written_cpus or not own <= cpus)
    ]
    return steps + _widen_parent_steps(groups, own_cpus, (cpus, written_cpus), 'cpus')


def _widen_parent_steps(
    groups: GuestGroups,
    own_sets: Mapping[str, frozenset[int]],
    sets: Container[frozenset[int]],
    kind: str,
) -> Steps:
    """Return steps that widen ``libvirt/`` if we narrowed it before it had thread cgroups (v2).

    Any other set of it, and any set of the scope, was made by others.

    :param sets: the sets that we may have written there
    :param kind: 'cpus' or 'mems'
    """
    current = own_sets[groups.parent]
    if groups.version != 2 or groups.parent == groups.scope or not current or current not in sets:
        return []
    text = _possible_cpus(groups) if kind == 'cpus' else ''
    return [(cpuset_path(groups.parent, kind), text)]


def _possible_cpus(groups: GuestGroups) -> str:
    """Return the list of all CPUs that the host may ever have, or '' (inherit) if not reported.

    v2 accepts CPUs that are absent (cpuset_bind() in kernel/cgroup/cpuset.c). With them in its
    set, a guest may later use CPUs that are plugged into the host or that a group above is given.
    """
    return read_optional(groups.proc, '../../sys/devices/system/cpu/possible') or ''


def _upper_steps(groups: GuestGroups, cpus: frozenset[int]) -> Steps:
    """Return the steps that add ``cpus`` to the guest's own upper groups, from the top down.

    Only v1 needs them: there a child's set must be within its parent's (else EACCES), and CPUs
    that were offline once stay missing from the parent's set.
    """
    steps = []
    for directory in dict.fromkeys((groups.scope, groups.parent)) if groups.version == 1 else ():
        path = cpuset_path(directory, 'cpus')
        try:
            current = parse_cpulist(read_kernel_file(path))
        except (OSError, CpuListError) as error:
            raise CpusetError('%s: %s' % (path, error)) from None
        if not current >= cpus:
            steps.append((path, format_cpulist(current | cpus)))
    return steps
