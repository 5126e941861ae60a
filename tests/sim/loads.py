# SPDX-License-Identifier: Apache-2.0
"""Draw hosts and loads to simulate, each from one seed, and run policies on them."""

import random

from tests.fixtures.model_records import GIB
from tests.sim.host import SimGuest, SimHost

TICK_S = 5
#: Half of the guests use little memory, the others up to what a core can access.
KINDS = ((1e4, 1e5), (1e5, 1e6), (1e6, 4e6), (4e6, 8e6))


class SimulatedLoad:
    """A host, its guests, and their demand over time.

    :ivar phases: per phase, {guest name: (cores wanted, DRAM accesses per core-second)}
    """

    def __init__(
        self,
        seed,
        phase_s,
        hours=2.0,
        nodes=2,
        cores=12,
        guests=12,
        vcpus=(2, 4, 8),
        load=(0.5, 0.9),
        burst=0.1,
        noise=0.05,
        bandwidth_max=40e9,
        kinds=KINDS,
    ):
        """Draw a scenario.

        :param load: range of the cores wanted by all guests, relative to the host's, per phase
        :param kinds: ranges of DRAM accesses per core-second, of which each guest gets one
        :param burst: standard deviation of each guest's demand from second to second, relative to
            it
        :param noise: likewise of each guest's measured rates from tick to tick
        """
        rng = random.Random(f'scenario {seed} {phase_s}')
        self.seed, self.phase_s, self.nodes, self.cores = seed, phase_s, nodes, cores
        self.seconds, self.burst, self.noise = int(hours * 3600), burst, noise
        self.bandwidth_max = bandwidth_max
        self.shapes = [(f'g{at:02}', rng.choice(vcpus)) for at in range(guests)]
        self.resident = {name: rng.uniform(0.25, 1.0) for name, _ in self.shapes}
        self.kinds = {name: rng.choice(kinds) for name, _ in self.shapes}
        self.phases = [
            self._phase(rng, rng.uniform(*load) * nodes * cores)
            for _ in range(self.seconds // phase_s + 1)
        ]

    def _phase(self, rng, total):
        """Divide the wanted cores among the guests at random, none getting more than its vCPUs."""
        parts = {name: vcpus * rng.random() ** 2 for name, vcpus in self.shapes}
        scale = total / sum(parts.values())
        return {
            name: (min(vcpus, parts[name] * scale), rng.uniform(*self.kinds[name]))
            for name, vcpus in self.shapes
        }

    def host(self, floating):
        """Build the host as it starts: guests spread by count, or over everything."""
        nodes = range(self.nodes)
        host = SimHost(
            [self.cores] * self.nodes,
            [96 * GIB] * self.nodes,
            [self.bandwidth_max] * self.nodes,
            [[80.0 if a == b else 130.0 for b in nodes] for a in nodes],
            mlp=1.0,
        )
        wanted = [0] * self.nodes
        for name, vcpus in self.shapes:
            guest = SimGuest(
                name, vcpus, vcpus * 2 * GIB, vcpus * 2 * GIB * self.resident[name], self.nodes
            )
            at = wanted.index(min(wanted))
            wanted[at] += vcpus
            guest.put(tuple(nodes) if floating else (at,))
            host.guests.append(guest)
        return host

    def run(self, policy, floating=False):
        """Run a policy from start to end; return the host with its totals."""
        rng, host = random.Random(f'run {self.seed}'), self.host(floating)
        for second in range(self.seconds):
            if second % self.phase_s == 0:
                for guest in host.guests:
                    guest.wanted, guest.lines = self.phases[second // self.phase_s][guest.name]
            host.step(
                1.0,
                {name: max(0.0, rng.gauss(1.0, self.burst)) for name, _ in self.shapes}
                if self.burst
                else {},
            )
            if (second + 1) % TICK_S == 0:
                policy.tick(
                    host,
                    float(second + 1),
                    float(TICK_S),
                    random.Random(f'{self.seed} {second}'),
                    self.noise,
                )
                host.reset()
        return host


class CrowdedLoad(SimulatedLoad):
    """Three vCPUs for each core, started in one of many orders, with constant demand.

    A third of the guests want all of their vCPUs, a third half of them, a third a tenth.
    """

    def __init__(
        self, order, cores, guests, vcpus, share=1.0, lines=0.0, minutes=15, burst=0.5, noise=0.05
    ):
        """Shuffle the guests.

        :param share: fraction of their demand; 1 means that 1.6 times the cores are wanted
        :param lines: DRAM accesses per useful core-second
        :param burst, noise: as in :class:`SimulatedLoad`
        """
        wants = [1.0, 0.5, 0.1] * (guests // 3)
        random.Random(f'order {order}').shuffle(wants)
        self.seed, self.nodes, self.cores, self.bandwidth_max = order, 2, cores, 40e9
        self.seconds = self.phase_s = minutes * 60
        self.burst, self.noise = burst, noise
        self.shapes = [(f'g{at:02}', vcpus) for at in range(guests)]
        self.resident = dict.fromkeys(dict(self.shapes), 0.5)
        self.phases = [
            {name: (share * want * vcpus, lines) for (name, _), want in zip(self.shapes, wants)}
        ]


def total_cost(host):
    """Return loss + cost [core-seconds]."""
    return host.lost + host.cost
