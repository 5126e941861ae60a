# SPDX-License-Identifier: Apache-2.0
"""NUMAPressureWeigher, vectorised; the referee compares it with the real weigher."""

import hashlib
import math

import numpy as np

from nova_numa_pmc.checks.nova import PACKING_FLOOR
from nova_numa_pmc.core import missing, pressure
from nova_numa_pmc.core.placement import loss
from nova_numa_pmc.scheduler import hosts as known_hosts, losses as subject
from tests.arena import parameters as p
from tests.arena.policies import nova_weights
from tests.fixtures.scheduler_options import DEFAULTS

#: Jitter is drawn for this many hosts at a time; the order of at least this many is then right.
DRAWN, FIRST = 64, 8


def numa_pressure(
    view,
    asked,
    floor=DEFAULTS['penalty_floor'],
    ram_multiplier=1.0,
    multiplier=DEFAULTS['weight_multiplier'],
    jitter=subject.JITTER,
):
    """Weigh as Nova with NUMAPressureWeigher at its defaults.

    Source: this checkout, nova_numa_pmc/scheduler/weigher.py, doc/source/reference/weigher.rst.
    Formula: stock − m · p, p = what guests would lose because of the new one, as a share of what
    it wants, part of which is jitter.
    Deviations: none.
    """
    ratios = losses(view, asked)
    stock = nova_weights.stock(view, asked, ram_multiplier)
    first = len(view.at) if view.all_weights else FIRST
    penalties, varied = np.maximum(0, ratios - floor), ratios >= floor
    return _jittered(stock, multiplier, penalties, jitter * varied, view, asked, first)


def _jittered(stock, multiplier, penalties, jitter, view, asked, first):
    """Return the weights with jitter, exact for the best hosts only and a lower bound for others.

    Drawing jitter takes longer than everything else, so it is drawn for hosts in the order that
    they would have without it, until no other host can be among the first, one of which is chosen;
    claims hardly ever fail on all of these.

    :param jitter: of each host; 0 for none
    :param first: how many of the best hosts must be exact
    """

    def weights(at, random_part):
        penalized = penalties[at] * (1 - jitter[at]) + jitter[at] * random_part
        return stock[at] - multiplier * penalized

    most, found = weights(slice(None), 0.0), weights(slice(None), 1.0)
    order, best = np.argsort(-most), np.full(first, -np.inf)
    for begun in range(0, len(order), DRAWN):
        at = order[begun : begun + DRAWN]
        if most[at[0]] < best[0]:
            break
        found[at] = weights(at, _random_parts(asked.instance_uuid, view.at[at]))
        best = np.partition(np.concatenate((best, found[at])), -first)[-first:]
    return found


def _random_parts(instance_uuid, hosts):
    """Compute losses.random_part() for hosts."""
    begun = hashlib.blake2b(f'{instance_uuid}/host'.encode(), digest_size=4)
    digests = bytearray()
    for host in hosts.tolist():
        one = begun.copy()
        one.update(b'%d' % host)
        digests += one.digest()
    return np.frombuffer(digests, '>u4') / 0xFFFFFFFF


def packing(view, asked):
    """Weigh likewise if an operator packs by RAM, with the floor that is meant for that.

    Source: this checkout, likewise, and :func:`nova_weights.pack`.
    Formula: those of the two, with the floor that ``check`` recommends.
    Deviations: none.
    """
    return numa_pressure(view, asked, floor=PACKING_FLOOR, ram_multiplier=-1.0)


def usable(view):
    """Return which hosts' figures are fresh and plausible."""
    most_s = known_hosts.STALE_AFTER * (p.AUDIT_S + p.HEARTBEAT_S)
    demand = view.demand.sum(1) + known_hosts.ROUNDED_CORES * view.demand.shape[1]
    vcpus = view.recorded_vcpus - view.recorded_pinned
    is_fresh = np.abs(view.now_s - view.taken_s) <= most_s
    return is_fresh & (demand >= known_hosts.IDLE_CORES_PER_VCPU * vcpus)


class Figures:
    """Columns of :class:`metrics_decoder.HostFigures` of hosts, and what has arrived there.

    :ivar known: which hosts' figures are believed; others' are assumed
    :ivar cpus, node_cores, free_mib, node_ratios: rooms, hosts × nodes, the last per core
    """

    def __init__(self, view):
        """Take the columns of all hosts of a view."""
        self.known = known = usable(view)
        count = view.cores.shape[1]
        shared = np.maximum(0, view.vcpus_used - view.pinned_vcpus)
        # Figures that are too old are a lower bound; what is implausible here is nearly 0.
        published = np.rint(100 * view.demand.sum(1)) / 100
        least = np.where(view.taken_s > -np.inf, np.minimum(published, view.vcpus_used), 0.0)
        cpus = np.maximum(2, view.vcpus)
        self.nodes = np.where(known, count, 2)
        most = np.where(view.taken_s > -np.inf, view.cores.sum(1), np.inf)
        self.cores = np.where(
            known, view.cores.sum(1), np.minimum(most, known_hosts.CORES_PER_CPU * cpus)
        )
        self.demand = np.where(
            known, published, np.maximum(least, known_hosts.CORES_PER_VCPU * shared)
        )
        self.reports = known & ((view.traffic.sum(1) > 0) | (published < 0.5))
        self.traffic = np.where(self.reports, view.traffic.sum(1), 0.0)
        self.bandwidth = np.where(self.reports, view.bandwidth.sum(1), 0.0)
        came = view.vcpus_used - view.recorded_vcpus - (view.pinned_vcpus - view.recorded_pinned)
        self.came_vcpus = np.where(known, np.maximum(0, came), 0)
        came_mib = view.ram_used_mib - view.recorded_mib
        came_mib = np.where(known, np.maximum(0, came_mib), 0)
        half_mib = (view.ram_mib - p.RESERVED_MIB - view.ram_used_mib) / 2
        free_mib = np.where(known[:, None], view.memory_mib - view.promised_mib, half_mib[:, None])
        total_mib = np.maximum(0, free_mib).sum(1)
        left = np.maximum(0.0, 1 - came_mib / np.maximum(1, total_mib))
        self.free_mib = np.where(came_mib > 0, left * (total_mib > 0), 1.0)[:, None] * free_mib
        self.cpus = np.where(known[:, None], view.threads, (cpus // 2)[:, None])
        self.node_cores = np.where(known[:, None], view.cores, (self.cores / 2)[:, None])
        self.mean_ratios = self.demand / self.cores
        node_ratios = np.rint(100 * view.demand) / 100 / view.cores
        self.node_ratios = np.where(known[:, None], node_ratios, self.mean_ratios[:, None])
        far = [subject._far_ratios(view.fleet.distance_rows)]
        far.append(subject._far_ratios(known_hosts._DISTANCES) + [0.0] * (count - 2))
        self.far_ratios = np.array(far)[(~known).astype(int)]

    def agree_on_traffic(self, rates):
        """Assume the traffic of hosts that do not report theirs, or leave it out for all."""
        if self.reports.all():
            return
        reporting = self.reports
        if not missing.is_agreed(int(reporting.sum()), len(reporting)):
            self.bandwidth[:] = 0.0
            return
        per_core = self.bandwidth[reporting] / self.cores[reporting]
        max_per_core = -missing.agreed_upper((-per_core).tolist())
        rate = missing.agreed_upper(rates)
        self.traffic = np.where(reporting, self.traffic, rate * self.demand)
        self.bandwidth = np.where(reporting, self.bandwidth, max_per_core * self.cores)


def losses(view, asked):
    """Return what guests would lose on each host due to the new one, relative to its demand."""
    hosts = Figures(view)
    per_vcpu, lines, rates = estimate(view, hosts)
    hosts.agree_on_traffic(rates)
    cores = 0.0 if asked.dedicated else per_vcpu * asked.vcpus
    guests, sums = view.known_guests, view.known_sum
    own_per_vcpu = np.where(hosts.known, np.rint(64 * (2.5 + sums) / (5 + guests)) / 64, per_vcpu)
    came_cores = own_per_vcpu * hosts.came_vcpus
    mean, capacity = (hosts.demand + came_cores) / hosts.nodes, hosts.cores / hosts.nodes
    smallest, node_ratios = hosts.nodes, hosts.mean_ratios
    if not asked.dedicated:
        smallest, node_ratios = _smallest_places(hosts, own_per_vcpu, asked)
    node = node_ratios * capacity + came_cores / hosts.nodes
    on_one = np.maximum(0.0, loss.met_on_host(mean, node))
    found, searched = np.full(len(view.at), np.inf), np.ones(len(view.at), bool)
    for count in range(1, view.cores.shape[1] + 1):
        own, others = cores / count, on_one if count == 1 else mean
        at = np.flatnonzero(searched & (smallest <= count) & (count <= hosts.nodes))
        if not len(at):
            continue
        waits = count * (
            waiting(others[at] + own, capacity[at]) - waiting(others[at], capacity[at])
        )
        used = np.zeros(len(at))
        has_maximum = hosts.bandwidth[at] > 0
        added = (came_cores[at] / hosts.nodes[at] + own) * lines * pressure.LINE_BYTES
        np.divide(
            hosts.traffic[at] / hosts.nodes[at] + added,
            hosts.bandwidth[at] / hosts.nodes[at],
            out=used,
            where=has_maximum,
        )
        latency_ns = pressure.QUEUEING_FACTOR * pressure.LOCAL_LATENCY_NS * added_queueing(used)
        if not asked.dedicated:
            latency_ns += pressure.LOCAL_LATENCY_NS * hosts.far_ratios[at, count - 1]
        lost = np.maximum(0.0, waits) / max(cores, loss.DEMAND_MIN_CORES)
        lost += lines * latency_ns * 1e-9 / pressure.MLP_WITH_PREFETCH
        is_better = lost < found[at] - loss.GAIN_MIN_RATIO
        found[at] = np.where(is_better, lost, found[at])
        searched[at] = is_better & (lost > loss.GAIN_MIN_RATIO)
    return np.minimum(1.0, found)


def _smallest_places(hosts, per_vcpu, asked):
    """Return how many nodes of each host hold a guest at least, and their demand per core."""
    peak = np.minimum(asked.vcpus, loss.PEAK_RATIO * per_vcpu * asked.vcpus)
    needed = np.minimum(peak, hosts.cores)
    holds = (hosts.cpus >= asked.vcpus) & (hosts.node_cores >= needed[:, None])
    holds &= hosts.free_mib >= asked.memory_mib
    found = np.where(holds.any(1), 1, hosts.nodes)
    least = np.where(holds, hosts.node_ratios, np.inf).min(1)
    ratios = np.where(holds.any(1), least, hosts.mean_ratios)
    free_mib = -np.sort(-hosts.free_mib, 1)
    cpus = np.where(hosts.known, hosts.cpus.sum(1), 2 * hosts.cpus[:, 0])
    for count in range(hosts.free_mib.shape[1] - 1, 1, -1):
        holds = (
            (count * cpus >= hosts.nodes * asked.vcpus)
            & (count * hosts.cores >= hosts.nodes * needed)
            & (count * free_mib[:, count - 1] >= asked.memory_mib)
        )
        found = np.where(holds & (found > 1) & (count < hosts.nodes), count, found)
    return found, ratios


def waiting(demand, capacity):
    """Compute loss.mean_waiting_cores() for arrays."""
    sigma = np.sqrt(loss.VARIANCE_RATIO * np.maximum(1e-300, demand))
    excess = demand - capacity
    z = excess / sigma
    below = 0.5 * np.fromiter(map(math.erfc, -z / math.sqrt(2)), float, len(z))
    waits = sigma * np.exp(-z * z / 2) / math.sqrt(2 * math.pi) + excess * below
    return np.where(demand > 0, waits, 0.0)


def added_queueing(used):
    """Compute pressure.added_queueing() for arrays."""
    knee = np.minimum(used, pressure.QUEUEING_KNEE)
    slope = 1 / (1 - knee) ** 2
    return knee / (1 - knee) + (used - knee) * slope + used * slope


def estimate(view, hosts):
    """Return the expected demand per vCPU, the guest's lines, and the hosts' traffic per core."""
    guests, sums = view.known_guests[hosts.known], view.known_sum[hosts.known]
    means = np.where(guests, sums / np.maximum(1, guests), p.PRIOR_CORES_PER_VCPU)
    median = _median(missing.padded(means.tolist(), p.PRIOR_CORES_PER_VCPU))
    expected = (2.5 + guests.sum() * median) / (5 + guests.sum())
    at = hosts.reports & (hosts.traffic > 0) & (hosts.demand >= 0.5)
    rates = hosts.traffic[at] / hosts.demand[at]
    most = subject.LINES_PER_CORE_SEC_MAX * pressure.LINE_BYTES
    assumed = loss.LINES_PER_CORE_SEC * pressure.LINE_BYTES
    rates = missing.padded(rates[rates <= most].tolist(), assumed)
    return np.rint(64 * expected) / 64, _median(rates) / pressure.LINE_BYTES, rates


def _median(values):
    return float(np.sort(values)[(len(values) - 1) // 2])
