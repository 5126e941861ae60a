# SPDX-License-Identifier: Apache-2.0
"""NUMAPressureWeigher, vectorised.

The usual host, with room on a node and no guest since it was measured, is computed in arrays;
all others by the package's own functions. The referee holds both to the real weigher.
"""

import typing

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.core.scheduling.aggregates import Aggregates
from nova_numa_pmc.core.scheduling.outcome import expecting, unseen
from nova_numa_pmc.scheduler import comparison, penalty, replay, request
from tests.arena import parameters as p
from tests.arena.policies import nova_weights

#: The scheduler's ``stale_after``, in intervals.
STALE_AFTER = 5.0
LIMITS = model.Limits()
DEFAULTS = replay.defaults()
STEP = DEFAULTS['weight_step']


def numa_pressure(view, asked, floor=DEFAULTS['penalty_floor'], ram_multiplier=1.0):
    """Weigh as Nova with NUMAPressureWeigher at its defaults.

    Source: this checkout, nova_numa_pmc/scheduler/weigher.py, doc/source/reference/weigher.rst.
    Formula: stock − 10 · clamp(⌊P/0.05⌋·0.05 − floor, 0, 1) − 0.5 · jitter, P the highest pressure
    that the guest would leave on the nodes it would use.
    Deviations: none on hosts that know the same parts of pressure.
    """
    pressed = pressures(view, asked)
    assumed = penalty.ASSUMED_PRESSURE * view.vcpus_used
    assumed = assumed / (penalty.ASSUMED_VCPUS_PER_CPU * view.vcpus)
    pressed = np.where(np.isnan(pressed), assumed, pressed)
    steps = (pressed / STEP + 1e-9).astype(np.int64) * STEP
    penalties = np.clip(np.round(steps - floor, 9), 0, 1)
    jitter = np.array([penalty.random_part(asked.instance_uuid, f'host{at}') for at in view.at])
    penalties = np.minimum(1, penalties + DEFAULTS['penalty_jitter'] * jitter)
    stock = nova_weights.stock(view, asked, ram_multiplier)
    return stock - DEFAULTS['weight_multiplier'] * penalties


def packing(view, asked):
    """Weigh likewise where an operator packs by RAM, with the floor that is for that.

    Source: this checkout, likewise, and :func:`nova_weights.pack`.
    Formula: that of the two, with a floor of 0.7.
    Deviations: none.
    """
    return numa_pressure(view, asked, floor=0.7, ram_multiplier=-1.0)


def pressures(view, asked):
    """Return the highest pressure on the nodes that the guest would use; NaN: not known."""
    found = np.full(len(view.at), np.nan)
    at = usable(view)
    if not len(at):
        return found
    known = Known(view, at)
    cores, traffic = estimate(known, asked)
    pressed = _fast(known, asked, cores, traffic)
    for position in np.flatnonzero(np.isnan(pressed)):
        answer, question = answered(known, position, asked)
        asks = expecting(question, cores / max(1, question.vcpus))
        pressed[position] = comparison._highest(answer.host, answer.outcome, asks, cores, traffic)
    found[at] = pressed
    return found


def usable(view):
    """Return the positions of hosts whose figures are fresh and plausible."""
    fresh = np.abs(view.now_s - view.taken_s) <= STALE_AFTER * (p.AUDIT_S + p.HEARTBEAT_S)
    most = request.PLAUSIBLE * (view.vcpus + view.vcpus_used)
    return np.flatnonzero(fresh & (view.demand.sum(1) <= most))


def estimate(known, asked):
    """Return what the guest is expected to want and its traffic, by all hosts' medians."""
    rates = known.rate[~np.isnan(known.rate)]
    rate = _median(rates) if len(rates) else 0.0
    guests = known.known_guests
    means = np.where(guests, known.known_sum / np.maximum(1, guests), p.PRIOR_CORES_PER_VCPU)
    per_vcpu = _per_vcpu(guests.sum(), guests.sum() * _median(means))
    cores = 0.0 if asked.dedicated else per_vcpu * asked.vcpus
    return cores, cores * rate


def _median(values):
    return float(np.sort(values)[(len(values) - 1) // 2])


class Known:
    """The columns of the hosts whose figures are fresh."""

    def __init__(self, view, at):
        self.at = view.at[at]
        self.cores, self.threads, self.memory_mib, self.bandwidth = (
            column[at] for column in (view.cores, view.threads, view.memory_mib, view.bandwidth)
        )
        self.demand, self.traffic, self.promised_mib = (
            column[at] for column in (view.demand, view.traffic, view.promised_mib)
        )
        self.node_guests, self.node_vcpus, self.turn = (
            column[at] for column in (view.node_guests, view.node_vcpus, view.turn)
        )
        self.known_guests, self.known_sum, self.taken_s = (
            column[at] for column in (view.known_guests, view.known_sum, view.taken_s)
        )
        self.came_vcpus = (view.vcpus_used - view.recorded_vcpus)[at]
        self.came_mib = (view.ram_used_mib - view.recorded_mib)[at]
        hundredths = np.rint(100 * self.demand.sum(1))
        with np.errstate(divide='ignore', invalid='ignore'):
            rate = 100 * self.traffic.sum(1) / hundredths
        self.rate = np.where(hundredths >= 50, rate, np.nan)
        self.distance_rows = view.fleet.distance_rows
        self.kept = view.fleet.__dict__.setdefault('kept_answers', {})


def _per_vcpu(guests, total):
    return np.rint(64 * (2.5 + total) / (5 + guests)) / 64


def _fast(known, asked, cores, traffic):
    """Return the pressures of the usual hosts; NaN for the others."""
    usual = (known.came_vcpus <= 0) & (known.came_mib <= 0)
    if asked.dedicated:
        return np.where(usual, _on_all_nodes(known, cores, traffic).max(1), np.nan)
    best, fits = best_nodes(known, asked)
    pressed = on_best(known, best, cores, traffic)
    return np.where(usual & fits, pressed, np.nan)


def best_nodes(known, asked):
    """Return (each host's best node, whether that can be told by arrays), as the host's hook."""
    wanted = (_per_vcpu(known.known_guests, known.known_sum) * asked.vcpus)[:, None]
    added = np.nan_to_num(wanted * known.rate[:, None])
    maximum, count = known.bandwidth, known.cores.shape[1]
    charged = np.maximum((known.demand + wanted) / known.cores, (known.traffic + added) / maximum)
    fits = (known.threads >= asked.vcpus) & (
        known.memory_mib - known.promised_mib >= asked.memory_mib
    )
    usual = fits.any(1) & (maximum.min(1) >= added[:, 0]) & (charged.max(1) < ranking.ABSURD)
    with np.errstate(invalid='ignore'):
        steps = np.where(
            charged <= 1, np.floor(charged / STEP + 1e-9), np.round(charged, 3) / STEP
        )
        best = _least(
            fits,
            (
                steps,
                np.round((known.node_vcpus + asked.vcpus) / known.cores, 9),
                np.round((known.promised_mib + asked.memory_mib) / known.memory_mib, 6),
                np.round(known.node_guests, 9),
                (np.arange(count)[None, :] - known.turn[:, None]) % count,
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


def _on_all_nodes(known, cores, traffic):
    """Return what a guest that Nova pins leaves: on which nodes isn't known, so on all."""
    share = cores * known.cores / known.cores.sum(1)[:, None]
    return np.maximum(
        (known.demand + share) / known.cores,
        (known.traffic + traffic / known.cores.shape[1]) / known.bandwidth,
    )


def _least(fits, columns):
    """Return for each row the first position of those that fit which is least by columns."""
    left = fits.copy()
    for column in columns:
        values = np.where(left, column, np.inf)
        left &= values == values.min(1)[:, None]
    return left.argmax(1)


class _Found:
    """What request._estimate() reads of decoded metrics."""

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
    question = unseen(
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
        answer = known.kept[place] = request._estimate(found, *came, None, question)
    return answer, question
