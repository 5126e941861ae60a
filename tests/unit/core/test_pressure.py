# SPDX-License-Identifier: Apache-2.0
"""Utilisations and queueing follow their formulas."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.core import pressure
from tests.fixtures import model_records


class TestUtilisations(unittest.TestCase):
    def test_a_published_node_has_the_utilisations_of_its_figures(self):
        node = model_records.node_view(
            0,
            cores=4.0,
            demand_cores=1.0,
            bandwidth_bytes_per_sec=3e9,
            bandwidth_max_bytes_per_sec=4e9,
        )
        self.assertEqual((0.25, 0.75, None, 0.75), pressure.view_pressure(node))
        no_maximum = node._replace(bandwidth_max_bytes_per_sec=None)
        self.assertEqual((0.25, None, None, 0.25), pressure.view_pressure(no_maximum))


class TestLatency(unittest.TestCase):
    @given(st.floats(0, 5), st.floats(0, 5))
    def test_queueing_never_falls_with_load(self, one, other):
        low, high = sorted((one, other))
        self.assertLessEqual(pressure.queueing_at(low), pressure.queueing_at(high))

    def test_an_access_more_costs_what_the_sum_of_latencies_grows_by(self):
        step = 1e-6

        def total(used):
            return used * pressure.queueing_at(used)

        for used in (0.0, 0.3, 0.7, 0.94, 0.96, 2.0):
            slope = (total(used + step) - total(used)) / step
            self.assertAlmostEqual(slope, pressure.added_queueing(used), delta=1e-3 * slope + 1e-3)
