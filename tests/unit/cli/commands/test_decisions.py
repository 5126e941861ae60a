# SPDX-License-Identifier: Apache-2.0
"""Decisions in logs of shadow mode are summed up, and a log that cannot be used is named."""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import pathlib
import sys
import tempfile
import threading
import unittest
from unittest import mock

from nova_numa_pmc.cmd import rebalance
from tests.fixtures.shadow_log_lines import log_line

LOG = log_line(0.0, a=0.9, b=0.1) + log_line(3700.0, b=0.2, a=0.8)
MODULES = {'.gz': gzip, '.xz': lzma, '.bz2': bz2}


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

    def test_decisions_are_read_from_logs_in_each_common_compression_format(self):
        for suffix, module in MODULES.items():
            data = module.compress(LOG.encode())
            # By default, logrotate appends .gz even if it has another program compress.
            for name in ('log.1' + suffix, 'log.1', 'log.1.gz'):
                with self.subTest(suffix, name=name):
                    packed = self.directory / name
                    packed.write_bytes(data)
                    code, out, err = self.call('--json', packed)
                    self.assertEqual((0, ''), (code, err))
                    self.assertEqual(2, json.loads(out)['decisions'])

    def test_a_compressed_log_may_be_a_pipe(self):
        pipe = self.directory / 'pipe'
        os.mkfifo(pipe)
        writer = threading.Thread(
            target=pipe.write_bytes, args=(gzip.compress(LOG.encode()),), daemon=True
        )
        writer.start()
        code, out, _ = self.call('--json', pipe)
        writer.join()
        self.assertEqual((0, 2), (code, json.loads(out)['decisions']))

    def test_a_log_compressed_in_another_format_is_named_with_the_remedy(self):
        plain = self.directory / 'log'
        plain.write_text(LOG)
        for name, data, program in (
            ('log.1.zst', b'\x28\xb5\x2f\xfd\x04\x00', 'zstdcat'),
            ('log.1', b'\x28\xb5\x2f\xfd\x04\x00', 'zstdcat'),
        ):
            with self.subTest(name), mock.patch.dict(sys.modules, {'compression.zstd': None}):
                packed = self.directory / name
                packed.write_bytes(data + b'\xff' * 99)
                code, out, err = self.call(plain, packed)
                self.assertEqual((1, ''), (code, out))
                self.assertIn('%s: ' % packed, err)
                self.assertIn(program, err)

    def test_a_format_that_this_python_cannot_read_is_named_with_the_remedy(self):
        packed = self.directory / 'log.1.xz'
        packed.write_bytes(lzma.compress(LOG.encode()))
        with mock.patch.dict(sys.modules, {'lzma': None}):
            code, _, err = self.call(packed)
        self.assertEqual(1, code)
        self.assertRegex(err, 'log.1.xz: .*xzcat')

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
        for suffix, module in MODULES.items():
            packed = self.directory / ('log.1' + suffix)
            whole = module.compress(LOG.encode())
            for data in (whole[:30] + b'\xff' * 30 + whole[60:], whole[:-12], b'plain'):
                with self.subTest(packed.name, data=data[:6]):
                    packed.write_bytes(data)
                    code, _, err = self.call(packed)
                    self.assertEqual(1, code)
                    self.assertIn('%s: damaged' % packed, err)

    def test_a_log_that_can_be_opened_but_not_read_is_named(self):
        code, _, err = self.call('/proc/self/mem')
        self.assertEqual((1, '/proc/self/mem: Input/output error\n'), (code, err))

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
