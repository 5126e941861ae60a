# SPDX-License-Identifier: Apache-2.0
"""Lay out a host and its guests by memory domain, before anything is moved.

Positions are those of memory domains (``core/memory_domains.py``): nodes that share their
memory channels share a position. Arguments and results are in node ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import memory_domains
from nova_numa_pmc.core.rebalance import losses, plan_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeVar

    from nova_numa_pmc.core.rebalance.host_model import Place

    _Amount = TypeVar('_Amount', int, float)

#: The accesses of a guest that waits for CPUs are scaled up to its demand, at most by this factor.
UNCLIPPED_MAX = 4.0
#: DRAM accesses per second of a busy core, where they are not counted. Assumed, and low: on the
#: host that this project began with the remote ones alone were 1.3 million, and one miss in 2,500
#: instructions at 2.5 · 10⁹ instructions per second makes one million. It brings memory home
#: within hours; nothing else is concluded from it.
ASSUMED_LINES_PER_CORE_SEC = 1e6
#: A gain below this share of the host's cores is noise, where that is less than min_gain_cores.
NOISE_RATIO = 0.004


class GuestModel:
    """One guest of the host model.

    :ivar at, home: ascending positions of its CPUs now, and of those promised
    :ivar bytes: {position: bytes of its memory}; None: unknown
    :ivar promise: {position: bytes promised}
    :ivar stalls_per_ns: accesses per second · 1e-9 / MLP, unclipped
    :ivar traffic: DRAM traffic [bytes/s], unclipped
    :ivar counted: whether its accesses were counted; otherwise ``stalls_per_ns`` is assumed, and
        used for the distance only
    :ivar effect: its effect on the host at its present place
    :ivar movable: whether it may be touched and enough of it is known
    """

    __slots__ = (
        'load',
        'at',
        'home',
        'cpu_shares',
        'mem_shares',
        'bytes',
        'promise',
        'demand',
        'stalls_per_ns',
        'traffic',
        'counted',
        'effect',
        'movable',
        'allowed',
        'effects',
    )

    def __init__(
        self, layout: Layout, load: plan_records.GuestLoad, demand: float, mlp: float
    ) -> None:
        """Lay out a guest at its present place.

        :param demand: the load's, which is known [cores]
        """
        self.load = load
        self.effects: dict[Place, losses.Effect] = {}
        self.at = layout.positions(load.cpu_nodes)
        self.home = layout.positions(load.home_nodes or load.cpu_nodes)
        self.allowed = (
            None
            if load.allowed_nodes is None
            else frozenset(layout.known_positions(load.allowed_nodes))
        )
        self.demand = max(0.0, demand)
        self.bytes = layout.sum_by_position(load.bytes_by_node) if load.bytes_by_node else None
        self.promise = layout.promise_by_position(load)
        self.movable = not load.fixed and bool(self.at)
        more = 1.0
        if load.served_cores:
            more = min(UNCLIPPED_MAX, max(1.0, self.demand / load.served_cores))
        served = self.demand if load.served_cores is None else max(0.0, load.served_cores)
        lines = load.lines_per_sec
        self.counted = lines is not None
        if lines is None:
            lines = ASSUMED_LINES_PER_CORE_SEC * served
        self.stalls_per_ns = lines * more * 1e-9 / mlp
        self.traffic = (load.bandwidth_bytes_per_sec or 0.0) * more
        ran = layout.sum_by_position(load.cores_by_node)
        self.cpu_shares = shares_of({n: ran.get(n, 0.0) for n in self.at}) or layout.by_cores(
            self.at
        )
        self.mem_shares = self._mem_shares(layout)
        self.effect = losses.effect(
            self.at,
            self.demand,
            self.cpu_shares,
            self.mem_shares,
            self.stalls_per_ns,
            self.traffic,
            layout.latencies_ns,
            served_cores=min(served, self.demand),
            counts_queueing=self.counted,
        )

    def _mem_shares(self, layout: Layout) -> losses.Shares:
        """Return where its accesses go: as its pages lie, corrected by the remote ratio."""
        bytes_by_position, remote_ratio = self.bytes or {}, self.load.remote_ratio
        shares = shares_of(bytes_by_position) or tuple(
            (layout.memory_at[n], share) for n, share in self.cpu_shares
        )
        local = layout.memory_at[self.at[0]]
        elsewhere = {n: size for n, size in bytes_by_position.items() if n != local and size > 0}
        if remote_ratio is None or len(self.at) > 1 or not elsewhere:
            return shares
        away = tuple((n, remote_ratio * share) for n, share in shares_of(elsewhere))
        return ((local, 1 - remote_ratio), *away)


class Layout:
    """A host and its guests, measured and promised, by position.

    :ivar guests: by uuid, of guests whose demand is known
    :ivar ids, memory_ids: by position, the node ids in it, and of these the ones with memory
    :ivar min_gain: a gain below this is noise [cores]
    :ivar cpu_known: by position, whether CPU demand was measured
    :ivar bandwidth_known: whether queueing at the memory is counted: every node's traffic and
        maximum are known
    """

    def __init__(
        self, situation: plan_records.Situation, options: plan_records.RebalanceOptions
    ) -> None:
        """Lay out the host and the guests of a situation."""
        view = situation.view
        merged, members = memory_domains.merge(view)
        self.options, self.nodes = options, merged.nodes
        self.min_gain = min(
            options.min_gain_cores, NOISE_RATIO * sum(node.cores for node in merged.nodes)
        )
        self.ids = tuple(tuple(view.nodes[at].id for at in group) for group in members)
        # What a cpuset.mems may hold of each: a domain may have nodes without memory.
        self.memory_ids = tuple(
            tuple(view.nodes[at].id for at in group if view.nodes[at].capacity_bytes != 0) or ids
            for group, ids in zip(members, self.ids)
        )
        self.position = {node: at for at, group in enumerate(self.ids) for node in group}
        self.all = tuple(range(len(merged.nodes)))
        self.running = tuple(n for n in self.all if merged.nodes[n].cores)
        self.latencies_ns = _mean_latencies(situation.latencies_ns, members)
        self.capacity = [node.capacity_bytes for node in merged.nodes]
        self.promised = [node.promised_bytes or 0 for node in merged.nodes]
        self.free = self.sum_by_position(situation.free_bytes)
        self.cpu_known = [node.demand_cores is not None for node in merged.nodes]
        self.memory_at = [self._nearest_memory(n) for n in self.all]
        self.guests: dict[str, GuestModel] = {}
        for load in situation.guests:
            if load.demand_cores is not None and self.running:
                self.guests[load.uuid] = GuestModel(self, load, load.demand_cores, situation.mlp)
        self.host_loss = self._host_loss(situation)
        for guest in self.guests.values():
            self.host_loss.put(guest.effect)

    def positions(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Turn node ids into an ascending tuple of positions; none known: all with CPUs."""
        positions = sorted(n for n in self.known_positions(ids) if self.nodes[n].cores)
        return tuple(positions) or self.running

    def known_positions(self, ids: Iterable[int]) -> set[int]:
        """Return the positions of those node ids that the host has."""
        return {self.position[node] for node in ids if node in self.position}

    def node_ids(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Turn positions into an ascending tuple of node ids."""
        return tuple(sorted(node for n in positions for node in self.ids[n]))

    def by_cores(self, cpus: Iterable[int]) -> losses.Shares:
        """Divide CPU time over positions in proportion to their cores."""
        return shares_of({n: self.nodes[n].cores for n in cpus})

    def promise_by_position(self, guest: plan_records.GuestLoad) -> dict[int, int]:
        """Divide a promise by position as :func:`host_view.view` does."""
        if guest.mem_bytes and len(guest.mem_bytes) == len(guest.mem_nodes):
            return self.sum_by_position(zip(guest.mem_nodes, guest.mem_bytes))
        positions = sorted(self.known_positions(guest.mem_nodes))
        if len(positions) == 1:
            return {positions[0]: guest.memory_bytes}
        weights = {n: self.capacity[n] or 0 for n in positions or self.all}
        return {n: int(share * guest.memory_bytes) for n, share in shares_of(weights) or ()}

    def _host_loss(self, situation: plan_records.Situation) -> losses.HostLoss:
        """Lay out the load that is not the guests': all that was measured, less theirs."""
        nodes = self.nodes
        demand = [node.demand_cores or 0.0 for node in nodes]
        usable = [n for n in self.all if self.capacity[n] or nodes[n].cores]
        self.bandwidth_known = all(
            nodes[n].bandwidth_max_bytes_per_sec and nodes[n].bandwidth_bytes_per_sec is not None
            for n in usable
        )
        traffic = [node.bandwidth_bytes_per_sec or 0.0 for node in nodes]
        maxima = (
            [node.bandwidth_max_bytes_per_sec for node in nodes] if self.bandwidth_known else None
        )
        waited = self.sum_by_position(situation.waiting_cores)
        bursts = [
            losses.burst(demand[n], nodes[n].cores, waited[n])
            if self.cpu_known[n] and n in waited
            else 0.0
            for n in self.all
        ]
        for guest in self.guests.values():
            for n, share in guest.cpu_shares:
                demand[n] = max(0.0, demand[n] - share * guest.demand)
            for m, share in guest.mem_shares:
                traffic[m] = max(
                    0.0, traffic[m] - share * (guest.load.bandwidth_bytes_per_sec or 0.0)
                )
        return losses.HostLoss([node.cores for node in nodes], maxima, demand, traffic, bursts)

    def _nearest_memory(self, n: int) -> int:
        if self.capacity[n] != 0:
            return n
        with_memory = [m for m in self.all if self.capacity[m] != 0]
        return min(with_memory, default=n, key=lambda m: self.latencies_ns[n][m])

    def sum_by_position(self, pairs: Iterable[tuple[int, _Amount]]) -> dict[int, _Amount]:
        """Add up (node id, amount) pairs by position."""
        sums: dict[int, _Amount] = {}
        for node, amount in pairs:
            if node in self.position:
                at = self.position[node]
                sums[at] = sums.get(at, 0) + amount
        return sums


def shares_of(amounts: Mapping[int, float]) -> losses.Shares:
    """Turn {position: amount} into (position, share) pairs; empty when all are 0."""
    total = sum(amounts.values())
    return (
        tuple((at, amount / total) for at, amount in amounts.items() if amount > 0)
        if total > 0
        else ()
    )


def _mean_latencies(
    latencies_ns: Sequence[Sequence[float]], members: Sequence[tuple[int, ...]]
) -> tuple[tuple[float, ...], ...]:
    """Average latencies over the nodes of each domain."""
    return tuple(
        tuple(
            sum(latencies_ns[a][b] for a in group for b in other) / (len(group) * len(other))
            for other in members
        )
        for group in members
    )
