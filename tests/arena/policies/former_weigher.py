# SPDX-License-Identifier: Apache-2.0
"""NUMAPressureWeigher as it was before the arena: an order of hosts, stretched by Nova."""

import numpy as np

from tests.arena import losses
from tests.arena.hosts import some
from tests.arena.policies import nova_weights, our_weigher, places

#: Digits of its keys, from the highest pressure to the mean of the other nodes'.
HIGHEST, TIER, MEAN, OTHERS, OTHERS_MEAN = 40, 38, 30, 22, 14
#: By kind of place.
TIERS = np.array([0, 1, 2, 3])


def ranked(view, asked):
    """Weigh as Nova with NUMAPressureWeigher as it was until November 2026.

    Source: this repository, commit 90f84a1, nova_numa_pmc/scheduler/weights.py.
    Formula: stock + 1.0 · stretched weight, which orders hosts by digits: the highest pressure
    that the guest would leave, whether on one node, the means; an unknown host has the mean.
    Deviations: the guest's demand is a median over hosts, as today; implausible figures are
    unknown; dedicated guests take no shared core; vCPUs that arrived do not break ties.
    """
    at = places.usable(view)
    found = np.zeros(len(view.at))
    if len(at):
        there = places.Places.of(view, at, asked)
        keys = _keys(view, at, there, asked) / float(1 << HIGHEST)
        found[:] = keys.mean()
        found[at] = keys
    return nova_weights.stock(view, asked) + nova_weights.normalized(-found)


def _keys(view, at, there, asked):
    hosts = view.at[at]
    cores, lines = our_weigher.estimate(
        there.rate[hosts], view.known_guests[at], view.known_sum[at], asked
    )
    capacity, maximum = some(view.cores, at), some(view.bandwidth, at)
    demand, traffic, kind = (
        some(there.demand, hosts),
        some(there.traffic, hosts),
        there.kind[hosts],
    )
    cpus = some(there.cpus, hosts) > 0
    memory = np.where(kind[:, None] < places.CPUS_ONLY, some(there.memory, hosts) > 0, cpus)
    busy, used = demand / capacity, traffic / maximum
    added = cores / (capacity * cpus).sum(1)
    added_traffic = cores * lines * losses.LINE_BYTES / memory.sum(1)
    highest = np.maximum(
        np.where(cpus, busy + added[:, None], 0).max(1),
        np.where(memory, (traffic + added_traffic[:, None]) / maximum, 0).max(1),
    )
    elsewhere = ~(cpus | memory)
    others = np.where(elsewhere, np.maximum(busy, used), 0)
    mean = others.sum(1) / np.maximum(1, elsewhere.sum(1))
    return _digits(highest, TIERS[kind], highest, others.max(1), mean)


def _digits(highest, tier, mean, others, others_mean):
    def steps(pressure, most=255):
        return np.minimum(most, pressure / places.STEP + 1e-9).astype(np.int64)

    return (
        (steps(highest, 8191) << HIGHEST)
        | (tier << TIER)
        | (steps(mean) << MEAN)
        | (steps(others) << OTHERS)
        | (steps(others_mean) << OTHERS_MEAN)
    )
