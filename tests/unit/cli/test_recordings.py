# SPDX-License-Identifier: Apache-2.0
"""Samples are read from the files that record writes, and only lines that are none are lost."""

import json
import os
import tempfile
import unittest

from nova_numa_pmc.cli import recordings
from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.json_values import to_json
from tests.fixtures import samples


class ReadTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, 'file')

    def read(self, text):
        with open(self.path, 'wb') as file:
            file.write(text.encode('utf-8', 'surrogatepass'))
        self.damaged = []
        return list(recordings.read(self.path, self.damaged.append))

    def test_samples_are_read_as_they_were_taken(self):
        taken = [samples.sample(1000.0), samples.sample(1005.0, guests=())]
        text = '\n\n'.join(json.dumps(to_json(one)) for one in taken)
        self.assertEqual((taken, []), (self.read(text + '\n'), self.damaged))

    def test_a_torn_last_line_is_left_out_with_one_line_of_text(self):
        taken = [samples.sample(1000.0), samples.sample(1005.0)]
        text = '\n'.join(json.dumps(to_json(one)) for one in taken)
        self.assertEqual((taken[:1], 1), (self.read(text[:-40]), len(self.damaged)))

    def test_a_file_without_samples_is_refused(self):
        for text in ('', 'hello\n', '{"counts": {}}', '{', '[]', '{"nodes": 1}'):
            with self.subTest(text=text), self.assertRaisesRegex(RecordingError, 'no sample'):
                self.read(text)
