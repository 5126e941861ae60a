# SPDX-License-Identifier: Apache-2.0
"""Find the most that moves between hosts can gain: a mixed-integer program, solved by HiGHS.

It may move each guest that may leave, also from hosts that are not saturated, to any node that has
room, within the same budgets and up to the same pressure as the planner. A host's loss is that
of its demand spread evenly, which is convex: tangents bound it from below, so that what is found
is never less than the optimum.
"""

import numpy as np
from scipy import optimize, sparse

from nova_numa_pmc.core import fleet
from nova_numa_pmc.core.placement import loss

#: Tangents to a host's loss, between an idle host and one that wants this much of its capacity.
TANGENTS, RATIO_MAX = 60, 1.8


def waiting(cores, demand):
    """Return what waits on a host of nodes with ``cores`` if its demand is spread evenly."""
    total = sum(cores)
    return sum(loss.mean_waiting_cores(demand * one / total, one) for one in cores)


def gain_of(hosts, moves):
    """Return what moves gain by the same measure."""
    demands = {name: _demand(host) for name, host in hosts.items()}
    before = sum(waiting(_cores(hosts[name]), demand) for name, demand in demands.items())
    wants = {guest.uuid: guest.demand_cores for host in hosts.values() for guest in host.guests}
    for move in moves:
        demands[move.source] -= wants[move.uuid]
        demands[move.target] += wants[move.uuid]
    return before - sum(waiting(_cores(hosts[name]), demand) for name, demand in demands.items())


def most_gain(hosts, budgets, limit_s=60.0):
    """Return a bound on what any plan gains [cores]: 0.5 % above the optimum if time suffices."""
    names = list(hosts)
    targets = [
        (at, node)
        for at, name in enumerate(names)
        if _demand(hosts[name]) < fleet.TARGET_RATIO_MAX * sum(_cores(hosts[name]))
        for node in range(len(hosts[name].view.nodes))
    ]
    moves = [
        (at, guest, target)
        for at, name in enumerate(names)
        for guest in hosts[name].guests
        if not guest.why_fixed
        for target in targets
        if target[0] != at
    ]
    # The moves, then what each host saves, then what its guests want.
    saved, wanted = len(moves), len(moves) + len(names)
    count = wanted + len(names)
    rows, lower, upper = [], [], []

    def bound(terms, least, most):
        rows.append(terms)
        lower.append(least)
        upper.append(most)

    by_guest, by_target = {}, {}
    changes = [{} for _ in names]
    for column, (source, guest, target) in enumerate(moves):
        by_guest.setdefault(guest.uuid, []).append(column)
        by_target.setdefault(target, []).append((column, guest))
        changes[source][column] = -guest.demand_cores
        changes[target[0]][column] = guest.demand_cores
    for columns in by_guest.values():
        bound(dict.fromkeys(columns, 1.0), -np.inf, 1.0)
    bound(dict.fromkeys(range(len(moves)), 1.0), -np.inf, budgets.moves)
    sizes = {column: guest.memory_bytes / 2**30 for column, (_, guest, _) in enumerate(moves)}
    bound(sizes, -np.inf, budgets.memory_bytes / 2**30)
    for (at, node), some in by_target.items():
        view = hosts[names[at]].view.nodes[node]
        room = (view.capacity_bytes - view.promised_bytes) / 2**30
        bound({column: guest.memory_bytes / 2**30 for column, guest in some}, -np.inf, room)
    for at, name in enumerate(names):
        cores, demand = _cores(hosts[name]), _demand(hosts[name])
        total = sum(cores)
        bound({**changes[at], wanted + at: -1.0}, -demand, -demand)
        if demand < fleet.TARGET_RATIO_MAX * total:
            bound({wanted + at: 1.0}, -np.inf, fleet.TARGET_RATIO_MAX * total)
        now = waiting(cores, demand)
        for point in np.linspace(0, RATIO_MAX * total, TANGENTS):
            slope = (waiting(cores, point + 0.01) - waiting(cores, point - 0.01)) / 0.02
            least = waiting(cores, point) - slope * point
            bound({wanted + at: slope, saved + at: 1.0}, -np.inf, now - least)
    matrix = sparse.lil_array((len(rows), count))
    for row, terms in enumerate(rows):
        for column, value in terms.items():
            matrix[row, column] = value
    is_move = np.arange(count) < len(moves)
    found = optimize.milp(
        -((np.arange(count) >= saved) & (np.arange(count) < wanted)).astype(float),
        constraints=optimize.LinearConstraint(matrix.tocsr(), lower, upper),
        integrality=is_move.astype(int),
        bounds=optimize.Bounds(np.where(is_move, 0, -np.inf), np.where(is_move, 1, np.inf)),
        options={'time_limit': limit_s, 'mip_rel_gap': 0.005},
    )
    return -found.mip_dual_bound


def _cores(host):
    return [node.cores for node in host.view.nodes]


def _demand(host):
    return sum(node.demand_cores for node in host.view.nodes)
