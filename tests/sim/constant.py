# SPDX-License-Identifier: Apache-2.0
"""Model hosts whose guests have constant demand, and apply successive plans to them."""

from nova_numa_pmc import model
from nova_numa_pmc.core import memory_domains, pressure
from nova_numa_pmc.core.rebalance import plan_records, planner
from nova_numa_pmc.core.rebalance.planner_state import PlannerState
from tests.fixtures.model_records import GIB

LINE_BYTES = 64


def guest_load(
    name, vcpus, at, demand, memory=2 * GIB, resident=None, lines=0.0, memory_at=None, **fields
):
    """Build a guest on one or several nodes, with its memory there or as ``memory_at`` says.

    :param lines: DRAM accesses per second, each of 64 bytes
    :param memory_at: tuple of (node id, bytes)
    """
    at = at if isinstance(at, tuple) else (at,)
    if memory_at is None:
        memory_at = tuple(
            (n, int((memory if resident is None else resident) / len(at))) for n in at
        )
    kept = dict(
        home_nodes=at,
        mem_nodes=at,
        bytes_by_node=memory_at,
        demand_cores=demand,
        served_cores=demand,
        lines_per_sec=lines,
        bandwidth_bytes_per_sec=LINE_BYTES * lines,
    )
    kept.update(fields)
    return plan_records.GuestLoad(name, name, vcpus, memory, at, **kept)


def slit_latencies_ns(view):
    """Return the latencies of a host for which only SLIT distances are known."""
    count = range(len(view.nodes))
    return pressure.slit_latencies_ns(
        [[memory_domains.distance(view, a, b) for b in count] for a in count],
        pressure.LOCAL_LATENCY_NS,
    )


class ConstantHost:
    """A host and guests whose demand does not change.

    :ivar guests: list of :class:`plan_records.GuestLoad`
    """

    def __init__(
        self,
        cores,
        capacity_bytes,
        guests,
        bandwidth_max=None,
        distances=(),
        latencies_ns=None,
        ids=None,
        domains=(),
    ):
        """Lay out the host; sequences are indexed by position, guests name node ids."""
        self.ids = list(ids or range(len(cores)))
        self.cores, self.capacity_bytes = cores, capacity_bytes
        self.guests, self.bandwidth_max = list(guests), bandwidth_max
        self.distances, self.latencies_ns, self.domains = distances, latencies_ns, domains
        self.now_s = 1000.0

    def situation(self, guests=None):
        """Return what a perfect measurement sees; ``guests`` may be given with noise."""
        guests = [
            guest
            if guest.demand_cores is None
            else guest._replace(mean_cores=(guest.demand_cores,) * 2)
            for guest in (self.guests if guests is None else guests)
        ]
        demand, bandwidths, promised = ({n: 0.0 for n in self.ids} for _ in range(3))
        for guest in guests:
            for n in guest.held_nodes or self.ids:  # a guest that floats is on all nodes
                demand[n] += guest.demand_cores / len(guest.held_nodes or self.ids)
            total = sum(size for _, size in guest.bytes_by_node) or 1
            for n, size in guest.bytes_by_node:
                bandwidths[n] += (guest.bandwidth_bytes_per_sec or 0.0) * size / total
            for n in guest.mem_nodes:
                promised[n] += guest.memory_bytes / len(guest.mem_nodes)
        nodes = tuple(
            model.NodeView(
                n,
                float(cores),
                int(cores),
                capacity,
                int(promised[n]),
                demand_cores=demand[n],
                bandwidth_bytes_per_sec=bandwidths[n],
                bandwidth_max_bytes_per_sec=self.bandwidth_max,
            )
            for n, cores, capacity in zip(self.ids, self.cores, self.capacity_bytes)
        )
        view = model.HostView(nodes, self.distances, domains=self.domains)
        return plan_records.Situation(
            view, tuple(guests), self.latencies_ns or slit_latencies_ns(view)
        )

    def make(self, plan):
        """Make a plan's moves; return the bytes."""
        for move in plan.moves:
            self.guests = [
                self._moved(guest, move) if guest.uuid == move.uuid else guest
                for guest in self.guests
            ]
        return sum(move.to_move_bytes for move in plan.moves)

    def run(self, options, ticks, elapsed_s=60.0, noise=None, state=None):
        """Plan and make moves; return (plans, state).

        :param noise: ``noise(guest, tick)`` returns the guest as measured in a tick
        """
        plans, state = [], state or PlannerState()
        for tick in range(ticks):
            seen = [noise(guest, tick) for guest in self.guests] if noise else None
            plan, state = planner.plan(self.situation(seen), state, options, elapsed_s, self.now_s)
            self.now_s += elapsed_s
            self.make(plan)
            plans.append(plan)
        return plans, state

    @staticmethod
    def _moved(guest, move):
        if not move.mem_nodes:
            return guest._replace(held_nodes=move.to_nodes)
        total = sum(size for _, size in guest.bytes_by_node)
        at = move.mem_nodes[:1]
        return guest._replace(
            held_nodes=move.to_nodes,
            home_nodes=move.to_nodes,
            mem_nodes=at,
            mem_node_bytes=(),
            bytes_by_node=((at[0], total),),
            remote_ratio=None,
        )
