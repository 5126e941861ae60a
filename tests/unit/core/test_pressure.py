# SPDX-License-Identifier: Apache-2.0
"""Pressure, latency and losses follow their formulas, and accesses get the nodes they go to."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.core import pressure
from tests.fixtures import model_records

LATENCIES = ((60.0, 100.0), (100.0, 60.0))  # two sockets of the eBay KVM tuning deck, 2013


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
    def test_latency_without_load_is_the_unloaded_one(self):
        self.assertEqual(100.0, pressure.loaded_latency_ns(100.0, 60.0, 0.0))
        self.assertEqual(100.0, pressure.loaded_latency_ns(100.0, 60.0, None))

    def test_latency_rises_by_queueing_with_load(self):
        self.assertAlmostEqual(100 + 0.15 * 60, pressure.loaded_latency_ns(100.0, 60.0, 0.5))

    @given(st.floats(0, 5), st.floats(0, 5))
    def test_latency_never_falls_with_load(self, one, other):
        low, high = sorted((one, other))
        self.assertLessEqual(
            pressure.loaded_latency_ns(60.0, 60.0, low),
            pressure.loaded_latency_ns(60.0, 60.0, high),
        )

    def test_an_access_more_costs_what_the_sum_of_latencies_grows_by(self):
        step = 1e-6

        def total(used):
            return used * pressure.queueing_at(used)

        for used in (0.0, 0.3, 0.7, 0.94, 0.96, 2.0):
            slope = (total(used + step) - total(used)) / step
            self.assertAlmostEqual(slope, pressure.added_queueing(used), delta=1e-3 * slope + 1e-3)


class TestLosses(unittest.TestCase):
    def test_remote_accesses_cost_their_extra_latency(self):
        # 10 million remote lines a second, 40 ns more each: 0.4 cores.
        lines_per_sec = ((5e6, 1e7), (0.0, 5e6))
        first, second = pressure.losses(
            (4.0, 9.0), (7.5, 7.5), lines_per_sec, LATENCIES, (0.0, 0.0)
        )
        self.assertEqual(0.0, first.waiting_cores)
        self.assertAlmostEqual(0.4, first.distance_cores)
        self.assertEqual((1.5, 0.0), second)

    def test_a_saturated_local_node_costs_too(self):
        lines_per_sec = ((1e7, 0.0), (0.0, 0.0))
        loss = pressure.losses((0, 0), (1, 1), lines_per_sec, LATENCIES, (0.9, 0.0))
        self.assertAlmostEqual(1e7 * 0.15 * 60 * 9 * 1e-9, loss[0].distance_cores)

    def test_unknown_parts_stay_unknown(self):
        self.assertEqual(
            ((None, None), (None, None)),
            pressure.losses((None, 1.0), (1.0, None), None, LATENCIES, (None, None)),
        )
        self.assertIsNone(
            pressure.losses((0, 0), (1, 1), ((1.0, None), (0.0, 0.0)), LATENCIES, (None, None))[
                0
            ].distance_cores
        )
