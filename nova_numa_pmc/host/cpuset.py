# SPDX-License-Identifier: Apache-2.0
"""Hold a guest to CPUs and bring its memory along, by writes that are undone on failure.

At rest, CPUs are narrow and memory is unbound: a guest bound to a full node is killed for lack of
memory even if another node has some free, while a guest whose vCPUs merely run there fills the
node by first touch and spills. So ``cpuset.mems`` is narrowed only to bring over what was
touched so far, in the group of QEMU's main thread: the kernel then moves the pages of the
whole address space (update_tasks_nodemask() in kernel/cgroup/cpuset.c goes by the tasks in
the group, and each has QEMU's mm), while the vCPUs' own groups may still allocate anywhere.

CPUs are held where libvirt itself would: at the emulator's, vCPUs' and I/O threads' groups. A
narrowed group above them makes libvirt's commands fail: on v1 a vCPU cannot be plugged and a
guest cannot be started, on v2 ``virsh vcpupin`` cannot take a CPU outside of it. So ``libvirt/``
is wide except for the moment before the vCPUs' groups exist (v2), and a plugged vCPU starts
wide until our set is written again.
"""

from __future__ import annotations

import os

from nova_numa_pmc.cpulist import format_cpulist, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, CpusetError, GuestGone, PinnedByOthers
from nova_numa_pmc.host import writes
from nova_numa_pmc.host.cgroups import bytes_off, memory_by_node, resident_bytes
from nova_numa_pmc.host.files import read_kernel_file
from nova_numa_pmc.host.held import (
    Cpuset,
    file_of,
    groups_set_by_others,
    read_cpusets,
    written_groups,
)
from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from nova_numa_pmc.host.cgroups import GuestGroups
    from nova_numa_pmc.host.writes import FileChange, Writer

    #: Of writes to come: path, text.
    Steps = list[tuple[str, str]]

#: What became of a guest's memory.
NOT_REQUESTED = 'not_requested'  # only CPUs were requested
LOCAL = 'local'  # nothing of it lies elsewhere
BROUGHT = 'brought'  # memory was moved, and is unbound again
BOUND = 'bound'  # moved, and held there
TOO_MUCH = 'too_much'  # not moved: more lies elsewhere than one write may move
PINNED = 'pinned'  # not moved: a group holds another set that is not ours
UNKNOWN = 'unknown'  # not moved: how much lies elsewhere is unknown

#: If more than this share of the memory to move was left behind, a second pass is made.
_LEFT_RATIO = 0.01

#: The kernel moves pages for cpusets in one ordered queue that every cpuset and cgroup.procs
#: write on the host waits for; larger moves go by move_pages(2) in batches.
BRING_OVER_LIMIT_BYTES = 64 << 20


class HoldResult(Record):
    """Result of :func:`hold`.

    :param changes: the changed files, in the order written; empty: all was as requested
    :param cpus: those requested
    :param cpus_effective: CPUs that the kernel lets the guest use; None: not reported. Fewer than
        ``cpus`` if one is offline or outside of the parent's set
    :param memory: one of the constants above
    :param left_bytes: bytes off the requested nodes after a move; None: unknown, or nothing was
        moved. A kernel moves what it can (before 5.15, nothing on v2), and does not report how
        much
    """

    changes: tuple[writes.FileChange, ...]
    cpus: frozenset[int]
    cpus_effective: frozenset[int] | None
    memory: str
    left_bytes: int | None = None


def hold(
    groups: GuestGroups,
    cpus: frozenset[int],
    mems: frozenset[int] | None = None,
    bring_over_limit_bytes: int = BRING_OVER_LIMIT_BYTES,
    stay_bound: bool = False,
    ours: Cpuset | None = None,
    write: Writer = writes.write,
    huge_by_node: Mapping[int, int] | None = None,
    set_by_others: Container[str] = frozenset(),
) -> HoldResult:
    """Hold a guest to ``cpus`` and, unless ``mems`` is None, bring its memory to those nodes.

    :param cpus: not empty
    :param mems: node ids, not empty, or None: leave memory alone; nodes without
        memory among them are left out, which v1 and older v2 refuse (EINVAL)
    :param bring_over_limit_bytes: leave memory alone if more than this lies elsewhere
    :param stay_bound: keep ``cpuset.mems`` at ``mems`` instead of unbinding it again
    :param ours: what an earlier call left; what holds exactly this may be
        changed, any other set that does not contain the requested one is a pin by others
    :param huge_by_node: {node id: bytes} of its huge pages, which the groups do not count; None:
        not known, so that any of them may have to move
    :param set_by_others: names of groups ('vcpu0') whose CPUs others have set; left alone
    :raises PinnedByOthers: nothing was written
    :raises GuestGone: the guest ended meanwhile
    :raises CpusetError: names the file, the value, the error and what was undone, or not
    """
    if not cpus or (mems is not None and not mems):
        raise CpusetError('%s: an empty set was requested' % groups.target)
    ours = ours or Cpuset(frozenset(), frozenset())
    if mems is not None:
        from nova_numa_pmc.host import allowed_mems  # seldom needed at a start

        mems = allowed_mems.only_with_memory(groups, mems)
    cpusets = read_cpusets(groups)
    theirs = [
        name
        for name in groups_set_by_others(groups, cpusets, cpus, ours.cpus)
        if name not in set_by_others
    ]
    if theirs:
        raise PinnedByOthers(
            '%s contains %s, which nova-numa-pmc did not write: the guest is left alone'
            % (
                file_of(os.path.join(groups.target, theirs[0]), 'cpus'),
                format_cpulist(cpusets[os.path.join(groups.target, theirs[0])].cpus),
            )
        )
    steps = _cpu_steps(groups, cpusets, cpus, ours.cpus, set_by_others)
    memory, off_bytes, memory_steps = _memory_steps(
        groups, cpusets, mems, bring_over_limit_bytes, stay_bound, ours.mems, huge_by_node
    )
    changes = writes.run(groups.scope, steps + memory_steps, write)
    left_bytes = None
    if mems is not None and off_bytes and memory in (BROUGHT, BOUND):
        left_bytes = _off_bytes(groups, mems, exactly=True)
        if left_bytes and _LEFT_RATIO * off_bytes < left_bytes < off_bytes:
            left_bytes = _bring_the_rest(groups, cpusets, mems, memory, memory_steps, write)
    return HoldResult(changes, cpus, _effective(groups), memory, left_bytes)


def release_memory(
    groups: GuestGroups, mems: frozenset[int], write: Writer = writes.write
) -> tuple[FileChange, ...]:
    """Unbind the memory of a guest that :func:`hold` left bound to ``mems``.

    Groups that hold another set are left alone.

    :raises GuestGone, CpusetError: as :func:`hold`
    """
    return writes.run(groups.scope, _unbinding_steps(groups, read_cpusets(groups), mems), write)


def release_cpus(groups: GuestGroups, write: Writer = writes.write) -> tuple[FileChange, ...]:
    """Let a guest run wherever the group above its own may.

    Where each child is written, one that holds another set than the others is left alone.

    :raises GuestGone, CpusetError: as :func:`hold`
    """
    cpusets = read_cpusets(groups)
    above = _handover_steps(groups, cpusets, (cpusets[groups.target].cpus,), 'cpus')
    chosen = [directory for directory in written_groups(groups) if directory in cpusets]
    if len({cpusets[directory].cpus for directory in chosen}) > 1:
        counts = [cpusets[directory].cpus for directory in chosen]
        usual = max(counts, key=counts.count)
        chosen = [directory for directory in chosen if cpusets[directory].cpus == usual]
    wide = (
        _possible_cpus(groups)
        if groups.version == 2
        else format_cpulist(cpusets[groups.target].cpus)
    )
    return writes.run(
        groups.scope,
        above
        + [
            (file_of(directory, 'cpus'), wide)
            for directory in chosen
            if groups.version == 1 or cpusets[directory].cpus
        ],
        write,
    )


def undo(
    groups: GuestGroups, changes: tuple[FileChange, ...], write: Writer = writes.write
) -> tuple[FileChange, ...]:
    """Take back what :func:`hold` changed, last first, where it was not changed since.

    :returns: the changes made
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
    return writes.run(groups.scope, steps, write)


def narrow_early(groups: GuestGroups, cpus: frozenset[int], write: Writer = writes.write) -> bool:
    """Hold a guest's QEMU to ``cpus`` before its vCPUs have groups (v2); nothing is read back.

    ``libvirt/`` is narrowed, and :func:`hold` hands over to the groups below it.

    :returns: whether that was written; False: there are vCPUs, or others have set it
    :raises OSError: as the kernel says
    """
    path = file_of(groups.target, 'cpus')
    if (
        groups.version != 2
        or groups.target == groups.scope
        or read_kernel_file(path).strip()
        or any(os.path.basename(child) != 'emulator' for child in groups.children)
    ):
        return False
    write(path, format_cpulist(cpus))
    return True


def widen_early(
    groups: GuestGroups, cpus: frozenset[int], write: Writer = writes.write
) -> tuple[FileChange, ...]:
    """Take back :func:`narrow_early` of a guest that is not held after all.

    :raises GuestGone, CpusetError: as :func:`hold`
    """
    return writes.run(
        groups.scope, _handover_steps(groups, read_cpusets(groups), (cpus,), 'cpus'), write
    )


def _cpu_steps(
    groups: GuestGroups,
    cpusets: Mapping[str, Cpuset],
    cpus: frozenset[int],
    ours: frozenset[int],
    set_by_others: Container[str],
) -> Steps:
    text = format_cpulist(cpus)
    if groups.writes_target:
        return [(file_of(groups.target, 'cpus'), text)]
    # A pin within the requested set stays as it is.
    steps = _upper_steps(groups, cpus) + [
        (file_of(directory, 'cpus'), text)
        for directory, own in cpusets.items()
        if directory != groups.target
        and os.path.basename(directory) not in set_by_others
        and (not own.cpus or own.cpus >= cpus or own.cpus == ours or not own.cpus <= cpus)
    ]
    return steps + _handover_steps(groups, cpusets, (cpus, ours), 'cpus')


def _handover_steps(
    groups: GuestGroups, cpusets: Mapping[str, Cpuset], sets: Container[frozenset[int]], kind: str
) -> Steps:
    """Return steps that undo our narrowing of ``libvirt/`` before it had groups below (v2).

    Any other set there was made by others, as was any of the scope.
    """
    own = getattr(cpusets[groups.target], kind)
    if (
        groups.version != 2
        or groups.writes_target
        or groups.target == groups.scope
        or not own
        or own not in sets
    ):
        return []
    wide = _possible_cpus(groups) if kind == 'cpus' else _unbound_mems(groups)
    return [(file_of(groups.target, kind), wide)]


def _unbound_mems(groups: GuestGroups) -> str:
    """Call :func:`allowed_mems.unbound_mems`, importing it late: seldom needed at a start."""
    from nova_numa_pmc.host import allowed_mems

    return allowed_mems.unbound_mems(groups)


def _possible_cpus(groups: GuestGroups) -> str:
    """Return all CPUs that the host may ever have, '' (inherited) where not reported.

    v2 takes absent ones (cpuset_bind() in kernel/cgroup/cpuset.c), so that what is plugged into
    the host, or given to the guest by a group above, is not kept from it later.
    """
    path = os.path.join(groups.proc, '../../sys/devices/system/cpu/possible')
    try:
        return read_kernel_file(path).strip()
    except OSError:
        return ''


def _memory_steps(
    groups: GuestGroups,
    cpusets: Mapping[str, Cpuset],
    mems: frozenset[int] | None,
    limit_bytes: int,
    stay_bound: bool,
    ours: frozenset[int],
    huge_by_node: Mapping[int, int] | None,
) -> tuple[str, int | None, Steps]:
    """Plan the steps for a guest's memory.

    :returns: (outcome, bytes off the nodes, steps)
    """
    if mems is None:
        return NOT_REQUESTED, None, []
    if any(
        own.mems and not own.mems >= mems and own.mems != ours
        for directory, own in cpusets.items()
        if groups.writes_target or directory != groups.target
    ):
        return PINNED, None, []
    off_bytes = _off_bytes(groups, mems, huge_by_node=huge_by_node)
    if off_bytes is None or off_bytes > limit_bytes:
        return UNKNOWN if off_bytes is None else TOO_MUCH, off_bytes, []
    if groups.main not in cpusets:
        raise GuestGone('%s: the guest is ending' % groups.main)
    # A guest bound elsewhere is unbound first: a child cannot have what its parent lacks.
    steps = [] if ours == mems else _unbinding_steps(groups, cpusets, ours)
    main = file_of(groups.main, 'mems')
    planned = dict(steps)
    rest = planned[main] if main in planned else _rest(groups, cpusets)
    migrate = os.path.join(groups.main, 'cpuset.memory_migrate')
    moving = off_bytes and groups.version == 1
    if moving:
        steps.append((migrate, '1'))
    if stay_bound:
        steps += [
            (file_of(directory, 'mems'), format_cpulist(mems))
            for directory in written_groups(groups)
            if directory in cpusets
        ]
        steps += _handover_steps(groups, cpusets, (mems,), 'mems')
    elif off_bytes:
        steps += [(main, format_cpulist(mems)), (main, rest)]
    if moving:
        steps.append((migrate, _migrates(migrate)))
    return BOUND if stay_bound else BROUGHT if off_bytes else LOCAL, off_bytes, steps


def _rest(groups: GuestGroups, cpusets: Mapping[str, Cpuset]) -> str:
    """Return the mems of the main thread's group once memory has been brought over."""
    own = format_cpulist(cpusets[groups.main].mems)
    return own or (groups.version == 2 and _unbound_mems(groups)) or ''


def _bring_the_rest(
    groups: GuestGroups,
    cpusets: Mapping[str, Cpuset],
    mems: frozenset[int],
    memory: str,
    steps: Steps,
    write: Writer,
) -> int | None:
    """Move memory once more, as pages in use or being faulted in stayed behind.

    :returns: bytes that are still on other nodes; None: unknown
    """
    if memory == BOUND:
        # Only a change of the set moves pages.
        wide = _unbound_text(groups, cpusets)
        steps = [
            (file_of(directory, 'mems'), wide)
            for directory in written_groups(groups)
            if directory in cpusets
        ] + steps
    try:
        writes.run(groups.scope, steps, write)
    except GuestGone:
        raise
    except CpusetError:
        pass  # the first pass stands, and what is left is reported
    return _off_bytes(groups, mems, exactly=True)


def _migrates(path: str) -> str:
    """Read v1's memory_migrate as it is, '0' when unreadable (the write will report why)."""
    try:
        return read_kernel_file(path).strip()
    except OSError:
        return '0'


def _off_bytes(
    groups: GuestGroups,
    mems: frozenset[int],
    exactly: bool = False,
    huge_by_node: Mapping[int, int] | None = None,
) -> int | None:
    """Return the bytes that a write of ``mems`` may have to move, None if unknown.

    :param exactly: count only those that are known to lie off ``mems``
    """
    by_node = memory_by_node(groups)
    if by_node is None:
        return None if exactly else resident_bytes(groups, 'VmRSS', 'HugetlbPages')
    off_bytes = bytes_off(by_node, mems)
    if exactly:
        return off_bytes
    if huge_by_node is not None:
        return off_bytes + bytes_off(huge_by_node, mems)
    # Where pages of a pool lie is not reported there: any of them may have to move.
    return off_bytes + (resident_bytes(groups, 'HugetlbPages') or 0)


def _unbound_text(groups: GuestGroups, cpusets: Mapping[str, Cpuset]) -> str:
    """Return the text by which the memory of a group below the guest's own is unbound."""
    return (
        _unbound_mems(groups)
        if groups.version == 2
        else format_cpulist(cpusets[groups.target].mems)
    )


def _unbinding_steps(
    groups: GuestGroups, cpusets: Mapping[str, Cpuset], mems: frozenset[int]
) -> Steps:
    """Return steps that unbind each group bound to exactly ``mems``, from the top down."""
    wide = _unbound_text(groups, cpusets)
    above = _handover_steps(groups, cpusets, (mems,), 'mems')
    return above + [
        (file_of(directory, 'mems'), wide)
        for directory in written_groups(groups)
        if mems and directory in cpusets and cpusets[directory].mems == mems
    ]


def _upper_steps(groups: GuestGroups, cpus: frozenset[int]) -> Steps:
    """Return steps that let the guest's own upper groups hold ``cpus``, from the top down.

    Only v1 needs them: there a child's set must be within its parent's (else EACCES), and
    CPUs that were offline once are missing from the parent's for good.
    """
    steps = []
    for directory in dict.fromkeys((groups.scope, groups.target)) if groups.version == 1 else ():
        path = file_of(directory, 'cpus')
        try:
            own = parse_cpulist(read_kernel_file(path))
        except (OSError, CpuListError) as error:
            raise CpusetError('%s: %s' % (path, error)) from None
        if not own >= cpus:
            steps.append((path, format_cpulist(own | cpus)))
    return steps


def _effective(groups: GuestGroups) -> frozenset[int] | None:
    """Read the CPUs that the kernel lets a guest use; None: not reported."""
    name = 'cpuset.cpus.effective' if groups.version == 2 else 'cpuset.effective_cpus'
    cpus: frozenset[int] = frozenset()
    for directory in written_groups(groups):
        try:
            cpus |= parse_cpulist(read_kernel_file(os.path.join(directory, name)))
        except (OSError, CpuListError):
            continue
    return cpus or None
