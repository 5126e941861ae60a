# SPDX-License-Identifier: Apache-2.0
"""The penalty: absolute, bounded, 0 where there is room, never better for being unknown."""

import math
import types
import unittest

from hypothesis import given, strategies

from nova_numa_pmc.scheduler import penalty as subject

TERMS = subject.PenaltyOptions()
PRESSURES = strategies.floats(0, 1e6) | strategies.just(math.inf)
FLOORS = strategies.floats(0, 1)


class PenaltyTest(unittest.TestCase):
    def test_of_whole_steps_above_the_floor(self):
        for pressure, expected in (
            (0.0, 0.0),
            (0.0499, 0.0),
            (0.3999, 0.35),
            (0.4, 0.4),
            (1.0, 1.0),
            (1000.0, 1.0),
            (math.inf, 1.0),
        ):
            with self.subTest(pressure):
                self.assertAlmostEqual(expected, subject.penalty(pressure, TERMS))

    @given(PRESSURES, PRESSURES, FLOORS)
    def test_more_pressure_never_costs_less(self, one, other, floor):
        terms = subject.PenaltyOptions(floor)
        low, high = (subject.penalty(each, terms) for each in sorted((one, other)))
        self.assertTrue(0.0 <= low <= high <= 1.0)

    def test_by_default_a_saturated_node_outweighs_all_stock_weighers(self):
        # Free vCPUs, RAM and disk, 1.0 each, and I/O −1.0: four between the best and the worst.
        self.assertGreater(20.0 * subject.penalty(1.0, TERMS), 4.0)


class UnknownTest(unittest.TestCase):
    def of(self, used, total, pressure=None):
        host = types.SimpleNamespace(host='a', vcpus_used=used, vcpus_total=total)
        return subject.host_penalty(host, pressure, subject.PenaltyOptions(0.0, 0.001, 0.0))

    def test_it_counts_by_what_nova_has_promised(self):
        for used, expected in ((0, 0.0), (60, 0.3), (192, 0.96), (4000, 1.0)):
            with self.subTest(used):
                self.assertAlmostEqual(expected, self.of(used, 96))

    def test_without_a_count_of_its_cpus_it_is_neither_the_best_nor_the_worst(self):
        self.assertAlmostEqual(0.3, self.of(8, 0))

    def test_what_is_known_counts(self):
        self.assertAlmostEqual(0.5, self.of(4000, 96, 0.5))


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

    @given(strategies.none() | strategies.text(), strategies.text(), PRESSURES)
    def test_it_adds_at_most_the_jitter_and_the_same_again(self, instance, host, pressure):
        one = types.SimpleNamespace(host=host, vcpus_used=0, vcpus_total=8)
        least = 0.85 * subject.penalty(pressure, TERMS)
        found = subject.host_penalty(one, pressure, TERMS, instance)
        self.assertTrue(least - 1e-9 <= found <= min(1.0, least + 0.15 + 1e-9))
        self.assertEqual(found, subject.host_penalty(one, pressure, TERMS, instance))

    def test_an_order_of_hosts_below_the_floor_stays(self):
        for pressure, varied in ((0.69, False), (0.7, True), (0.0, False), (math.inf, False)):
            found = {
                subject.host_penalty(
                    types.SimpleNamespace(host=f'cmp{at}', vcpus_used=0, vcpus_total=8),
                    pressure,
                    subject.PenaltyOptions(0.7),
                )
                for at in range(9)
            }
            self.assertEqual(9 if varied else 1, len(found), pressure)
