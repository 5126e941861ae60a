# SPDX-License-Identifier: Apache-2.0
"""Each command describes its use as the manual page does."""

import re
import unittest

from nova_numa_pmc.cli import arguments
from nova_numa_pmc.cmd import rebalance
from tests.fixtures.checkout import TOP


class DocumentedTest(unittest.TestCase):
    def test_the_manual_page_has_each_command_and_no_other(self):
        text = (TOP / 'doc/source/man/nova-numa-rebalance.rst').read_text(encoding='utf-8')
        commands = text[text.index('COMMANDS\n---') : text.index('EXIT STATUS\n---')]
        named = {
            name
            for line in commands.splitlines()
            if line.startswith('**')
            for name in re.findall(r'(?:^|, )\*\*([a-z]+)\*\*', line)
        }
        self.assertEqual(set(rebalance.COMMANDS), named - {'reason'})

    def test_the_guide_and_the_manual_page_have_the_same_exit_codes(self):
        for path in ('admin/operating.rst', 'man/nova-numa-rebalance.rst'):
            text = (TOP / 'doc/source' / path).read_text(encoding='utf-8')
            codes = re.findall(r'^(\d+)   ?[a-z]', text, re.M)
            self.assertEqual(
                [
                    arguments.OK,
                    arguments.PROBLEM,
                    arguments.NOT_MADE,
                    arguments.PARTLY,
                    arguments.USAGE,
                ],
                [int(code) for code in codes],
                path,
            )
