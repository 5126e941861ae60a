# SPDX-License-Identifier: Apache-2.0
"""An operator sees where a guest of some size, flavor or name would be placed, and why."""

import contextlib
import io
import json
import os
import shutil
import tempfile
import unittest

from nova_numa_pmc.cmd import rebalance
from tests.fixtures import fake_host
from tests.fixtures.model_records import GIB


class ExplainTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix='explain-')
        self.addCleanup(shutil.rmtree, self.root)
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)

    def text(self, *arguments):
        """Run the command; return (exit code, output)."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = rebalance.main(['explain', *arguments, '--root', self.root])
        return code, out.getvalue()

    def call(self, *arguments):
        code, out = self.text(*arguments, '--json')
        return code, json.loads(out, parse_constant=self.fail)

    def test_explain_of_a_size_shows_decision_nodes_and_places(self):
        code, answer = self.call('--vcpus', '2', '--memory', '1G')
        self.assertEqual(0, code)
        self.assertEqual([0], answer['decision']['cpu_nodes'])
        self.assertEqual([0, 1, 2, 3], answer['decision']['cpus'])
        self.assertIn(
            'promises alone: the agent has published nothing', answer['decision']['evidence']
        )
        self.assertEqual(2, len(answer['nodes']))
        self.assertEqual([[0], [1]], [place['cpu_nodes'] for place in answer['places']])
        self.assertFalse(os.path.exists(self.host.path('run/nova-numa-pmc')))

    def test_explain_of_a_size_without_a_place_exits_with_1(self):
        code, answer = self.call('--vcpus', '64', '--memory', '1G')
        self.assertEqual((1, []), (code, answer['places']))
        self.assertIn('64 vCPUs, but only 8 CPUs', answer['decision']['why'])

    def test_explain_takes_the_size_and_the_specs_of_a_flavor(self):
        size = '--vcpus', '6', '--memory', '1G', '--spec', 'trait:X=required'
        _, answer = self.call(*size, '--spec', 'numa_pmc:policy=spread')
        self.assertEqual(
            {
                'name': 'new guest',
                'vcpus': 6,
                'memory_bytes': GIB,
                'extra_specs': {'numa_pmc:policy': 'spread'},
                'placed_by': [],
            },
            answer['guest'],
        )
        self.assertEqual([0, 1], answer['decision']['cpu_nodes'])

    def test_explain_takes_a_running_guest_by_its_name(self):
        self.host.launch(1)
        code, answer = self.call('--guest', fake_host.name_of(1))
        self.assertEqual((0, None), (code, answer['recorded']))
        code, out = self.text('--guest', 'other')
        self.assertEqual(1, code)
        self.assertIn('guests here: instance-00000001', out)

    def test_no_size_wrong_sizes_and_options_that_exclude_each_other_are_usage_errors(self):
        for words in (
            (),
            ('--vcpus', '2'),
            ('--vcpus', '0'),
            ('--vcpus', '٣'),
            ('--memory', '8X'),
            ('--memory', 'G'),
            ('--memory', '0'),
            ('--memory', '-1G'),
            ('--memory', '9' * 30),
            ('--spec', 'policy'),
            ('--spec', '=x'),
        ):
            with self.subTest(words), self.assertRaises(SystemExit) as caught:
                self.text(*words)
            self.assertEqual(64, caught.exception.code)
