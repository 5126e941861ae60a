# SPDX-License-Identifier: Apache-2.0
"""Compare single decisions on a host of 24 L3 caches with the best of all possible ones.

Two sockets of twelve nodes, each an L3 cache of 8 cores with SMT and 32 GiB.

*Spans*: nodes with their own memory controllers, loaded at random. A guest too large for one node
gets one of the smallest sets of nodes that hold it; :func:`best_rank` tries every set, while the
decision on such a host examines only some.

*Caches*: AMD's L3-as-NUMA, where a socket's nodes share their memory controllers. Guests come and
go; each gets a socket, and one of its caches or all. The best decision is the one with the lowest
possible highest pressure of any cache, with the guest on any cache or on all of a socket.

Times are CPU time of the thread.
"""

import random
import time
from itertools import combinations

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view
from nova_numa_pmc.core.placement import candidates, l3, placement, ranking
from tests.fixtures.model_records import (
    GIB,
    PLACEMENT_OPTIONS,
    guest,
    topology,
    two_level_distances,
)

SOCKETS, CACHES, CORES, THREADS, NODE_BYTES = 2, 12, 10.0, 16, 32 * GIB
#: There are 42,504 sets of five nodes.
NODES_MAX = 5


def draw_case(rng):
    """Draw a loaded host and a guest that spans two to five of its nodes.

    :returns: (:class:`model.HostView`, :class:`model.Request`)
    """
    count, filled, busy = SOCKETS * CACHES, rng.uniform(0, 0.9), rng.uniform(0, 1.2)
    nodes = []
    for at in range(count):
        vcpus = rng.randint(0, 2 * THREADS)
        nodes.append(
            model.NodeView(
                at,
                CORES,
                THREADS,
                NODE_BYTES,
                int(min(1, rng.uniform(0, 2 * filled)) * NODE_BYTES),
                vcpus / 4,
                vcpus,
                rng.uniform(0, 2 * busy) * CORES,
            )
        )
    free = sorted((node.capacity_bytes - node.promised_bytes for node in nodes), reverse=True)
    size = rng.randint(2, NODES_MAX)
    room = sum(free[:size])
    vcpus = rng.choice(
        (rng.randint(1, THREADS), rng.randint(THREADS * (size - 1) + 1, THREADS * size))
    )
    memory = int(rng.uniform(0.3, 1.0) * room)
    return model.HostView(
        tuple(nodes), two_level_distances(count, CACHES, 11, 32), rng.randrange(count)
    ), (model.Request(vcpus, memory, demand_cores=0.5 * vcpus))


def best_rank(inputs, placement_options):
    """Return the best :class:`ranking.Rank` of all the smallest sets, or None if there is none."""
    cpu_counts, free = inputs.cpu_counts, [max(0, left) for left in inputs.unpromised_bytes]
    vcpus, memory = inputs.request.vcpus, inputs.request.memory_bytes
    pressures = [node.demand_cores / node.cores for node in inputs.view_by_domain.nodes]
    for size in range(1, NODES_MAX + 1):
        holding = [
            chosen
            for chosen in combinations(range(len(cpu_counts)), size)
            if sum(free[at] for at in chosen) >= memory
            and sum(cpu_counts[at] for at in chosen) >= vcpus
        ]
        if holding:
            # Nodes are equal, so the guest adds the same to each: only sets whose highest pressure
            # is in the lowest step, or below the floor, can be the best.
            added = inputs.request.demand_cores / size / CORES
            highest = [max(pressures[at] for at in chosen) + added for chosen in holding]
            least = (
                max(placement_options.pressure_floor, min(highest))
                + placement_options.pressure_step
            )
            kept = [
                candidates.Candidate(chosen, chosen, True)
                for chosen, most in zip(holding, highest)
                if most <= least
            ]
            return ranking.rank_candidates(inputs, kept, placement_options)[0][0]
    return None


def compare_spanning_guests(cases, rng):
    """Compare decisions for guests that span two to five nodes.

    :returns: list of (highest pressure relative to the best's, SLIT units farther than that at
        equal pressures, µs, µs of the search)
    """
    rows = []
    while len(rows) < cases:
        view, request = draw_case(rng)
        inputs = candidates.PlacementInput(view, request)
        best, exact_us = timed(best_rank, inputs, PLACEMENT_OPTIONS)
        if best is None or len(best.candidate.cpu_positions) < 2:
            continue
        _, us = timed(placement.place, view, request, PLACEMENT_OPTIONS)
        ours = placement.decide_place(inputs, PLACEMENT_OPTIONS).ranks[0]
        more = len(ours.candidate.cpu_positions) > len(best.candidate.cpu_positions)
        rows.append(
            (
                float('inf') if more else relative_pressure(ours.pressure, best.pressure),
                ours.distance - best.distance if ours.key[0] == best.key[0] else 0.0,
                us,
                exact_us,
            )
        )
    return rows


def compare_cache_guests(cases, rng):
    """Compare decisions for guests that fit a cache; return a list of (ratio, µs)."""
    host, rows = build_host(), []
    while len(rows) < cases:
        kept, fill = {}, rng.uniform(0.2, 2.0) * SOCKETS * CACHES * CORES
        for rotation in range(60):
            if kept and (rng.random() < 0.3 or sum(p.vcpus for p in kept.values()) > 2 * fill):
                del kept[rng.choice(sorted(kept))]
                continue
            new = guest(f'{rotation:02}', rng.choice((1, 2, 2, 4, 4, 8)), GIB)
            promise, us = timed(start, host, list(kept.values()), new, rotation)
            best = min(
                highest(host, [*kept.values(), promise._replace(cpu_nodes=nodes, l3_cpus=cpus)])
                for nodes, cpus in places(host)
            )
            kept[new.name] = promise
            rows.append((relative_pressure(highest(host, list(kept.values())), best), us))
    return rows[:cases]


def build_host():
    """Build the host whose sockets are one place each."""
    count, threads = SOCKETS * CACHES, THREADS
    host = topology(
        [threads] * count,
        [NODE_BYTES] * count,
        threads=2,
        distances=two_level_distances(count, CACHES, 11, 32),
    )
    return host._replace(
        l3s=tuple((node.cpus,) for node in host.nodes),
        vendor='AuthenticAMD',
        sockets=tuple(at // CACHES for at in range(count)),
    )


def start(host, promises, new, rotation):
    """Decide as the hook does; return the promise."""
    view = host_view.view(host, promises, PLACEMENT_OPTIONS, rotation=rotation)
    request = host_view.request(new, PLACEMENT_OPTIONS)
    placed = placement.place(view, request, PLACEMENT_OPTIONS)
    cpus, _ = l3.choose(host, view, promises, placed.cpu_nodes, request, PLACEMENT_OPTIONS)
    return placement.new_promise(new, placed, rotation, cpus)


def places(host):
    """List (node ids, CPUs) of each cache and of each socket."""
    sockets = [tuple(range(at * CACHES, (at + 1) * CACHES)) for at in range(SOCKETS)]
    return [(nodes, tuple(sorted(host.nodes[at].cpus))) for nodes in sockets for at in nodes] + [
        (nodes, ()) for nodes in sockets
    ]


def highest(host, promises):
    """Return the highest pressure of a cache; guests with several caches go where it is calm."""
    narrow, socket = [0.0] * len(host.nodes), [0.0] * SOCKETS
    for promise in promises:
        demand = 0.5 * promise.vcpus
        socket[promise.cpu_nodes[0] // CACHES] += demand
        if promise.l3_cpus:
            narrow[promise.l3_cpus[0] // THREADS] += demand
    return max(max(narrow) / CORES, max(socket) / CACHES / CORES)


def relative_pressure(ours, best):
    """Return a pressure relative to the best; below the floor, all are equally good."""
    return max(PLACEMENT_OPTIONS.pressure_floor, ours) / max(
        PLACEMENT_OPTIONS.pressure_floor, best
    )


def timed(function, *args):
    """Return a function's result, and the CPU time that it took [µs]."""
    begun = time.thread_time_ns()
    result = function(*args)
    return result, (time.thread_time_ns() - begun) / 1000


def figures(cases, seed):
    """Return the figures of both, for the last line of the benchmark."""
    figures_, rng = {}, random.Random(seed)
    rows = {
        'spans': compare_spanning_guests(cases, rng),
        'caches': compare_cache_guests(10 * cases, rng),
    }
    for kind, kind_rows in rows.items():
        columns = list(zip(*kind_rows))
        for name, column in (
            ('pressure_ratio', columns[0]),
            ('us', columns[-1 if kind == 'caches' else 2]),
        ):
            ordered = sorted(column)
            for part, at in (('p50', 0.5), ('p95', 0.95), ('max', 1.0)):
                figures_[f'{part}_24_l3_{kind}_{name}'] = round(
                    ordered[min(len(ordered) - 1, int(at * len(ordered)))], 4
                )
    exact_us = sorted(row[3] for row in rows['spans'])
    figures_['p95_24_l3_spans_exact_us'] = round(exact_us[int(0.95 * len(exact_us))], 1)
    farther = sorted(row[1] for row in rows['spans'])
    figures_['p95_24_l3_spans_farther_slit'] = round(farther[int(0.95 * len(farther))], 3)
    return figures_
