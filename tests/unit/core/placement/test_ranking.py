# SPDX-License-Identifier: Apache-2.0
"""Test the criteria by which the places for a guest are compared."""

import math
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU
from nova_numa_pmc.core.placement import ranking
from tests.fixtures.model_records import node_view

PRESSURES = st.floats(0, 20)
#: 0: pressures are compared without rounding.
STEPS = st.sampled_from((0.0, 0.01, 0.05, 0.1))


def steps(pressure, step=0.05):
    return ranking.in_steps(pressure, model.PlacementOptions(pressure_step=step))


class StepsTest(unittest.TestCase):
    def test_pressure_up_to_1_counts_in_whole_steps(self):
        for pressure, count in ((0.0, 0), (0.049, 0), (0.05, 1), (0.75, 15), (1.0, 20)):
            self.assertEqual(count, steps(pressure))

    @given(PRESSURES, PRESSURES, STEPS)
    def test_more_pressure_is_never_fewer_steps(self, one, other, step):
        less, more = sorted((one, other))
        self.assertLessEqual(steps(less, step), steps(more, step))

    @given(STEPS)
    def test_infinite_and_nan_pressure_are_the_worst_case(self, step):
        worst = steps(ranking.PRESSURE_MAX, step)
        for pressure in (math.inf, math.nan, 2 * ranking.PRESSURE_MAX):
            self.assertEqual(worst, steps(pressure, step))


class PartsTest(unittest.TestCase):
    def test_each_part_of_pressure_is_demand_over_capacity(self):
        one = node_view(
            0,
            cores=4,
            demand_cores=1.0,
            bandwidth_bytes_per_sec=2.0,
            bandwidth_max_bytes_per_sec=8.0,
            link_ratio=0.25,
        )
        self.assertEqual((0.75, 0.5, 0.25), ranking.utilisations(one, 2.0, 2.0))
        self.assertEqual((0.0, 0.5, 0.25), ranking.utilisations(one, None, 2.0))

    def test_promised_vcpus_stand_for_unknown_demand(self):
        cpu, bandwidth, link = ranking.utilisations(node_view(0, cores=4, vcpus=4), 1.0, 5.0)
        self.assertEqual((1.0 + 4 * PRIOR_CORES_PER_VCPU) / 4, cpu)
        self.assertEqual((0.0, 0.0), (bandwidth, link))
