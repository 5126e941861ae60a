# SPDX-License-Identifier: Apache-2.0
"""Lay out a host and its guests by memory domain, as they are before any move.

A position is that of a memory domain (``core/memory_domains.py``), so that nodes that share their
memory channels share a position. The records that callers pass in use node ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import memory_domains, page_choice, rates
from nova_numa_pmc.core.rebalance import losses, plan_records
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeVar

    #: For each guest of a proposal, its model and its new place.
    Proposal = tuple[tuple['GuestModel', 'Place'], ...]

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
    :ivar demand_cores: its demand
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
        self, layout: Layout, load: plan_records.GuestLoad, demand_cores: float, mlp: float
    ) -> None:
        """Lay out a guest at its present place.

        :param demand_cores: the demand of the load, which is known
        """
        self.load = load
        self.effects: dict[Place, losses.Effect] = {}
        self.cpu_positions = layout.positions(load.held_nodes)
        self.home = layout.positions(load.home_nodes or load.held_nodes)
        allowed = load.allowed_cpu_counts
        self.allowed = None if allowed is None else layout.sum_by_position(allowed)
        self.demand_cores = demand_cores = max(0.0, demand_cores)
        self.bytes_by_position = (
            layout.sum_by_position(load.bytes_by_node) if load.bytes_by_node else None
        )
        self.promised_bytes = layout.promise_by_position(load)
        self.movable = not load.why_fixed and bool(self.cpu_positions)
        scale = 1.0
        if load.served_cores:
            scale = min(DEMAND_SCALE_MAX, max(1.0, demand_cores / load.served_cores))
        served_cores = demand_cores if load.served_cores is None else max(0.0, load.served_cores)
        lines_per_sec = load.lines_per_sec
        self.counted = lines_per_sec is not None
        if lines_per_sec is None:
            lines_per_sec = ASSUMED_LINES_PER_CORE_SEC * served_cores
        self.stalls_per_ns = lines_per_sec * scale * 1e-9 / mlp
        self.bandwidth_bytes_per_sec = (load.bandwidth_bytes_per_sec or 0.0) * scale
        # Where the kernel ran a guest that floats in one interval says nothing about the next one.
        self.cpu_shares = (
            layout.measured_shares(load) if load.held_nodes else ()
        ) or layout.shares_by_cores(self.cpu_positions)
        self.mem_shares = self._mem_shares(layout)
        self.effect = losses.effect_at(
            self.cpu_positions,
            demand_cores,
            self.cpu_shares,
            self.mem_shares,
            self.stalls_per_ns,
            self.bandwidth_bytes_per_sec,
            layout.latencies_ns,
            served_cores=min(served_cores, demand_cores),
            counts_queueing=self.counted,
        )

    def has_memory_worth_fetching(self, mem_position: int) -> bool:
        """Return whether it has memory elsewhere that is worth fetching to a position.

        A small remainder, such as QEMU's read-only pages, cannot be moved.
        """
        return (
            page_choice.notable_bytes_elsewhere(self.bytes_by_position or {}, (mem_position,)) > 0
        )

    def _mem_shares(self, layout: Layout) -> losses.Shares:
        """Return the shares of its accesses by where its pages are and by the remote ratio."""
        bytes_by_position, remote_ratio = self.bytes_by_position or {}, self.load.remote_ratio
        shares = shares_of(bytes_by_position) or tuple(
            (layout.memory_at[n], share) for n, share in self.cpu_shares
        )
        local_memory = layout.memory_at[self.cpu_positions[0]]
        if (
            remote_ratio is None
            or len(self.cpu_positions) > 1
            or not self.has_memory_worth_fetching(local_memory)
        ):
            return shares
        remote_bytes = {n: size for n, size in bytes_by_position.items() if n != local_memory}
        remote_shares = tuple((n, remote_ratio * share) for n, share in shares_of(remote_bytes))
        return ((local_memory, 1 - remote_ratio), *remote_shares)


class Layout:
    """A host and its guests by position, with what was measured of them and what is promised.

    :ivar guests: {uuid: model} of the guests whose demand is known
    :ivar unmeasured_uuids: the other guests
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
        self, situation: plan_records.Situation, rebalance_options: plan_records.RebalanceOptions
    ) -> None:
        """Lay out the host and the guests of a situation."""
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
        self.unmeasured_uuids = frozenset(
            load.uuid for load in situation.guests if load.demand_cores is None
        )
        for load in situation.guests:
            if load.demand_cores is not None and self.positions_with_cpus:
                self.guests[load.uuid] = GuestModel(self, load, load.demand_cores, situation.mlp)
        self.host_loss = self._host_loss(situation)
        for guest in self.guests.values():
            self.host_loss.add_effect(guest.effect)

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
                demand[n] = max(0.0, demand[n] - share * guest.demand_cores)
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
