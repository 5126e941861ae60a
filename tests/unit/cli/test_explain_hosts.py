# SPDX-License-Identifier: Apache-2.0
"""An operator sees which host a guest would get, and why not the others."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
import weakref
from unittest import mock

from nova_numa_pmc.cmd import rebalance
from nova_numa_pmc.scheduler import saved_hosts
from tests.fixtures.compute_nodes import compute_node_row

SIZE = ('--vcpus', '2', '--memory', '1G')


class Round(list):
    """The decisions of a round, to which weak references are possible."""


class ExplainHostsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        return path

    def text(self, rows, *arguments):
        """Run the command on rows; return (exit code, output)."""
        path = self.write('hosts.json', rows if isinstance(rows, str) else json.dumps(rows))
        if '--nova-conf' not in arguments:
            arguments += '--nova-conf', self.write('limited', '[numa_pmc]\nmax_pressure = 1\n')
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = rebalance.main(['explain', '--hosts', path, *arguments])
        return code, out.getvalue()

    def call(self, rows, *arguments):
        code, out = self.text(rows, *arguments, '--json')
        return code, json.loads(out, parse_constant=self.fail)

    def test_json_has_hosts_in_order_with_nodes_and_options(self):
        code, answer = self.call(
            [compute_node_row('busy', 3.0, 3.0), compute_node_row('idle', 0.0, 0.1)], *SIZE
        )
        self.assertEqual((0, ['idle']), (code, answer['chosen']))
        self.assertEqual(['idle', 'busy'], [host['host'] for host in answer['hosts']])
        self.assertEqual(2, len(answer['hosts'][0]['nodes']))
        outcome = answer['hosts'][0]['outcome']
        self.assertEqual(('one_node', [0]), (outcome['code'], outcome['positions']))
        self.assertEqual(
            {'code', 'pressures', 'positions', 'cpu_positions', 'mem_positions'}, outcome.keys()
        )
        self.assertEqual({'vcpus': 2, 'memory_mb': 1024, 'extra_specs': {}}, answer['flavor'])
        self.assertEqual(1.0, answer['options']['max_pressure'])

    def test_text_names_the_chosen_host_and_why_others_are_not(self):
        code, out = self.text(
            [compute_node_row('busy', 4.5, 4.5), compute_node_row('idle', 0.0, 0.1)], *SIZE
        )
        self.assertEqual(0, code)
        self.assertIn('chosen: idle', out)
        self.assertIn('above max_pressure 1', out)
        self.assertRegex(out, r'(?m)^busy +0 +1\.1[23] +- ')

    def test_several_guests_are_spread_over_hosts(self):
        code, out = self.text(
            [compute_node_row(name, 0.5, 0.5) for name in 'abc'], *SIZE, '--count', '6'
        )
        self.assertEqual(0, code)
        self.assertIn('chosen: a 2, b 2, c 2', out)

    def test_the_decisions_of_earlier_rounds_are_not_kept(self):
        rounds, alive, rank = [], [], saved_hosts.rank

        def counted_rank(*arguments):
            alive.append(sum(round_() is not None for round_ in rounds))
            decisions = Round(rank(*arguments))
            rounds.append(weakref.ref(decisions))
            return decisions

        rows = [compute_node_row(name, 0.5, 0.5) for name in 'abc']
        with mock.patch.object(saved_hosts, 'rank', counted_rank):
            _, answer = self.call(rows, *SIZE, '--count', '6')
        self.assertEqual(list('abcabc'), answer['chosen'])
        self.assertEqual(6, len(alive))
        # The first round is shown; the previous one may last until the next one is computed.
        self.assertLessEqual(max(alive), 2)

    def test_guests_are_counted_until_no_host_passes(self):
        code, out = self.text([compute_node_row('a', 3.0, 3.0)], *SIZE, '--count', '6')
        self.assertEqual(1, code)
        self.assertRegex(out, 'chosen: a 2, no host passes for guest number 3')

    def test_without_a_host_that_passes_the_exit_code_is_1(self):
        code, out = self.text([compute_node_row('full', 4.5, 4.5)], *SIZE)
        self.assertEqual(1, code)
        self.assertIn('no host passes', out)

    def test_the_operators_options_are_read_from_nova_conf(self):
        path = self.write('nova.conf', '[numa_pmc]\nmax_pressure = 0.1\npenalty_floor = 0.2\n')
        code, answer = self.call([compute_node_row('a', 2.0, 2.0)], *SIZE, '--nova-conf', path)
        self.assertEqual((1, 0.2), (code, answer['options']['penalty_floor']))

    def test_a_nova_conf_that_cannot_be_read_is_refused(self):
        rows = [compute_node_row('a', 2.0, 2.0)]
        for path, why in (('/nowhere', 'no such file'), (self.write('x', 'x\n'), 'x')):
            code, out = self.text(rows, *SIZE, '--nova-conf', path)
            self.assertEqual(1, code)
            self.assertIn('%s: ' % path, out)
            self.assertIn(why, out)
            self.assertNotIn('chosen', out)

    def test_a_value_that_cannot_be_used_is_named(self):
        path = self.write('nova.conf', '[numa_pmc]\nweight_multiplier = 5x0\nmax_pressure = 0.1\n')
        code, out = self.text([compute_node_row('a', 2.0, 2.0)], *SIZE, '--nova-conf', path)
        self.assertEqual(1, code)  # the other option applies
        self.assertRegex(
            out, r'(?m)^problem: \[numa_pmc\] weight_multiplier .*: its default is assumed$'
        )

    def test_unless_the_mode_is_on_nothing_is_added_and_it_says_so(self):
        rows = [compute_node_row('busy', 3.5, 3.5), compute_node_row('idle', 0.1, 0.1)]
        for mode in ('off', 'shadow', 'on'):
            with self.subTest(mode):
                path = self.write('nova.conf', '[numa_pmc]\nmode = %s\n' % mode)
                _, answer = self.call(rows, *SIZE, '--nova-conf', path)
                self.assertEqual(mode, answer['options']['mode'])
                added = [host['added_weight'] for host in answer['hosts']]
                self.assertEqual(mode == 'on', any(added))
                # What would be added remains visible.
                self.assertTrue(all(host['penalty'] for host in answer['hosts']))
                _, out = self.text(rows, *SIZE, '--nova-conf', path)
                self.assertEqual(mode != 'on', 'mode = %s: nothing is added' % mode in out)

    def test_by_default_there_is_no_limit_of_pressure(self):
        path = self.write('nova.conf', '')
        code, answer = self.call([compute_node_row('a', 9.0, 9.0)], *SIZE, '--nova-conf', path)
        self.assertEqual((0, 0.0), (code, answer['options']['max_pressure']))

    def test_many_hosts_are_cut_in_the_text_only(self):
        rows = [compute_node_row('host%d' % number, 1.0) for number in range(40)]
        self.assertIn('and 10 more', self.text(rows, *SIZE)[1])
        self.assertEqual(40, len(self.call(rows, *SIZE)[1]['hosts']))

    @mock.patch.dict(sys.modules, {'nova': None})
    def test_without_nova_the_other_weighers_are_left_out_and_it_says_so(self):
        rows = [compute_node_row('a', 2.0, 2.0), compute_node_row('b', 1.0, 1.0)]
        code, out = self.text(rows, *SIZE)
        self.assertEqual(0, code)
        self.assertRegex(out, "left out: .*nova.*: run with Nova's")
        hosts = self.write('hosts.json', json.dumps(rows))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(0, rebalance.main(['explain', '--hosts', hosts, *SIZE]))
        self.assertIn('left out: specify nova.conf with --nova-conf', out.getvalue())
        self.assertIsNone(self.call(rows, *SIZE)[1]['weighers'])
        self.assertIn('if only one host is left', self.text(rows[:1], *SIZE)[1])

    def test_a_host_that_occurs_twice_is_refused(self):
        code, out = self.text(
            [compute_node_row('a', 2.0), compute_node_row('b', 1.0), compute_node_row('a', 3.0)],
            *SIZE,
        )
        self.assertEqual((1, True), (code, 'row 3: a occurs twice' in out))

    def test_a_file_of_hosts_that_cannot_be_used_is_refused(self):
        code, out = self.text('host,metrics', *SIZE)
        self.assertEqual(1, code)
        self.assertIn('hosts.json: not JSON', out)
        with contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(1, rebalance.main(['explain', '--hosts', '/nowhere', *SIZE]))
        self.assertIn('/nowhere', err.getvalue())
