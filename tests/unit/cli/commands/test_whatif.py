# SPDX-License-Identifier: Apache-2.0
"""``whatif`` without Nova says which Python has it; tests/nova/test_what_if.py has Nova."""

import contextlib
import io
import sys
import unittest
from unittest import mock

from nova_numa_pmc.checks import interpreter
from nova_numa_pmc.cmd import rebalance


class WhatIfTest(unittest.TestCase):
    def call(self, *arguments):
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            return rebalance.main(['whatif', *arguments]), error.getvalue()

    def test_without_nova_the_error_names_the_python_of_nova_scheduler(self):
        with mock.patch.object(interpreter, 'python_of', return_value='/opt/nova/bin/python3'):
            code, error = self.call('--vcpus', '2', '--memory', '1G')
        self.assertEqual(1, code)
        self.assertIn(sys.executable + ' cannot import Nova', error)
        self.assertIn('/opt/nova/bin/python3 -m nova_numa_pmc.cmd.rebalance whatif', error)

    def test_a_guest_without_a_size_is_a_usage_error(self):
        with self.assertRaises(SystemExit) as caught:
            self.call('--vcpus', '2')
        self.assertEqual(64, caught.exception.code)
