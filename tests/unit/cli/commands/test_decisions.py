# SPDX-License-Identifier: Apache-2.0
"""Decisions in logs of shadow mode are summed up, and a log that cannot be used is named."""

import contextlib
import gzip
import io
import json
import pathlib
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc.cmd import rebalance
from tests.fixtures.shadow_log_lines import log_line

LOG = log_line(0.0, a=0.9, b=0.1) + log_line(3700.0, b=0.2, a=0.8)


class DecisionsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def call(self, *arguments):
        """Run the command; return (exit code, output, errors)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = rebalance.main(['decisions', *map(str, arguments)])
        return code, out.getvalue(), err.getvalue()

    def test_decisions_of_several_logs_are_text(self):
        plain, packed = self.directory / 'log', self.directory / 'log.1.gz'
        plain.write_text(LOG)
        packed.write_bytes(gzip.compress(log_line(90000.0, a=0.7, b=0.3).encode()))
        code, out, err = self.call(plain, packed)
        self.assertEqual((0, ''), (code, err))
        self.assertIn('3 decisions', out)
        self.assertIn('would have been chosen in 2 (66.7 %)', out)
        self.assertRegex(out, r'(?m)^pressure 24 h later +1 +0\.70 +0\.30$')
        self.assertRegex(out, r'(?m)^loss then +2 +0\.0400 +0\.0100$')

    def test_decisions_from_the_input_are_json(self):
        with mock.patch('sys.stdin', io.StringIO(LOG + 'numa_pmc decision: {\n')):
            code, out, err = self.call('--json', '-')
        answer = json.loads(out)
        self.assertEqual(
            (0, 2, 1, 1), (code, answer['decisions'], answer['changed'], answer['unreadable'])
        )
        self.assertEqual(0.9, answer['pressure']['chosen'])
        self.assertIn('unreadable lines, left out: 1', err)

    def test_a_byte_of_the_input_that_is_not_text_spoils_its_line_only(self):
        text = LOG.encode() + b'numa_pmc decision: \xff\n'
        with mock.patch('sys.stdin', io.TextIOWrapper(io.BytesIO(text), 'ascii')):
            code, _, err = self.call('--json', '-')
        self.assertEqual(0, code)
        self.assertIn('unreadable lines, left out: 1', err)

    def test_a_damaged_compressed_log_is_named(self):
        packed = self.directory / 'log.1.gz'
        whole = gzip.compress(LOG.encode())
        for data in (whole[:30] + b'\xff' * 30 + whole[60:], whole[:-12], b'plain'):
            packed.write_bytes(data)
            code, _, err = self.call(packed)
            self.assertEqual(1, code)
            self.assertIn('log.1.gz: damaged', err)

    def test_the_mode_is_not_blamed_for_unreadable_lines(self):
        odd = self.directory / 'log'
        odd.write_text('numa_pmc decision: {\n')
        code, _, err = self.call(odd)
        self.assertEqual(1, code)
        self.assertIn('unreadable lines, left out: 1', err)
        self.assertNotIn('mode = shadow', err)

    def test_a_log_that_cannot_be_used_is_refused(self):
        empty = self.directory / 'log'
        empty.write_text('nothing of ours\n')
        code, _, err = self.call(empty)
        self.assertEqual(1, code)
        self.assertIn('mode = shadow', err)
        code, _, err = self.call(self.directory / 'nowhere')
        self.assertEqual(1, code)
        self.assertIn('nowhere', err)
