# SPDX-License-Identifier: Apache-2.0
"""The arena's figures are compared with those of real hosts, within their stated errors."""

import contextlib
import io
import json
import unittest
import unittest.mock

import numpy as np

from tests.arena import hosts, inside, parameters as p, replicas, validity as subject

SMALL = '--orders', '2', '--rounds', '1', '--hosts', '8', '--hours', '0.5'


def run(*args):
    """Run the command; return its exit code, the lines of its table and its last line."""
    with io.StringIO() as text, contextlib.redirect_stdout(text):
        code = subject.main([*SMALL, *args])
        *table, _, last = text.getvalue().splitlines()
    return code, table, json.loads(last)


class RowTest(unittest.TestCase):
    def test_a_figure_may_miss_by_its_stated_error_either_way(self):
        for says, within in ((0.89, False), (0.91, True), (1.09, True), (1.11, False)):
            with self.subTest(says):
                self.assertEqual(within, subject.Row('x', 'y', 1.0, says, 0.1).within)

    def test_a_least_figure_may_be_exceeded_by_any_amount(self):
        for says, within in ((0.39, False), (0.4, True), (1.0, True)):
            with self.subTest(says):
                self.assertEqual(within, subject.Row('x', 'y', 0.4, says, 0.0, True).within)

    def test_a_choice_is_within_its_error_only_where_it_is_the_same(self):
        self.assertTrue(subject.Row('x', 'y', '2 1', '2 1').within)
        other = subject.Row('x', 'y', '2 1', '3 0')
        self.assertFalse(other.within)
        self.assertEqual(('-', 'the same', 'NO'), other.cells()[4:])


class CommandTest(unittest.TestCase):
    def test_the_command_prints_each_figure_and_which_are_outside(self):
        code, table, last = run()
        self.assertEqual(1 + len(last['rows']), len(table))
        wanted = {'crowded': 4, 'herd': 4, 'stack': 5, 'region, mixed': 4, 'region, hot': 4}
        for start, count in wanted.items():
            self.assertEqual(count, sum(line.startswith(start + ':') for line in table), start)
        outside = [row['quantity'] for row in last['rows'] if not row['within']]
        self.assertEqual(outside, last['outside'])
        self.assertEqual(len(outside), sum(line.endswith('NO') for line in table))
        self.assertEqual(bool(outside), bool(code))
        self.assertEqual(p.digest(), last['parameters'])

    def test_the_exit_code_shows_whether_all_are_within(self):
        for within in (True, False):
            row = subject.Row('x', 'y', 1.0, 1.0 if within else 2.0, 0.5)
            with (
                self.subTest(within),
                unittest.mock.patch.multiple(
                    subject,
                    crowded=lambda orders, row=row: [row],
                    herd=lambda rounds: [],
                    phases=lambda: [],
                    sap=lambda *_: [],
                ),
            ):
                code, _, last = run()
                self.assertEqual(int(not within), code)
                self.assertEqual([] if within else ['x'], last['outside'])


class CrowdedTest(unittest.TestCase):
    def test_busy_guests_of_one_node_get_a_half_done_and_all_once_they_are_levelled(self):
        busy = replicas.steady_guests(np.zeros(4), 1, 16, 1.0)
        for model in replicas.MODELS:
            fleet = replicas.start_all(replicas.lab(), busy)
            for guest in range(4):
                replicas.put_on_node(fleet, guest, 0)
            with self.subTest(model):
                self.assertAlmostEqual(2.0, replicas.work(fleet, model))
                self.assertAlmostEqual(4.0, replicas.work(replicas.level_out(fleet), model))

    def test_a_guest_is_busy_for_its_duty(self):
        factors = replicas.duty_factors(np.array([100, 50, 10]))
        np.testing.assert_allclose(1.0, factors.mean(1))
        self.assertEqual([1.0, 2.0, 10.0], factors.max(1).tolist())

    def test_the_hook_knows_nothing_of_load_and_alternates(self):
        fleet = replicas.start_all(replicas.lab(), replicas.steady_guests(np.zeros(4), 1, 16, 1.0))
        self.assertEqual([0, 1, 0, 1], fleet.cpu_parts.argmax(1).tolist())


class HerdTest(unittest.TestCase):
    def test_schedulers_that_decide_before_a_claim_is_counted_take_the_same_host(self):
        with unittest.mock.patch.multiple(replicas, BOOTS=20, WITHIN_S=20.0):
            with replicas.other_parameters(VISIBLE_S=(200.0, 200.0)):
                self.assertEqual(20, replicas.herd('stock-1', 2, (200.0, 200.0), 1.0, 1))
            self.assertLess(replicas.herd('stock-1', 2, (1.0, 1.0), 1.0, 1), 5)

    def test_parameters_are_restored_after_the_herd(self):
        before = p.digest(), p.AUDIT_S, p.TICK_S, p.DECIDE_S
        with self.assertRaises(KeyError):
            replicas.herd('nobody', 2, (1.0, 2.0), 1.0, 1)
        self.assertEqual(before, (p.digest(), p.AUDIT_S, p.TICK_S, p.DECIDE_S))


class PhasesTest(unittest.TestCase):
    def test_all_choices_of_the_arena_are_those_of_the_stack(self):
        for row in subject.phases():
            with self.subTest(row.quantity):
                self.assertEqual(row.known, row.says)


class StockRegionTest(unittest.TestCase):
    def test_use_and_contention_of_a_stock_region_are_parts_of_one(self):
        region = replicas.stock_region('hot', 8, 1800)
        self.assertIs(inside.floating, region.fleet._inside)
        self.assertTrue(0 <= region.contention < 1 and 0 < region.busy <= 1)
        self.assertEqual(1.0, region.below(1.001))
        self.assertLess(region.below(0.01), region.below(0.7))
        self.assertGreater(region.guests(), 1)

    def test_hosts_of_replicas_have_no_faults(self):
        shape = replicas.lab(5)
        self.assertTrue(shape.agent.all() and (shape.broken == hosts.SOUND).all())
