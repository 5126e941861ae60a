# SPDX-License-Identifier: Apache-2.0
"""Counts are scaled to the time counted, and what cannot be computed is unknown, never 0."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.core import rates
from nova_numa_pmc.core.rates import CounterDelta, CounterReading

U64 = st.integers(0, 2**64 - 1)
COUNTS = st.builds(CounterReading, U64, st.integers(0, 2**62), st.integers(0, 2**62))


class TestGrowth(unittest.TestCase):
    def test_a_multiplexed_count_is_scaled_and_has_its_share(self):
        grown = rates.growth(CounterReading(25, 1000, 500), CounterReading(100, 1400, 600))
        self.assertEqual(CounterDelta(300.0, 0.25), rates.scaled(*grown))

    def test_growth_that_cannot_be_computed_is_unknown(self):
        first = CounterReading(100, 1000, 900)
        for name, second in (
            ('went backwards', CounterReading(99, 2000, 1900)),
            ('opened anew', CounterReading(5, 100, 100)),
            ('counted in no time', CounterReading(101, 1000, 900)),
            ('ran longer than it was enabled', CounterReading(200, 1100, 1200)),
            ('unreadable', None),
        ):
            with self.subTest(name):
                self.assertIsNone(rates.growth(first, second))
        self.assertIsNone(rates.growth(None, first))

    def test_what_did_not_run_counted_nothing_and_what_got_no_counter_is_unknown(self):
        self.assertEqual(CounterDelta(0.0, 1.0), rates.scaled(0, 0, 0))
        self.assertIsNone(rates.scaled(0, 1000, 0))

    @given(COUNTS, COUNTS)
    def test_growth_is_never_negative_and_has_a_valid_share(self, first, second):
        grown = rates.growth(first, second)
        delta = rates.scaled(*grown) if grown else None
        if delta is not None:
            self.assertGreaterEqual(delta.value, 0)
            self.assertTrue(0 < delta.share <= 1)

    @given(U64, st.integers(0, 2**40), st.integers(1, 2**40), st.integers(1, 100))
    def test_scaling_is_exact_for_a_steady_counter(self, start, events, running, factor):
        grown = rates.growth(
            CounterReading(start, 0, 0),
            CounterReading((start + events) % 2**64, running * factor, running),
        )
        delta = rates.scaled(*grown)
        self.assertAlmostEqual(events * factor, delta.value, delta=1e-9 * events * factor)


class TestSums(unittest.TestCase):
    def test_the_least_seen_part_shows_how_sure_a_sum_is(self):
        self.assertEqual(
            CounterDelta(5.0, 0.5), rates.add([CounterDelta(2.0, 0.5), CounterDelta(3.0, 1.0)])
        )

    def test_an_unknown_part_makes_the_sum_unknown(self):
        self.assertIsNone(rates.add([CounterDelta(2.0, 0.5), None]))
        self.assertIsNone(rates.add([]))


class TestRatios(unittest.TestCase):
    def test_cpi_is_unknown_on_an_idle_cpu(self):
        self.assertEqual(2.0, rates.cycles_per_instruction(200, 100, 0.5))
        self.assertIsNone(rates.cycles_per_instruction(200, 100, 0.049))
        self.assertIsNone(rates.cycles_per_instruction(200, 100, None))
        self.assertIsNone(rates.cycles_per_instruction(200, 0, 0.5))
