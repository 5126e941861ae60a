# SPDX-License-Identifier: Apache-2.0
import argparse
import unittest

from nova_numa_pmc.cli import options
from nova_numa_pmc.core.rebalance import planner


class MeasuringTest(unittest.TestCase):
    def test_the_former_name_of_payback_works_and_is_not_listed(self):
        parser = argparse.ArgumentParser()
        options.add_measuring(parser)
        for arguments, expected in (
            ([], planner.PAYBACK_S),
            (['--payback', '1h'], 3600.0),
            (['--horizon', '1h'], 3600.0),
        ):
            with self.subTest(arguments):
                self.assertEqual(expected, parser.parse_args(arguments).payback)
        self.assertNotIn('horizon', parser.format_help())
