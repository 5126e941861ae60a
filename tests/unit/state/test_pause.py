# SPDX-License-Identifier: Apache-2.0
"""Test the file that keeps the agent from moving guests."""

import os
import tempfile
import time
import unittest
from unittest import mock

from nova_numa_pmc.state import pause


class PausingTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        os.makedirs(os.path.join(self.root, 'var/lib'))
        self.path = pause.path(self.root)

    def write(self, data):
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, 'wb') as file:
            file.write(data)

    def test_a_pause_begins_and_ends(self):
        self.assertIsNone(pause.read(self.root))
        self.assertFalse(pause.end(self.root))
        begun = pause.begin(self.root, 'firmware\x1b update')
        self.assertEqual(begun, pause.read(self.root))
        self.assertEqual('paused: firmware? update', str(begun))
        pause.begin(self.root)
        self.assertEqual('paused', str(pause.read(self.root)))
        self.assertTrue(pause.end(self.root))
        self.assertIsNone(pause.read(self.root))

    def test_a_pause_for_a_time_ends_by_itself(self):
        begun = pause.begin(self.root, 'why', 7200.0)
        self.assertRegex(
            str(pause.read(self.root)), r'^paused until \d{4}-\d\d-\d\d \d\d:\d\d: why$'
        )
        for left_s, is_paused in ((1, True), (0, False), (-1, False)):
            now_s = begun.until_s - left_s
            with mock.patch.object(time, 'time', return_value=now_s):
                self.assertEqual(is_paused, pause.read(self.root) is not None)
        with mock.patch.object(time, 'time', return_value=begun.until_s):
            self.assertFalse(pause.end(self.root))
        self.assertIsNone(pause.read(self.root))

    def test_an_absurd_end_in_the_file_can_be_shown(self):
        pause.begin(self.root, 'why', 1.8e18)  # nanoseconds
        self.assertRegex(str(pause.read(self.root)), r'^paused until \d{4}-.*: why$')

    def test_a_short_pause_does_not_end_the_agents_own_stop(self):
        pause.begin(self.root, 'do not pay', 86400.0, only_memory=True)
        self.assertTrue(pause.read(self.root).only_memory)
        short = pause.begin(self.root, 'firmware', 60.0)
        self.assertEqual(short, pause.read(self.root))
        with mock.patch.object(time, 'time', return_value=short.until_s):
            self.assertEqual('do not pay', pause.read(self.root).reason)
        self.assertTrue(pause.end(self.root))
        self.assertIsNone(pause.read(self.root))

    def test_a_file_of_others_pauses_with_its_first_line_as_the_reason(self):
        for data, reason in (
            (b'', ''),
            (b'managed by puppet\nsecond line\n', 'managed by puppet'),
            (b'a\x1b[2J\xff\n', 'a?[2J\ufffd'),
            (b'{"schema": "1.0", "until_s": "x"}', '{"schema": "1.0", "until_s": "x"}'),
            (b'x' * 4000, 'x' * pause.REASON_MAX),
        ):
            with self.subTest(data[:20]):
                self.write(data)
                self.assertEqual(pause.Paused(reason=reason), pause.read(self.root))
        self.write(b'x' * 5000)
        self.assertIsNone(pause.read(self.root).since_s)
        os.chmod(self.path, 0o666)
        self.assertIn('users other than root', pause.read(self.root).reason)
