# SPDX-License-Identifier: Apache-2.0
"""Finish starts that the hook could not: place the guest, hold it, fetch its memory.

The hook may be killed, wait for the promises file's lock in vain, or find a cpuset that cannot be
written at that moment. Guests that ran before the hook was installed are not placed, as their
starts did not call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import hook_started, model, promises
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core.rebalance import eligibility, plan_records
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import CpusetError, GuestGone, NumaPmcError
from nova_numa_pmc.host import cgroups
from nova_numa_pmc.promises_upkeep import LOCK_TIMEOUT_S

if TYPE_CHECKING:
    import logging

    from nova_numa_pmc.agent.tick import Tick

#: So much of a guest's memory on other nodes is not worth a walk through it: the pages that QEMU
#: and libvirt share stay there anyway. No more, so that small guests too (above 25 MiB) are at
#: least 99 % at home.
_NEGLIGIBLE_BYTES = 256 << 10
#: Time given to the hook: its default timeout, so that the second tick finishes a start [ns].
PATIENCE_NS = 2 * 10**9


class LateStarts:
    """Finishes the starts of guests that the hook has left unfinished.

    :ivar taken_over: how many starts were finished since the agent began
    """

    def __init__(self, options: host_options.HostOptions, root: str, log: logging.Logger) -> None:
        self.options, self._root, self._log = options, root, log
        self._seen: dict[model.Life, int] = {}  # first seen so [ns]
        self._fetched: set[model.Life] = set()  # looked at
        self.taken_over = 0

    def finish(self, tick: Tick) -> Tick:
        """Finish the starts that the hook could not; return the tick with the current promises.

        A start is finished once its guest has been seen to run for :data:`PATIENCE_NS` without
        libvirt working on it, as until then the hook may still do so.

        :param tick: with host and promises
        """
        assert tick.host_promises is not None
        seen, self._seen = self._seen, {}
        finished: dict[str, model.Promise] = {}
        if not self.options.enabled:
            return tick
        for guest in tick.guests:
            promise = tick.host_promises.promises.get(guest.uuid)
            if (
                promise is None
                or guest.job
                or guest.override == model.IGNORE
                or (promise.started and not promise.missed)
            ):
                continue
            key, now_ns = guest.life, tick.now.monotonic_ns
            self._seen[key] = seen.get(key, now_ns)
            if now_ns - self._seen[key] >= PATIENCE_NS:
                after = self._finish(guest, promise)
                if after:
                    finished[guest.uuid] = after
        return tick.with_promises(finished)

    def _finish(self, guest: model.Guest, promise: model.Promise) -> model.Promise | None:
        """Finish one start; return the guest's promise, None where that must wait."""
        try:
            if promise.missed and not guest.placed_by:
                return self._place(guest)
            after = promise._replace(started=True, missed=False)
            promises.record_started(after, self.options, self._root, LOCK_TIMEOUT_S)
        except GuestGone:
            return None
        except NumaPmcError as error:
            self._log.warning('guest %s: its start could not be finished: %s', guest.name, error)
            return None
        if not promise.started and promise.origin == model.PLACED:
            self._log_start(guest, after, 'as promised at its start')
        return after

    def _place(self, guest: model.Guest) -> model.Promise:
        """Decide on a guest that its hook has not placed, and record it; return its promise."""
        decision = promises.decide_promise(guest, self.options, self._root, LOCK_TIMEOUT_S)
        if decision.promise.origin == model.PLACED:
            groups = cgroups.find(guest.pid, self._root)
            decision = hook_started.decide_beside_memory(
                guest,
                decision,
                hook_started.all_and_huge_by_node(guest, groups, self._root)[0],
                self.options,
                self._root,
                LOCK_TIMEOUT_S,
            )
        for problem in decision.problems:
            self._log.warning('guest %s: %s', guest.name, problem)
        after = decision.promise._replace(started=True)
        promises.record_started(after, self.options, self._root, LOCK_TIMEOUT_S)
        if after.origin == model.PLACED:
            self._log_start(guest, after, decision.why)
        else:
            self._log.info(
                'guest %s: not placed by the hook at its start, and left as it is: %s',
                guest.name,
                decision.why,
            )
        return after

    def _log_start(self, guest: model.Guest, promise: model.Promise, why: str) -> None:
        self.taken_over += 1
        self._log.warning(
            'guest %s: not placed by the hook at its start (see journalctl -t nova-numa-pmc), now '
            'placed on %s: %s',
            guest.name,
            name_nodes(promise.cpu_nodes),
            why,
        )

    def fetches(
        self, tick: Tick, rebalance_options: plan_records.RebalanceOptions
    ) -> plan_records.Plan:
        """Plan to fetch the memory that guests had on other nodes at their start; each guest once.

        :param tick: with host and promises
        :param rebalance_options: bound the memory that is moved at once, as in a plan
        """
        assert tick.host_promises is not None
        self._fetched &= {guest.life for guest in tick.guests}
        planned: list[plan_records.Move] = []
        size_bytes = 0
        for guest in tick.guests:
            promise = tick.host_promises.promises.get(guest.uuid)
            if (
                guest.life in self._fetched
                or promise is None
                or not promise.started
                or eligibility.why_not_now(guest)
            ):
                continue
            off_bytes = self._off_bytes(guest, promise, tick.now.boottime_ns)
            if off_bytes and planned and size_bytes + off_bytes > rebalance_options.bytes_per_tick:
                continue  # in another tick
            self._fetched.add(guest.life)
            if off_bytes:
                size_bytes += off_bytes
                planned.append(_fetch(guest, promise, off_bytes))
        return plan_records.Plan(tuple(planned))

    def _off_bytes(self, guest: model.Guest, promise: model.Promise, boottime_ns: int) -> int:
        """Return the bytes to fetch of a guest that was started recently."""
        age_ns = boottime_ns - promise.since_ns
        if (
            promise.origin != model.PLACED
            or not promise.mem_nodes
            or promise.bound
            or guest.placed_by
            or guest.locked
            or guest.pci_devices
            or guest.page_bytes
            or age_ns > self.options.start_grace_s * 10**9
        ):
            return 0
        try:
            by_node = cgroups.memory_by_node(cgroups.find(guest.pid, self._root)) or {}
        except CpusetError:
            return 0
        return cgroups.bytes_off_above(by_node, promise.mem_nodes, _NEGLIGIBLE_BYTES)


def _fetch(guest: model.Guest, promise: model.Promise, off_bytes: int) -> plan_records.Move:
    part = plan_records.PlanPart(
        guest.uuid, guest.name, promise.cpu_nodes, promise.cpu_nodes, promise.mem_nodes, off_bytes
    )
    return plan_records.requested_move(
        plan_records.FETCH, (part,), 'its memory lay on other nodes at its start'
    )
