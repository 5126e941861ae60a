# SPDX-License-Identifier: Apache-2.0
"""Hold a guest to its place once its QEMU runs (the hook's ``started``).

The guest is held to the CPUs that were decided on at its start, and its memory follows them: the
agent fetches memory that is elsewhere, within its budgets. If the memory cannot be moved, or
there is too much of it to move, the CPUs follow the memory.
"""

from __future__ import annotations

from nova_numa_pmc import follow_memory, host_cpus, model, promises
from nova_numa_pmc.conf.host_options import FETCH_LIMIT_BYTES
from nova_numa_pmc.core import pools
from nova_numa_pmc.cpulist import format_cpulist, name_nodes
from nova_numa_pmc.exceptions import (
    CpusetError,
    GuestGone,
    NumaPmcError,
    PageMoveError,
    PinnedByOthers,
    StateError,
)
from nova_numa_pmc.host import allowed, cgroups, cpusets, guests, holding, journal

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc.hook import HookCall


def hold(call: HookCall, xml: bytes) -> None:
    """Carry out the decision made at the guest's start; if there was none, decide now.

    :param xml: the domain's XML
    :raises NumaPmcError: the guest is left as it is, and its promise says so, unless it is the
        promise that could not be read or written
    """
    guest = guests.parse_live(xml, call.root)
    recorded = promises.recorded_decision(guest, call.options, call.root)
    decision = recorded or promises.decide_promise(
        guest, call.options, call.root, call.lock_timeout_s()
    )
    if decision.promise.origin != model.PLACED:
        if not recorded:
            _undo_unrecorded(guest, call.root)
        _record_left_alone(call, decision, logged=bool(decision.problems))
        return
    groups, early_cpus = None, frozenset[int]()
    try:
        guest = guests.with_process(guest, call.root)
        groups = cgroups.of_guest(guest, call.root)
        # The group of its own, or a slice that it was the first to need, may limit it further.
        (guest,) = allowed.Grants(call.root).apply([guest])
        if recorded:
            decision, early_cpus = _with_cpus(decision, guest, groups, call)
            if promises.is_left_alone(guest, call.root):  # since it was decided
                decision = promises.decide_promise(
                    guest, call.options, call.root, call.lock_timeout_s()
                )
        else:
            early_cpus = _unrecorded_cpus(groups, guest)
        decision, bytes_by_node = follow_memory.decide_again_if_memory_stays(
            guest, groups, decision, call.options, call.root, call.lock_timeout_s()
        )
        if decision.cpus is None:  # since the start, an override was set or its CPUs were taken
            _undo_early(groups, early_cpus, guest)
            _record_left_alone(call, decision, logged=True)
            return
        hold_result = holding.hold(groups, decision.cpus, written_cpus=early_cpus)
        if _record_bound(call, guest, decision.promise, bytes_by_node):
            hold_result = _bind(call, groups, decision, hold_result)
    except NumaPmcError as error:
        _undo_early(groups, early_cpus, guest)
        if not isinstance(error, StateError):  # after which nothing can be recorded
            _record_floating(call, decision.promise, error)
        raise
    _record_held(call, decision, hold_result, bytes_by_node)


def _with_cpus(
    decision: promises.Decision, guest: model.Guest, groups: cgroups.GuestGroups, call: HookCall
) -> tuple[promises.Decision, frozenset[int]]:
    """Return a recorded decision with its CPUs, and the CPUs that were written at the start.

    If the guest may not use enough of them, it is decided on again.
    """
    host = host_cpus.host_with_pool_cpus(call.root)
    promise = promises.as_granted(decision.promise, guest, host)
    cpus = pools.cpus_of_promise(promise, host, guest)
    narrowed_cpus = _narrowed_cpus(groups, decision.promise, host)
    if not pools.is_large_enough(cpus, host, guest):
        return (
            promises.decide_promise(guest, call.options, call.root, call.lock_timeout_s()),
            narrowed_cpus,
        )
    return decision._replace(promise=promise, cpus=cpus), narrowed_cpus or cpus


def _narrowed_cpus(
    groups: cgroups.GuestGroups, promise: model.Promise, host: model.Topology
) -> frozenset[int]:
    """Return the CPUs to which ``start`` has narrowed a guest; empty if it has not.

    The floating pool may have changed since.
    """
    promised_cpus = frozenset[int]().union(
        *(node.online_cpus for node in host.nodes if node.id in promise.cpu_nodes)
    )
    cpus_by_group = cpusets.read_own_cpus(groups)
    # On v1, the group above always has a set, which is not ours.
    for group in (groups.parent, groups.main)[groups.version == 1 :]:
        cpus = cpus_by_group.get(group, frozenset())
        if cpus and cpus & host.online_cpus <= promised_cpus:
            return cpus
    return frozenset()


def _unrecorded_cpus(groups: cgroups.GuestGroups, guest: model.Guest) -> frozenset[int]:
    """Return the CPUs to which a start whose record is lost has narrowed a guest without pins."""
    cpus_by_group = cpusets.read_own_cpus(groups)
    if groups.version == 2 and groups.parent != groups.scope:
        return cpus_by_group[groups.parent]
    cpus = cpus_by_group.get(groups.main, frozenset())
    return frozenset() if cpus == (guest.allowed_cpus or cpus_by_group[groups.parent]) else cpus


def _undo_unrecorded(guest: model.Guest, root: str) -> None:
    """Widen ``libvirt/`` (v2) of a guest that is not placed, if a start had narrowed it.

    Nothing else sets its CPUs before ``started``. In other groups, libvirt does.
    """
    try:
        groups = cgroups.of_guest(guests.with_process(guest, root), root)
        if groups.version == 2 and groups.parent != groups.scope:
            _undo_early(groups, _unrecorded_cpus(groups, guest), guest)
    except NumaPmcError:
        pass


def _record_held(
    call: HookCall,
    decision: promises.Decision,
    hold_result: holding.HoldResult,
    bytes_by_node: Mapping[int, int],
) -> None:
    """Log and record that a guest is held to its place."""
    call.log_decision(
        decision,
        _cpus_before_text(hold_result),
        _memory_text(hold_result, decision.promise, bytes_by_node),
    )
    promise = decision.promise._replace(bound=hold_result.memory_outcome == holding.BOUND)
    try:
        promises.replace_running(promise, call.options, call.root, call.lock_timeout_s())
    except StateError as error:
        call.log(journal.WARNING, '%s; the guest is placed, but not recorded as started' % error)


def _record_floating(call: HookCall, promise: model.Promise, error: NumaPmcError) -> None:
    """Record that a guest could not be held; the agent places it later, if it is ours to place."""
    missed = not isinstance(error, (PinnedByOthers, GuestGone))
    floating_promise = promises.as_floating(promise)._replace(missed=missed)
    promises.replace_running(floating_promise, call.options, call.root, call.lock_timeout_s())


def _record_left_alone(call: HookCall, decision: promises.Decision, logged: bool) -> None:
    """Record that a guest has started and that its CPUs are left alone."""
    promises.replace_running(decision.promise, call.options, call.root, call.lock_timeout_s())
    if logged:
        call.log_decision(decision)


def _undo_early(
    groups: cgroups.GuestGroups | None, cpus: frozenset[int], guest: model.Guest
) -> None:
    """Widen the groups that were narrowed at the start; if that fails, the agent does it later."""
    if groups and cpus:
        try:
            holding.undo_narrow_early(groups, cpus, guest.allowed_cpus, guest.pinned_groups)
        except CpusetError:
            pass


def _bind(
    call: HookCall,
    groups: cgroups.GuestGroups,
    decision: promises.Decision,
    hold_result: holding.HoldResult,
) -> holding.HoldResult:
    """Bind the memory of a guest whose CPUs are held; return the result of both."""
    try:
        bind_result = holding.hold(
            groups,
            hold_result.cpus,
            frozenset(decision.promise.mem_nodes),
            FETCH_LIMIT_BYTES,
            stay_bound=True,
            written_cpus=hold_result.cpus,
        )
    except GuestGone:
        raise
    except CpusetError as error:
        call.log(journal.WARNING, '%s; the memory of the guest is not bound' % error)
        return hold_result
    return bind_result._replace(changes=hold_result.changes + bind_result.changes)


def _record_bound(
    call: HookCall, guest: model.Guest, promise: model.Promise, bytes_by_node: Mapping[int, int]
) -> bool:
    """Record that a guest's memory is bound, if it is to be; return whether to bind it.

    It is recorded first, because the agent watches the nodes of bound guests only, and the kernel
    kills a bound guest whose node is full. A node that is too full already is not bound to.
    """
    # The kernel would try in vain to move each page of locked memory, and huge pages stay where
    # they are.
    if not call.options.bind or guest.locked or guest.page_bytes or not promise.mem_nodes:
        return False
    from nova_numa_pmc.host.page_moves import node_room  # only needed with the option

    room = node_room.BoundRoom(call.options.placement_options.reserve_bytes, call.root)
    try:
        shortage = room.take(promise, bytes_by_node)
        if shortage:
            call.log(
                journal.WARNING,
                'its memory is not bound to %s: %s' % (name_nodes(promise.mem_nodes), shortage),
            )
            return False
        return promises.replace_running(
            promise._replace(bound=True),
            call.options,
            call.root,
            call.lock_timeout_s(),
            started=False,
        )
    except (PageMoveError, StateError) as error:
        call.log(journal.WARNING, '%s; the memory of the guest is not bound' % error)
        return False


def _cpus_before_text(hold_result: holding.HoldResult) -> str:
    for change in hold_result.changes:
        # The group that was narrowed at the start is widened again, as those below it now hold.
        if change.path.endswith('cpuset.cpus') and change.after == format_cpulist(
            hold_result.cpus
        ):
            return 'from %s to ' % (change.before or 'any')
    return ''


def _memory_text(
    hold_result: holding.HoldResult, promise: model.Promise, bytes_by_node: Mapping[int, int]
) -> str:
    homes = promise.mem_nodes or promise.cpu_nodes
    elsewhere_bytes = cgroups.bytes_elsewhere(bytes_by_node, homes)
    outcome = hold_result.memory_outcome
    if outcome == holding.NOT_REQUESTED and not elsewhere_bytes:
        outcome = holding.LOCAL
    text = ' (%s' % holding.TEXTS[outcome]
    if elsewhere_bytes:
        text += ', %d of %d KiB were elsewhere' % (
            elsewhere_bytes + 1023 >> 10,
            sum(bytes_by_node.values()) >> 10,
        )
    if hold_result.left_bytes:
        text += ', %d KiB still are' % (hold_result.left_bytes + 1023 >> 10)
    text += ')'
    if (
        hold_result.cpus_effective is not None
        and not hold_result.cpus_effective >= hold_result.cpus
    ):
        text += '; the kernel allows only CPUs %s' % format_cpulist(hold_result.cpus_effective)
    return text
