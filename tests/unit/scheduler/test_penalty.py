# SPDX-License-Identifier: Apache-2.0
"""A penalty is absolute and bounded, 0 without a loss, and the loss itself above the floor."""

import math
import unittest

from hypothesis import given, strategies

from nova_numa_pmc.core.placement.loss import AddedLoss
from nova_numa_pmc.scheduler import penalty as subject
from tests.fixtures.scheduler_options import DEFAULTS

EXACT = subject.PenaltyOptions(0.0, 0.0)
RATIOS = strategies.floats(0, 1) | strategies.floats(0, 1e6) | strategies.just(math.inf)
SHARES = strategies.floats(0, 1)


def penalty(ratio, options=EXACT, host='a', instance_uuid=None, cpu=0.9):
    """Return the penalty of a host with this loss."""
    return subject.penalty(AddedLoss(cpu, 0.8, 0.7, ratio), options, host, instance_uuid)


class PenaltyTest(unittest.TestCase):
    def test_a_penalty_without_a_floor_is_the_loss(self):
        for ratio, expected in (
            (0.0, 0.0),
            (0.0001, 0.0001),
            (0.4, 0.4),
            (1.0, 1.0),
            (1000.0, 1.0),
            (math.inf, 1.0),
            (math.nan, 1.0),
        ):
            with self.subTest(ratio):
                self.assertAlmostEqual(expected, penalty(ratio))

    def test_a_penalty_is_a_number_even_if_an_option_is_none(self):
        for floor, jitter, expected in (
            (math.nan, 0.0, 0.0),
            (math.nan, 0.02, 0.0),
            (0.1, math.nan, 0.3),
            (math.nan, math.nan, 0.0),
        ):
            with self.subTest(floor=floor, jitter=jitter):
                options = subject.PenaltyOptions(floor, jitter)
                self.assertAlmostEqual(expected, penalty(0.4, options))

    def test_of_a_loss_only_what_is_above_the_floor_counts(self):
        options = subject.PenaltyOptions(0.05, 0.0)
        for ratio, expected in ((0.0, 0.0), (0.0499, 0.0), (0.05, 0.0), (0.3, 0.25), (1.0, 0.95)):
            with self.subTest(ratio):
                self.assertAlmostEqual(expected, penalty(ratio, options))

    @given(RATIOS, RATIOS, SHARES, SHARES)
    def test_more_loss_never_costs_less(self, one, other, floor, jitter):
        options = subject.PenaltyOptions(floor, jitter)
        low, high = (penalty(ratio, options) for ratio in sorted((one, other)))
        self.assertTrue(0.0 <= low <= high + 1e-12 <= 1.0 + 2e-12)

    @given(RATIOS, SHARES, SHARES, strategies.text())
    def test_no_penalty_exceeds_that_of_a_host_without_a_usable_cpu(
        self, ratio, floor, jitter, host
    ):
        options = subject.PenaltyOptions(floor, jitter)
        self.assertEqual(1.0, penalty(ratio, options, host, cpu=math.inf))
        self.assertLessEqual(penalty(ratio, options, host), 1.0 + 1e-12)

    def test_by_default_a_loss_of_a_half_outweighs_all_stock_weighers(self):
        # Free vCPUs, RAM and disk at 1.0 each and I/O at −1.0: four between the best and the
        # worst.
        options = subject.PenaltyOptions(DEFAULTS['penalty_floor'], subject.JITTER)
        self.assertGreater(DEFAULTS['weight_multiplier'] * penalty(0.5, options), 4.0)


class JitterTest(unittest.TestCase):
    def test_hosts_are_first_equally_often(self):
        hosts = [f'cmp{at:03}.example.org' for at in range(20)]
        counts = dict.fromkeys(hosts, 0)
        for number in range(2000):
            counts[
                min(hosts, key=lambda host: subject.random_part(f'instance-{number}', host))
            ] += 1
        # Binomial with p = 1/20: mean 100, deviation 10.
        self.assertTrue(all(60 <= count <= 140 for count in counts.values()), counts)

    @given(strategies.none() | strategies.text(), strategies.text(), RATIOS, SHARES)
    def test_jitter_is_bounded_and_always_the_same(self, instance, host, ratio, jitter):
        options = subject.PenaltyOptions(0.0, jitter)
        least = (1 - jitter) * penalty(ratio)
        penalty_ = penalty(ratio, options, host, instance)
        self.assertTrue(least - 1e-9 <= penalty_ <= min(1.0, least + jitter) + 1e-9)
        self.assertEqual(penalty_, penalty(ratio, options, host, instance))

    def test_an_order_of_hosts_below_the_floor_stays(self):
        options = subject.PenaltyOptions(0.05, 0.01)
        for ratio, varied in ((0.0499, False), (0.05, True), (0.0, False), (1.0, True)):
            penalties = {penalty(ratio, options, f'cmp{at}') for at in range(9)}
            self.assertEqual(9 if varied else 1, len(penalties), ratio)

    def test_requests_are_spread_over_saturated_hosts_as_well(self):
        options = subject.PenaltyOptions(DEFAULTS['penalty_floor'], subject.JITTER)
        for ratio in (0.0, 1.0, 7.0, math.inf, math.nan):
            counts = dict.fromkeys(range(5), 0)
            for number in range(500):
                penalties = [
                    penalty(ratio, options, f'cmp{at}', f'instance-{number}') for at in counts
                ]
                counts[penalties.index(min(penalties))] += 1
            # Binomial with p = 1/5: mean 100, deviation 9.
            self.assertTrue(all(60 <= count <= 140 for count in counts.values()), counts)
        # None goes to the host without a CPU as long as there is another.
        self.assertLess(max(penalties), penalty(1.0, options, cpu=math.inf))

    def test_the_default_jitter_outweighs_no_loss_of_more_than_itself(self):
        jitter = subject.JITTER
        options = subject.PenaltyOptions(0.0, jitter)
        for at in range(50):
            for ratio in (0.0, 0.1, 0.5):
                lighter = penalty(ratio, options, f'one{at}')
                heavier = penalty(ratio + 1.1 * jitter, options, f'other{at}')
                self.assertLess(lighter, heavier)
