# SPDX-License-Identifier: Apache-2.0
"""Each message is one line in the log, and a daemon that does not read costs little time."""

import os
import shutil
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc import hook
from tests.fixtures import fake_host


class JournalTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix='journal-')
        self.addCleanup(shutil.rmtree, self.root)
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)

    def log(self, severity, message):
        hook.JournalLines(self.root).log(severity, message)
        return self.host.logged()

    def test_a_message_is_one_line_whatever_its_text(self):
        (line,) = self.log(hook.INFO, 'a\nb\0\udcff')
        self.assertTrue(line.endswith('a\\nb\\x00\\udcff'))

    def test_without_a_journal_a_line_counts_as_lost(self):
        for root in (os.path.join(self.root, 'none'), '/nonexistent' + 'x' * 200):
            lines = hook.JournalLines(root)
            lines.log(hook.INFO, 'lost')
            self.assertEqual(1, lines.lost)

    def test_lines_for_a_daemon_that_does_not_read_are_lost_and_counted(self):
        self.host.fill_log()
        lines = hook.JournalLines(self.root)
        for _ in range(20):
            lines.log(hook.WARNING, 'lost')
        self.assertEqual(20, lines.lost)
        self.assertEqual({'full'}, set(self.host.logged()))

    def test_lines_for_a_slow_daemon_wait_no_longer_together_than_one(self):
        lines = hook.JournalLines(self.root)
        with (
            mock.patch('_socket.socket') as socket,
            mock.patch('time.monotonic', side_effect=[0, 0.125, 1, 1.125, 2, 2]),
        ):
            for _ in range(3):
                lines.log(hook.INFO, 'sent')
        waits_s = [call.args[0] for call in socket.return_value.settimeout.call_args_list]
        self.assertEqual([0.2, 0.075, 0.0], [round(wait_s, 6) for wait_s in waits_s])
