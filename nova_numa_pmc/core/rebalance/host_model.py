# SPDX-License-Identifier: Apache-2.0
"""Model a host, to tell whether a guest fits another place and what moving it gains and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import host_view, memory_domains, page_choice, rates
from nova_numa_pmc.core.page_choice import BATCH_BYTES
from nova_numa_pmc.core.rebalance import losses, plan_records
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeVar

    from nova_numa_pmc.core.rebalance.planner_state import RegretKey

    _Amount = TypeVar('_Amount', int, float)


#: The accesses of a guest that waits for CPUs are scaled up to its demand, by at most this factor.
DEMAND_SCALE_MAX = 4.0
#: DRAM accesses per second of a busy core, if they are not counted. This is assumed, and low: on
#: the host with which this project began, remote accesses alone were 1.3 million, and one miss in
#: 2,500 instructions at 2.5 · 10⁹ instructions per second makes one million. It suffices to bring
#: memory home within hours, and is used for nothing else.
ASSUMED_LINES_PER_CORE_SEC = 1e6
#: A gain below this share of the host's cores is noise, unless ``min_gain_cores`` is less.
NOISE_RATIO = 0.004

PAGE_BYTES = 4096


class Place(Record):
    """A place of a guest.

    :param cpu_positions: positions of its CPUs, in ascending order
    :param mem_position: position of its memory; None if the memory stays where it is
    """

    cpu_positions: tuple[int, ...]
    mem_position: int | None


class GuestModel:
    """One guest of the host model.

    :ivar cpu_positions: positions that its CPUs may use now, in ascending order
    :ivar home: positions that it was promised, in ascending order
    :ivar cpu_shares, mem_shares: (position, share of its CPU time, or of its accesses) pairs
    :ivar bytes_by_position: {position: bytes of its memory}; empty if unknown
    :ivar promised_bytes: {position: bytes promised}
    :ivar interval_cores: its demand in the interval
    :ivar demand_cores: its demand, over the horizon if there is one
    :ivar stalls_per_ns: accesses per second · 1e-9 / MLP, scaled up to its demand
    :ivar bandwidth_bytes_per_sec: DRAM traffic, scaled up to its demand
    :ivar counted: whether its accesses were counted; otherwise ``stalls_per_ns`` is assumed, and
        used only for the distance
    :ivar effect: its effect on the host at its present place
    :ivar movable: whether it may be moved
    :ivar allowed: {position: number of CPUs that it may use}; None if it may use all
    """

    def __init__(
        self,
        host_model: HostModel,
        load: plan_records.GuestLoad,
        demand_cores: float,
        mlp: float,
        horizon: int | None,
    ) -> None:
        """Lay out a guest at its present place; over a day, a widened one is at home.

        :param demand_cores: the demand of the load, which is known
        :param horizon: as of :class:`HostModel`
        """
        self.load = load
        is_at_home = horizon == 1 and set(load.home_nodes) < set(load.held_nodes)
        self.home = host_model.positions(load.home_nodes or load.held_nodes)
        self.cpu_positions = self.home if is_at_home else host_model.positions(load.held_nodes)
        allowed = load.allowed_cpu_counts
        self.allowed = None if allowed is None else host_model.sum_by_position(allowed)
        self.bytes_by_position = host_model.sum_by_position(load.bytes_by_node)
        self.promised_bytes = host_model.promise_by_position(load)
        self.interval_cores = self.demand_cores = served_cores = max(0.0, demand_cores)
        self.movable, scale = not load.why_fixed, 1.0
        measured_min_s = host_model.options.measured_min_s
        if horizon is not None and load.mean_cores and load.measured_s >= measured_min_s:
            # It accesses memory in proportion to its CPU time.
            self.demand_cores = served_cores = load.mean_cores[horizon]
            scale = served_cores / load.served_cores if load.served_cores else 0.0
        else:
            self.movable = self.movable and horizon is None
            if load.served_cores is not None:
                served_cores = max(0.0, load.served_cores)
            if served_cores:
                scale = min(DEMAND_SCALE_MAX, max(1.0, self.demand_cores / served_cores))
        self.counted = load.lines_per_sec is not None
        lines_per_sec = (
            ASSUMED_LINES_PER_CORE_SEC * self.demand_cores
            if load.lines_per_sec is None
            else load.lines_per_sec * scale
        )
        self.stalls_per_ns = lines_per_sec * 1e-9 / mlp
        self.bandwidth_bytes_per_sec = (load.bandwidth_bytes_per_sec or 0.0) * scale
        # Where the kernel ran a guest that floats in one interval says nothing about the next one.
        self.cpu_shares = (
            host_model.measured_shares(load) if load.held_nodes and not is_at_home else ()
        ) or host_model.shares_by_cores(self.cpu_positions)
        # At home, the ratio is another one than on all nodes that it may use.
        self.mem_shares = self._mem_shares(host_model, None if is_at_home else load.remote_ratio)
        self.effect = host_model.effect_at(
            self,
            self.cpu_positions,
            self.cpu_shares,
            self.mem_shares,
            min(served_cores, self.demand_cores),
        )

    def has_memory_worth_fetching(self, mem_position: int) -> bool:
        """Return whether it has memory elsewhere that is worth fetching to a position.

        A small remainder, such as QEMU's read-only pages, cannot be moved.
        """
        return page_choice.notable_bytes_elsewhere(self.bytes_by_position, (mem_position,)) > 0

    def _mem_shares(self, host_model: HostModel, remote_ratio: float | None) -> losses.Shares:
        """Return the shares of its accesses by where its pages are and by the remote ratio."""
        shares = shares_of(self.bytes_by_position) or tuple(
            (host_model.memory_at[n], share) for n, share in self.cpu_shares
        )
        local_memory = host_model.memory_at[self.cpu_positions[0]]
        if (
            remote_ratio is None
            or len(self.cpu_positions) > 1
            or not self.has_memory_worth_fetching(local_memory)
        ):
            return shares
        remote_bytes = {n: size for n, size in self.bytes_by_position.items() if n != local_memory}
        remote_shares = tuple((n, remote_ratio * share) for n, share in shares_of(remote_bytes))
        return ((local_memory, 1 - remote_ratio), *remote_shares)


class HostModel:
    """A host with its guests by position, and what other places would change for them.

    :ivar guests: {uuid: model} of the guests whose demand is known
    :ivar nodes: by position, the view of the memory domain
    :ivar nodes_at: by position, the ids of its nodes
    :ivar memory_nodes_at: by position, the ids of its nodes with memory, or of all if none has any
    :ivar position_of_node: {node id: position}
    :ivar positions_with_cpus: the positions that have CPUs
    :ivar promised_bytes: by position, bytes that are promised
    :ivar available_bytes: {position: bytes that it can still give now}
    :ivar memory_at: by position, the position of the memory of guests that run there
    :ivar min_gain_cores: a gain below this is noise
    :ivar cpu_known: by position, whether CPU demand was measured
    :ivar bandwidth_known: whether traffic and maximum bandwidth are known for every position with
        memory, so that queueing at the memory is taken into account
    """

    def __init__(
        self,
        situation: plan_records.Situation,
        options: plan_records.RebalanceOptions,
        horizon: int | None = None,
    ) -> None:
        """Lay out the host and the guests of a situation.

        :param horizon: index of :attr:`plan_records.GuestLoad.mean_cores`, to take the guests'
            mean demands instead of those of the interval; guests without such means stay
        """
        view = situation.view
        merged, members = memory_domains.merge(view)
        self.options, self.nodes = options, merged.nodes
        self.min_gain_cores = min(
            options.min_gain_cores, NOISE_RATIO * sum(node.cores for node in merged.nodes)
        )
        self.nodes_at = tuple(
            tuple(view.nodes[member].id for member in group) for group in members
        )
        # A memory domain may have nodes without memory, which must not be in cpuset.mems.
        self.memory_nodes_at = tuple(
            tuple(view.nodes[member].id for member in group if view.nodes[member].capacity_bytes)
            or ids
            for group, ids in zip(members, self.nodes_at)
        )
        self.position_of_node = {
            node: position for position, group in enumerate(self.nodes_at) for node in group
        }
        self.positions_with_cpus = tuple(n for n, node in enumerate(self.nodes) if node.cores)
        self.latencies_ns = _mean_latencies(situation.latencies_ns, members)
        self.promised_bytes = [node.promised_bytes for node in merged.nodes]
        self.available_bytes = self.sum_by_position(situation.available_bytes)
        self.cpu_known = [node.demand_cores is not None for node in merged.nodes]
        self.memory_at = [
            n if at is None else at
            for n, at in enumerate(memory_domains.first_touch_positions(merged))
        ]
        self.guests = {
            load.uuid: GuestModel(self, load, load.demand_cores, situation.mlp, horizon)
            for load in situation.guests
            if load.demand_cores is not None and self.positions_with_cpus
        }
        self.host_loss = self._host_loss(situation)
        for guest in self.guests.values():
            self.host_loss.add_effect(guest.effect)

    def positions(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Turn node ids into an ascending tuple of the positions with CPUs.

        These are all positions with CPUs if the host has none of these nodes.
        """
        known = {self.position_of_node[node] for node in ids if node in self.position_of_node}
        return tuple(sorted(known.intersection(self.positions_with_cpus))) or (
            self.positions_with_cpus
        )

    def node_ids(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Turn positions into an ascending tuple of node ids."""
        return tuple(sorted(node for n in positions for node in self.nodes_at[n]))

    def shares_by_cores(self, positions: Iterable[int]) -> losses.Shares:
        """Return shares of CPU time in proportion to the cores of positions."""
        return shares_of({n: self.nodes[n].cores for n in positions})

    def measured_shares(self, guest: plan_records.GuestLoad) -> losses.Shares:
        """Return the shares of a guest's CPU time on the positions that its CPUs may use."""
        cores_by_position = self.sum_by_position(guest.cores_by_node)
        return shares_of(
            {n: cores_by_position.get(n, 0.0) for n in self.positions(guest.held_nodes)}
        )

    def promise_by_position(self, guest: plan_records.GuestLoad) -> dict[int, int]:
        """Return {position: bytes} of a promise; a guest that floats is divided as in the view."""
        if not guest.mem_nodes:
            capacities = [node.capacity_bytes for node in self.nodes]
            return dict(enumerate(host_view.split_bytes(guest.memory_bytes, capacities)))
        return self.sum_by_position(
            page_choice.wanted_bytes_by_node(
                guest.mem_nodes, guest.mem_node_bytes, guest.memory_bytes
            ).items()
        )

    def _host_loss(self, situation: plan_records.Situation) -> losses.HostLoss:
        """Return the load that does not come from guests: what was measured, less theirs."""
        nodes = self.nodes
        demand = [node.demand_cores or 0.0 for node in nodes]
        bandwidths = [node.bandwidth_bytes_per_sec or 0.0 for node in nodes]
        # CPUs without memory have no bandwidth; a node may have huge pages alone.
        self.bandwidth_known = all(
            node.bandwidth_max_bytes_per_sec and node.bandwidth_bytes_per_sec is not None
            for node in nodes
            if node.capacity_bytes or (node.cores and node.huge_free_bytes)
        )
        maxima = (
            [node.bandwidth_max_bytes_per_sec for node in nodes] if self.bandwidth_known else None
        )
        waiting_by_position = self.sum_by_position(situation.waiting_cores)
        bursts = [
            losses.burst(demand[n], node.cores, waiting_by_position.get(n, 0.0))
            if self.cpu_known[n]
            else 0.0
            for n, node in enumerate(nodes)
        ]
        for guest in self.guests.values():
            for n, share in self.measured_shares(guest.load) or guest.cpu_shares:
                demand[n] = max(0.0, demand[n] - share * guest.interval_cores)
            for m, share in guest.mem_shares:
                served = share * (guest.load.bandwidth_bytes_per_sec or 0.0)
                bandwidths[m] = max(0.0, bandwidths[m] - served)
        return losses.HostLoss([node.cores for node in nodes], maxima, demand, bandwidths, bursts)

    def sum_by_position(self, pairs: Iterable[tuple[int, _Amount]]) -> dict[int, _Amount]:
        """Add up (node id, amount) pairs by position."""
        sums: dict[int, _Amount] = {}
        for node, amount in pairs:
            if node in self.position_of_node:
                position = self.position_of_node[node]
                sums[position] = sums.get(position, 0) + amount
        return sums

    def key(self, uuid: str, place: Place) -> RegretKey:
        """Return a key that still identifies a place of a guest in later ticks."""
        target = place.mem_position
        mem_nodes = () if target is None else self.nodes_at[target]
        return uuid, self.node_ids(place.cpu_positions), mem_nodes

    def recall(
        self, uuid: str, cpu_nodes: tuple[int, ...], mem_nodes: tuple[int, ...]
    ) -> Place | None:
        """Return the place that node ids stand for; None if the guest cannot have it any more."""
        guest = self.guests.get(uuid)
        if guest is None or not self.position_of_node.keys() >= {*cpu_nodes, *mem_nodes}:
            return None
        target = self.position_of_node[mem_nodes[0]] if mem_nodes else None
        place = Place(self.positions(cpu_nodes), target)
        changes = place.cpu_positions != guest.cpu_positions or (
            target is not None and guest.has_memory_worth_fetching(target)
        )
        return place if changes and self.allows(guest, place) else None

    def effect(self, guest: GuestModel, place: Place) -> losses.Effect:
        """Return a guest's effect at a place, after any move of its memory is complete."""
        mem_shares = (
            guest.mem_shares if place.mem_position is None else ((place.mem_position, 1.0),)
        )
        cpu_shares = self._cpu_shares(guest, place.cpu_positions)
        return self.effect_at(guest, place.cpu_positions, cpu_shares, mem_shares)

    def effect_at(
        self,
        guest: GuestModel,
        cpu_positions: tuple[int, ...],
        cpu_shares: losses.Shares,
        mem_shares: losses.Shares,
        served_cores: float | None = None,
    ) -> losses.Effect:
        """Return a guest's effect, as :func:`losses.effect_at` does."""
        return losses.effect_at(
            cpu_positions,
            guest.demand_cores,
            cpu_shares,
            mem_shares,
            guest.stalls_per_ns,
            guest.bandwidth_bytes_per_sec,
            self.latencies_ns,
            served_cores,
            guest.counted,
        )

    def bytes_to_move(self, guest: GuestModel, place: Place) -> int:
        """Return M, the bytes of a guest's memory that are not yet on the target.

        A guest without a promised place leaves a negligible remainder, which may not be movable.
        """
        target = place.mem_position
        if target is None or (
            not guest.load.mem_nodes and not guest.has_memory_worth_fetching(target)
        ):
            return 0
        return sum(guest.bytes_by_position.values()) - guest.bytes_by_position.get(target, 0)

    def cost(self, guest: GuestModel, place: Place) -> float:
        """Return K, the cost of moving one guest [core-seconds].

        K = T · (1 + λ / 2) + pages · τ + the cost of changing CPUs. T = M / r is the duration of
        the copy at the operator's limit. λ is the guest's loss while all memory to be moved is
        remote, of which half counts, because on average half of that memory has yet to be moved.
        """
        options, size_bytes = self.options, self.bytes_to_move(guest, place)
        change_cost = (
            options.change_core_sec if place.cpu_positions != guest.cpu_positions else 0.0
        )
        if not size_bytes:
            return change_cost
        target, latencies_ns = place.mem_position, self.latencies_ns[place.cpu_positions[0]]
        assert target is not None  # otherwise there would be no bytes to move
        sources = [(n, share) for n, share in guest.mem_shares if n != target]
        local_ns = latencies_ns[place.cpu_positions[0]]
        extra_ns = sum(share * (latencies_ns[n] - local_ns) for n, share in sources)
        remote_share = sum(share for _, share in sources)
        remote_loss = (
            min(guest.demand_cores, guest.stalls_per_ns * max(0.0, extra_ns) / remote_share)
            if remote_share
            else 0.0
        )
        return (
            size_bytes / options.bytes_per_sec * (1 + remote_loss / 2)
            + size_bytes / PAGE_BYTES * options.cpu_s_per_page
            + change_cost
        )

    def allows(self, guest: GuestModel, place: Place) -> bool:
        """Return whether a guest may have a place and fits there."""
        if not guest.movable or not self._has_room(guest, place):
            return False
        counts = guest.allowed
        if counts is not None and not counts.keys() >= set(place.cpu_positions):
            return False
        if sum(self.nodes[n].cpu_count for n in place.cpu_positions) < guest.load.vcpus:
            return False
        if place.cpu_positions == guest.cpu_positions:
            return True
        if counts and sum(counts[n] for n in place.cpu_positions) < guest.load.vcpus:
            return False
        return all(self.cpu_known[n] for n in place.cpu_positions + guest.cpu_positions)

    def _has_room(self, guest: GuestModel, place: Place) -> bool:
        """Return whether the promised and the available memory suffice for a guest's memory."""
        target = place.mem_position
        if target is None:
            return True
        wanted_bytes = guest.load.memory_bytes - guest.promised_bytes.get(target, 0)
        promised_bytes = self.promised_bytes[target] + max(0, wanted_bytes)
        if not guest.bytes_by_position or (
            wanted_bytes > 0 and promised_bytes > self.nodes[target].capacity_bytes
        ):
            return False
        arriving_bytes = sum(
            size for position, size in guest.bytes_by_position.items() if position != target
        )
        available_bytes = self.available_bytes.get(target)
        if not arriving_bytes or available_bytes is None:
            return True
        return available_bytes >= self.options.reserve_bytes + max(arriving_bytes, BATCH_BYTES)

    def apply(self, uuid: str, place: Place) -> None:
        """Update the model as if a guest had been moved."""
        guest = self.guests[uuid]
        self.host_loss.add_effect(guest.effect, -1)
        guest.effect = self.effect(guest, place)
        self.host_loss.add_effect(guest.effect)
        if place.mem_position is not None:
            self._move_memory(guest, place.mem_position)
        guest.cpu_shares = self._cpu_shares(guest, place.cpu_positions)
        guest.cpu_positions = place.cpu_positions

    def _move_memory(self, guest: GuestModel, target: int) -> None:
        for position, size in guest.promised_bytes.items():
            self.promised_bytes[position] -= size
        self.promised_bytes[target] += guest.load.memory_bytes
        total_bytes = sum(guest.bytes_by_position.values())
        for position in self.available_bytes:
            self.available_bytes[position] += guest.bytes_by_position.get(position, 0)
            self.available_bytes[position] -= total_bytes if position == target else 0
        guest.promised_bytes = {target: guest.load.memory_bytes}
        guest.bytes_by_position = {target: total_bytes}
        guest.mem_shares = ((target, 1.0),)

    def _cpu_shares(self, guest: GuestModel, positions: tuple[int, ...]) -> losses.Shares:
        """Return the shares of a guest's CPU time on the nodes of a place.

        On several nodes, they are taken to be in proportion to cores, because the kernel's load
        balancer ignores where a guest's memory is: a guest that was widened for the moments in
        which its own node is full stays on the other node afterwards.
        """
        if len(positions) > 1 and positions == guest.cpu_positions:
            return guest.cpu_shares
        return self.shares_by_cores(positions)


def shares_of(amounts: Mapping[int, float]) -> losses.Shares:
    """Turn {position: amount} into (position, share) pairs; empty if all amounts are 0."""
    return tuple((n, share) for n, share in rates.shares(amounts).items() if share > 0)


def _mean_latencies(
    latencies_ns: Sequence[Sequence[float]], members: Sequence[tuple[int, ...]]
) -> tuple[tuple[float, ...], ...]:
    """Return latencies by position, averaged over the nodes of each memory domain."""
    return tuple(
        tuple(
            sum(latencies_ns[a][b] for a in group for b in other) / (len(group) * len(other))
            for other in members
        )
        for group in members
    )
