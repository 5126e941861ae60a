# SPDX-License-Identifier: Apache-2.0
"""Losses of policies are compared in pairs of runs, and an uncertain duel is undecided."""

import math
import unittest

import numpy as np

from tests.arena import statistics as subject


def figures(loss, large=10, emptied=0.0, p99=None):
    """Return a policy's figures of one run."""
    return {
        'loss': loss,
        'loss_second': loss,
        'p99': loss if p99 is None else p99,
        'large_placed': large,
        'emptied': emptied,
        'audits': 10,
        'sent': 1,
        'ratios': np.array([loss]),
    }


def table(by_policy, cell='c'):
    """Return a table of seeds from {policy: losses or figures}."""
    count = len(next(iter(by_policy.values())))
    return subject.Table(
        {
            (cell, seed): {
                name: values[seed] if isinstance(values[seed], dict) else figures(values[seed])
                for name, values in by_policy.items()
            }
            for seed in range(count)
        }
    )


class PairedTest(unittest.TestCase):
    def test_the_interval_of_paired_ratios_is_students(self):
        ratio = subject.paired((1.0, math.e), (1.0, 1.0))
        self.assertAlmostEqual(math.exp(0.5 + 12.706 * 0.5), ratio.high, places=3)


class CellsTest(unittest.TestCase):
    def test_the_interval_over_all_cells_is_that_of_their_means(self):
        runs = {}
        for cell, ratio in (('a', 1.0), ('b', math.e)):
            runs |= table({'x': (ratio,) * 5, 'y': (1.0,) * 5}, cell).runs
        ratio = subject.Table(runs).ratio('x', 'y')
        self.assertAlmostEqual(math.exp(0.5), ratio.mean)
        self.assertAlmostEqual(math.exp(0.5 + 12.706 * 0.5), ratio.high, places=3)


class DuelTest(unittest.TestCase):
    def test_a_duel_is_won_lost_or_undecided(self):
        for expected, ours, rival in (
            ('won', (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
            ('won', (1.0, 1.0, 1.0), (0.96, 0.96, 0.96)),
            ('lost', (1.0, 1.0, 1.0), (0.9, 0.9, 0.9)),
            ('undecided', (1.0, 1.0, 1.0), (0.5, 1.5, 0.9)),
        ):
            with self.subTest(expected):
                results = table({'numa-pressure': ours, 'stock-1': rival})
                self.assertEqual(expected, results.duel('c', 'numa-pressure', 'stock-1'))

    def test_too_few_seeds_decide_no_duel(self):
        for count in (1, 2):
            for rival in (0.5, 1.0, 2.0):
                results = table({'numa-pressure': (1.0,) * count, 'stock-1': (rival,) * count})
                outcome = results.duel('c', 'numa-pressure', 'stock-1')
                with self.subTest(count=count, rival=rival):
                    self.assertEqual('undecided', outcome)

    def test_duels_are_counted_by_outcome_and_by_figure(self):
        ours, rival = figures(1.0, p99=2.0), figures(1.0, p99=1.0)
        names = 'oracle', 'stock-1', 'stock-10', 'pack'
        results = table({'x': (ours,) * 3, **dict.fromkeys(names, (rival,) * 3)})
        found = results.figures('x')
        for suffix, counts in (('', [3, 0, 0]), ('_second', [3, 0, 0]), ('_p99', [0, 3, 0])):
            with self.subTest(suffix):
                self.assertEqual(
                    counts,
                    [found[f'duels_{name}{suffix}'] for name in ('won', 'lost', 'undecided')],
                )

    def test_variants_of_ours_and_the_oracle_are_not_rivals(self):
        results = table(
            {name: (1.0,) for name in ('oracle', 'numa-pressure', 'numa-pressure-5', 'pack')}
        )
        self.assertEqual(['pack'], results.rivals('numa-pressure'))


class GapTest(unittest.TestCase):
    def test_the_gap_closed_is_a_share_from_stock_to_the_oracle(self):
        results = table({'stock-10': (2.0, 2.0), 'oracle': (1.0, 1.0), 'x': (1.25, 1.25)})
        self.assertEqual(0.75, results.gap('x'))

    def test_the_gap_of_all_cells_is_that_of_their_sums(self):
        """A cell with a tiny gap does not outweigh those in which guests lose much."""
        large = table({'stock-10': (2.0,), 'oracle': (1.0,), 'x': (1.5,)}, 'a')
        small = table({'stock-10': (0.02,), 'oracle': (0.01,), 'x': (0.05,)}, 'b')
        both = subject.Table(large.runs | small.runs)
        self.assertAlmostEqual((2.02 - 1.55) / 1.01, both.gap('x'))
        self.assertAlmostEqual(-3.0, both.gap('x', 'b'))


class SummaryTest(unittest.TestCase):
    def test_losses_are_of_guests_that_all_placed(self):
        class Ran:
            large = large_placed = refused = emptied = most_new = migrated = decisions = audits = (
                sent
            ) = 0

            def __init__(self, wanted, lost):
                self.wanted, self.lost = np.array(wanted), np.array(lost)
                self.lost_second = self.lost
                self.agent, self.given, self.below = (np.array((0, 1)) for _ in range(3))

        summary = subject.summary(
            {
                'a': Ran((1.0, 1.0, 0.0), (0.1, 0.3, 0.0)),
                'b': Ran((1.0, 1.0, 9.0), (0.2, 0.4, 9.0)),
            }
        )
        self.assertAlmostEqual(0.2, summary['a']['loss'])
        self.assertAlmostEqual(0.3, summary['b']['loss'])
