# SPDX-License-Identifier: Apache-2.0
"""Samples are taken at a steady pace, however long each takes."""

import unittest

from nova_numa_pmc.cli import sampling_loop
from tests.fixtures.clock import Clock


class TestIntervals(unittest.TestCase):
    def taken(self, costs, interval_s=5.0):
        """Return the times at which samples were taken if each took this long."""
        clock, left, times = Clock(), iter(costs), []

        def take():
            times.append(clock.now_s)
            clock.now_s += next(left)

        stream = sampling_loop.sample_every(take, interval_s, clock.wait, clock)
        for _ in range(len(costs) - 1):
            next(stream)
        return times

    def test_the_pace_does_not_drift_by_what_a_sample_costs(self):
        self.assertEqual([100.0, 105.5, 110.5, 115.5], self.taken([0.5, 1.0, 4.0, 0.0]))

    def test_a_whole_interval_passes_after_a_sample_that_took_too_long(self):
        self.assertEqual([100.0, 105.0, 122.0, 127.0], self.taken([0.0, 12.0, 1.0, 0.0]))
