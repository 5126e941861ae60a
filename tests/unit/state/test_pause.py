# SPDX-License-Identifier: Apache-2.0
"""Test the file that keeps the agent from moving guests."""

import logging
import os
import tempfile
import unittest

from nova_numa_pmc.state import pause

LOG = logging.getLogger('nova_numa_pmc.state.pause')


class PausingTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = os.path.join(directory.name, 'state')

    def write(self, data):
        os.makedirs(self.directory, exist_ok=True)
        with open(os.path.join(self.directory, pause.FILE), 'wb') as file:
            file.write(data)

    def test_a_pause_begins_and_ends(self):
        self.assertIsNone(pause.read(self.directory))
        self.assertFalse(pause.end(self.directory))
        pause.begin(self.directory, 'firmware update', realtime_s=1000.7)
        self.assertEqual((1000, 'firmware update'), tuple(pause.read(self.directory)))
        self.assertEqual('paused: firmware update', str(pause.read(self.directory)))
        pause.begin(self.directory)
        self.assertEqual('paused', str(pause.read(self.directory)))
        self.assertTrue(pause.end(self.directory))
        self.assertIsNone(pause.read(self.directory))

    def test_a_file_of_a_pause_pauses_whatever_is_in_it(self):
        for data, expected in (
            (b'', (None, '')),
            (b'soon x', (None, 'x')),
            (b'7 a\x1b[2J\xff\n', (7, 'a?[2J\ufffd')),
            (b'9' * 30, (None, '')),
            (b'1 ' + b'x' * 4000, (1, 'x' * pause.REASON_MAX)),
        ):
            with self.subTest(data[:20]):
                self.write(data)
                self.assertEqual(expected, tuple(pause.read(self.directory)))
        self.write(b'x' * 5000)
        self.assertIsNone(pause.read(self.directory).since_s)
        os.chmod(os.path.join(self.directory, pause.FILE), 0o666)
        self.assertIn('users other than root', pause.read(self.directory).reason)
        os.chmod(self.directory, 0o777)
        self.assertIn('users other than root', pause.read(self.directory).reason)
