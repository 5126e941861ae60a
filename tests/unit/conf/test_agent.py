# SPDX-License-Identifier: Apache-2.0
"""The agent's options are read, and a wrong value is refused with the option's name."""

import os
import re
import unittest

from nova_numa_pmc.conf import agent as agent_conf, host_options
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import OptionsError
from tests.fixtures import option_file
from tests.fixtures.checkout import SAMPLE

FILE = """\
[agent]
rebalance = dry-run
moved_percent_per_day = 3
move_mib_per_s = 50
widen = no
[counters]
interval_s = 7
[hook]
bind = maybe
[placement]
reserve_mib = 1024
[state]
dir = /run/elsewhere
"""


class ReadTest(unittest.TestCase):
    def read(self, text):
        return option_file.read(agent_conf.read, text)

    def test_rebalancing_is_automatic_by_default(self):
        options = self.read('')
        self.assertEqual(agent_conf.AgentOptions(host_options.read(os.devnull)), options)
        self.assertEqual(
            ('auto', (), plan_records.RebalanceOptions()),
            (options.rebalance, options.host_options.problems, options.rebalance_options),
        )

    def test_each_option_of_the_agent_is_read(self):
        options = self.read(FILE)
        self.assertEqual(
            (
                'dry-run',
                plan_records.RebalanceOptions(
                    moved_ratio_per_day=0.03,
                    bytes_per_sec=50 << 20,
                    reserve_bytes=1 << 30,
                    widen=False,
                ),
            ),
            options[2:],
        )
        self.assertEqual(
            (7.0, '/run/elsewhere'),
            (options.counter_options.interval_s, options.host_options.state_dir),
        )
        self.assertEqual(1, len(options.host_options.problems))
        self.assertIn('bind', options.host_options.problems[0])

    def test_the_sample_with_its_lines_uncommented_sets_the_defaults(self):
        with open(SAMPLE, encoding='utf-8') as file:
            text = re.sub(r'(?m)^#(\w+ =)', r'\1', file.read())
        self.assertEqual(self.read(''), self.read(text))

    def test_a_wrong_value_is_refused_with_its_option(self):
        for line in ('rebalance = maybe', 'moved_percent_per_day = -1', 'move_mib_per_s = x'):
            with self.subTest(line), self.assertRaisesRegex(OptionsError, line.split(' ')[0]):
                self.read('[agent]\n%s\n' % line)
