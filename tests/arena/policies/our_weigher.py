# SPDX-License-Identifier: Apache-2.0
"""NUMAPressureWeigher, vectorised; the referee compares it with the real weigher."""

import hashlib
import types

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.checks.nova import PACKING_FLOOR
from nova_numa_pmc.core import missing, pressure
from nova_numa_pmc.core.placement import loss
from nova_numa_pmc.core.scheduling.outcome import HOST_SHARE, ExpectedGuest, added_loss, outcome
from nova_numa_pmc.scheduler import assumed_host, comparison, penalty
from tests.arena import losses as losses_model, parameters as p
from tests.arena.hosts import some
from tests.arena.policies import nova_weights, places
from tests.fixtures.scheduler_options import DEFAULTS

QUEUEING_NS = pressure.QUEUEING_FACTOR * pressure.LOCAL_LATENCY_NS
#: Jitter is drawn for this many hosts at a time; the order of at least this many is then right.
DRAWN, FIRST = 64, 8


def numa_pressure(
    view,
    asked,
    floor=DEFAULTS['penalty_floor'],
    ram_multiplier=1.0,
    multiplier=DEFAULTS['weight_multiplier'],
    jitter=penalty.JITTER,
):
    """Weigh as Nova with NUMAPressureWeigher at its defaults.

    Source: this checkout, nova_numa_pmc/scheduler/weigher.py, doc/source/reference/weigher.rst.
    Formula: stock − m · p, p = what guests would lose because of the new one, as a share of what
    it wants, part of which is jitter.
    Deviations: none on hosts of which no guest has left since their metrics; the real weigher adds
    those that left back to what has arrived, here they cancel until the next audit.
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
    """Compute penalty.random_part() for hosts."""
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


def losses(view, asked):
    """Return what guests would lose on each host due to the new one, relative to its demand."""
    at = places.usable(view)
    known = np.zeros(len(view.at), bool)
    known[at] = True
    found = np.empty(len(view.at))
    others = np.flatnonzero(~known)
    cores = 0.0 if asked.dedicated else p.PRIOR_CORES_PER_VCPU * asked.vcpus
    lines, rate, max_per_core = loss.LINES_PER_CORE_SEC, 0.0, 0.0
    if len(at):
        hosts, losses = view.at[at], Losses.of(view, at, asked)
        cores, lines = estimate(
            losses.rate[hosts], view.known_guests[at], view.known_sum[at], asked
        )
        reports = losses.rate[hosts] != 0  # NaN is too little demand to tell
        reporting = hosts[reports]
        if not len(reporting) or len(reporting) == len(view.at):  # all hosts report the same parts
            found[at] = losses.with_guest(hosts, cores, lines, asked)
        elif missing.is_agreed(len(reporting), len(view.at)):
            rate = missing.agreed_upper(_padded_rates(losses.rate[hosts]))
            capacity = some(losses.hosts.cores, reporting).sum(1)
            per_core = some(losses.hosts.bandwidth, reporting).sum(1) / capacity
            max_per_core = -missing.agreed_upper((-per_core).tolist())
            traffic = np.where(
                reports[:, None], some(losses.traffic, hosts), rate * some(losses.demand, hosts)
            )
            found[at] = losses.with_guest(hosts, cores, lines, asked, traffic)
        else:
            found[at] = losses.with_guest(hosts, cores, lines, asked, has_bandwidth=False)
    if len(others):
        found[others] = _on_assumed(view.only(others), asked, cores, lines, rate, max_per_core)
    return np.minimum(1.0, found)


class Losses(places.Places):
    """The loss of guests on hosts with one more guest of a flavor."""

    def __init__(self, hosts):
        """Know nothing of hosts yet."""
        super().__init__(hosts)
        count, nodes = hosts.cores.shape
        self._far = hosts.distances / np.diagonal(hosts.distances)[:, None] - 1
        self._levelled, self._far_ns = np.empty((count, nodes), order='F'), np.empty(count)
        self._waits, self._cores = np.full(count, np.nan), 0.0

    def _derive(self, hosts):
        self._levelled[hosts] = _levelled(
            some(self.traffic, hosts), some(self.hosts.bandwidth, hosts)
        )
        there = ((some(self.cpus, hosts) @ self._far) * some(self.memory, hosts)).sum(1)
        self._far_ns[hosts] = pressure.LOCAL_LATENCY_NS * there
        self._waits[hosts] = np.nan

    def with_guest(self, at, cores, lines, asked, traffic=None, has_bandwidth=True):
        """Return the losses on some hosts.

        :param cores, lines: what the guest wants, and its lines per core-second
        :param traffic: of these hosts, if it is not what they have published
        :param has_bandwidth: whether bandwidth counts
        """
        memory = some(self.memory, at)
        bandwidth, latency_ns = some(self.hosts.bandwidth, at), np.zeros(len(at))
        if has_bandwidth:
            levelled = some(self._levelled, at)
            if traffic is not None:
                levelled = _levelled(traffic, bandwidth)
            used = (levelled + cores * lines * losses_model.LINE_BYTES * memory) / bandwidth
            latency_ns = QUEUEING_NS * (places.added_queueing(used) * memory).sum(1)
        if not asked.dedicated:
            latency_ns += self._far_ns[at]
        waits = self._waiting(at, cores)
        return waits / max(cores, loss.DEMAND_MIN_CORES) + _lost_to_latency(lines, latency_ns)

    def _waiting(self, at, cores):
        """Return the additional waiting on some hosts because of a guest [cores]."""
        if cores != self._cores:
            self._waits[:], self._cores = np.nan, cores
        new = at[np.isnan(self._waits[at])]
        if len(new):
            cpus = some(self.cpus, new)
            self._waits[new] = _added_waiting(
                some(self.demand, new), some(self.hosts.cores, new), cores * cpus, cpus > 0
            )
        return self._waits[at]


def _on_assumed(view, asked, cores, lines, rate, max_per_core):
    """Return the losses on hosts of which only Nova's counts are known, by the package itself.

    :param rate, max_per_core: traffic per core of demand, and its maximum per core, which is 0 if
        bandwidth does not count
    """
    vcpus, memory_mib = (0, 0) if asked.dedicated else (asked.vcpus, asked.memory_mib)
    policy = model.SPREAD if asked.dedicated else model.AUTO
    guest = ExpectedGuest(vcpus, memory_mib, cores, policy)
    # Figures that are too old are a lower bound; what is implausible here is nearly 0.
    least = np.where(view.taken_s > -np.inf, np.minimum(view.demand.sum(1), view.vcpus_used), 0.0)
    found = []
    for at in range(len(view.at)):
        pinned = set(range(int(view.pinned_vcpus[at])))
        cell = types.SimpleNamespace(cpuset=set(), pinned_cpus=pinned)
        usable_mib = int(view.ram_mib[at]) - p.RESERVED_MIB
        host_state = types.SimpleNamespace(
            vcpus_total=int(view.vcpus[at]),
            vcpus_used=int(view.vcpus_used[at]),
            total_usable_ram_mb=usable_mib,
            free_ram_mb=usable_mib - int(view.ram_used_mib[at]),
            ram_allocation_ratio=p.RAM_RATIO,
            numa_topology=types.SimpleNamespace(cells=[cell]),
        )
        host = assumed_host.columns(host_state, float(least[at]), rate)
        place = outcome(host, guest, places.PLACEMENT_OPTIONS)
        if max_per_core:
            maxima = [max_per_core * node_cores for node_cores in host.cores]
            host.bandwidth_max_bytes_per_sec = maxima
        else:
            host.bandwidth_bytes_per_sec = None
        found.append(added_loss(host, place, guest, lines).loss_ratio)
    return found


def _lost_to_latency(lines, latency_ns):
    return lines * latency_ns * 1e-9 / pressure.MLP_WITH_PREFETCH


def _added_waiting(demand, capacity, added, used):
    """Return the additional waiting because of a guest, hosts × nodes → hosts [cores]."""
    others = _levelled(demand, capacity)
    without, most = others[used], capacity[used]
    waits = places.waiting(np.concatenate((without, (others + added)[used])), np.tile(most, 2))
    found = np.zeros(used.shape, order='F')
    found[used] = np.maximum(0.0, waits[len(most) :] - waits[: len(most)])
    return found.sum(1)


def _levelled(own, capacity):
    even = (own.sum(1) / capacity.sum(1))[:, None] * capacity
    return own + HOST_SHARE * (even - own)


def estimate(rates, guests, sums, asked):
    """Return the guest's expected demand and its lines, as medians over all hosts."""
    lines = _median(_padded_rates(rates)) / losses_model.LINE_BYTES
    means = np.where(guests, sums / np.maximum(1, guests), p.PRIOR_CORES_PER_VCPU)
    median = _median(missing.padded(means.tolist(), p.PRIOR_CORES_PER_VCPU))
    expected = places.per_vcpu(guests.sum(), guests.sum() * median)
    return 0.0 if asked.dedicated else expected * asked.vcpus, lines


def _padded_rates(rates):
    """Return the hosts' traffic per core of demand, padded with what is assumed."""
    rate_max = comparison.LINES_PER_CORE_SEC_MAX * losses_model.LINE_BYTES
    rates = rates[(rates > 0) & (rates <= rate_max)]
    return missing.padded(rates.tolist(), loss.LINES_PER_CORE_SEC * losses_model.LINE_BYTES)


def _median(values):
    return float(np.sort(values)[(len(values) - 1) // 2])
