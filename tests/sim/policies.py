# SPDX-License-Identifier: Apache-2.0
"""Policies for moving guests: none, the planner. Each sees a noisy interval."""

from nova_numa_pmc import model
from nova_numa_pmc.core.demand import DAY_S, MINUTES_S
from nova_numa_pmc.core.rebalance import plan_records, planner
from nova_numa_pmc.core.rebalance.planner_state import PlannerState


class Mean:
    """The mean demand of a guest over minutes and over a day."""

    def __init__(self):
        self.minutes = self.day = self.measured_s = 0.0

    def add(self, value, elapsed_s):
        """Add an interval."""
        self.measured_s += elapsed_s
        least = elapsed_s / self.measured_s
        self.minutes += max(least, elapsed_s / MINUTES_S) * (value - self.minutes)
        self.day += max(least, elapsed_s / DAY_S) * (value - self.day)


def situation(host, rng=None, noise=0.0, means=None):
    """Turn an interval of a simulated host into the planner's input.

    :param noise: standard deviation of each guest's measured rates, relative to them
    :param means: {guest name: its demand over minutes and a day}, to which the interval is added
    """
    seconds = host.elapsed or 1.0
    guests, busy = [], {id(guest) for guest in host.queue}
    for guest in host.guests:
        off = (lambda: max(0.0, rng.gauss(1.0, noise))) if noise else (lambda: 1.0)
        lines = (guest.local + guest.remote) * off() / seconds
        demand_cores = guest.asked * off() / seconds
        mean = Mean() if means is None else means.setdefault(guest.name, Mean())
        mean.add(demand_cores, seconds)
        guests.append(
            plan_records.GuestLoad(
                guest.name,
                guest.name,
                guest.vcpus,
                guest.promise_bytes,
                guest.cpus,
                guest.home,
                guest.home,
                (),
                tuple((n, int(size)) for n, size in enumerate(guest.bytes) if size),
                tuple((n, ran / seconds) for n, ran in enumerate(guest.ran) if ran),
                demand_cores,
                guest.served / seconds,
                (mean.minutes, mean.day),
                mean.measured_s,
                1 - guest.useful / guest.served if guest.served else 0.0,
                lines,
                guest.remote / (guest.local + guest.remote)
                if guest.local + guest.remote
                else None,
                64 * lines,
                None,
                'moving' if id(guest) in busy else '',
            )
        )
    promised = [0.0] * len(host.cores)
    for guest in host.guests:
        for n in guest.home:
            promised[n] += guest.promise_bytes / len(guest.home)
    nodes = tuple(
        model.NodeView(
            n,
            float(cores),
            int(cores),
            host.capacity_bytes[n],
            int(promised[n]),
            demand_cores=host.node_asked[n] / seconds,
            bandwidth_bytes_per_sec=host.node_bytes[n] / seconds,
            bandwidth_max_bytes_per_sec=host.bandwidth_max[n],
        )
        for n, cores in enumerate(host.cores)
    )
    waited = tuple(
        (n, (host.node_asked[n] - host.node_served[n]) / seconds) for n in range(len(host.cores))
    )
    return plan_records.Situation(
        model.HostView(nodes, ()), tuple(guests), host.latencies_ns, waited, (), host.mlp
    )


class NoMoves:
    """Leave guests where they started."""

    def tick(self, host, now_s, elapsed_s, rng, noise):
        """Do nothing."""


class PlannerPolicy:
    """Ask the planner at each tick and carry out its plan."""

    def __init__(self, options=None):
        self.options = options or plan_records.RebalanceOptions()
        self.state = PlannerState()
        self.means, self.made, self.stopped_until_s = {}, [], 0.0

    def tick(self, host, now_s, elapsed_s, rng, noise):
        """Examine one interval and apply the plan, unless memory is being moved."""
        seen = situation(host, rng, noise, self.means)
        if host.queue:
            return
        options = self.options
        if now_s < self.stopped_until_s:
            options = options._replace(may_move=False)
        plan, self.state = planner.plan(seen, self.state, options, elapsed_s, now_s)
        if any(remark.code == plan_records.DO_NOT_PAY for remark in plan.remarks):
            self.stopped_until_s = now_s + DAY_S
        self.made += [(now_s, move) for move in plan.moves]
        by_name = {guest.name: guest for guest in host.guests}
        for move in plan.moves:
            host.change(
                by_name[move.uuid], move.to_nodes, move.mem_nodes[0] if move.mem_nodes else None
            )
