# SPDX-License-Identifier: Apache-2.0
"""Compare the package's counts with those of perf over the same window."""

import unittest

from tests.functional import compare_with_perf_stat


class CountersTest(unittest.TestCase):
    def test_counts_are_those_of_perf_stat(self):
        code = compare_with_perf_stat.main()
        if code == 77:
            self.skipTest('perf or the right to count is missing')
        self.assertEqual(0, code, 'more than 1 % apart; the output has the figures')
