# SPDX-License-Identifier: Apache-2.0
"""Equal hosts with bursting guests look unequal, and less so over a longer horizon."""

import random
import unittest

from tests.sim import bursts as subject


class BurstingTest(unittest.TestCase):
    def test_a_guest_wants_its_cores_an_eighth_of_the_time(self):
        guest = subject.BurstingGuest(random.Random(1), 60.0)
        self.assertAlmostEqual(subject.VCPUS * subject.BUSY, guest.run(1e6), places=1)

    def test_equal_hosts_look_equal_over_the_longer_horizon_only(self):
        hosts = [subject.BurstingHost(at, 60.0) for at in range(20)]
        for host in hosts:
            host.run(180)
        last_5_s, longer = (
            [getattr(host, name) for host in hosts] for name in ('last_5_s', 'longer')
        )
        self.assertGreater(subject.differing_fraction(last_5_s, 0.05), 0.5)
        self.assertLess(subject.differing_fraction(longer, 0.05), 0.4)
        self.assertEqual(0.0, min(last_5_s))
        self.assertGreater(min(longer), 0.15)

    def test_the_share_of_differing_neighbours_is_computed(self):
        self.assertEqual(0.5, subject.differing_fraction([0.1, 0.2, 0.3, 0.34], 0.05))
