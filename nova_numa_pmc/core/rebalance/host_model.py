# SPDX-License-Identifier: Apache-2.0
"""Model a host, to tell whether a guest fits another place and what moving it gains and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.page_choice import BATCH_BYTES
from nova_numa_pmc.core.rebalance import losses
from nova_numa_pmc.core.rebalance.layout import Layout
from nova_numa_pmc.core.rebalance.placement_order import NodeOrder

if TYPE_CHECKING:
    from nova_numa_pmc.core.rebalance import plan_records
    from nova_numa_pmc.core.rebalance.layout import GuestModel, Place, Proposal

PAGE_BYTES = 4096
#: A move is expected to use this share of the bandwidth that is left on its source and on its
#: target, or this rate if it is higher, but never more than the operator's limit.
SPARE_RATIO, RATE_MIN_BYTES_PER_SEC = 0.25, 16 << 20


class HostModel(Layout):
    """A host with its guests, and what other places would change for them."""

    def __init__(
        self, situation: plan_records.Situation, rebalance_options: plan_records.RebalanceOptions
    ) -> None:
        """Build the model of a situation."""
        super().__init__(situation, rebalance_options)
        self._order = NodeOrder(
            self.nodes, self.memory_at, self.latencies_ns, situation.placement_options
        )

    def same(self, proposal: Proposal) -> Proposal:
        """Return a proposal of another model of the same host with the guests of this one."""
        return tuple((self.guests[guest.load.uuid], place) for guest, place in proposal)

    def effect(self, guest: GuestModel, place: Place) -> losses.Effect:
        """Return a guest's effect at a place, after any move of its memory is complete."""
        if len(place.cpu_positions) == 1 and place in guest.effects:
            return guest.effects[place]
        mem_shares = (
            guest.mem_shares if place.mem_position is None else ((place.mem_position, 1.0),)
        )
        effect = self.effect_with_memory(guest, place.cpu_positions, mem_shares)
        if len(place.cpu_positions) == 1:
            guest.effects[place] = effect
        return effect

    def bytes_to_move(self, guest: GuestModel, place: Place) -> int:
        """Return M, the bytes of a guest's memory that are not yet on the target."""
        if place.mem_position is None:
            return 0
        assert guest.bytes_by_position is not None  # otherwise allows() has refused the place
        return sum(
            size
            for position, size in guest.bytes_by_position.items()
            if position != place.mem_position
        )

    def cost(self, guest: GuestModel, place: Place) -> float:
        """Return K, the cost of moving one guest [core-seconds].

        K = T · (1 + λ / 2) + pages · τ + the cost of changing CPUs. T = M / r is the duration of
        the copy, with r at most a quarter of the bandwidth that is left on its source and target.
        λ is the guest's loss while all memory to be moved is remote, of which half counts, because
        on average half of that memory has yet to be moved.
        """
        rebalance_options, size_bytes = self.rebalance_options, self.bytes_to_move(guest, place)
        change_cost = (
            rebalance_options.change_core_sec
            if place.cpu_positions != guest.cpu_positions
            else 0.0
        )
        if not size_bytes:
            return change_cost
        target, latencies_ns = place.mem_position, self.latencies_ns[place.cpu_positions[0]]
        assert target is not None  # otherwise there would be no bytes to move
        rate, extra_ns, remote_share = rebalance_options.bytes_per_sec, 0.0, 0.0
        for position, share in guest.mem_shares:
            if position != target:
                extra_ns += share * (latencies_ns[position] - latencies_ns[place.cpu_positions[0]])
                remote_share += share
                rate = min(rate, self._spare_bandwidth(position))
        rate = max(
            min(rate, self._spare_bandwidth(target)),
            min(rebalance_options.bytes_per_sec, RATE_MIN_BYTES_PER_SEC),
        )
        remote_loss = (
            min(guest.demand_cores, guest.stalls_per_ns * max(0.0, extra_ns) / remote_share)
            if remote_share
            else 0.0
        )
        return (
            size_bytes / rate * (1 + remote_loss / 2)
            + size_bytes / PAGE_BYTES * rebalance_options.cpu_s_per_page
            + change_cost
        )

    def allows(self, guest: GuestModel, place: Place) -> bool:
        """Return whether a guest is allowed a place, however full it is."""
        if not guest.movable:
            return False
        allowed = guest.allowed
        if allowed is not None and not allowed.keys() >= set(place.cpu_positions):
            return False
        if (
            allowed is not None
            and place.cpu_positions != guest.cpu_positions
            and sum(allowed[n] for n in place.cpu_positions) < guest.load.vcpus
        ):
            return False
        if sum(self.nodes[n].cpu_count for n in place.cpu_positions) < guest.load.vcpus:
            return False
        if place.cpu_positions != guest.cpu_positions and not all(
            self.cpu_known[n] for n in place.cpu_positions + guest.cpu_positions
        ):
            return False
        if guest.load.just_placed and not self._placement_agrees(guest, place.cpu_positions):
            return False
        return place.mem_position is None or guest.bytes_by_position is not None

    def _placement_agrees(self, guest: GuestModel, positions: tuple[int, ...]) -> bool:
        """Return whether a placement would agree with moving a guest that was just placed.

        See :mod:`placement_order`.
        """
        if positions == guest.home or set(positions) >= set(guest.cpu_positions):
            return True  # the guest goes home, stays where it is, or is widened
        return self._order.prefers(guest, positions[0])

    def fits(self, proposal: Proposal) -> bool:
        """Return whether all guests of a proposal fit their new places.

        Both the memory that may be promised there and the available memory must suffice.
        """
        promised_changes: dict[int, int] = {}
        resident_changes: dict[int, int] = {}
        targets = set()
        for guest, place in proposal:
            target = place.mem_position
            if target is None:
                continue
            # Otherwise allows() has refused the place.
            assert guest.bytes_by_position is not None
            for position, size in guest.promised_bytes.items():
                promised_changes[position] = promised_changes.get(position, 0) - size
            promised_changes[target] = promised_changes.get(target, 0) + guest.load.memory_bytes
            for position, size in guest.bytes_by_position.items():
                if position != target:
                    resident_changes[position] = resident_changes.get(position, 0) - size
                    resident_changes[target] = resident_changes.get(target, 0) + size
                    targets.add(target)
        return (
            all(
                change <= 0
                or self.promised_bytes[position] + change <= self.capacity_bytes[position]
                for position, change in promised_changes.items()
            )
            and all(
                change <= 0
                or position not in self.available_bytes
                or change <= self.available_bytes[position] - self.rebalance_options.reserve_bytes
                for position, change in resident_changes.items()
            )
            # Guests of a swap make room for each other step by step; the first step needs some.
            and all(
                position not in self.available_bytes
                or self.available_bytes[position]
                >= self.rebalance_options.reserve_bytes + BATCH_BYTES
                for position in targets
            )
        )

    def apply(self, proposal: Proposal) -> None:
        """Update the model as if a proposal had been carried out."""
        for guest, place in proposal:
            self.host_loss.add_effect(guest.effect, -1)
            new_effect = self.effect(guest, place)
            if place.mem_position is not None:
                self._move_memory(guest, place.mem_position)
            guest.cpu_shares = self._cpu_shares(guest, place.cpu_positions)
            guest.cpu_positions, guest.effect, guest.effects = place.cpu_positions, new_effect, {}
            self.host_loss.add_effect(new_effect)

    def effect_with_memory(
        self, guest: GuestModel, cpu_positions: tuple[int, ...], mem_shares: losses.Shares
    ) -> losses.Effect:
        """Return a guest's effect with its CPUs and the shares of its accesses at these positions.

        :param mem_shares: (position, share of its accesses) pairs
        """
        return losses.effect_at(
            cpu_positions,
            guest.demand_cores,
            self._cpu_shares(guest, cpu_positions),
            mem_shares,
            guest.stalls_per_ns,
            guest.bandwidth_bytes_per_sec,
            self.latencies_ns,
            counts_queueing=guest.counted,
        )

    def _move_memory(self, guest: GuestModel, target: int) -> None:
        assert guest.bytes_by_position is not None  # otherwise allows() has refused the place
        for position, size in guest.promised_bytes.items():
            self.promised_bytes[position] -= size
        self.promised_bytes[target] += guest.load.memory_bytes
        for position, size in guest.bytes_by_position.items():
            for changed_position, change in ((position, size), (target, -size)):
                if changed_position in self.available_bytes:
                    self.available_bytes[changed_position] += change
        guest.promised_bytes = {target: guest.load.memory_bytes}
        guest.bytes_by_position = {target: sum(guest.bytes_by_position.values())}
        guest.mem_shares = ((target, 1.0),)

    def _spare_bandwidth(self, n: int) -> float:
        """Return the bandwidth of a node that a move may use [bytes/s]; infinite if unknown."""
        maximum = self.nodes[n].bandwidth_max_bytes_per_sec
        if not self.bandwidth_known or not maximum:
            return float('inf')
        unused = maximum - self.host_loss.bandwidth_bytes_per_sec[n]
        return SPARE_RATIO * max(0.0, unused)

    def _cpu_shares(self, guest: GuestModel, positions: tuple[int, ...]) -> losses.Shares:
        """Return the shares of a guest's CPU time on the nodes of a place.

        On several nodes, they are taken to be in proportion to cores, because the kernel's load
        balancer ignores where a guest's memory is: a guest that was widened for the moments in
        which its own node is full stays on the other node afterwards.
        """
        if len(positions) == 1:
            return ((positions[0], 1.0),)
        return (
            guest.cpu_shares
            if positions == guest.cpu_positions
            else self.shares_by_cores(positions)
        )
