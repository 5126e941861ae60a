# SPDX-License-Identifier: Apache-2.0
"""An option's former name still works, but is not listed."""

import argparse
import unittest

from nova_numa_pmc.cli import arguments
from nova_numa_pmc.core.rebalance import planner


class MeasuringTest(unittest.TestCase):
    def test_the_former_name_of_payback_works_and_is_not_listed(self):
        parser = argparse.ArgumentParser()
        arguments.add_measuring(parser)
        for words, expected in (
            ([], planner.PAYBACK_S),
            (['--payback', '1h'], 3600.0),
            (['--horizon', '1h'], 3600.0),
        ):
            with self.subTest(words):
                self.assertEqual(expected, parser.parse_args(words).payback)
        self.assertNotIn('horizon', parser.format_help())
