# SPDX-License-Identifier: Apache-2.0
"""Traces: when guests come and leave, how large they are and what they want, for all policies."""

import numpy as np

from tests.arena import hosts as shapes, parameters as p


def _batches(rng, count):
    """Return the number of each guest's batch: most arrive alone, some several at once."""
    several = rng.random(count) < p.BATCHES
    sizes = np.where(several, 1 + rng.geometric(1 / (p.BATCH_MEAN - 1), count), 1)
    return np.repeat(np.arange(count), sizes)[:count]


def drawn(cell, seed):
    """Return a cell's hosts and the trace for them, as drawn with a seed."""
    rng = np.random.default_rng((seed, cell.number, 0))
    hosts = shapes.Hosts(cell.shape, cell.hosts, rng, p.WITHOUT_AGENT)
    return hosts, Trace(cell, hosts, seed)


class Trace:
    """Guests in order of arrival, as arrays.

    :ivar arrive_s, leave_s: when each is requested and deleted
    :ivar vcpus, memory_mib, disk_gb: its flavor
    :ivar flavor: position in ``parameters.FLAVORS``
    :ivar dedicated: whether it wants CPUs of its own
    :ivar request: guests of one request have the same number
    :ivar build_s, visible_s: time from its claim until it runs, or until it is in Nova's database
    :ivar lines: DRAM lines per core-second
    :ivar wants: cores per vCPU, guests × slots of SLOT_S
    :ivar bursts: factors of mean 1, guests × 16, for the second model of losses
    """

    def __init__(self, cell, hosts, seed):
        """Draw a cell's trace for its hosts."""
        rng = np.random.default_rng((seed, cell.number, 1))
        fill, mean = p.LOADS[cell.load]
        end_s = cell.fill_s + cell.judged_s
        vcpus_max = hosts.threads.sum(1).max()
        self._sizes(rng, fill * hosts.ram_mib.sum(), cell, end_s, vcpus_max)
        if cell.storm:
            self._storm(rng, round(p.STORM_GUESTS_PER_HOST * hosts.count), cell)
        self._sort()
        count = len(self.arrive_s)
        self.vcpus, self.memory_mib, self.disk_gb = (
            np.array([flavor[at] for flavor in p.FLAVORS], np.int64)[self.flavor]
            for at in range(3)
        )
        chance = rng.random(count)
        self.dedicated = (
            (hosts.shape == 'pools')
            & (chance < p.DEDICATED_GUESTS)
            & (self.vcpus <= p.DEDICATED_VCPUS_MAX)
        )
        self._requests(rng, cell.multi_create)
        low, high = (cell.build_factor * bound for bound in p.BUILD_S)
        # Uniform in its logarithm: most builds are short.
        self.build_s = low * (high / low) ** rng.random(count)
        self.visible_s = cell.visible_factor * rng.uniform(*p.VISIBLE_S, size=count)
        self.lines = p.LINES * np.exp(rng.normal(0, p.LINES_SIGMA, count))
        self._demand(rng, cell, mean, end_s)

    def _sizes(self, rng, target_mib, cell, end_s, vcpus_max):
        """Draw when guests arrive, for how long, and their flavors, which all fit on some host."""
        weights = np.array([flavor[3] * (flavor[0] <= vcpus_max) for flavor in p.FLAVORS], float)
        chances = weights / weights.sum()
        memory = np.array([flavor[1] for flavor in p.FLAVORS])
        first = int(target_mib / (memory * chances).sum())
        hours = end_s / 3600
        parts = []
        # Of the guests present at any time, most are long-lived.
        for count, until_s, lifetime_s, most_mib in (
            (2 * first, cell.fill_s, p.LONG_S, target_mib),
            (rng.poisson(p.SHORT_PER_HOUR * first * hours), end_s, p.SHORT_S, np.inf),
            (rng.poisson(p.LONG_PER_HOUR * first * hours), end_s, p.LONG_S, np.inf),
        ):
            batch = _batches(rng, count)
            batches = batch.max(initial=-1) + 1
            came = rng.uniform(0, until_s, batches)[batch]
            came = came + rng.uniform(0, p.BATCH_S, count)
            flavors = rng.choice(len(p.FLAVORS), batches, p=chances)[batch]
            leave = came + rng.exponential(lifetime_s, count)
            kept = memory[flavors].cumsum() <= most_mib
            parts.append((came[kept], leave[kept], flavors[kept]))
        self.arrive_s, self.leave_s, self.flavor = map(np.concatenate, zip(*parts))

    def _storm(self, rng, count, cell):
        """Add guests of one flavor that all arrive within a minute, halfway through."""
        came = cell.fill_s + cell.judged_s / 2 + rng.uniform(0, 60, count)
        self.arrive_s = np.concatenate((self.arrive_s, came))
        self.leave_s = np.concatenate((self.leave_s, came + rng.exponential(p.LONG_S, count)))
        self.flavor = np.concatenate((self.flavor, np.full(count, 3)))

    def _sort(self):
        order = np.argsort(self.arrive_s, kind='stable')
        self.arrive_s, self.leave_s = self.arrive_s[order], self.leave_s[order]
        self.flavor = self.flavor[order]

    def _requests(self, rng, multi_create):
        """Combine some neighbours into one request, with a common arrival time and flavor."""
        count = len(self.arrive_s)
        self.request = np.arange(count)
        share = multi_create / p.MULTI_COUNT
        for first in np.flatnonzero(rng.random(count) < share):
            several = slice(first, min(count, first + p.MULTI_COUNT))
            self.request[several] = self.request[first]
            self.arrive_s[several] = self.arrive_s[first]
            self.leave_s[several] = np.maximum(self.leave_s[several], self.arrive_s[several] + 1)
            for column in (self.flavor, self.vcpus, self.memory_mib, self.disk_gb, self.dedicated):
                column[several] = column[first]

    def _demand(self, rng, cell, mean, end_s):
        count, slots = len(self.arrive_s), int(end_s // p.SLOT_S) + 2
        sigma = p.SIGMA[cell.follows] * self.vcpus**-p.SIGMA_FALL
        level = mean * np.exp(rng.normal(0, sigma, count) - sigma**2 / 2)
        keep = np.exp(-p.SLOT_S / p.OWN_S)
        state = rng.normal(0, 1, count)
        wants = rng.normal(0, np.sqrt(1 - keep**2), (slots, count))  # the steps to them first
        day = rng.random() * 2 * np.pi
        if cell.day_spread:
            day = day + rng.normal(0, cell.day_spread, count)
        for slot, column in enumerate(wants):
            state = keep * state + column
            daily = 1 + cell.day_amplitude * np.sin(day + 2 * np.pi * slot * p.SLOT_S / 86400)
            column[:] = level * daily * np.exp(p.OWN_SIGMA * state - p.OWN_SIGMA**2 / 2)
            np.minimum(1.0, column, out=column)
        self.wants = np.ascontiguousarray(wants.T)
        shape = 1 / p.BURST
        self.bursts = rng.gamma(shape, 1 / shape, (count, 16))

    def want(self, guests, time_s):
        """Return the current demand of guests [cores]."""
        return self.vcpus[guests] * self.wants[guests, int(time_s // p.SLOT_S)]
