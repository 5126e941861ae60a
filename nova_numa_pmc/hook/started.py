# SPDX-License-Identifier: Apache-2.0
"""Hold a guest to its place once its QEMU runs (the hook's ``started``).

The guest is held to the CPUs that were decided on at its start, and its memory follows them: the
agent fetches memory that is elsewhere, within its budgets. If the memory cannot be moved, or
there is too much of it to move, the CPUs follow the memory.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import pools
from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import (
    CpusetError,
    GuestGone,
    NumaPmcError,
    PinnedByOthers,
    StateError,
)
from nova_numa_pmc.host import allowed, cgroups, cpusets, guests, holding, journal
from nova_numa_pmc.placing import decide, follow_memory, host_cpus

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
    guest = call.read_guest(xml)
    recorded = decide.recorded_decision(guest, call.options, call.root)
    decision = recorded or decide.decide_promise(
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
        if recorded and not decide.is_left_alone(guest):
            decision, early_cpus = _with_cpus(decision, guest, groups, call)
        else:
            early_cpus = _unrecorded_cpus(groups, guest)
            if recorded:  # since it was decided, the operator has set an override
                decision = decide.decide_promise(
                    guest, call.options, call.root, call.lock_timeout_s()
                )
        decision, bytes_by_node = follow_memory.decide_again_if_memory_stays(
            guest, groups, decision, call.options, call.root, call.lock_timeout_s()
        )
        if decision.cpus is None:  # since the start, an override was set or its CPUs were taken
            _undo_early(groups, early_cpus, guest)
            _record_left_alone(call, decision, logged=True)
            return
        hold_result = holding.hold(groups, decision.cpus, written_cpus=early_cpus)
    except NumaPmcError as error:
        _undo_early(groups, early_cpus, guest)
        if not isinstance(error, StateError):  # after which nothing can be recorded
            _record_floating(call, decision.promise, error)
        raise
    _record_held(call, guest, decision, hold_result, bytes_by_node)


def _with_cpus(
    decision: decide.Decision, guest: model.Guest, groups: cgroups.GuestGroups, call: HookCall
) -> tuple[decide.Decision, frozenset[int]]:
    """Return a recorded decision with its CPUs, and the CPUs that were written at the start.

    If the guest may not use enough of them, it is decided on again.
    """
    host = host_cpus.host_with_pool_cpus(call.root)
    promise = decide.as_granted(decision.promise, guest, host)
    cpus = pools.cpus_of_promise(promise, host, guest)
    narrowed_cpus = _narrowed_cpus(groups, decision.promise, host)
    if not pools.is_large_enough(cpus, host, guest):
        return (
            decide.decide_promise(guest, call.options, call.root, call.lock_timeout_s()),
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
    guest: model.Guest,
    decision: decide.Decision,
    hold_result: holding.HoldResult,
    bytes_by_node: Mapping[int, int],
) -> None:
    """Log and record that a guest is held to its place, and whether the agent is to bind it.

    The kernel would try in vain to move each page of locked memory, and huge pages stay.
    """
    call.log_decision(
        decision,
        _cpus_before_text(hold_result),
        _memory_text(hold_result, decision.promise, bytes_by_node),
    )
    is_bound = call.options.bind and not (guest.locked or guest.page_bytes)
    promise = decision.promise._replace(bound=is_bound and bool(decision.promise.mem_nodes))
    try:
        decide.replace_running(promise, call.options, call.root, call.lock_timeout_s())
    except StateError as error:
        call.log(journal.WARNING, '%s; the guest is placed, but not recorded as started' % error)


def _record_floating(call: HookCall, promise: model.Promise, error: NumaPmcError) -> None:
    """Record that a guest could not be held; the agent places it later, if it is ours to place."""
    missed = not isinstance(error, (PinnedByOthers, GuestGone))
    floating_promise = decide.as_floating(promise)._replace(missed=missed)
    decide.replace_running(floating_promise, call.options, call.root, call.lock_timeout_s())


def _record_left_alone(call: HookCall, decision: decide.Decision, logged: bool) -> None:
    """Record that a guest has started and that its CPUs are left alone."""
    decide.replace_running(decision.promise, call.options, call.root, call.lock_timeout_s())
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
    text = ' (local)'
    if elsewhere_bytes:
        text = ' (unbound, %d of %d KiB were elsewhere)' % (
            elsewhere_bytes + 1023 >> 10,
            sum(bytes_by_node.values()) >> 10,
        )
    if (
        hold_result.cpus_effective is not None
        and not hold_result.cpus_effective >= hold_result.cpus
    ):
        text += '; the kernel allows only CPUs %s' % format_cpulist(hold_result.cpus_effective)
    return text
