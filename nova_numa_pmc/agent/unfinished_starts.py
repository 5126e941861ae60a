# SPDX-License-Identifier: Apache-2.0
"""Finish starts that the hook could not finish: place the guest, hold it, and fetch its memory.

The hook may be killed, may wait in vain for the promises file's lock, or may find a cpuset that
cannot be written at that moment. Guests that ran before the hook was installed are not placed, as
their starts did not call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.conf.host_options import START_GRACE_S
from nova_numa_pmc.core import eligibility, page_choice, pools
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import CpusetError, GuestGone, NumaPmcError
from nova_numa_pmc.host import cgroups
from nova_numa_pmc.placing import starts
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    import logging
    from collections.abc import Collection, Container

    from nova_numa_pmc.agent.tick import Tick
    from nova_numa_pmc.conf.host_options import HostOptions
    from nova_numa_pmc.problem_log import ProblemLog

#: If no more than this of a guest's memory is on other nodes, its memory is not walked through:
#: pages that QEMU and libvirt share stay there anyway. The amount is so small that even guests of
#: little more than 25 MiB have at least 99 % of their memory at home.
_NEGLIGIBLE_BYTES = 256 << 10
#: Time given to the hook, its default timeout [ns]. At the default interval, the second tick that
#: sees a start finishes it.
HOOK_GRACE_NS = 2 * 10**9


class UnfinishedStarts:
    """Finishes the starts of guests that the hook has left unfinished.

    :ivar starts_taken_over: number of starts finished since the agent was started
    """

    def __init__(
        self, host_options: HostOptions, root: str, log: logging.Logger, problem_log: ProblemLog
    ) -> None:
        self.host_options = host_options
        self._root = root
        self._log = log
        self._problem_log = problem_log
        #: When the start of each guest was first seen unfinished.
        self._first_seen_ns: dict[model.RunId, int] = {}
        #: Guests whose memory was fetched or is being fetched, or needed no fetching.
        self._fetched: set[model.RunId] = set()
        self.starts_taken_over = 0

    def finish(self, tick: Tick, moving: Container[str] = ()) -> Tick:
        """Finish the starts that the hook could not finish.

        A start is finished once its guest has been seen running without a libvirt job for
        :data:`HOOK_GRACE_NS`; until then, the hook may still finish it.

        :param tick: with host and promises
        :param moving: uuids of the guests that a command is moving, which are left for later
        :returns: the tick with the current promises
        """
        assert tick.host_promises is not None
        first_seen_ns, self._first_seen_ns = self._first_seen_ns, {}
        finished: dict[str, model.Promise] = {}
        if not self.host_options.enabled:
            return tick
        for guest in tick.guests:
            promise = tick.host_promises.promises.get(guest.uuid)
            if (
                promise is None
                or guest.uuid in moving
                or eligibility.why_not(eligibility.HOLD, guest)
                not in ('', eligibility.HELD_BY_OTHERS)  # whose start is only recorded
                or (promise.started and not promise.missed)
            ):
                continue
            run_id, monotonic_ns = guest.run_id, tick.now.monotonic_ns
            self._first_seen_ns[run_id] = first_seen_ns.get(run_id, monotonic_ns)
            if monotonic_ns - self._first_seen_ns[run_id] >= HOOK_GRACE_NS:
                finished_promise = self._finish(guest, promise)
                if finished_promise:
                    finished[guest.uuid] = finished_promise
        return tick.with_promises(finished)

    def _finish(self, guest: model.Guest, promise: model.Promise) -> model.Promise | None:
        """Finish one start; return the guest's promise, or None if the start stays unfinished."""
        try:
            current = promises_file.read(self.host_options, self._root).promises.get(guest.uuid)
            if current is None or current.since_ns != promise.since_ns:
                return None  # it has ended, or was started again
            if current != promise:  # the hook has gone on
                return current
            finished = starts.finish(
                guest, promise, self.host_options, self._root, promises_file.LOCK_TIMEOUT_S
            )
        except GuestGone:
            return None
        except NumaPmcError as error:
            self._problem_log.log_problems(
                ['guest %s: its start could not be finished: %s' % (guest.name, error)]
            )
            return None
        decision = finished.decision
        for problem in decision.problems:
            self._log.warning('guest %s: %s', guest.name, problem)
        if not decision.promise.started:
            return None
        if finished.hold_result:
            self._log_start(guest, decision.promise, decision.why)
        elif promise.missed:
            self._log.info(
                'guest %s: not placed by the hook at its start, and left as it is: %s',
                guest.name,
                decision.why,
            )
        return decision.promise

    def _log_start(self, guest: model.Guest, promise: model.Promise, why: str) -> None:
        self.starts_taken_over += 1
        self._log.warning(
            'guest %s: not placed by the hook at its start (see journalctl -t nova-numa-pmc), now '
            'placed on %s: %s',
            guest.name,
            name_nodes(promise.cpu_nodes),
            why,
        )

    def fetch_again(self, uuids: Collection[str]) -> None:
        """Plan the fetches of these guests again, because they were interrupted."""
        self._fetched = {run_id for run_id in self._fetched if run_id[0] not in uuids}

    def plan_fetches(
        self, tick: Tick, rebalance_options: plan_records.RebalanceOptions
    ) -> plan_records.Plan:
        """Plan to fetch memory that guests had on other nodes at their start, once for each guest.

        :param tick: with host and promises
        :param rebalance_options: limit the memory that is moved at once, as for any plan
        """
        assert tick.host_promises is not None
        self._fetched &= {guest.run_id for guest in tick.guests}
        planned: list[plan_records.Move] = []
        size_bytes = 0
        for guest in tick.guests:
            promise = tick.host_promises.promises.get(guest.uuid)
            if (
                guest.run_id in self._fetched
                or promise is None
                or not promise.started
                or promise.missed  # it has yet to be placed
                or eligibility.why_not(eligibility.PROCEED, guest)
            ):
                continue
            elsewhere_bytes = self._bytes_elsewhere(
                guest, promise, tick.host, tick.now.boottime_ns
            )
            if elsewhere_bytes is None or (
                elsewhere_bytes
                and planned
                and size_bytes + elsewhere_bytes > rebalance_options.bytes_per_tick
            ):
                continue  # a later tick reads or fetches it
            self._fetched.add(guest.run_id)
            if elsewhere_bytes:
                size_bytes += elsewhere_bytes
                planned.append(_fetch(guest, promise, elsewhere_bytes))
        return plan_records.Plan(tuple(planned))

    def _bytes_elsewhere(
        self,
        guest: model.Guest,
        promise: model.Promise,
        host: model.Topology | None,
        boottime_ns: int,
    ) -> int | None:
        """Return how much memory to fetch for a guest that was started recently [bytes].

        :returns: None: unknown
        """
        age_ns = boottime_ns - promise.since_ns
        if (
            promise.origin != model.PLACED
            or not promise.mem_nodes
            or eligibility.why_not(eligibility.FETCH, guest, promise)
            or age_ns > START_GRACE_S * 10**9
        ):
            return 0
        if host is None or not pools.may_have_memory_on(promise.mem_nodes, host, guest):
            return None
        try:
            bytes_by_node = cgroups.read_memory_by_node(cgroups.of_guest(guest, self._root))
        except CpusetError:
            return None
        if bytes_by_node is None:
            return None
        return page_choice.notable_bytes_elsewhere(
            bytes_by_node, promise.mem_nodes, _NEGLIGIBLE_BYTES
        )


def _fetch(guest: model.Guest, promise: model.Promise, elsewhere_bytes: int) -> plan_records.Move:
    part = plan_records.PlanPart(
        guest.uuid,
        guest.name,
        promise.cpu_nodes,
        promise.cpu_nodes,
        promise.mem_nodes,
        elsewhere_bytes,
    )
    return plan_records.requested_move(
        plan_records.FETCH, (part,), 'its memory was on other nodes when it started'
    )
