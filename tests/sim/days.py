# SPDX-License-Identifier: Apache-2.0
"""Simulate a day of a host in the scenarios in which moves were seen to help or to harm.

Truth: two nodes of 16 cores and 60 GB/s, 80 and 130 ns, 2.5 misses at a time. Guests want cores by
the scenario, in steps of five seconds that vary by a fifth. The planner sees what a host measures,
with 5 % noise, and knows neither the misses at a time nor accesses that are not counted.
"""

import math
import random

from tests.fixtures.model_records import GIB
from tests.sim.host import SimGuest, SimHost

TICK_S, DAY_S = 5, 86400
NODES = (0, 1)
#: Time over which a move is compared with its absence, and within which no guest should come back.
TRUE_S, BACK_S = 3600, 86400
USUAL, HOG = dict(lines=1e7), dict(lines=7e7, mlp=10.0, counted=0.25)


def steady(low, high):
    """Want one share of the vCPUs, drawn once."""

    def begin(rng):
        share = rng.uniform(low, high)
        return lambda at_s: share

    return begin


def phases(length_s, low=0.0, high=1.0, jitter=True):
    """Want another share in each phase, whose lengths are exponential or all alike."""

    def begin(rng):
        now = [0.0, 0.0]

        def share(at_s):
            if at_s >= now[0]:
                now[0] = at_s + (rng.expovariate(1 / length_s) if jitter else length_s)
                now[1] = rng.choice((low, high)) if jitter else rng.uniform(low, high)
            return now[1]

        return share

    return begin


def daily(low, high):
    """Want more at one time of the day, which differs by guest."""

    def begin(rng):
        offset = rng.random()
        return lambda at_s: (
            low + (high - low) * (0.5 + 0.5 * math.sin(2 * math.pi * (at_s / DAY_S + offset)))
        )

    return begin


def cron(every_s, length_s, low, high):
    """Want much for some time in each period, all guests at once."""
    return lambda rng: lambda at_s: high if at_s % every_s < length_s else low


def guests(count, vcpus, want, memory_gib=8, at=None, lives_s=0.0, **access):
    """Describe guests: their size, their wants, and where they and their memory begin."""
    return [
        dict(
            vcpus=vcpus,
            want=want,
            memory_gib=memory_gib,
            at=at,
            lives_s=lives_s,
            access=access or USUAL,
        )
    ] * count


#: {title: guests}; nodes have 192 GiB, except where RAM is tight.
SCENARIOS = {
    'phases of 10 min': guests(14, 4, phases(600, 0.0, 1.0, jitter=False)),
    'daily pattern': guests(14, 4, daily(0.05, 0.95)),
    'bursty tenants': guests(10, 4, steady(0.1, 0.5)) + guests(6, 4, phases(60, 0.05, 1.0)),
    'batch beside latency': guests(4, 8, phases(3600, 0.1, 1.0)) + guests(8, 2, steady(0.1, 0.4)),
    'one noisy neighbour': guests(12, 2, steady(0.2, 0.6)) + guests(1, 12, phases(1800, 0.1, 1.0)),
    'cron every 5 min': guests(14, 4, cron(300, 60, 0.2, 0.7)),
    'guests come and go': guests(20, 4, steady(0.1, 1.0), lives_s=7200),
    'RAM tight': guests(12, 4, phases(3600, 0.05, 1.0), memory_gib=30),
    'four bandwidth hogs': guests(14, 2, steady(0.2, 0.7)) + guests(4, 4, phases(600), **HOG),
    'the same, 2 min': guests(14, 2, steady(0.2, 0.7)) + guests(4, 4, phases(120), **HOG),
    'six on one node': guests(6, 4, steady(0.6, 1.0), at=0),
    'memory elsewhere': guests(8, 4, steady(0.4, 0.8), at='remote'),
}
NODE_GIB = 192


class Day:
    """A scenario drawn with one seed."""

    def __init__(self, title, seed, hours=24.0):
        rng = random.Random(f'{title} {seed}')
        self.seed, self.ticks = seed, int(hours * 3600 / TICK_S)
        self.shapes = []
        for number, guest in enumerate(SCENARIOS[title]):
            share = guest['want'](rng)
            wants, lives = [], []
            alive, until_s = True, rng.expovariate(1 / guest['lives_s']) if guest['lives_s'] else 0
            for tick in range(self.ticks):
                at_s = tick * TICK_S
                if guest['lives_s'] and at_s > until_s:
                    alive, until_s = not alive, at_s + rng.expovariate(1 / guest['lives_s'])
                lives.append(alive)
                wants.append(guest['vcpus'] * share(at_s) * max(0.0, rng.gauss(1.0, 0.2)))
            self.shapes.append((f'g{number:02}', guest, wants, lives))

    def host(self):
        """Return the empty host."""
        return SimHost(
            [16] * 2, [NODE_GIB * GIB] * 2, [60e9] * 2, [[80.0, 130.0], [130.0, 80.0]], mlp=2.5
        )

    def set_wants(self, host, tick, floating):
        """Let guests come, go and want what they want in a tick."""
        present = {guest.name: guest for guest in host.guests}
        for name, shape, wants, lives in self.shapes:
            guest = present.get(name)
            if guest is None and lives[tick]:
                guest = self._start(host, name, shape, floating)
            elif guest is not None and not lives[tick]:
                host.guests.remove(guest)
                host.queue = [queued for queued in host.queue if queued is not guest]
            if guest is not None:
                guest.wanted = wants[tick]

    @staticmethod
    def _start(host, name, shape, floating):
        size, at = shape['memory_gib'] * GIB, shape['at']
        guest = SimGuest(name, shape['vcpus'], size, 0.75 * size, 2)
        guest.lines = shape['access']['lines']
        guest.mlp, guest.counted = (shape['access'].get(k) for k in ('mlp', 'counted'))
        vcpus = [sum(other.vcpus for other in host.guests if other.home == (n,)) for n in NODES]
        node = at if at in NODES else vcpus.index(min(vcpus))
        guest.put((node,), (1 - node if at == 'remote' else node,))
        if floating:
            guest.cpus = NODES
        host.guests.append(guest)
        return guest

    def run(self, policy, floating=False, host=None, first=0, count=None):
        """Run a policy over the day, or over some ticks of it; return the host."""
        host = host or self.host()
        for tick in range(first, min(self.ticks, first + (count or self.ticks))):
            self.set_wants(host, tick, floating)
            host.step(float(TICK_S), {})
            policy.tick(
                host,
                (tick + 1.0) * TICK_S,
                float(TICK_S),
                random.Random(f'{self.seed} {tick}'),
                0.05,
            )
            host.reset()
        return host
