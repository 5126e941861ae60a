# SPDX-License-Identifier: Apache-2.0
"""Keep the promises true and the guests at their places, in one pass over the guests.

For each guest, its promise is updated after a change of the guest; a start that the hook could not
finish is finished; and its cpusets are read back, and written again if they were reset. A restart
of libvirt, or systemd's daemon-reload, resets groups; CPUs come online; vCPUs are plugged in; an
agent or a hook that was killed leaves a promise whose cpuset was not written. The promise is
authoritative, because it is recorded before anything is written.

Sets of the operator take precedence and stay: a pin in libvirt's live XML, and a changed set of a
single group that had our set before. A wider set does not count as the operator's, because libvirt
and systemd leave wide sets behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.agent import binding
from nova_numa_pmc.conf import opts
from nova_numa_pmc.conf.host_options import START_GRACE_S
from nova_numa_pmc.core import eligibility, page_choice, pools, promising
from nova_numa_pmc.core.placement import l3
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.cpulist import format_cpulist, name_nodes
from nova_numa_pmc.exceptions import GuestGone, NumaPmcError, StateError
from nova_numa_pmc.host import allowed, cgroups, holding
from nova_numa_pmc.host.cpusets import common_set, groups_set_by_others, is_held, read_sets
from nova_numa_pmc.placing import decide, starts
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    import logging
    from collections.abc import Collection, Iterable

    from nova_numa_pmc.agent.agent import Tick
    from nova_numa_pmc.host.cpusets import FileChange
    from nova_numa_pmc.problem_log import ProblemLog
    from nova_numa_pmc.state.promises_file import HostPromises

#: Once a guest's sets have been written again this many times within this time [s], they are left
#: to the program or the operator that resets them.
_RESETS_MAX, _RESETS_WINDOW_S = 6, 600.0
#: Time given to the hook, its default timeout [ns]. At the default interval, the second tick that
#: sees a start finishes it.
HOOK_GRACE_NS = 2 * 10**9
#: If no more than this of a guest's memory is on other nodes, its memory is not walked through:
#: pages that QEMU and libvirt share stay there anyway. The amount is so small that even guests of
#: little more than 25 MiB have at least 99 % of their memory at home.
_NEGLIGIBLE_BYTES = 256 << 10
_STAGE, _UPDATE = 'holding guest %s', 'updating the promise of guest %s'


@dataclasses.dataclass
class _Known:
    """What is known about a running guest from one tick to the next.

    :ivar held_cpus: the CPUs that all groups except the operator's were last seen to have
    :ivar set_by_others: names of the groups that are left to the operator, as logged
    :ivar rewritten_s: monotonic times of recent writes of sets that others had changed [s]
    :ivar unfinished_since_ns: when its start was first seen unfinished; None: it is finished
    :ivar is_fetched: whether its memory was fetched, is being fetched or needed no fetching
    """

    name: str
    held_cpus: frozenset[int] | None = None
    set_by_others: frozenset[str] = frozenset()
    rewritten_s: list[float] = dataclasses.field(default_factory=list)
    unfinished_since_ns: int | None = None
    is_fetched: bool = False


class Keeper:
    """Keeps a host's guests at their places, tick by tick.

    :ivar options: the options in force
    :ivar starts_taken_over: number of starts finished since the agent was started
    """

    def __init__(
        self, options: opts.AgentOptions, root: str, log: logging.Logger, problem_log: ProblemLog
    ) -> None:
        self.options = options
        self._root = root
        self._log = log
        self._problem_log = problem_log
        self._known: dict[model.RunId, _Known] = {}
        self.starts_taken_over = 0

    def read_promises(self, tick: Tick) -> tuple[HostPromises, list[str]]:
        """Return the current promises, and problems.

        Promises of guests that are gone are dropped, and those of guests that run without one are
        added; the lock of the file is only taken if there are such guests.

        :param tick: with the host, and the guests that can be read
        :raises StateError: the running guests or the promises cannot be read
        """
        assert tick.host is not None
        host_options, boottime_ns = self.options.host_options, tick.now.boottime_ns
        before: HostPromises | None = None
        try:
            before = promises_file.read(host_options, self._root)
        except StateError:
            pass  # reported under the lock, where a damaged file is set aside
        promises = before.promises if before else {}
        remaining, unknown_names = decide.without_gone_guests(
            promises, host_options, self._root, boottime_ns
        )
        is_changed = len(remaining) < len(promises) or any(
            guest.name in unknown_names for guest in tick.guests
        )
        if before is not None and not is_changed:
            return before, []
        try:
            with promises_file.locked(host_options, self._root) as draft:
                problems = decide.reconcile(
                    draft, tick.host, host_options, self._root, boottime_ns=boottime_ns
                )
        except StateError as error:  # busy, or the file system is full
            if before is None:
                raise
            return before, [str(error)]  # the next tick tries again
        for uuid in promises.keys() - draft.promises.keys():
            self._log.info(
                'guest %s: its promise of %d MiB was dropped: the guest no longer exists',
                promises[uuid].name,
                promises[uuid].memory_bytes >> 20,
            )
        for uuid in draft.promises.keys() - promises.keys():
            promise = draft.promises[uuid]
            self._log.info(
                'guest %s: runs without a promise: counted as %s on %s, %d MiB',
                promise.name,
                promise.origin_text,
                name_nodes(promise.cpu_nodes),
                promise.memory_bytes >> 20,
            )
        return draft, problems

    def keep(self, tick: Tick, may_update: bool = True) -> None:
        """Keep all guests at their places; a failure with one of them is only logged.

        The guests that a command is moving are left alone, and only unbound if their nodes become
        too small.

        :param tick: a tick with the host and its promises, in which changed promises are replaced
        :param may_update: whether promises may be changed; not while the agent itself moves a
            guest, because its promise is compared with the one that it had when the move began
        """
        assert tick.host is not None and tick.host_promises is not None
        self._forget(tick.guests)
        if may_update:
            self._update_promises(tick, tick.host, tick.host_promises)
        binder = binding.Binder(
            self.options.host_options, self._root, self._log, tick.host, tick.host_promises
        )
        for guest in tick.guests:
            known = self._known.setdefault(guest.run_id, _Known(guest.name))
            promise = tick.host_promises.promises.get(guest.uuid)
            if promise is None:
                continue
            with self._problem_log.stage(_STAGE % guest.name):
                if guest.uuid not in tick.moving and self._is_due(known, guest, promise, tick):
                    promise = self._finish(guest, promise)
                    tick.host_promises.put(promise)
                with contextlib.suppress(GuestGone):
                    self._hold_or_unbind(known, guest, promise, tick, binder)

    def _forget(self, running: Iterable[model.Guest]) -> None:
        """Drop everything that is known about guests that are gone."""
        for run_id in self._known.keys() - {guest.run_id for guest in running}:
            name = self._known.pop(run_id).name
            self._problem_log.forget(_STAGE % name, _UPDATE % name)

    # --- The promise ---

    def _update_promises(
        self, tick: Tick, host: model.Topology, host_promises: HostPromises
    ) -> None:
        """Record what guests are promised after changes of their vCPUs or their memory.

        If the file is busy, the next tick tries again.
        """
        before = dict(host_promises.promises)
        changed = []
        for guest in tick.guests:
            promise = before.get(guest.uuid)
            if promise is None or not promise.started or guest.uuid in tick.moving:
                continue
            with self._problem_log.stage(_UPDATE % guest.name):
                after = promising.updated_promise(promise, guest, host)
                # An overridden guest goes home, and so do all if none is widened any more.
                if guest.override or self.options.rebalance != opts.AUTO:
                    after = after._replace(widened_nodes=())
                if after != promise:
                    changed.append((guest, after))
        if not changed:
            return
        try:
            with promises_file.locked(self.options.host_options, self._root) as draft:
                # What another process has recorded meanwhile is seen by the next tick.
                changed = [
                    (guest, after)
                    for guest, after in changed
                    if draft.promises.get(guest.uuid) == before[guest.uuid]
                ]
                for _, after in changed:
                    draft.put(after)
        except StateError:
            return
        for guest, after in changed:
            host_promises.put(after)
            with self._problem_log.stage(_UPDATE % guest.name):
                self._log_update(before[guest.uuid], after, guest)
                if before[guest.uuid].bound and not after.bound:
                    binding.unbind(guest, before[guest.uuid], self._root, self._log)

    def _log_update(self, before: model.Promise, after: model.Promise, guest: model.Guest) -> None:
        what, nodes, former_nodes = '', after.cpu_nodes, before.cpu_nodes
        if nodes == former_nodes:
            what, nodes, former_nodes = 'the memory of ', after.mem_nodes, before.mem_nodes
        if nodes != former_nodes:
            why = '; '.join(allowed.limits(guest, self._root))
            if not why and 'numatune' in guest.placed_by:
                why = 'numatune has bound its memory'
            self._log.warning(
                'guest %s: promised %s%s instead of %s: %s',
                after.name,
                what,
                name_nodes(nodes),
                name_nodes(former_nodes),
                why or 'there are too few CPUs for its vCPUs',
            )
        if (before.vcpus, before.memory_bytes) != (after.vcpus, after.memory_bytes):
            self._log.info(
                'guest %s: now has %d vCPUs and %d MiB (previously promised: %d and %d MiB)',
                after.name,
                after.vcpus,
                after.memory_bytes >> 20,
                before.vcpus,
                before.memory_bytes >> 20,
            )

    # --- Starts that the hook could not finish ---

    def _is_due(
        self, known: _Known, guest: model.Guest, promise: model.Promise, tick: Tick
    ) -> bool:
        """Return whether to finish a start: the hook has had :data:`HOOK_GRACE_NS` to do so.

        The hook may have been killed, may have waited in vain for the promises file's lock, or may
        have found a cpuset that could not be written at that moment. Guests that ran before the
        hook was installed are not placed, as their starts did not call it.
        """
        if (
            not self.options.host_options.enabled
            or (promise.started and not promise.missed)
            # If it is held by others, its start is only recorded.
            or eligibility.why_not(eligibility.HOLD, guest) not in ('', eligibility.HELD_BY_OTHERS)
        ):
            known.unfinished_since_ns = None
            return False
        now_ns = tick.now.monotonic_ns
        if known.unfinished_since_ns is None:
            known.unfinished_since_ns = now_ns
        return now_ns - known.unfinished_since_ns >= HOOK_GRACE_NS

    def _finish(self, guest: model.Guest, promise: model.Promise) -> model.Promise:
        """Finish one start; return the guest's promise, which is the same if it stays so."""
        host_options = self.options.host_options
        try:
            current = promises_file.read(host_options, self._root).promises.get(guest.uuid)
            if current != promise:  # the hook has gone on, or the guest was started again
                return promise
            finished = starts.finish(
                guest, promise, host_options, self._root, promises_file.LOCK_TIMEOUT_S
            )
        except GuestGone:
            return promise
        except NumaPmcError as error:
            self._problem_log.log_problems(
                ['guest %s: its start could not be finished: %s' % (guest.name, error)]
            )
            return promise
        decision = finished.decision
        for problem in decision.problems:
            self._log.warning('guest %s: %s', guest.name, problem)
        if not decision.promise.started:
            return promise
        if finished.is_held:
            self.starts_taken_over += 1
            self._log.warning(
                'guest %s: not placed by the hook at its start (see journalctl -t nova-numa-pmc), '
                'now placed on %s: %s',
                guest.name,
                name_nodes(decision.promise.cpu_nodes),
                decision.why,
            )
        elif promise.missed:
            self._log.info(
                'guest %s: not placed by the hook at its start, and left as it is: %s',
                guest.name,
                decision.why,
            )
        return decision.promise

    # --- Its CPUs ---

    def _hold_or_unbind(
        self,
        known: _Known,
        guest: model.Guest,
        promise: model.Promise,
        tick: Tick,
        binder: binding.Binder,
    ) -> None:
        """Hold a guest to its place, and watch the nodes that its memory is bound to.

        A bound guest that is not held, as during a libvirt job, is unbound if need be.
        """
        assert tick.host is not None
        is_ours = (
            promise.started
            and promise.origin == model.PLACED
            and bool(promise.cpu_nodes)
            and not eligibility.why_not(eligibility.HOLD, guest)
        )
        is_held = False
        try:
            if is_ours and guest.uuid not in tick.moving:
                cpus = pools.cpus_of_promise(promise, tick.host, guest)
                if cpus:
                    is_held = self._hold(known, guest, promise, cpus, tick)
        finally:  # its nodes are watched even if it could not be held
            if promise.bound:
                binder.check(guest, promise, cgroups.of_guest(guest, self._root), not is_held)

    def _hold(
        self,
        known: _Known,
        guest: model.Guest,
        promise: model.Promise,
        cpus: frozenset[int],
        tick: Tick,
    ) -> bool:
        """Hold a guest to its place; return False if another program keeps resetting it."""
        assert tick.host is not None
        groups, pinned = cgroups.of_guest(guest, self._root), guest.pinned_groups
        was_held = known.held_cpus == cpus
        # A set within the place is a pin, or the place as it was before CPUs came online.
        if is_held(groups, cpus, tick.host.online_cpus, pinned, needs_all_cpus=not was_held):
            known.held_cpus = cpus
            self._log_set_by_others(known, pinned)
            return True
        own_cpus = read_sets(groups, 'cpus')
        written_sets = _written_sets(known, guest, groups, own_cpus, cpus, tick.host)
        set_by_others = pinned | frozenset.intersection(
            *(frozenset(groups_set_by_others(groups, own_cpus, cpus, old)) for old in written_sets)
        )
        self._log_set_by_others(known, set_by_others)
        now_s = tick.now.monotonic_ns / 1e9
        known.rewritten_s = [at_s for at_s in known.rewritten_s if now_s - at_s < _RESETS_WINDOW_S]
        if len(known.rewritten_s) >= _RESETS_MAX:
            self._problem_log.log_problems(
                [
                    'guest %s: its cpuset was reset %d times in %.0f minutes and is now left as '
                    'it is: find the process that writes it, or run nova-numa-rebalance pin '
                    '--ignore' % (guest.name, _RESETS_MAX, _RESETS_WINDOW_S / 60)
                ]
            )
            return False
        changes: list[FileChange] = []
        for written_cpus in written_sets:
            others = frozenset(groups_set_by_others(groups, own_cpus, cpus, written_cpus))
            changes += holding.hold(
                groups, cpus, written_cpus=written_cpus, set_by_others=set_by_others | others
            )
        if changes:
            if was_held:  # the set was in force before, so others have changed it
                known.rewritten_s.append(now_s)
            self._log_held(guest, promise, cpus, changes)
        known.held_cpus = cpus
        return True

    def _log_held(
        self,
        guest: model.Guest,
        promise: model.Promise,
        cpus: frozenset[int],
        changes: Iterable[FileChange],
    ) -> None:
        text = format_cpulist(cpus)
        former_texts = [change.before for change in changes if change.before != text]
        self._log.info(
            'guest %s: held to %s again: CPUs %s%s',
            guest.name,
            name_nodes(promise.held_nodes),
            former_texts[0] + ' to ' if former_texts else '',
            text,
        )

    def _log_set_by_others(self, known: _Known, set_by_others: frozenset[str]) -> None:
        """Log once which groups are left to the operator."""
        if set_by_others == known.set_by_others:
            return
        known.set_by_others = set_by_others
        text = 'its threads are no longer pinned by others'
        if set_by_others:
            text = 'pinned by others and left alone: %s' % ', '.join(sorted(set_by_others))
        self._log.info('guest %s: %s', known.name, text)

    # --- Its memory ---

    def fetch_again(self, uuids: Collection[str]) -> None:
        """Plan the fetches of these guests again, because they were interrupted."""
        for (uuid, _), known in self._known.items():
            if uuid in uuids:
                known.is_fetched = False

    def plan_fetches(self, tick: Tick) -> plan_records.Plan:
        """Plan to fetch memory that guests had on other nodes at their start, once for each guest.

        :param tick: as :meth:`keep` left it
        """
        assert tick.host_promises is not None
        planned: list[plan_records.Move] = []
        left_bytes = self.options.rebalance_options.bytes_per_tick
        for guest in tick.guests:
            promise = tick.host_promises.promises.get(guest.uuid)
            known = self._known[guest.run_id]
            if (
                known.is_fetched
                or promise is None
                or not promise.started
                or promise.missed  # it has yet to be placed
                or eligibility.why_not(eligibility.PROCEED, guest)
            ):
                continue
            elsewhere_bytes = self._bytes_elsewhere(guest, promise, tick)
            if elsewhere_bytes is None or (planned and elsewhere_bytes > left_bytes):
                continue  # a later tick reads or fetches it
            known.is_fetched = True
            if elsewhere_bytes:
                left_bytes -= elsewhere_bytes
                planned.append(_fetch(guest, promise, elsewhere_bytes))
        return plan_records.Plan(tuple(planned))

    def _bytes_elsewhere(
        self, guest: model.Guest, promise: model.Promise, tick: Tick
    ) -> int | None:
        """Return how much memory to fetch for a guest that was started recently [bytes].

        :returns: None: unknown
        """
        age_ns = tick.now.boottime_ns - promise.since_ns
        if (
            promise.origin != model.PLACED
            or not promise.mem_nodes
            or eligibility.why_not(eligibility.FETCH, guest, promise)
            or age_ns > START_GRACE_S * 10**9
        ):
            return 0
        if tick.host is None or not pools.may_have_memory_on(promise.mem_nodes, tick.host, guest):
            return None
        bytes_by_node = cgroups.memory_by_node(guest.pid, self._root)
        if bytes_by_node is None:
            return None
        return page_choice.notable_bytes_elsewhere(
            bytes_by_node, promise.mem_nodes, _NEGLIGIBLE_BYTES
        )


def _written_sets(
    known: _Known,
    guest: model.Guest,
    groups: cgroups.GuestGroups,
    own_cpus: dict[str, frozenset[int]],
    cpus: frozenset[int],
    host: model.Topology,
) -> tuple[frozenset[int], ...]:
    """Return the sets that we may have left in groups; one empty set if there are none.

    If we have seen the guest held, its last set is known. Otherwise, sets of whole nodes count as
    ours: they are those of an earlier place, left by a mover that was killed.
    """
    if known.held_cpus is not None:
        return (known.held_cpus if known.held_cpus != cpus else frozenset(),)
    common = common_set(groups, 'cpus')
    sets = [] if common is None else [common]
    candidates = [
        own_cpus[os.path.join(groups.parent, name)]
        for name in groups_set_by_others(groups, own_cpus, cpus)
    ]
    if groups.version == 2:
        candidates.append(own_cpus[groups.parent])
    for candidate in candidates:
        if candidate and candidate not in sets and _may_be_ours(candidate, host, guest):
            sets.append(candidate)
    return tuple(sets) or (frozenset(),)


def _may_be_ours(cpus: frozenset[int], host: model.Topology, guest: model.Guest) -> bool:
    """Return whether a set is one that we write.

    We write all CPUs of some nodes that a guest may use, or all usable CPUs of these nodes (before
    the floating pool was known), or the CPUs of an L3 cache.
    """
    wide_host = pools.with_usable_cpus(host)
    nodes = tuple(node.id for node in wide_host.nodes if node.cpus & cpus)
    guest_cpus = pools.cpus_on(nodes, host, guest)
    return cpus in (guest_cpus, pools.cpus_on(nodes, wide_host, guest)) or (
        any(cpus == guest_cpus & cache for caches in host.l3s for cache in caches)
        and not l3.is_single_core(cpus, host)
    )


def _fetch(guest: model.Guest, promise: model.Promise, elsewhere_bytes: int) -> plan_records.Move:
    return plan_records.Move(
        plan_records.FETCH,
        guest.uuid,
        guest.name,
        promise.cpu_nodes,
        promise.cpu_nodes,
        promise.mem_nodes,
        elsewhere_bytes,
        'its memory was on other nodes when it started',
    )
