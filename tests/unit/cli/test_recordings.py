# SPDX-License-Identifier: Apache-2.0
"""Samples are read from the files that record writes, and only lines that are none are lost."""

import json
import os
import tempfile
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.cli import recordings
from nova_numa_pmc.core.sample_records import Sample
from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.json_values import from_json, to_json
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

    def test_fields_of_newer_and_of_older_writers_do_no_harm(self):
        data = to_json(samples.sample())
        data['guests'][0]['new'] = 1
        del data['guests'][0]['cores'], data['nodes'][0]['pressure']
        sample = from_json(Sample, data)
        self.assertEqual((None, None), (sample.guests[0].cores, sample.nodes[0].pressure))

    @given(st.data())
    def test_a_damaged_value_is_refused_or_read(self, data):
        whole = to_json(samples.sample())
        part = data.draw(st.sampled_from((whole, whole['nodes'][0], whole['guests'][0])))
        part[data.draw(st.sampled_from(sorted(part)))] = data.draw(
            st.none() | st.integers() | st.text() | st.floats() | st.lists(st.integers())
        )
        try:
            from_json(Sample, whole)
        except ValueError:
            pass
