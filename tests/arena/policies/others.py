# SPDX-License-Identifier: Apache-2.0
"""Criteria of other schedulers, simple rules, and an oracle."""

import numpy as np

from tests.arena import hosts, losses, parameters as p


def best_fit(view, asked):
    """Take the fullest host that has room, by RAM: packing as in textbooks.

    Source: Johnson (1974), Fast Algorithms for Bin Packing, best fit. No vendor's.
    Formula: − free RAM.
    Deviations: one dimension, because RAM runs out here before CPUs and disk.
    """
    del asked
    return view.ram_used_mib - view.ram_mib


def least_pressed(view, asked):
    """Order by measured pressure, for a random choice among the first 20.

    Source: Mitzenmacher (2001), The Power of Two Choices, with 20; no vendor's. Tuning found 20
    better than 10.
    Formula: − the highest of a host's demand / cores, traffic / maximum over nodes; a host without
    our agent, which measures these, has the mean.
    Deviations: none.
    """
    del asked
    pressed = np.maximum(view.demand / view.cores, view.traffic / view.bandwidth).max(1)
    known = view.known
    mean = pressed[known].mean() if known.any() else 0.0
    return -np.where(known, pressed, mean)


def target_load_packing(view, asked, target=p.TARGET_PERCENT):
    """Pack up to a target CPU utilisation, then spread.

    Source: kubernetes-sigs/scheduler-plugins 0404cc6,
    https://github.com/kubernetes-sigs/scheduler-plugins/blob/0404cc6/pkg/trimaran/targetloadpacking/targetloadpacking.go.
    Formula: u = CPU % + 100 · (guest's + missing ones' vCPUs) / CPUs; up to T = 20
    round((100 − T)·u/T + T), above round(T·(100 − u)/(100 − T)), above 100 and without
    metrics 0. Equals at random, as kube-scheduler. Trimaran's default of T is 40; tuning found
    20 better.
    Deviations: a vCPU counts as a CPU of a container's limit; missing guests are those counted
    since the metrics, not a cache of pods; the mean is over 15 minutes, as load-watcher's.
    """
    missing = np.maximum(0, view.vcpus_used - view.loads_vcpus)
    used = 100 * (view.busy_ratio + (asked.vcpus + missing) / view.cpus)
    below = np.rint((100 - target) * used / target + target)
    above = np.rint(target * (100 - used) / (100 - target))
    score = np.where(used > target, np.where(used > 100, 0, above), below)
    return np.where(view.loaded, score, 0)


def load_variation_risk_balancing(view, asked, margin=1.0):
    """Balance the mean and the deviation of load.

    Source: kubernetes-sigs/scheduler-plugins 13e2ae7,
    https://github.com/kubernetes-sigs/scheduler-plugins/blob/13e2ae7/pkg/trimaran/loadvariationriskbalancing/README.md.
    Formula: 100·(1 − (μ + σ^(1/s))/2), rounded, of CPU and of memory, the lower of both; μ with
    the guest's request, both within 0 … 1; without metrics 0. Equals at random. The sensitivity s
    is 2, as recommended there; with its default of 1, guests lose no less.
    Deviations: memory is what is promised, with a deviation of 0.
    """
    cpu = np.clip(view.busy_ratio, 0, 1) + asked.vcpus / view.cpus
    memory = np.minimum(1, view.loads_mib / view.ram_mib)
    memory = memory + asked.memory_mib / view.ram_mib
    sigma = np.clip(margin * np.clip(view.busy_deviation, 0, 1), 0, 1)
    scores = [
        np.floor(100 * (1 - (np.clip(mean, 0, 1) + np.sqrt(deviation)) / 2) + 0.5)
        for mean, deviation in ((cpu, sigma), (memory, 0.0))
    ]
    return np.where(view.loaded, np.minimum(*scores), 0)


def ovirt_evenly_distributed(view, asked, most=1000, consumption=20.0):
    """Take the host with the lowest CPU use: oVirt's evenly_distributed, its CPU part.

    Source: oVirt/ovirt-engine 078256e, EvenDistributionCPUWeightPolicyUnit.java below
    https://github.com/oVirt/ovirt-engine/tree/078256e/backend/manager/modules/bll/src/main/java/org/ovirt/engine/core/bll/scheduling/policyunits.
    Formula: load = (CPU % · cores + 20 · (vCPUs + pending vCPUs)) / cores, the weight
    min(round(load · 998 / 110) + 1, 999), the lowest best; without figures 999.
    Deviations ("-like"): its unit for memory and the ranks that combine units are left out; cores
    are threads here, so its VcpuConsumptionPercentage of 10 is 20; pending vCPUs are of guests
    counted since the figures. The commit is of April 2019; later ones count differently.
    """
    pending = np.maximum(0, view.vcpus_used - view.loads_vcpus)
    load = 100 * view.busy_ratio + consumption * (asked.vcpus + pending) / view.cpus
    weight = np.minimum(np.rint(load * (most - 2) / 110.0) + 1, most - 1)
    return -np.where(view.loaded, weight, most - 1)


def oracle(view, asked):
    """Use the future mean demand of all guests, including claims in flight: the lower bound.

    Source: none; no scheduler can have it.
    Formula: − the loss that the guest adds: from waiting with bursts on the best node that has
    room or, if none has, on all nodes and from their distance; a hundredth of the host's pressure
    breaks ties.
    Deviations: greedy, request by request, so not the optimum over all of them.
    """
    return _least_added(view, asked, asked.true_cores, asked.true_bytes)


def oracle_of_running(view, asked):
    """Use the demand of all guests on hosts and claims in flight, but not of the new guest.

    Source: none; no scheduler can have it, because it counts claims that are not yet saved.
    Formula: that of the oracle, for a guest that wants the mean of the known guests.
    Deviations: as the oracle's.
    """
    guests, total = view.fleet.known_guests.sum(), view.fleet.known_sum.sum()
    per_vcpu = total / guests if guests else p.PRIOR_CORES_PER_VCPU
    cores = per_vcpu * asked.vcpus
    return _least_added(view, asked, cores, cores * p.LINES * losses.LINE_BYTES)


def _least_added(view, asked, cores, bytes_per_sec):
    fleet, at, count = view.fleet, view.at, view.cores.shape[1]
    cores = 0.0 if asked.dedicated else cores
    placed, promised = (hosts.some(each, at) for each in (fleet.true_nodes, fleet.promised_mib))
    demand = placed + (fleet.true_cores[at] - placed.sum(1))[:, None] / count
    flying_mib = (fleet.taken_mib[at] - promised.sum(1))[:, None] / count
    now = _waiting(demand, view.cores)
    one = _waiting(demand + cores, view.cores) - now
    fits = (view.threads >= asked.vcpus) & (
        view.memory_mib - promised - flying_mib >= asked.memory_mib
    )
    best = np.where(fits, one, np.inf).min(1)
    wide = np.flatnonzero(~fits.any(1))
    if len(wide):
        capacity = view.cores[wide]
        parts = capacity / capacity.sum(1)[:, None]
        best[wide] = (_waiting(demand[wide] + cores * parts, capacity) - now[wide]).sum(1)
        far_ns = fleet.hosts.far_ns.mean()
        best[wide] += bytes_per_sec / losses.LINE_BYTES * far_ns * 1e-9 / p.MLP
    return -best - 0.01 * ((demand.sum(1) + cores) / view.cores.sum(1))


def _waiting(demand, cores):
    # The variance of guests with six vCPUs that are a fifth busy, including what they change.
    return losses.waiting(demand - cores, np.sqrt(2.0 * np.maximum(0, demand)))
