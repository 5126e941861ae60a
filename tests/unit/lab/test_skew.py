# SPDX-License-Identifier: Apache-2.0
"""Test how the skew benchmark counts answers."""

import unittest

from tests.bench import bench_skew


class TestSpread(unittest.TestCase):
    def test_a_spread_counts_by_node_and_several_nodes_apart(self):
        cases = (
            ([[0], [1], [0], [1], [0], [1]], '3:3', True),
            ([[1]] * 6, '0:6', False),
            ([[0], [1], [0], [1], [0], [0, 1]], '3:2+1', False),
            ([[0], [1], [0], [1], [0], []], '3:2+1', False),
            ([[0], [1], [0], [0], [1]], '3:2', True),
        )
        for answers, text, even in cases:
            with self.subTest(text):
                self.assertEqual(
                    (text, even), (bench_skew.spread(answers), bench_skew.is_even(answers))
                )

    def test_a_table_sums_up_by_skew(self):
        even, piled = [[0], [1]] * 3, [[1]] * 6
        lines = [
            {'skew_mib': 400, 'numad': piled, 'ours': even},
            {'skew_mib': 0, 'numad': even, 'ours': even},
            {'skew_mib': 400, 'numad': [[1]] * 5 + [[0]], 'ours': even},
            {'skew_mib': 400, 'numad': piled, 'ours': even},
        ]
        none, strong = bench_skew.summarize(lines)
        self.assertEqual((0, 1, 1), (none['skew_mib'], none['orders'], none['numad_even']))
        self.assertEqual({'0:6': 2, '1:5': 1}, strong['numad'])
        self.assertEqual((3, 0, 3), (strong['orders'], strong['numad_even'], strong['ours_even']))
