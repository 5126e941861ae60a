# SPDX-License-Identifier: Apache-2.0
"""The report of a run."""

import json
import pathlib
import tempfile
import unittest

from tests.stack import report

RUN = {'with_package': True,
       'phases': [{'name': 'boot', 'seconds': 1.5, 'passed': True, 'spread': {'cmp1 node 0': 2}},
                  {'name': '<move>', 'seconds': 2, 'passed': False, 'error': 'Failed: no'}],
       'events': [{'at_s': 0.1, 'what': 'plain-1 ACTIVE', 'host': 'cmp1'}]}


class ReportTest(unittest.TestCase):
    def test_tells_phases_and_events_as_text(self):
        text = report.page(RUN)
        self.assertIn('&lt;move&gt;', text)
        self.assertNotIn('<move>', text)
        self.assertIn('class="failed"', text)
        self.assertIn('cmp1 node 0', text)
        self.assertIn('plain-1 ACTIVE', text)

    def test_writes_both_files(self):
        with tempfile.TemporaryDirectory() as directory:
            report.write(directory, RUN)
            path = pathlib.Path(directory)
            self.assertEqual(RUN, json.loads((path / 'run.json').read_text()))
            self.assertTrue((path / 'run.html').exists())
