# SPDX-License-Identifier: Apache-2.0
"""NUMAPressureWeigher, vectorised.

Hosts on which the guest fits on one node, or on both of two, are computed in arrays, all others by
the package's own functions. The referee compares both with the real weigher.
"""

import copy
import hashlib
import math
import typing

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core import missing, pressure
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.core.scheduling import added_loss, charges
from nova_numa_pmc.core.scheduling.host_columns import HostColumns
from nova_numa_pmc.core.scheduling.outcome import expected_guest
from nova_numa_pmc.scheduler import assumed_host, host_estimate, saved_hosts
from tests.arena import losses as losses_model, parameters as p
from tests.arena.policies import nova_weights

#: The scheduler's ``stale_after``, in intervals.
STALE_AFTER = 5.0
PLACEMENT_OPTIONS = model.PlacementOptions()
DEFAULTS = saved_hosts.defaults()
STEP = PLACEMENT_OPTIONS.pressure_step
#: ``penalty_floor`` for an operator who packs.
PACKING_FLOOR = 0.4
QUEUEING_NS = pressure.QUEUEING_FACTOR * pressure.LOCAL_LATENCY_NS
#: Jitter is drawn for this many hosts at a time; the order of at least this many is then right.
DRAWN, FIRST = 64, 8


def numa_pressure(
    view,
    asked,
    floor=DEFAULTS['penalty_floor'],
    ram_multiplier=1.0,
    multiplier=DEFAULTS['weight_multiplier'],
    jitter=DEFAULTS['penalty_jitter'],
):
    """Weigh as Nova with NUMAPressureWeigher at its defaults.

    Source: this checkout, nova_numa_pmc/scheduler/weigher.py, doc/source/reference/weigher.rst.
    Formula: stock − m · p, p = what guests would lose because of the new one, as a share of what
    it wants, part of which is jitter.
    Deviations: none on hosts for which the same parts of pressure are known.
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
    Formula: those of the two, with a floor of 0.4.
    Deviations: none.
    """
    return numa_pressure(view, asked, floor=PACKING_FLOOR, ram_multiplier=-1.0)


def losses(view, asked):
    """Return what guests would lose on each host due to the new one, relative to its demand."""
    at = usable(view)
    known = np.zeros(len(view.at), bool)
    known[at] = True
    found = np.empty(len(view.at))
    cores = 0.0 if asked.dedicated else p.PRIOR_CORES_PER_VCPU * asked.vcpus
    lines, bandwidth_ratio = added_loss.LINES_PER_CORE_SEC, 0.0
    if len(at):
        hosts, places = view.at[at], Places.of(view.fleet, asked)
        places.renew(view, at, asked)
        cores, lines = estimate(
            places.rate[hosts], view.known_guests[at], view.known_sum[at], asked
        )
        found[at], used = _on_known(view.fleet.hosts, places, hosts, cores, lines, asked)
        bandwidth_ratio = missing.upper_quartile(used.tolist())
    others = np.flatnonzero(~known)
    if len(others):
        found[others] = _on_assumed(view.only(others), cores, lines, asked, bandwidth_ratio)
    return np.minimum(1.0, found)


def _on_known(hosts, places, at, cores, lines, asked):
    """Return (the losses, the highest utilisations of the memory) on known hosts.

    :param lines: the guest's lines per core-second
    """
    waits, memory, maximum = places.waits(at, hosts, cores), places.memory[at], hosts.bandwidth[at]
    traffic = places.traffic[at] + cores * lines * losses_model.LINE_BYTES * memory
    used = traffic / maximum
    latency_ns = QUEUEING_NS * (_added_queueing(used) * memory).sum(1)
    if not asked.dedicated:
        latency_ns += places.far_ns[at]
    lost = waits / max(cores, added_loss.DEMAND_MIN_CORES) + _lost_to_latency(lines, latency_ns)
    return lost, np.where(memory > 0, used, 0.0).max(1)


def _on_assumed(view, cores, lines, asked, bandwidth_ratio):
    """Return the losses on hosts for which only Nova's counts are known."""
    vcpus = np.maximum(0, view.vcpus_used)
    halves = np.ones((len(view.at), 2)) / 2
    capacity = assumed_host.CORES_PER_CPU * view.vcpus[:, None] * halves
    demand = assumed_host.CORES_PER_VCPU * vcpus[:, None] * halves
    ram_mib = view.ram_mib - p.RESERVED_MIB
    free_mib, cpus_fit = ram_mib // 2 - view.ram_used_mib // 2, view.vcpus // 2 >= asked.vcpus
    fits = cpus_fit & (free_mib >= asked.memory_mib)
    on_one = fits | (cpus_fit & (2 * free_mib < asked.memory_mib))  # then, memory is on any node
    cpus = np.where(on_one[:, None], np.array([1.0, 0.0]), halves)
    waits = _added_waiting(demand, capacity, cores * cpus, cpus > 0)
    ((own, far), _) = assumed_host._DISTANCES
    latency_ns = QUEUEING_NS * _added_queueing(bandwidth_ratio) * np.ones(len(fits))
    if not asked.dedicated:
        latency_ns += np.where(fits, 0.0, pressure.LOCAL_LATENCY_NS * (far / own - 1) / 2)
    return waits / max(cores, added_loss.DEMAND_MIN_CORES) + _lost_to_latency(lines, latency_ns)


def _lost_to_latency(lines, latency_ns):
    return lines * latency_ns * 1e-9 / pressure.MLP_WITH_PREFETCH


def _added_waiting(demand, capacity, added, used):
    """Return the additional waiting because of a guest, hosts × nodes → hosts [cores]."""
    others = _levelled(demand, capacity)
    after = others + added
    more = _waiting(after[used], capacity[used]) - _waiting(others[used], capacity[used])
    found = np.zeros(used.shape)
    found[used] = np.maximum(0.0, more)
    return found.sum(1)


def _levelled(own, capacity):
    even = (own.sum(1) / capacity.sum(1))[:, None] * capacity
    return own + added_loss.HOST_SHARE * (even - own)


def _waiting(demand, capacity):
    """Compute added_loss.mean_waiting_cores() for arrays."""
    sigma = np.sqrt(added_loss.VARIANCE_RATIO * np.maximum(1e-300, demand))
    excess = demand - capacity
    z = excess / sigma
    below = 0.5 * np.fromiter(map(math.erfc, -z / math.sqrt(2)), float, len(z))
    waits = sigma * np.exp(-z * z / 2) / math.sqrt(2 * math.pi) + excess * below
    return np.where(demand > 0, waits, 0.0)


def _added_queueing(used):
    """Compute pressure.added_queueing() for arrays."""
    knee = np.minimum(used, pressure.QUEUEING_KNEE)
    slope = 1 / (1 - knee) ** 2
    return knee / (1 - knee) + (used - knee) * slope + used * slope


class Places:
    """Where guests of one flavor would go on each host, as far as they have asked.

    That depends on what the host has published and on what arrived since, and is kept with both.

    :ivar demand, traffic: of the host's nodes, including what arrived since, hosts × nodes;
        traffic is levelled
    :ivar cpus, memory: parts of the guest there
    :ivar far_ns: what each of its lines takes longer because of the distance between them
    :ivar rate: as :class:`Known`
    """

    def __init__(self, count, nodes):
        self._state = np.full((3, count), np.nan)
        self._waits, self._cores = np.full(count, np.nan), 0.0
        self.rate, self.far_ns = np.empty((2, count))
        self.demand, self.traffic, self.cpus, self.memory = np.empty((4, count, nodes))

    @classmethod
    def of(cls, fleet, asked):
        """Return the places of a guest's flavor."""
        kept = fleet.__dict__.setdefault('kept_places', {})
        flavor = asked.vcpus, asked.memory_mib, asked.dedicated
        if flavor not in kept:
            kept[flavor] = cls(*fleet.hosts.cores.shape)
        return kept[flavor]

    def renew(self, view, at, asked):
        """Update those hosts of a view for which something has changed."""
        state = np.array((view.taken_s, came_vcpus(view), view.ram_used_mib - view.recorded_mib))[
            :, at
        ]
        changed = np.flatnonzero((self._state[:, view.at[at]] != state).any(0))
        if not len(changed):
            return
        came_parts = _parts(state[1, changed], state[2, changed], asked)
        order = np.argsort(-came_parts, kind='stable')
        changed, came_parts = changed[order], came_parts[order]
        hosts, told = view.fleet.hosts, Known(view.only(at[changed]))
        renewed = told.at
        self._state[:, renewed], self.rate[renewed] = state[:, changed], told.rate
        self._waits[renewed] = np.nan
        charged, parts = _charge(told, asked, came_parts), told.cores / told.cores.sum(1)[:, None]
        if asked.dedicated:  # Nova pins it: the nodes are not known, so it counts on all of them
            self._keep(told, charged, parts, 1 / told.nodes)
        else:
            best, fits = best_nodes(told, asked.vcpus, asked.memory_mib)
            on_best = np.arange(told.nodes) == best[:, None]
            self._keep(told, charged & fits, on_best, on_best)
            if not fits.all():
                on_both = _on_both(told, asked)
                self._keep(told, charged & on_both, parts, 1 / told.nodes)
                fits |= on_both
            charged &= fits
        if not charged.all():
            known = Known(view.only(at[changed[~charged]]))
            for position in range(len(known.at)):
                self._ask(known, position, asked)
        self.traffic[renewed] = _levelled(self.traffic[renewed], hosts.bandwidth[renewed])
        far = hosts.distances / np.diagonal(hosts.distances)[:, None] - 1
        there = ((self.cpus[renewed] @ far) * self.memory[renewed]).sum(1)
        self.far_ns[renewed] = pressure.LOCAL_LATENCY_NS * there

    def waits(self, at, hosts, cores):
        """Return the additional waiting on some hosts because of a guest [cores]."""
        if cores != self._cores:
            self._waits[:], self._cores = np.nan, cores
        new = at[np.isnan(self._waits[at])]
        if len(new):
            cpus = self.cpus[new]
            self._waits[new] = _added_waiting(
                self.demand[new], hosts.cores[new], cores * cpus, cpus > 0
            )
        return self._waits[at]

    def _keep(self, known, chosen, cpus, memory):
        hosts = known.at[chosen]
        self.demand[hosts], self.traffic[hosts] = known.demand[chosen], known.traffic[chosen]
        self.cpus[hosts] = cpus[chosen]
        self.memory[hosts] = np.broadcast_to(memory, known.cores.shape)[chosen]

    def _ask(self, known, position, asked):
        """Get the answer for a host from the package's own functions."""
        answer, _ = answered(known, position, asked)
        host, there, found = known.at[position], answer.host, answer.outcome
        cpus, mems = list(found.cpu_positions), list(found.mem_positions or range(known.nodes))
        self.demand[host], self.traffic[host] = there.demand, there.bandwidth
        self.cpus[host] = self.memory[host] = 0.0
        self.cpus[host, cpus] = known.cores[position, cpus] / known.cores[position, cpus].sum()
        self.memory[host, mems] = 1 / len(mems)


def _on_both(known, asked):
    """Return the hosts of two nodes on which the guest fits on neither node, but on both."""
    free_mib = np.maximum(0, known.memory_mib - known.promised_mib)
    alone = (known.threads >= asked.vcpus) & (free_mib >= asked.memory_mib)
    both = (known.threads.sum(1) >= asked.vcpus) & (free_mib.sum(1) >= asked.memory_mib)
    return ~alone.any(1) & both & (known.nodes == 2)


def _parts(came_vcpus, came_mib, asked):
    """Return in how many parts hosts are charged for what arrived since they published."""
    parts = np.clip(np.rint(np.maximum(0, came_vcpus) / asked.vcpus), 1, charges.GUESTS_MAX)
    return np.where((came_vcpus <= 0) & (came_mib <= 0), 0, parts)


def _charge(known, asked, parts):
    """Charge hosts for what arrived since they published, as the package; return these hosts.

    :param parts: of each host's charge, in descending order; each is on the node where it would
        have gone
    """
    told = parts == 0
    if asked.dedicated:
        return told
    told[:] = True
    came, mib = np.maximum(0, known.came_vcpus), np.maximum(0, known.came_mib)
    for turn in range(int(parts[0])):
        rows = np.arange(np.count_nonzero(parts > turn))
        first = slice(len(rows))
        some = known.only(first)
        vcpus, memory_mib = came[first] / parts[first], np.ceil(mib[first] / parts[first])
        best, fits = best_nodes(some, vcpus, memory_mib)
        told[first] &= fits
        wanted = some.per_vcpu * vcpus
        # numpy rounds halves differently from Python.
        some.demand[rows, best] = [
            round(each, 6) for each in (some.demand[rows, best] + wanted).tolist()
        ]
        some.traffic[rows, best] += wanted * some.known_rate
        some.promised_mib[rows, best] += memory_mib.astype(np.int64)
        some.node_vcpus[rows, best] += vcpus
        some.node_guests[rows, best] += 1
        some.turn[:] = (some.turn + 1) % known.nodes
    return told


def came_vcpus(view):
    """Return the vCPUs that arrived since hosts published, except for those with dedicated CPUs.

    If none arrived, it is the number of vCPUs that have left.
    """
    came = view.vcpus_used - view.recorded_vcpus
    return np.where(came > 0, came - (view.pinned_vcpus - view.recorded_pinned), came)


def usable(view):
    """Return the positions of hosts whose figures are fresh and plausible."""
    fresh = np.abs(view.now_s - view.taken_s) <= STALE_AFTER * (p.AUDIT_S + p.HEARTBEAT_S)
    most = host_estimate.PLAUSIBLE_MAX_RATIO * (view.vcpus + view.vcpus_used)
    return np.flatnonzero(fresh & (view.demand.sum(1) <= most))


def estimate(rates, guests, sums, asked):
    """Return the guest's expected demand and its lines, as medians over all hosts."""
    rates = rates[rates > 0]
    lines = added_loss.LINES_PER_CORE_SEC
    if len(rates):
        lines = _median(rates) / losses_model.LINE_BYTES
    means = np.where(guests, sums / np.maximum(1, guests), p.PRIOR_CORES_PER_VCPU)
    per_vcpu = _per_vcpu(guests.sum(), guests.sum() * _median(means))
    return 0.0 if asked.dedicated else per_vcpu * asked.vcpus, lines


def _median(values):
    return float(np.sort(values)[(len(values) - 1) // 2])


class Known:
    """The columns of hosts whose figures are fresh, for all of a view.

    :ivar rate: traffic per wanted core, or NaN if there is too little to say
    :ivar known_rate: likewise, or 0
    :ivar per_vcpu: expected demand of a vCPU [cores]
    """

    def __init__(self, view):
        self.at, self.taken_s, self.turn = view.at, view.taken_s, view.turn
        self.cores, self.threads = view.cores, view.threads
        self.memory_mib, self.bandwidth = view.memory_mib, view.bandwidth
        self.demand, self.traffic, self.promised_mib = view.demand, view.traffic, view.promised_mib
        self.node_guests, self.node_vcpus = view.node_guests, view.node_vcpus
        self.known_guests, self.known_sum = view.known_guests, view.known_sum
        self.nodes = self.cores.shape[1]
        self.came_vcpus = came_vcpus(view)
        self.came_mib = view.ram_used_mib - view.recorded_mib
        hundredths = np.rint(100 * self.demand.sum(1))
        with np.errstate(divide='ignore', invalid='ignore'):
            rate = 100 * self.traffic.sum(1) / hundredths
        self.rate = np.where(hundredths >= 50, rate, np.nan)
        self.known_rate = np.where(np.isnan(self.rate), 0.0, self.rate)
        self.per_vcpu = _per_vcpu(self.known_guests, self.known_sum)
        self.distance_rows = view.fleet.distance_rows
        self.kept = view.fleet.__dict__.setdefault('kept_answers', {})

    def only(self, at):
        """Return a selection of them by position; views if that is a slice, otherwise copies."""
        some = copy.copy(self)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(some, name, column[at])
        return some


def _per_vcpu(guests, total):
    return np.rint(64 * (2.5 + total) / (5 + guests)) / 64


def best_nodes(known, vcpus, memory_mib):
    """Return (each host's best node by the hook's rule, whether arrays suffice to know it).

    :param vcpus, memory_mib: of one guest, or of one guest for each host
    """
    vcpus, memory_mib = (np.reshape(size, (-1, 1)) for size in (vcpus, memory_mib))
    wanted = known.per_vcpu[:, None] * vcpus
    added = wanted * known.known_rate[:, None]
    maximum, count = known.bandwidth, known.cores.shape[1]
    charged = np.maximum((known.demand + wanted) / known.cores, (known.traffic + added) / maximum)
    fits = (known.threads >= vcpus) & (known.memory_mib - known.promised_mib >= memory_mib)
    usual = fits.any(1) & (maximum.min(1) >= added[:, 0]) & (charged.max(1) < ranking.PRESSURE_MAX)
    with np.errstate(invalid='ignore'):
        steps = np.where(
            charged <= 1, np.floor(charged / STEP + 1e-9), np.round(charged, 3) / STEP
        )
        best = _least(
            fits,
            (
                lambda: steps,
                lambda: np.round((known.node_vcpus + vcpus) / known.cores, 9),
                lambda: np.round((known.promised_mib + memory_mib) / known.memory_mib, 6),
                lambda: np.round(known.node_guests, 9),
                lambda: (np.arange(count)[None, :] - known.turn[:, None]) % count,
            ),
        )
    return best, usual


def on_best(known, best, cores, traffic):
    """Return the pressure that the guest leaves on each host's best node."""
    rows = np.arange(len(best))
    return np.maximum(
        (known.demand[rows, best] + cores) / known.cores[rows, best],
        (known.traffic[rows, best] + traffic) / known.bandwidth[rows, best],
    )


def _least(fits, columns):
    """Return for each row the first eligible position that is least by columns."""
    left, rows = fits.copy(), np.count_nonzero(fits.any(1))
    for column in columns:
        values = np.where(left, column(), np.inf)
        left &= values == values.min(1)[:, None]
        if np.count_nonzero(left) == rows:  # no ties are left
            break
    return left.argmax(1)


class _Found:
    """The parts of decoded metrics that host_estimate._estimate() reads."""

    def __init__(self, known, position):
        count = known.cores.shape[1]
        self.columns = HostColumns(
            known.cores[position].tolist(),
            known.threads[position].tolist(),
            known.memory_mib[position].tolist(),
            known.promised_mib[position].astype(np.int64).tolist(),
            known.node_guests[position].tolist(),
            known.node_vcpus[position].tolist(),
            known.demand[position].tolist(),
            known.traffic[position].tolist(),
            known.bandwidth[position].tolist(),
            None,
            known.distance_rows,
            tuple((at,) for at in range(count)),
            rotation=int(known.turn[position]),
        )
        self.placement_options = PLACEMENT_OPTIONS
        guests = int(known.known_guests[position])
        self.history = (guests, float(known.known_sum[position])) if guests else None


def answered(known, position, asked):
    """Return (the package's own answer about a host, the request)."""
    question = expected_guest(
        0 if asked.dedicated else asked.vcpus,
        0 if asked.dedicated else asked.memory_mib,
        model.SPREAD if asked.dedicated else model.AUTO,
    )
    came = int(known.came_vcpus[position]), int(known.came_mib[position])
    place = int(known.at[position]), float(known.taken_s[position]), came, question
    answer = known.kept.get(place)
    if answer is None:
        if len(known.kept) > 5000:
            known.kept.clear()
        found: typing.Any = _Found(known, position)
        answer = known.kept[place] = host_estimate._estimate(found, *came, None, question)
    return answer, question
