# SPDX-License-Identifier: Apache-2.0
"""NUMAPressureWeigher as it was before the arena: an order of hosts, stretched by Nova."""

import numpy as np

from nova_numa_pmc.core.scheduling.outcome import pressures_elsewhere
from tests.arena import losses
from tests.arena.policies import nova_weights, our_weigher

#: Digits of its keys, from the highest pressure to the mean of the other nodes'.
HIGHEST, TIER, MEAN, OTHERS, OTHERS_MEAN = 40, 38, 30, 22, 14
STEP = our_weigher.STEP
TIERS = {'one_node': 0, 'span': 1, 'spread': 1, 'cpus_only': 2}


def ranked(view, asked):
    """Weigh as Nova with NUMAPressureWeigher as it was until November 2026.

    Source: this repository, commit 90f84a1, nova_numa_pmc/scheduler/weights.py.
    Formula: stock + 1.0 · stretched weight, which orders hosts by digits: the highest pressure
    that the guest would leave, whether on one node, the means; an unknown host has the mean.
    Deviations: the guest's demand is a median over hosts, as today; implausible figures are
    unknown; dedicated guests take no shared core; vCPUs that arrived do not break ties.
    """
    at = our_weigher.usable(view)
    found = np.zeros(len(view.at))
    if len(at):
        known = our_weigher.Known(view.only(at))
        keys = _keys(known, asked) / float(1 << HIGHEST)
        found[:] = keys.mean()
        found[at] = keys
    return nova_weights.stock(view, asked) + nova_weights.normalized(-found)


def _keys(known, asked):
    cores, lines = our_weigher.estimate(known.rate, known.known_guests, known.known_sum, asked)
    traffic = cores * lines * losses.LINE_BYTES
    best, usual = our_weigher.best_nodes(known, asked.vcpus, asked.memory_mib)
    usual &= (known.came_vcpus <= 0) & (known.came_mib <= 0) & (not asked.dedicated)
    rows = np.arange(len(best))
    rest = np.maximum(known.demand / known.cores, known.traffic / known.bandwidth)
    rest[rows, best] = 0.0
    used = our_weigher.on_best(known, best, cores, traffic)
    keys = _digits(used, 0, used, rest.max(1), rest.sum(1) / max(1, rest.shape[1] - 1))
    for position in np.flatnonzero(~usual):
        answer, _ = our_weigher.answered(known, position, asked)
        found, host = answer.outcome, answer.host
        used_cores = sum(host.cores[at] for at in found.cpu_positions)
        mems = found.mem_positions or found.cpu_positions
        highest = max(
            *(host.demand[at] / host.cores[at] + cores / used_cores for at in found.cpu_positions),
            *((host.bandwidth[at] + traffic / len(mems)) / host.bandwidth_max[at] for at in mems),
        )
        others = pressures_elsewhere(host, found) or [0.0]
        keys[position] = _digits(
            highest, TIERS.get(found.code, 3), highest, max(others), sum(others) / len(others)
        )
    return keys


def _digits(highest, tier, mean, others, others_mean):
    def steps(pressure, most=255):
        return np.minimum(most, np.asarray(pressure) / STEP + 1e-9).astype(np.int64)

    return (
        (steps(highest, 8191) << HIGHEST)
        | (np.int64(tier) << TIER)
        | (steps(mean) << MEAN)
        | (steps(others) << OTHERS)
        | (steps(others_mean) << OTHERS_MEAN)
    )
