# SPDX-License-Identifier: Apache-2.0
"""Model of a host: whether a guest fits another place, and what the move gains and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.page_choice import BATCH_BYTES
from nova_numa_pmc.core.rebalance import losses
from nova_numa_pmc.core.rebalance.layout import Layout
from nova_numa_pmc.core.rebalance.placement_order import NodeOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.rebalance import plan_records
    from nova_numa_pmc.core.rebalance.layout import GuestModel

    #: Of each guest of a change: its model, and where it goes.
    Parts = Sequence[tuple[GuestModel, 'Place']]

PAGE_BYTES = 4096
#: A move may use this share of the bandwidth that either end has left, or this rate if more.
SPARE_RATIO, RATE_MIN_BYTES_PER_SEC = 0.25, 16 << 20


class Place:
    """CPUs (ascending positions) and where the memory goes (None: it stays)."""

    __slots__ = ('cpus', 'memory')

    def __init__(self, cpus: tuple[int, ...], memory: int | None) -> None:
        self.cpus, self.memory = cpus, memory

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and (
            self.cpus == other.cpus and self.memory == other.memory
        )

    def __hash__(self) -> int:
        return hash((self.cpus, self.memory))


class HostModel(Layout):
    """A host with its guests, and what other places would mean for them."""

    def __init__(
        self, situation: plan_records.Situation, options: plan_records.RebalanceOptions
    ) -> None:
        """Build the model of a situation; see :class:`Layout`."""
        super().__init__(situation, options)
        self._order = NodeOrder(self.nodes, self.memory_at, self.latencies_ns, situation.limits)

    def effect(self, guest: GuestModel, place: Place) -> losses.Effect:
        """Return a guest's effect at a place, with all of its memory there or where it is now."""
        if len(place.cpus) == 1 and place in guest.effects:
            return guest.effects[place]
        mem_shares = guest.mem_shares if place.memory is None else ((place.memory, 1.0),)
        effect = self.effect_with_memory(guest, place.cpus, mem_shares)
        if len(place.cpus) == 1:
            guest.effects[place] = effect
        return effect

    def bytes_to_move(self, guest: GuestModel, place: Place) -> int:
        """Return M, the bytes of a guest that are not yet on the target."""
        if place.memory is None:
            return 0
        assert guest.bytes is not None  # else may_have() has refused it
        return sum(size for at, size in guest.bytes.items() if at != place.memory)

    def cost(self, guest: GuestModel, place: Place) -> float:
        """Return K, the cost of moving one guest [core-seconds].

        K = T · (1 + λ / 2) + pages · τ + the cost of changing CPUs. T = M / r, with r at most a
        quarter of the bandwidth that either end has left. λ is the guest's loss while all its
        memory is remote; half of it, since on average half of the memory has yet to follow.
        """
        options, size = self.options, self.bytes_to_move(guest, place)
        changed = options.change_core_sec if place.cpus != guest.at else 0.0
        if not size:
            return changed
        target, row = place.memory, self.latencies_ns[place.cpus[0]]
        assert target is not None  # else there were no bytes to move
        rate, far, away = options.bytes_per_sec, 0.0, 0.0
        for at, share in guest.mem_shares:
            if at != target:
                far += share * (row[at] - row[place.cpus[0]])
                away += share
                rate = min(rate, self._spare(at))
        rate = max(min(rate, self._spare(target)), RATE_MIN_BYTES_PER_SEC)
        remote = min(guest.demand, guest.stalls_per_ns * max(0.0, far) / away) if away else 0.0
        return size / rate * (1 + remote / 2) + size / PAGE_BYTES * options.page_s + changed

    def may_have(self, guest: GuestModel, place: Place) -> bool:
        """Return whether a guest may have a place at all, ignoring how full it is."""
        if not guest.movable:
            return False
        if guest.allowed is not None and not guest.allowed.issuperset(place.cpus):
            return False
        if sum(self.nodes[n].threads for n in place.cpus) < guest.load.vcpus:
            return False
        if place.cpus != guest.at and not all(self.cpu_known[n] for n in place.cpus + guest.at):
            return False
        if guest.load.young and not self._placement_agrees(guest, place.cpus):
            return False
        return place.memory is None or (
            guest.bytes is not None and self.capacity[place.memory] is not None
        )

    def _placement_agrees(self, guest: GuestModel, cpus: tuple[int, ...]) -> bool:
        """Return whether placement would agree to move a young guest there.

        See :mod:`placement_order`.
        """
        if cpus == guest.home or set(cpus) >= set(guest.at):
            return True  # it is there, goes home, or may run elsewhere, too
        return self._order.prefers(guest, cpus[0])

    def fits(self, parts: Parts) -> bool:
        """Return whether promises and free memory hold the guests at their new places together."""
        promised: dict[int, int] = {}
        arriving: dict[int, int] = {}
        targets = set()
        for guest, place in parts:
            target = place.memory
            if target is None:
                continue
            assert guest.bytes is not None  # else may_have() has refused it
            for at, size in guest.promise.items():
                promised[at] = promised.get(at, 0) - size
            promised[target] = promised.get(target, 0) + guest.load.memory_bytes
            for at, size in guest.bytes.items():
                if at != target:
                    arriving[at] = arriving.get(at, 0) - size
                    arriving[target] = arriving.get(target, 0) + size
                    targets.add(target)
        return (
            all(
                more <= 0 or self.promised[at] + more <= self.capacity[at]
                for at, more in promised.items()
            )
            and all(
                more <= 0
                or at not in self.free
                or more <= self.free[at] - self.options.reserve_bytes
                for at, more in arriving.items()
            )
            # Guests that swap make room for each other step by step; the first one needs some.
            and all(
                at not in self.free or self.free[at] >= self.options.reserve_bytes + BATCH_BYTES
                for at in targets
            )
        )

    def apply(self, parts: Parts) -> None:
        """Change the model as if a change was made."""
        for guest, place in parts:
            self.host_loss.put(guest.effect, -1)
            then = self.effect(guest, place)
            if place.memory is not None:
                self._move_memory(guest, place.memory)
            guest.cpu_shares = self._cpu_shares(guest, place.cpus)
            guest.at, guest.effect, guest.effects = place.cpus, then, {}
            self.host_loss.put(then)

    def effect_with_memory(
        self, guest: GuestModel, cpus: tuple[int, ...], mem_shares: losses.Shares
    ) -> losses.Effect:
        """Return a guest's effect at a place with these shares of its memory by node."""
        return losses.effect(
            cpus,
            guest.demand,
            self._cpu_shares(guest, cpus),
            mem_shares,
            guest.stalls_per_ns,
            guest.traffic,
            self.latencies_ns,
            counts_queueing=guest.counted,
        )

    def _move_memory(self, guest: GuestModel, target: int) -> None:
        assert guest.bytes is not None  # else may_have() has refused it
        for at, size in guest.promise.items():
            self.promised[at] -= size
        self.promised[target] += guest.load.memory_bytes
        for at, size in guest.bytes.items():
            for end, by in ((at, size), (target, -size)):
                if end in self.free:
                    self.free[end] += by
        guest.promise = {target: guest.load.memory_bytes}
        guest.bytes = {target: sum(guest.bytes.values())}
        guest.mem_shares = ((target, 1.0),)

    def _spare(self, n: int) -> float:
        """Return the bandwidth of a node that a move may use; unknown: no bound."""
        maximum = self.nodes[n].bandwidth_max_bytes_per_sec
        if not self.bandwidth_known or not maximum:
            return float('inf')
        left = maximum - self.host_loss.traffic[n]
        return SPARE_RATIO * max(0.0, left)

    def _cpu_shares(self, guest: GuestModel, cpus: tuple[int, ...]) -> losses.Shares:
        """Return where its CPU time goes: over several nodes, in proportion to their cores.

        The kernel's load balancer ignores where a guest's memory lies: a guest widened for the
        moments in which its own node is full stays on the other node afterwards.
        """
        if len(cpus) == 1:
            return ((cpus[0], 1.0),)
        return guest.cpu_shares if cpus == guest.at else self.by_cores(cpus)
