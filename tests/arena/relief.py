# SPDX-License-Identifier: Apache-2.0
"""Guests that move to other hosts, as ``nova-numa-rebalance fleet`` plans it, and what it costs.

The plan is made from what agents have published, and from the guests' means over a day. Guests
that came while the region was filled count as old; others stay, as do those that were moved.
Deviations: a migration does not slow down the other guests of its two hosts.
"""

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core import fleet as planner
from tests.arena import fleet as fleets, parameters as p

MIB = 1 << 20


class Relief:
    """Plans of a region, and the guests that are under way.

    :ivar moved: when guests arrived at their new hosts [s], by number
    """

    def __init__(self, fleet, fill_s):
        """Begin without moves."""
        self._fleet, self._fill_s = fleet, fill_s
        self.moved = {}
        self._under_way = set()

    def begin(self, now_s):
        """Plan, and claim room for the guests that leave; return (guest, host, seconds)."""
        fleet = self._fleet
        plan = planner.plan(
            self._hosts(now_s), planner.Budgets(p.RELIEF_MOVES, p.RELIEF_MIB * MIB), now_s
        )
        begun = []
        for move in plan.moves:
            guest, target = int(move.uuid), int(move.target)
            if fleet.has_room(target, guest):
                fleet.promise(guest, target, 1)
                self._under_way.add(guest)
                seconds = move.duration_s * p.RELIEF_DIRTIED
                begun.append((guest, target, seconds))
        return begun

    def end(self, guest, target, now_s):
        """Let a guest continue on its new host; return whether it is still there."""
        fleet = self._fleet
        self._under_way.discard(guest)
        fleet.promise(guest, target, -1)
        if fleet.state[guest] != fleets.RUNS:
            return False
        fleet.count(guest, -1, building=0)
        fleet.end(guest)
        fleet.claim(guest, target)
        fleet.count(guest, 1, building=0)
        fleet.start(guest, now_s)
        self.moved[guest] = now_s
        return True

    def _hosts(self, now_s):
        """Return what the hosts report, as the planner takes it."""
        fleet = self._fleet
        hosts, columns = fleet.hosts, fleet.columns
        known = np.flatnonzero(columns['taken_s'] > -np.inf)
        guests = {int(host): [] for host in known}
        for guest in np.flatnonzero(fleet.state == fleets.RUNS):
            host = int(fleet.host[guest])
            if host in guests:
                guests[host].append(self._guest(int(guest)))
        found = {}
        for at in known:
            nodes = tuple(
                model.NodeView(
                    node,
                    float(hosts.cores[at, node]),
                    int(hosts.threads[at, node]),
                    int(hosts.memory_mib[at, node]) * MIB,
                    int(columns['promised_mib'][at, node]) * MIB,
                    float(columns['node_guests'][at, node]),
                    float(columns['node_vcpus'][at, node]),
                    float(columns['demand'][at, node]),
                    float(columns['traffic'][at, node]),
                    float(hosts.bandwidth[at, node]),
                )
                for node in range(hosts.nodes)
            )
            view = model.HostView(nodes, fleet.distance_rows)
            # An agent sends metrics only if they have changed: its last audit counts.
            sent_s = float(columns['taken_s'][at])
            taken_s = now_s if now_s - sent_s <= p.HEARTBEAT_S + p.AUDIT_S else sent_s
            found[str(at)] = planner.FleetHost(taken_s, view, tuple(guests[int(at)]))
        return found

    def _guest(self, guest):
        fleet, trace = self._fleet, self._fleet.trace
        fixed = trace.dedicated[guest] or guest in self._under_way
        came = fleet.started_s[guest] > self._fill_s
        demand = float(fleet.usual[guest])
        return planner.FleetGuest(
            str(guest),
            str(guest),
            int(trace.vcpus[guest]),
            int(trace.memory_mib[guest]) * MIB,
            demand or None,
            demand * float(trace.lines[guest]) * 64,
            'fixed' if fixed else planner.ARRIVED if came else '',
        )
