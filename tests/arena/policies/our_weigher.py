# SPDX-License-Identifier: Apache-2.0
"""NUMAPressureWeigher, vectorised, and the absolute penalty that may follow it.

The usual host, with room on a node and no guest since it was measured, is computed in arrays;
all others by the package's own functions. The referee holds both to the real weigher.
"""

import typing

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.core.scheduling.aggregates import Aggregates
from nova_numa_pmc.core.scheduling.outcome import expecting, unseen
from nova_numa_pmc.scheduler import comparison, request, weights
from tests.arena import parameters as p
from tests.arena.policies import nova_weights

STALE_S, STEP = 5.0 * p.AUDIT_S, 0.05
LIMITS = model.Limits()
#: Of the key's digits: the highest, the tier, the mean, the others', their mean.
HIGHEST, TIER, MEAN, OTHERS, OTHERS_MEAN = 40, 38, 30, 22, 14


def numa_pressure(view, asked):
    """Weigh as Nova with NUMAPressureWeigher at its defaults.

    Source: this checkout, nova_numa_pmc/scheduler/weigher.py, doc/source/reference/weigher.rst.
    Formula: stock + 1.0 · stretched weight, which orders hosts by the pressure that the guest
    would leave.
    Deviations: none on hosts that know the same parts of pressure.
    """
    return nova_weights.stock(view, asked) + nova_weights.normalized(raw(view, asked))


def penalty(view, asked, floor=0.35, multiplier=10.0):
    """Weigh as Nova with an absolute penalty: the starting point of the weigher to come.

    Source: doc/source/reference/pressure.rst's definitions; not in the package yet.
    Formula: stock − 10 · clamp(⌊P/0.05⌋·0.05 − 0.35, 0, 1), P the lowest over nodes of what the
    guest would leave there; a host of unknown pressure 0.3 · vcpus_used / (0.625 · vCPUs).
    Deviations: a sketch: what came since is spread over the nodes, memory isn't looked at.
    """
    came = np.maximum(0, view.vcpus_used - view.recorded_vcpus)
    wanted = p.PRIOR_CORES_PER_VCPU * asked.vcpus
    cores = view.cores
    spread = cores / cores.sum(1)[:, None]
    demand = view.demand + spread * (p.PRIOR_CORES_PER_VCPU * came)[:, None]
    pressed = np.maximum((demand + wanted) / cores, view.traffic / view.bandwidth).min(1)
    unknown = 0.3 * view.vcpus_used / (0.625 * view.vcpus)
    plausible = view.demand.sum(1) <= view.vcpus
    fresh = (np.abs(view.now_s - view.taken_s) <= STALE_S) & plausible
    pressed = np.where(fresh, pressed, unknown)
    steps = np.floor(pressed / STEP + 1e-9) * STEP
    return nova_weights.stock(view, asked) - multiplier * np.clip(steps - floor, 0, 1)


def raw(view, asked):
    """Return the weigher's weights before Nova stretches them."""
    at = np.flatnonzero(np.abs(view.now_s - view.taken_s) <= STALE_S)
    if not len(at):
        return np.zeros(len(view.at))
    known = _Known(view, at)
    rates = np.sort(known.rate[~np.isnan(known.rate)])
    rate = float(rates[(len(rates) - 1) // 2]) if len(rates) else 0.0
    cores = _per_vcpu(known.known_guests.sum(), known.known_sum.sum()) * asked.vcpus
    traffic = cores * rate
    keys = _fast_keys(known, asked, cores, traffic)
    for position in np.flatnonzero(keys < 0):
        keys[position] = _slow_key(known, position, asked, cores, traffic)
    # Whole numbers of up to 53 bits each: summed in two parts.
    low = (1 << 26) - 1
    total = (int((keys >> 26).sum()) << 26) + int((keys & low).sum())
    found = np.full(len(view.at), total // len(keys), np.int64)
    found[at] = keys
    return -found / weights.UNIT


class _Known:
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


def _fast_keys(known, asked, cores, traffic):
    """Return the keys of the usual hosts; −1 for the others."""
    wanted = (_per_vcpu(known.known_guests, known.known_sum) * asked.vcpus)[:, None]
    added = np.nan_to_num(wanted * known.rate[:, None])
    maximum, count = known.bandwidth, known.cores.shape[1]
    usual = (known.came_vcpus <= 0) & (known.came_mib <= 0)
    if asked.dedicated:
        usual &= known.threads.sum(1) >= asked.vcpus
        return np.where(usual, _spread_keys(known, cores, traffic), -1)
    charged = np.maximum((known.demand + wanted) / known.cores, (known.traffic + added) / maximum)
    now = np.maximum(known.demand / known.cores, known.traffic / maximum)
    fits = (known.threads >= asked.vcpus) & (
        known.memory_mib - known.promised_mib >= asked.memory_mib
    )
    usual &= fits.any(1) & (maximum.min(1) >= added[:, 0]) & (charged.max(1) < ranking.ABSURD)
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
    rows = np.arange(len(best))
    used = np.maximum(
        (known.demand[rows, best] + cores) / known.cores[rows, best],
        (known.traffic[rows, best] + traffic) / maximum[rows, best],
    )
    rest = now.copy()
    rest[rows, best] = 0.0
    highest = np.minimum(8191, used / STEP + 1e-9).astype(np.int64)
    others = np.minimum(255, rest.max(1) / STEP + 1e-9).astype(np.int64)
    means = np.minimum(255, rest.sum(1) / max(1, count - 1) / STEP + 1e-9).astype(np.int64)
    if count == 2:
        means = others
    mean = np.minimum(highest, 255)
    keys = (highest << HIGHEST) | (mean << MEAN) | (others << OTHERS) | (means << OTHERS_MEAN)
    return np.where(usual, keys, -1)


def _spread_keys(known, cores, traffic):
    """Return the keys of a guest that Nova pins: on which nodes isn't known, so on all."""
    count = known.cores.shape[1]
    share = cores * known.cores / known.cores.sum(1)[:, None]
    used = np.maximum(
        (known.demand + share) / known.cores, (known.traffic + traffic / count) / known.bandwidth
    )
    highest = np.minimum(8191, used.max(1) / STEP + 1e-9).astype(np.int64)
    # Summed from the highest on, as a sum of few floats depends on their order.
    total = np.sort(used, 1)[:, ::-1].cumsum(1)[:, -1]
    means = np.minimum(255, total / count / STEP + 1e-9).astype(np.int64)
    return (highest << HIGHEST) | (1 << TIER) | (means << MEAN)


def _least(fits, columns):
    """Return for each row the first position of those that fit which is least by columns."""
    left = fits.copy()
    for column in columns:
        values = np.where(left, column, np.inf)
        left &= values == values.min(1)[:, None]
    return left.argmax(1)


class _Found:
    """What request._answer() reads of decoded metrics."""

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


def _slow_key(known, position, asked, cores, traffic):
    """Return a host's key by the package's own functions."""
    question = unseen(
        asked.vcpus,
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
        answer = request._answer(found, *came, False, question)
        known.kept[place] = answer
    estimate = expecting(question, cores / asked.vcpus)
    outcome = comparison._estimated(answer.host, answer.outcome, estimate, cores, traffic)
    return weights.key(outcome, answer.newcomers, STEP)
