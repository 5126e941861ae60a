# SPDX-License-Identifier: Apache-2.0
"""Hold a guest to CPUs and move its memory along, by writes that are undone if one fails.

In the steady state, CPUs are narrow and memory is unbound. A guest that is bound to a full node is
killed by the OOM killer even if another node has free memory, whereas a guest whose vCPUs merely
run on a node fills it by first touch and then spills. ``cpuset.mems`` is therefore narrowed only
for as long as it takes to fetch the memory touched so far, and only in the group of QEMU's
main thread. The kernel then moves the pages of the whole address space (update_tasks_nodemask() in
kernel/cgroup/cpuset.c visits the tasks of the group, all of which share QEMU's mm), while the
vCPUs' own groups may still allocate anywhere.

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
from nova_numa_pmc.host import allowed, writes
from nova_numa_pmc.host.cgroups import bytes_elsewhere, read_memory_by_node, read_resident_bytes
from nova_numa_pmc.host.cpusets import (
    Cpuset,
    cpuset_path,
    groups_set_by_others,
    read_cpusets,
    written_groups,
)
from nova_numa_pmc.host.files import optional_cpus, read_kernel_file, read_optional
from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from nova_numa_pmc.host.cgroups import GuestGroups
    from nova_numa_pmc.host.writes import FileChange, Writer

    #: Writes to be made, as (path, text).
    Steps = list[tuple[str, str]]

#: What became of a guest's memory.
NOT_REQUESTED = 'not_requested'  # only CPUs were requested
LOCAL = 'local'  # no memory is on other nodes
MOVED = 'moved'  # memory was moved, and is unbound again
BOUND = 'bound'  # memory was moved if necessary, and stays bound
TOO_MUCH = 'too_much'  # not moved: more is on other nodes than one write may move
SET_BY_OTHERS = 'set_by_others'  # not moved: a group has another set, which is not ours
UNKNOWN = 'unknown'  # not moved: how much is on other nodes is not known
#: {what became of the memory: its text for operators}
TEXTS = {
    NOT_REQUESTED: 'unbound',
    LOCAL: 'local',
    MOVED: 'moved',
    BOUND: 'bound',
    TOO_MUCH: 'too much to move at once',
    SET_BY_OTHERS: 'its nodes are set by others',
    UNKNOWN: 'its nodes are unknown',
}

#: A second pass is made if more than this share of the memory to be moved was left behind.
_LEFT_RATIO = 0.01

#: The kernel moves pages for cpusets in one ordered queue, for which every write to a cpuset or to
#: cgroup.procs on the host waits. Larger moves are made in batches, by move_pages(2).
FETCH_MAX_BYTES = 64 << 20


class HoldResult(Record):
    """Result of :func:`hold`.

    :param changes: the changed files, in the order in which they were written; empty if
        everything was already as requested
    :param cpus: the requested CPUs
    :param cpus_effective: CPUs that the kernel lets the guest use, or None if not reported; these
        are fewer than ``cpus`` if some are offline or outside of the parent's set
    :param memory_outcome: one of the constants above
    :param left_bytes: bytes that are still off the requested nodes after a move, or None if
        unknown or if nothing was moved. The kernel moves what it can (before 5.15, nothing on v2)
        and does not report how much that is
    """

    changes: tuple[writes.FileChange, ...]
    cpus: frozenset[int]
    cpus_effective: frozenset[int] | None
    memory_outcome: str
    left_bytes: int | None = None


def hold(
    groups: GuestGroups,
    cpus: frozenset[int],
    mems: frozenset[int] | None = None,
    fetch_max_bytes: int = FETCH_MAX_BYTES,
    stay_bound: bool = False,
    written_cpus: frozenset[int] = frozenset(),
    write: Writer = writes.write_file,
    set_by_others: Container[str] = frozenset(),
) -> HoldResult:
    """Hold a guest to ``cpus`` and, unless ``mems`` is None, fetch its memory to those nodes.

    :param cpus: not empty
    :param mems: node ids, not empty, or None to leave memory alone. Nodes without memory are left
        out, because the kernel refuses them on v1 and, in older releases, on v2 (EINVAL)
    :param fetch_max_bytes: leave memory alone if more than this is on other nodes. Huge pages
        count only if it is not known where the guest's memory is
    :param stay_bound: keep ``cpuset.mems`` at ``mems`` instead of unbinding it again
    :param written_cpus: the CPUs that an earlier call left. A group with exactly these CPUs may be
        changed; any other set that does not contain the requested one is a pin by others
    :param set_by_others: names of groups ('vcpu0') whose CPUs others have set; these groups are
        left alone
    :raises PinnedByOthers: others have pinned the guest; nothing was written
    :raises GuestGone: the guest ended meanwhile
    :raises CpusetError: a write failed; the message names the file, the value, the error and what
        was or was not undone
    """
    if not cpus or (mems is not None and not mems):
        raise CpusetError('%s: an empty set was requested' % groups.parent)
    if mems is not None:
        mems = allowed.only_with_memory(groups, mems)
    cpusets = read_cpusets(groups)
    conflicting = [
        name
        for name in groups_set_by_others(groups, cpusets, cpus, written_cpus)
        if name not in set_by_others
    ]
    if conflicting:
        raise PinnedByOthers(
            '%s contains %s, which nova-numa-pmc did not write: the guest is left alone'
            % (
                cpuset_path(os.path.join(groups.parent, conflicting[0]), 'cpus'),
                format_cpulist(cpusets[os.path.join(groups.parent, conflicting[0])].cpus),
            )
        )
    steps = _cpu_steps(groups, cpusets, cpus, written_cpus, set_by_others)
    memory_outcome, elsewhere_bytes, memory_steps = _memory_steps(
        groups, cpusets, mems, fetch_max_bytes, stay_bound
    )
    changes = writes.write_or_undo(groups.scope, steps + memory_steps, write)
    left_bytes = None
    if mems is not None and elsewhere_bytes and memory_outcome in (MOVED, BOUND):
        left_bytes = _bytes_elsewhere(groups, mems)
        if left_bytes and _LEFT_RATIO * elsewhere_bytes < left_bytes < elsewhere_bytes:
            left_bytes = _fetch_the_rest(
                groups, cpusets, mems, memory_outcome, memory_steps, write
            )
    return HoldResult(changes, cpus, _read_effective_cpus(groups), memory_outcome, left_bytes)


def unbind_memory(
    groups: GuestGroups, mems: frozenset[int], write: Writer = writes.write_file
) -> tuple[FileChange, ...]:
    """Unbind the memory of a guest that :func:`hold` left bound to ``mems``.

    Groups with any other set are left alone.

    :raises GuestGone, CpusetError: as :func:`hold`
    """
    return writes.write_or_undo(
        groups.scope, _unbinding_steps(groups, read_cpusets(groups), mems), write
    )


def release_cpus(
    groups: GuestGroups,
    written_cpus: frozenset[int],
    allowed_cpus: frozenset[int] | None = None,
    pinned_groups: Container[str] = (),
    write: Writer = writes.write_file,
) -> tuple[FileChange, ...]:
    """Let a guest run on all CPUs that it may use, in groups that we have held to a set.

    :param written_cpus: that set; if no group has it, the commonest one counts as ours
    :param allowed_cpus: the CPUs that the guest may use; None: all
    :param pinned_groups: names of the groups that the guest's XML pins, which are left alone
    :raises GuestGone, CpusetError: as :func:`hold`
    """
    cpusets = read_cpusets(groups)
    widening_steps = _widen_parent_steps(groups, cpusets, (cpusets[groups.parent].cpus,), 'cpus')
    sets = {
        directory: cpusets[directory].cpus
        for directory in written_groups(groups)
        if directory in cpusets and os.path.basename(directory) not in pinned_groups
    }
    present = list(sets.values())
    if present and written_cpus not in present:
        written_cpus = max(present, key=present.count)
    wide_text = _wide_text(groups, cpusets, allowed_cpus)
    return writes.write_or_undo(
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
    groups: GuestGroups, cpusets: Mapping[str, Cpuset], allowed_cpus: frozenset[int] | None
) -> str:
    """Return the set of a group that may use all CPUs that its guest may use."""
    if groups.version == 2:
        return format_cpulist(allowed_cpus) if allowed_cpus else _possible_cpus(groups)
    all_cpus = cpusets[groups.parent].cpus
    return format_cpulist(all_cpus & (allowed_cpus or all_cpus) or all_cpus)


def undo(
    groups: GuestGroups, changes: tuple[FileChange, ...], write: Writer = writes.write_file
) -> None:
    """Undo the changes that :func:`hold` made, the last first.

    A file that has been changed since is left alone.

    :raises GuestGone, CpusetError: as :func:`hold`
    """
    steps = []
    for change in reversed(changes):
        try:
            if parse_cpulist(writes.read_set(change.path)) == parse_cpulist(change.after):
                steps.append((change.path, change.before))
        except (OSError, CpuListError) as error:
            if not writes.has_vanished(groups.scope, change.path):
                raise CpusetError('%s: %s' % (change.path, error)) from None
    writes.write_or_undo(groups.scope, steps, write)


def narrow_early(
    groups: GuestGroups, cpus: frozenset[int], write: Writer = writes.write_file
) -> None:
    """Hold a guest's QEMU to ``cpus`` before its vCPUs have groups (v2); do not verify the write.

    ``libvirt/`` is narrowed; :func:`hold` later narrows the groups below it and widens
    ``libvirt/`` again. Nothing is written if the hierarchy is v1, if there is no ``libvirt/``, if
    its CPUs have already been set, or if it has groups of vCPUs or I/O threads.

    :raises OSError: the file could not be read or written
    """
    path = cpuset_path(groups.parent, 'cpus')
    if (
        groups.version == 2
        and groups.parent != groups.scope
        and not read_kernel_file(path).strip()
        and all(os.path.basename(group) == 'emulator' for group in groups.thread_cgroups)
    ):
        write(path, format_cpulist(cpus))


def undo_narrow_early(
    groups: GuestGroups,
    cpus: frozenset[int],
    allowed_cpus: frozenset[int] | None = None,
    pinned_groups: Container[str] = (),
) -> None:
    """Undo what was narrowed before ``started``, for a guest that is not held after all.

    On v1, and on v2 without ``libvirt/``, these are the groups of the emulator and of vCPUs that
    have just these CPUs.

    :param allowed_cpus: the CPUs that the guest may use; None: all
    :param pinned_groups: names of the groups that its XML pins
    :raises GuestGone, CpusetError: as :func:`hold`
    """
    cpusets = read_cpusets(groups)
    steps = _widen_parent_steps(groups, cpusets, (cpus,), 'cpus')
    if groups.version == 1 or groups.parent == groups.scope:
        text = _wide_text(groups, cpusets, allowed_cpus)
        steps = [
            (cpuset_path(directory, 'cpus'), text)
            for directory in written_groups(groups)
            if directory in cpusets
            and cpusets[directory].cpus == cpus
            and os.path.basename(directory) not in pinned_groups
        ]
    writes.write_or_undo(groups.scope, steps, writes.write_file)


def _cpu_steps(
    groups: GuestGroups,
    cpusets: Mapping[str, Cpuset],
    cpus: frozenset[int],
    written_cpus: frozenset[int],
    set_by_others: Container[str],
) -> Steps:
    text = format_cpulist(cpus)
    # A pin within the requested set is not changed.
    if groups.writes_parent:
        parent_cpus = cpusets[groups.parent].cpus
        is_pinned = parent_cpus and parent_cpus < cpus and parent_cpus != written_cpus
        return [] if is_pinned else [(cpuset_path(groups.parent, 'cpus'), text)]
    steps = _upper_steps(groups, cpus) + [
        (cpuset_path(directory, 'cpus'), text)
        for directory, cpuset in cpusets.items()
        if directory != groups.parent
        and os.path.basename(directory) not in set_by_others
        and (
            not cpuset.cpus
            or cpuset.cpus >= cpus
            or cpuset.cpus == written_cpus
            or not cpuset.cpus <= cpus
        )
    ]
    return steps + _widen_parent_steps(groups, cpusets, (cpus, written_cpus), 'cpus')


def _widen_parent_steps(
    groups: GuestGroups, cpusets: Mapping[str, Cpuset], sets: Container[frozenset[int]], kind: str
) -> Steps:
    """Return steps that widen ``libvirt/`` if we narrowed it before it had thread cgroups (v2).

    Any other set of it, and any set of the scope, was made by others.

    :param sets: the sets that we may have written there
    :param kind: 'cpus' or 'mems'
    """
    current = getattr(cpusets[groups.parent], kind)
    if (
        groups.version != 2
        or groups.writes_parent
        or groups.parent == groups.scope
        or not current
        or current not in sets
    ):
        return []
    text = _possible_cpus(groups) if kind == 'cpus' else allowed.unbound_mems(groups)
    return [(cpuset_path(groups.parent, kind), text)]


def _possible_cpus(groups: GuestGroups) -> str:
    """Return the list of all CPUs that the host may ever have, or '' (inherit) if not reported.

    v2 accepts CPUs that are absent (cpuset_bind() in kernel/cgroup/cpuset.c). With them in its
    set, a guest may later use CPUs that are plugged into the host or that a group above is given.
    """
    return read_optional(groups.proc, '../../sys/devices/system/cpu/possible') or ''


def _memory_steps(
    groups: GuestGroups,
    cpusets: Mapping[str, Cpuset],
    mems: frozenset[int] | None,
    fetch_max_bytes: int,
    stay_bound: bool,
) -> tuple[str, int | None, Steps]:
    """Plan the steps for a guest's memory.

    :returns: (``memory_outcome`` of the :class:`HoldResult`, bytes off the nodes, steps)
    """
    if mems is None:
        return NOT_REQUESTED, None, []
    if any(
        cpuset.mems and not cpuset.mems >= mems
        for directory, cpuset in cpusets.items()
        if groups.writes_parent or directory != groups.parent
    ):
        return SET_BY_OTHERS, None, []
    elsewhere_bytes = _bytes_elsewhere(groups, mems)
    if elsewhere_bytes is None:  # all of it may be
        elsewhere_bytes = read_resident_bytes(groups, 'VmRSS', 'HugetlbPages')
    if elsewhere_bytes is None or elsewhere_bytes > fetch_max_bytes:
        return UNKNOWN if elsewhere_bytes is None else TOO_MUCH, elsewhere_bytes, []
    if groups.main not in cpusets:
        raise GuestGone('%s: the guest is ending' % groups.main)
    steps: Steps = []
    main_file = cpuset_path(groups.main, 'mems')
    migrate_file = os.path.join(groups.main, 'cpuset.memory_migrate')
    needs_migrate = elsewhere_bytes and groups.version == 1
    if needs_migrate:
        steps.append((migrate_file, '1'))
    if stay_bound:
        steps += [
            (cpuset_path(directory, 'mems'), format_cpulist(mems))
            for directory in written_groups(groups)
            if directory in cpusets
        ]
        steps += _widen_parent_steps(groups, cpusets, (mems,), 'mems')
    elif elsewhere_bytes:
        steps += [
            (main_file, format_cpulist(mems)),
            (main_file, _main_unbound_text(groups, cpusets)),
        ]
    if needs_migrate:
        # If it cannot be read, the write will report why.
        steps.append((migrate_file, read_optional('', migrate_file) or '0'))
    return BOUND if stay_bound else MOVED if elsewhere_bytes else LOCAL, elsewhere_bytes, steps


def _main_unbound_text(groups: GuestGroups, cpusets: Mapping[str, Cpuset]) -> str:
    """Return the mems to give to the main thread's group once memory has been fetched."""
    current_text = format_cpulist(cpusets[groups.main].mems)
    return current_text or (groups.version == 2 and allowed.unbound_mems(groups)) or ''


def _fetch_the_rest(
    groups: GuestGroups,
    cpusets: Mapping[str, Cpuset],
    mems: frozenset[int],
    memory_outcome: str,
    steps: Steps,
    write: Writer,
) -> int | None:
    """Move memory once more, because pages in use or being allocated were left behind.

    :returns: bytes that are still on other nodes, or None if unknown
    """
    if memory_outcome == BOUND:
        # The kernel only moves pages if the set changes.
        unbound_text = _unbound_text(groups, cpusets)
        steps = [
            (cpuset_path(directory, 'mems'), unbound_text)
            for directory in written_groups(groups)
            if directory in cpusets
        ] + steps
    try:
        writes.write_or_undo(groups.scope, steps, write)
    except GuestGone:
        raise
    except CpusetError:
        pass  # the first pass remains valid, and the bytes left behind are reported
    return _bytes_elsewhere(groups, mems)


def _bytes_elsewhere(groups: GuestGroups, mems: frozenset[int]) -> int | None:
    """Return the guest's bytes off ``mems`` without huge pages, or None if unknown."""
    bytes_by_node = read_memory_by_node(groups)
    return None if bytes_by_node is None else bytes_elsewhere(bytes_by_node, mems)


def _unbound_text(groups: GuestGroups, cpusets: Mapping[str, Cpuset]) -> str:
    """Return the text that unbinds the memory of a group to which the guest's sets are written."""
    return (
        allowed.unbound_mems(groups)
        if groups.version == 2
        else format_cpulist(cpusets[groups.parent].mems)
    )


def _unbinding_steps(
    groups: GuestGroups, cpusets: Mapping[str, Cpuset], mems: frozenset[int]
) -> Steps:
    """Return the steps that unbind each group bound to exactly ``mems``, from the top down."""
    unbound_text = _unbound_text(groups, cpusets)
    widening_steps = _widen_parent_steps(groups, cpusets, (mems,), 'mems')
    return widening_steps + [
        (cpuset_path(directory, 'mems'), unbound_text)
        for directory in written_groups(groups)
        if mems and directory in cpusets and cpusets[directory].mems == mems
    ]


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


def _read_effective_cpus(groups: GuestGroups) -> frozenset[int] | None:
    """Read the CPUs that the kernel lets a guest use; return None if not reported."""
    name = 'cpuset.cpus.effective' if groups.version == 2 else 'cpuset.effective_cpus'
    cpus: frozenset[int] = frozenset()
    for directory in written_groups(groups):
        cpus |= optional_cpus(directory, name)
    return cpus or None
