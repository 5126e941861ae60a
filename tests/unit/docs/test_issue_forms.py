# SPDX-License-Identifier: Apache-2.0
"""The issue forms ask for the output of commands that exist."""

import argparse
import re
import unittest

from nova_numa_pmc.cmd import rebalance
from tests.fixtures.checkout import TOP

FORMS = TOP / '.github/ISSUE_TEMPLATE'
COMMAND = re.compile(r'`(?:nova-numa-rebalance )?((?:%s) [^`]+)`' % '|'.join(rebalance.COMMANDS))


def commands():
    """Return the command lines, without the name of the program, for which the forms ask."""
    text = ' '.join(path.read_text(encoding='utf-8') for path in sorted(FORMS.glob('*.yml')))
    return COMMAND.findall(re.sub(r'\s+', ' ', text))


class IssueFormsTest(unittest.TestCase):
    def test_each_command_in_the_issue_forms_is_accepted(self):
        commands_ = commands()
        self.assertLessEqual(
            {'check', 'status', 'explain', 'report', 'top'},
            {line.split()[0] for line in commands_},
        )
        for line in commands_:
            with self.subTest(line):
                self.assertIsInstance(
                    rebalance.build_parser().parse_args(line.split()), argparse.Namespace
                )
