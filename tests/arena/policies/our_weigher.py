# SPDX-License-Identifier: Apache-2.0
"""NUMAPressureWeigher, vectorised.

Hosts on which the guest fits on one node, or on both of two, are computed in arrays, all others
by the package's own functions. The referee holds both to the real weigher.
"""

import copy
import typing

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.core.scheduling import charges
from nova_numa_pmc.core.scheduling.aggregates import Aggregates
from nova_numa_pmc.core.scheduling.outcome import expected_guest
from nova_numa_pmc.scheduler import comparison, host_estimate, penalty, saved_hosts
from tests.arena import parameters as p
from tests.arena.policies import nova_weights

#: The scheduler's ``stale_after``, in intervals.
STALE_AFTER = 5.0
LIMITS = model.PlacementOptions()
DEFAULTS = saved_hosts.defaults()
STEP = DEFAULTS['weight_step']
#: Jitter is drawn for so many hosts at a time; of at least so many their order is then right.
DRAWN, FIRST = 64, 8


def numa_pressure(view, asked, floor=DEFAULTS['penalty_floor'], ram_multiplier=1.0):
    """Weigh as Nova with NUMAPressureWeigher at its defaults.

    Source: this checkout, nova_numa_pmc/scheduler/weigher.py, doc/source/reference/weigher.rst.
    Formula: stock − m · p, p = clamp(⌊P/0.05⌋·0.05 − floor, 0, 1), 0.15 of it jitter from the
    floor on; P the pressure that the guest would leave, 0.2 of its nodes' and 0.8 of the host's.
    Deviations: none on hosts that know the same parts of pressure.
    """
    pressed = pressures(view, asked)
    assumed = penalty.ASSUMED_PRESSURE * view.vcpus_used
    assumed = assumed / (penalty.ASSUMED_VCPUS_PER_CPU * view.vcpus)
    pressed = np.where(np.isnan(pressed), assumed, pressed)
    steps = (pressed / STEP + 1e-9).astype(np.int64) * STEP
    penalties = np.clip(np.round(steps - floor, 9), 0, 1)
    stock = nova_weights.stock(view, asked, ram_multiplier)
    first = len(view.at) if view.all_weights else FIRST
    return _jittered(stock, penalties, pressed >= floor, view.at, asked.instance_uuid, first)


def _jittered(stock, penalties, varied, hosts, instance_uuid, first=FIRST):
    """Return the weights with jitter, those of the best only: the others' at their least.

    Drawing it takes longer than all else: it is drawn for hosts in the order that they would
    have without it, until no other can be among the first that are chosen from.

    :param varied: which hosts have any
    :param first: how many of the first are to be right
    """
    most_jitter = DEFAULTS['penalty_jitter'] * varied

    def weights(at, jitter):
        penalized = penalties[at] * (1 - most_jitter[at]) + most_jitter[at] * jitter
        return stock[at] - DEFAULTS['weight_multiplier'] * penalized

    most, found = weights(slice(None), 0.0), weights(slice(None), 1.0)
    order = np.argsort(-most)
    for begun in range(0, len(order), DRAWN):
        at = order[begun : begun + DRAWN]
        if begun and most[at[0]] < np.partition(found, -first)[-first]:
            break
        drawn = [penalty.random_part(instance_uuid, f'host{host}') for host in hosts[at]]
        found[at] = weights(at, np.array(drawn))
    return found


def packing(view, asked):
    """Weigh likewise where an operator packs by RAM, with the floor that is for that.

    Source: this checkout, likewise, and :func:`nova_weights.pack`.
    Formula: that of the two, with a floor of 0.7.
    Deviations: none.
    """
    return numa_pressure(view, asked, floor=0.7, ram_multiplier=-1.0)


def pressures(view, asked):
    """Return the pressure that the guest would leave on each host; NaN: not known."""
    found = np.full(len(view.at), np.nan)
    at = usable(view)
    if not len(at):
        return found
    hosts, places = view.at[at], Places.of(view.fleet, asked)
    places.renew(view, at, asked)
    cores, traffic = estimate(places.rate[hosts], view.known_guests[at], view.known_sum[at], asked)
    share, known = comparison._HOST_SHARE, view.fleet.hosts
    parts = (
        (places.demand, places.host_demand, places.cpus, cores, known.cores),
        (places.traffic, places.host_traffic, places.memory, traffic, known.bandwidth),
    )
    found[at] = np.maximum(
        *(
            (1 - share) * ((used[hosts] + wanted * there[hosts]) / most[hosts]).max(1)
            + share * (whole[hosts] + wanted) / most[hosts].sum(1)
            for used, whole, there, wanted, most in parts
        )
    )
    return found


class Places:
    """Where guests of one flavor would go on each host, as far as they have asked.

    It depends on what the host has published and on what came since, and is kept with both.

    :ivar demand, traffic: of the host's nodes, what came since charged, hosts × nodes; −∞ on
        those that the guest would not use
    :ivar host_demand, host_traffic: of all its nodes
    :ivar cpus, memory: parts of the guest there
    :ivar rate: as :class:`Known`
    """

    def __init__(self, count, nodes):
        self._state = np.full((3, count), np.nan)
        self.rate, self.host_demand, self.host_traffic = np.empty((3, count))
        self.demand, self.traffic, self.cpus, self.memory = np.empty((4, count, nodes))

    @classmethod
    def of(cls, fleet, asked):
        """Return those of a guest's flavor."""
        kept = fleet.__dict__.setdefault('kept_places', {})
        flavor = asked.vcpus, asked.memory_mib, asked.dedicated
        if flavor not in kept:
            kept[flavor] = cls(*fleet.hosts.cores.shape)
        return kept[flavor]

    def renew(self, view, at, asked):
        """Find out about those hosts of a view of which something has changed."""
        state = np.array(
            (
                view.taken_s,
                view.vcpus_used - view.recorded_vcpus,
                view.ram_used_mib - view.recorded_mib,
            )
        )[:, at]
        changed = np.flatnonzero((self._state[:, view.at[at]] != state).any(0))
        if not len(changed):
            return
        known = Known(view.only(at[changed]))
        self._state[:, known.at], self.rate[known.at] = state[:, changed], known.rate
        told = known.only(slice(None))
        charged, parts = _charge(told, asked), told.cores / told.cores.sum(1)[:, None]
        if asked.dedicated:  # Nova pins it: on which nodes is not known, so on all
            self._keep(told, charged, parts, 1 / known.nodes)
        else:
            best, fits = best_nodes(told, asked.vcpus, asked.memory_mib)
            on_best, on_both = np.arange(known.nodes) == best[:, None], _on_both(told, asked)
            self._keep(told, charged & fits, on_best, on_best)
            self._keep(told, charged & on_both, parts, 1 / known.nodes)
            charged &= fits | on_both
        for position in np.flatnonzero(~charged):
            self._ask(known, position, asked)

    def _keep(self, known, chosen, cpus, memory):
        hosts = known.at[chosen]
        used = np.broadcast_to(memory, known.cores.shape) > 0
        self.demand[hosts] = np.where(used, known.demand, -np.inf)[chosen]
        self.traffic[hosts] = np.where(used, known.traffic, -np.inf)[chosen]
        self.host_demand[hosts] = known.demand[chosen].sum(1)
        self.host_traffic[hosts] = known.traffic[chosen].sum(1)
        self.cpus[hosts] = cpus[chosen]
        self.memory[hosts] = np.broadcast_to(memory, known.cores.shape)[chosen]

    def _ask(self, known, position, asked):
        """Let the package's own functions tell of a host."""
        answer, _ = answered(known, position, asked)
        host, there, found = known.at[position], answer.host, answer.outcome
        cpus, mems = list(found.cpus), list(found.mems or found.cpus)
        self.host_demand[host], self.host_traffic[host] = sum(there.demand), sum(there.bandwidth)
        for column in (self.demand, self.traffic):
            column[host] = -np.inf
        self.cpus[host] = self.memory[host] = 0.0
        self.demand[host, cpus] = np.array(there.demand)[cpus]
        self.cpus[host, cpus] = known.cores[position, cpus] / known.cores[position, cpus].sum()
        used = list(found.at)
        self.traffic[host, used] = np.array(there.bandwidth)[used]
        self.memory[host, mems] = 1 / len(mems)


def _on_both(known, asked):
    """Return on which hosts of two nodes the guest fits on none, but on both."""
    free_mib = np.maximum(0, known.memory_mib - known.promised_mib)
    alone = (known.threads >= asked.vcpus) & (free_mib >= asked.memory_mib)
    both = (known.threads.sum(1) >= asked.vcpus) & (free_mib.sum(1) >= asked.memory_mib)
    return ~alone.any(1) & both & (known.nodes == 2)


def _charge(known, asked):
    """Charge hosts for what came since they published, as the package; return for which it is.

    In at most eight parts, each on the node where it would have gone.
    """
    told = (known.came_vcpus <= 0) & (known.came_mib <= 0)
    if asked.dedicated:
        return told
    came, mib = np.maximum(0, known.came_vcpus), np.maximum(0, known.came_mib)
    parts = np.clip(np.rint(came / asked.vcpus), 1, charges.GUESTS_MAX) * ~told
    told[:] = True
    for turn in range(int(parts.max())):
        at = np.flatnonzero(told & (parts > turn))
        vcpus, memory_mib = came[at] / parts[at], np.ceil(mib[at] / parts[at])
        some = known.only(at)
        best, fits = best_nodes(some, vcpus, memory_mib)
        told[at[~fits]] = False
        wanted = _per_vcpu(some.known_guests, some.known_sum) * vcpus
        known.demand[at, best] = np.round(known.demand[at, best] + wanted, 6)
        known.traffic[at, best] += wanted * np.where(np.isnan(some.rate), 0.0, some.rate)
        known.promised_mib[at, best] += memory_mib.astype(np.int64)
        known.node_vcpus[at, best] += vcpus
        known.node_guests[at, best] += 1
        known.turn[at] = (known.turn[at] + 1) % known.nodes
    return told


def usable(view):
    """Return the positions of hosts whose figures are fresh and plausible."""
    fresh = np.abs(view.now_s - view.taken_s) <= STALE_AFTER * (p.AUDIT_S + p.HEARTBEAT_S)
    most = host_estimate.PLAUSIBLE_MAX_RATIO * (view.vcpus + view.vcpus_used)
    return np.flatnonzero(fresh & (view.demand.sum(1) <= most))


def estimate(rates, guests, sums, asked):
    """Return what the guest is expected to want and its traffic, by all hosts' medians."""
    rates = rates[~np.isnan(rates)]
    rate = _median(rates) if len(rates) else 0.0
    means = np.where(guests, sums / np.maximum(1, guests), p.PRIOR_CORES_PER_VCPU)
    per_vcpu = _per_vcpu(guests.sum(), guests.sum() * _median(means))
    cores = 0.0 if asked.dedicated else per_vcpu * asked.vcpus
    return cores, cores * rate


def _median(values):
    return float(np.sort(values)[(len(values) - 1) // 2])


class Known:
    """The columns of hosts whose figures are fresh, all of a view.

    :ivar rate: traffic per core that is wanted, NaN: too little to tell
    """

    def __init__(self, view):
        self.at, self.taken_s, self.turn = view.at, view.taken_s, view.turn
        self.cores, self.threads = view.cores, view.threads
        self.memory_mib, self.bandwidth = view.memory_mib, view.bandwidth
        self.demand, self.traffic, self.promised_mib = view.demand, view.traffic, view.promised_mib
        self.node_guests, self.node_vcpus = view.node_guests, view.node_vcpus
        self.known_guests, self.known_sum = view.known_guests, view.known_sum
        self.nodes = self.cores.shape[1]
        self.came_vcpus = view.vcpus_used - view.recorded_vcpus
        self.came_mib = view.ram_used_mib - view.recorded_mib
        hundredths = np.rint(100 * self.demand.sum(1))
        with np.errstate(divide='ignore', invalid='ignore'):
            rate = 100 * self.traffic.sum(1) / hundredths
        self.rate = np.where(hundredths >= 50, rate, np.nan)
        self.distance_rows = view.fleet.distance_rows
        self.kept = view.fleet.__dict__.setdefault('kept_answers', {})

    def only(self, at):
        """Return some of them, as copies."""
        some = copy.copy(self)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(some, name, np.array(column[at]))
        return some


def _per_vcpu(guests, total):
    return np.rint(64 * (2.5 + total) / (5 + guests)) / 64


def best_nodes(known, vcpus, memory_mib):
    """Return (each host's best node, whether that can be told by arrays), as the host's hook.

    :param vcpus, memory_mib: of a guest, or of one for each host
    """
    vcpus, memory_mib = (np.reshape(size, (-1, 1)) for size in (vcpus, memory_mib))
    wanted = _per_vcpu(known.known_guests, known.known_sum)[:, None] * vcpus
    added = wanted * np.where(np.isnan(known.rate), 0.0, known.rate)[:, None]
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
    """Return for each row the first position of those that fit which is least by columns."""
    left, rows = fits.copy(), np.count_nonzero(fits.any(1))
    for column in columns:
        values = np.where(left, column(), np.inf)
        left &= values == values.min(1)[:, None]
        if np.count_nonzero(left) == rows:  # no ties are left
            break
    return left.argmax(1)


class _Found:
    """What host_estimate._estimate() reads of decoded metrics."""

    def __init__(self, known, position):
        count = known.cores.shape[1]
        self.aggregates = Aggregates(
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
        self.limits = LIMITS
        guests = int(known.known_guests[position])
        self.history = (guests, float(known.known_sum[position])) if guests else None


def answered(known, position, asked):
    """Return (the package's own answer about a host, what was asked)."""
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
