# SPDX-License-Identifier: Apache-2.0
"""Draw a crowded host and its load from one seed, and run policies on it."""

import random

from tests.fixtures.model_records import GIB
from tests.sim.host import SimGuest, SimHost

TICK_S = 5
#: Standard deviation of each guest's demand from second to second, and of its measured rates from
#: tick to tick, both relative to them.
BURST, NOISE = 0.5, 0.05


class CrowdedLoad:
    """Three vCPUs for each core, started in one of many orders, with constant demand.

    A third of the guests want all of their vCPUs, a third half of them, a third a tenth.
    """

    def __init__(self, order, cores, guests, vcpus, share=1.0, lines=0.0, minutes=15):
        """Shuffle the guests.

        :param cores: of each of the two nodes
        :param share: fraction of their demand; 1 means that 1.6 times the cores are wanted
        :param lines: DRAM accesses per useful core-second
        """
        wants = [1.0, 0.5, 0.1] * (guests // 3)
        random.Random(f'order {order}').shuffle(wants)
        self.seed, self.cores, self.vcpus = order, cores, vcpus
        self.seconds, self.lines = minutes * 60, lines
        self.wanted = {f'g{at:02}': share * want * vcpus for at, want in enumerate(wants)}

    def host(self, floating):
        """Build the host as it starts: guests spread by count, or over everything."""
        host = SimHost(
            [self.cores] * 2, [96 * GIB] * 2, [40e9] * 2, [[80.0, 130.0], [130.0, 80.0]], mlp=1.0
        )
        for at, (name, wanted) in enumerate(self.wanted.items()):
            guest = SimGuest(name, self.vcpus, self.vcpus * 2 * GIB, self.vcpus * GIB, 2)
            guest.put((0, 1) if floating else (at % 2,))
            guest.wanted, guest.lines = wanted, self.lines
            host.guests.append(guest)
        return host

    def run(self, policy, floating=False):
        """Run a policy from start to end; return the host with its totals."""
        rng, host = random.Random(f'run {self.seed}'), self.host(floating)
        for second in range(self.seconds):
            host.step(1.0, {name: max(0.0, rng.gauss(1.0, BURST)) for name in self.wanted})
            if (second + 1) % TICK_S == 0:
                noise_rng = random.Random(f'{self.seed} {second}')
                policy.tick(host, float(second + 1), float(TICK_S), noise_rng, NOISE)
                host.reset()
        return host
