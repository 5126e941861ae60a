# SPDX-License-Identifier: Apache-2.0
"""Model a host, to tell whether a guest fits another place and what moving it gains and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import memory_domains, page_choice, rates
from nova_numa_pmc.core.page_choice import BATCH_BYTES
from nova_numa_pmc.core.rebalance import losses, plan_records
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeVar

    #: The model of a guest, and its new place.
    Proposal = tuple['GuestModel', 'Place']

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
#: A move is expected to use this share of the bandwidth that is left on its source and on its
#: target, or this rate if it is higher, but never more than the operator's limit.
SPARE_RATIO, RATE_MIN_BYTES_PER_SEC = 0.25, 16 << 20


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
    :ivar bytes_by_position: {position: bytes of its memory}; None if unknown
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
    :ivar effects: cache of its effects at other places
    """

    __slots__ = (
        'load',
        'interval_cores',
        'cpu_positions',
        'home',
        'cpu_shares',
        'mem_shares',
        'bytes_by_position',
        'promised_bytes',
        'demand_cores',
        'stalls_per_ns',
        'bandwidth_bytes_per_sec',
        'counted',
        'effect',
        'movable',
        'allowed',
        'effects',
    )

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
        self.effects: dict[Place, losses.Effect] = {}
        self.interval_cores = max(0.0, demand_cores)
        is_at_home = horizon == 1 and set(load.home_nodes) < set(load.held_nodes)
        self.cpu_positions = host_model.positions(
            load.home_nodes if is_at_home else load.held_nodes
        )
        self.home = host_model.positions(load.home_nodes or load.held_nodes)
        allowed = load.allowed_cpu_counts
        self.allowed = None if allowed is None else host_model.sum_by_position(allowed)
        self.bytes_by_position = (
            host_model.sum_by_position(load.bytes_by_node) if load.bytes_by_node else None
        )
        self.promised_bytes = host_model.promise_by_position(load)
        self.movable = not load.why_fixed and bool(self.cpu_positions)
        self.demand_cores = served_cores = self.interval_cores
        lasting_cores = host_model.lasting_demand(load, horizon)
        if lasting_cores is not None:  # it accesses memory in proportion to its CPU time
            self.demand_cores = served_cores = lasting_cores
            scale = lasting_cores / load.served_cores if load.served_cores else 0.0
        else:
            self.movable = self.movable and horizon is None
            scale = 1.0
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
        self.mem_shares = self._mem_shares(
            host_model, None if is_at_home else self.load.remote_ratio
        )
        self.effect = losses.effect_at(
            self.cpu_positions,
            self.demand_cores,
            self.cpu_shares,
            self.mem_shares,
            self.stalls_per_ns,
            self.bandwidth_bytes_per_sec,
            host_model.latencies_ns,
            served_cores=min(served_cores, self.demand_cores),
            counts_queueing=self.counted,
        )

    def has_memory_worth_fetching(self, mem_position: int) -> bool:
        """Return whether it has memory elsewhere that is worth fetching to a position.

        A small remainder, such as QEMU's read-only pages, cannot be moved.
        """
        return (
            page_choice.notable_bytes_elsewhere(self.bytes_by_position or {}, (mem_position,)) > 0
        )

    def _mem_shares(self, host_model: HostModel, remote_ratio: float | None) -> losses.Shares:
        """Return the shares of its accesses by where its pages are and by the remote ratio."""
        bytes_by_position = self.bytes_by_position or {}
        shares = shares_of(bytes_by_position) or tuple(
            (host_model.memory_at[n], share) for n, share in self.cpu_shares
        )
        local_memory = host_model.memory_at[self.cpu_positions[0]]
        if (
            remote_ratio is None
            or len(self.cpu_positions) > 1
            or not self.has_memory_worth_fetching(local_memory)
        ):
            return shares
        remote_bytes = {n: size for n, size in bytes_by_position.items() if n != local_memory}
        remote_shares = tuple((n, remote_ratio * share) for n, share in shares_of(remote_bytes))
        return ((local_memory, 1 - remote_ratio), *remote_shares)


class HostModel:
    """A host with its guests by position, and what other places would change for them.

    :ivar guests: {uuid: model} of the guests whose demand is known
    :ivar nodes: by position, the view of the memory domain
    :ivar nodes_at: by position, the ids of its nodes
    :ivar memory_nodes_at: by position, the ids of its nodes with memory, or of all if none has any
    :ivar position_of_node: {node id: position}
    :ivar all_positions, positions_with_cpus: all positions, and those with CPUs
    :ivar capacity_bytes, promised_bytes: by position, bytes that may be promised, and those that
        are
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
        rebalance_options: plan_records.RebalanceOptions,
        horizon: int | None = None,
    ) -> None:
        """Lay out the host and the guests of a situation.

        :param horizon: index of :attr:`plan_records.GuestLoad.mean_cores`, to take the guests'
            mean demands instead of those of the interval; guests without such means stay
        """
        view = situation.view
        merged, members = memory_domains.merge(view)
        self.rebalance_options, self.nodes = rebalance_options, merged.nodes
        self.min_gain_cores = min(
            rebalance_options.min_gain_cores,
            NOISE_RATIO * sum(node.cores for node in merged.nodes),
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
        self.all_positions = tuple(range(len(merged.nodes)))
        self.positions_with_cpus = tuple(n for n in self.all_positions if merged.nodes[n].cores)
        self.latencies_ns = _mean_latencies(situation.latencies_ns, members)
        self.capacity_bytes = [node.capacity_bytes for node in merged.nodes]
        self.promised_bytes = [node.promised_bytes for node in merged.nodes]
        self.available_bytes = self.sum_by_position(situation.available_bytes)
        self.cpu_known = [node.demand_cores is not None for node in merged.nodes]
        self.memory_at = [
            n if at is None else at
            for n, at in enumerate(memory_domains.first_touch_positions(merged))
        ]
        self.guests: dict[str, GuestModel] = {}
        for load in situation.guests:
            if load.demand_cores is not None and self.positions_with_cpus:
                self.guests[load.uuid] = GuestModel(
                    self, load, load.demand_cores, situation.mlp, horizon
                )
        self.host_loss = self._host_loss(situation)
        for guest in self.guests.values():
            self.host_loss.add_effect(guest.effect)

    def lasting_demand(self, load: plan_records.GuestLoad, horizon: int | None) -> float | None:
        """Return a guest's mean demand; None without a horizon, or if it is not known yet."""
        if (
            horizon is None
            or not load.mean_cores
            or load.measured_s < self.rebalance_options.measured_min_s
        ):
            return None
        return load.mean_cores[horizon]

    def positions(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Turn node ids into an ascending tuple of the positions with CPUs.

        These are all positions with CPUs if the host has none of these nodes.
        """
        positions = sorted(n for n in self.known_positions(ids) if self.nodes[n].cores)
        return tuple(positions) or self.positions_with_cpus

    def known_positions(self, ids: Iterable[int]) -> set[int]:
        """Return the positions of the node ids that the host has."""
        return {self.position_of_node[node] for node in ids if node in self.position_of_node}

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
        """Return {position: bytes} of a promise, divided as :func:`host_view.view` does."""
        if guest.mem_node_bytes and len(guest.mem_node_bytes) == len(guest.mem_nodes):
            return self.sum_by_position(zip(guest.mem_nodes, guest.mem_node_bytes))
        positions = sorted(self.known_positions(guest.mem_nodes))
        if len(positions) == 1:
            return {positions[0]: guest.memory_bytes}
        weights = {n: self.capacity_bytes[n] for n in positions or self.all_positions}
        return {n: int(share * guest.memory_bytes) for n, share in shares_of(weights)}

    def _host_loss(self, situation: plan_records.Situation) -> losses.HostLoss:
        """Return the load that does not come from guests: what was measured, less theirs."""
        nodes = self.nodes
        demand = [node.demand_cores or 0.0 for node in nodes]
        # CPUs without memory have no bandwidth; a node may have huge pages alone.
        used_positions = [
            n
            for n in self.all_positions
            if self.capacity_bytes[n] or (nodes[n].cores and nodes[n].huge_free_bytes)
        ]
        self.bandwidth_known = all(
            nodes[n].bandwidth_max_bytes_per_sec and nodes[n].bandwidth_bytes_per_sec is not None
            for n in used_positions
        )
        bandwidths = [node.bandwidth_bytes_per_sec or 0.0 for node in nodes]
        maxima = (
            [node.bandwidth_max_bytes_per_sec for node in nodes] if self.bandwidth_known else None
        )
        waiting_by_position = self.sum_by_position(situation.waiting_cores)
        bursts = [
            losses.burst(demand[n], nodes[n].cores, waiting_by_position[n])
            if self.cpu_known[n] and n in waiting_by_position
            else 0.0
            for n in self.all_positions
        ]
        for guest in self.guests.values():
            for n, share in self.measured_shares(guest.load) or guest.cpu_shares:
                demand[n] = max(0.0, demand[n] - share * guest.interval_cores)
            for m, share in guest.mem_shares:
                bandwidths[m] = max(
                    0.0, bandwidths[m] - share * (guest.load.bandwidth_bytes_per_sec or 0.0)
                )
        return losses.HostLoss([node.cores for node in nodes], maxima, demand, bandwidths, bursts)

    def sum_by_position(self, pairs: Iterable[tuple[int, _Amount]]) -> dict[int, _Amount]:
        """Add up (node id, amount) pairs by position."""
        sums: dict[int, _Amount] = {}
        for node, amount in pairs:
            if node in self.position_of_node:
                position = self.position_of_node[node]
                sums[position] = sums.get(position, 0) + amount
        return sums

    def same(self, proposal: Proposal) -> Proposal:
        """Return a proposal of another model of the same host with the guests of this one."""
        guest, place = proposal
        return self.guests[guest.load.uuid], place

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
        """Return M, the bytes of a guest's memory that are not yet on the target.

        A guest without a promised place leaves a negligible remainder, which may not be movable.
        """
        if place.mem_position is None:
            return 0
        assert guest.bytes_by_position is not None  # otherwise allows() has refused the place
        if not guest.load.mem_nodes and not guest.has_memory_worth_fetching(place.mem_position):
            return 0
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
        """Return whether a guest may have a place and fits there."""
        if not guest.movable or not self._has_room(guest, place):
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
        return place.cpu_positions == guest.cpu_positions or all(
            self.cpu_known[n] for n in place.cpu_positions + guest.cpu_positions
        )

    def _has_room(self, guest: GuestModel, place: Place) -> bool:
        """Return whether the promised and the available memory suffice for a guest's memory."""
        target = place.mem_position
        if target is None:
            return True
        if guest.bytes_by_position is None:
            return False
        promised_bytes = self.promised_bytes[target]
        wanted_bytes = guest.load.memory_bytes - guest.promised_bytes.get(target, 0)
        arriving_bytes = sum(
            size for position, size in guest.bytes_by_position.items() if position != target
        )
        if wanted_bytes > 0 and promised_bytes + wanted_bytes > self.capacity_bytes[target]:
            return False
        available_bytes = self.available_bytes.get(target)
        if not arriving_bytes or available_bytes is None:
            return True
        needed_bytes = max(arriving_bytes, BATCH_BYTES)
        return available_bytes >= self.rebalance_options.reserve_bytes + needed_bytes

    def apply(self, proposal: Proposal) -> None:
        """Update the model as if a proposal had been carried out."""
        guest, place = proposal
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
