# SPDX-License-Identifier: Apache-2.0
"""``fleet``, from a directory or a server to the plan; malformed input is refused and named."""

import contextlib
import io
import json
import pathlib
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
from http.client import BadStatusLine, IncompleteRead
from unittest import mock

from hypothesis import given, strategies as st

from nova_numa_pmc.cli import fleet_input
from nova_numa_pmc.cmd import rebalance
from nova_numa_pmc.core import fleet
from nova_numa_pmc.json_values import to_json
from tests.fixtures import fleets

#: Any JSON, with the members of an answer of Prometheus.
MEMBERS = st.sampled_from(['data', 'result', 'metric', 'value', '__name__', 'instance'])
ANSWERS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=12,
)


class FleetCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        now_s = time.time()
        self.hosts = {
            'cmp01': fleets.equal_guests(0, 7, 5.0, now_s),
            'cmp02': fleets.equal_guests(100, 2, 5.0, now_s),
        }

    def write(self, name, value):
        (self.directory / name).write_text(json.dumps(value), encoding='utf-8')

    def write_hosts(self):
        for name, one in self.hosts.items():
            self.write(name + '.json', {'fleet': to_json(one), 'agent': {}})

    def run_fleet(self, *arguments):
        output, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
            code = rebalance.main(['fleet', str(self.directory), *arguments])
        return code, output.getvalue(), error.getvalue()


class DirectoryTest(FleetCase):
    def test_the_plan_says_who_moves_where_and_prints_the_commands(self):
        self.write_hosts()
        code, text, error = self.run_fleet()
        self.assertEqual((2, ''), (code, error))
        self.assertRegex(text, r'instance-\S+ +cmp01 +cmp02 +\d\.\d\d +8.0G +0\.1 +pressure')
        self.assertRegex(
            text, '(?m)^openstack .*server migrate --live-migration --wait --host cmp02 0000'
        )

    def test_json_has_the_moves_with_their_commands(self):
        self.write_hosts()
        code, text, _ = self.run_fleet('--json', '--moves', '1')
        plan = json.loads(text)
        self.assertEqual(2, code)
        (move,) = plan['moves']
        self.assertEqual(('cmp01', 'cmp02'), (move['source'], move['target']))
        self.assertIn(move['uuid'], move['command'])
        self.assertEqual(
            [('cmp01', fleet.BUDGET)], [(one['host'], one['code']) for one in plan['left_alone']]
        )

    def test_a_host_with_malformed_figures_is_named_and_the_others_are_planned(self):
        self.write_hosts()
        good = to_json(self.hosts['cmp02'])
        self.write('$(reboot).json', {'fleet': good})
        self.write('no-agent.json', {'fleet': None})
        self.write('list.json', [])
        self.write(
            'uuid.json', {'fleet': {**good, 'guests': [{**good['guests'][0], 'uuid': '; reboot'}]}}
        )
        self.write('nan.json', {'fleet': {**good, 'taken_s': float('nan')}})
        self.write(
            'distances.json', {'fleet': {**good, 'view': {**good['view'], 'distances': [[1]]}}}
        )
        (self.directory / 'cut.json').write_text('{"fleet": {')
        (self.directory / 'deep.json').write_text('[' * 100_000)
        code, text, error = self.run_fleet()
        self.assertEqual(2, code)
        self.assertIn('cmp01', text)
        self.assertNotIn('reboot', text)
        self.assertEqual(8, error.count('problem: '))


class ServerTest(FleetCase):
    def read(self, server, match=''):
        return fleet_input.read('http://prometheus:9090', match, server.open)

    def test_two_requests_yield_the_same_plan_as_the_files(self):
        server = fleets.Server(self.hosts)
        hosts, problems = self.read(server)
        self.assertEqual((2, []), (len(server.queries), problems))
        plans = [
            fleet.plan(some, fleet.Budgets(10, 1 << 40), time.time())
            for some in (hosts, self.hosts)
        ]
        self.assertTrue(plans[0].moves)
        self.assertEqual(plans[1], plans[0])

    def test_without_node_exporters_name_a_host_has_that_of_its_instance(self):
        self.assertIn('cmp01.example', self.read(fleets.Server(self.hosts, uname=False))[0])

    def test_labels_select_hosts_in_each_request_and_cannot_end_the_selector(self):
        server = fleets.Server(self.hosts)
        self.read(server, 'cluster="a",rack!="50%s"')
        for query in server.queries:
            self.assertIn(',cluster="a",rack!="50%s"}', query)
        with self.assertRaises(fleet_input.FleetError):
            self.read(server, 'a="b"} or vector(1)')

    def test_a_host_with_a_wrong_figure_is_named(self):
        for metric, value, labels in (
            ('nova_numa_node_promised_bytes', 'NaN', {'node': '0'}),
            ('nova_numa_node_cpus', '-Inf', {'node': '0'}),
            ('nova_numa_node_cpus', '1', {'node': 'zero'}),
            ('nova_numa_node_cpus', '1', {}),
            ('nova_numa_guest_vcpus', '1', {}),
            (fleet_input._TICK, 'NaN', {}),
        ):
            with self.subTest(metric=metric, value=value):
                server = fleets.Server(self.hosts)
                server.add(metric, value, instance='cmp01.example:9100', **labels)
                hosts, problems = self.read(server)
                self.assertEqual((['cmp02'], 1), (list(hosts), len(problems)))
                self.assertIn('cmp01.example', problems[0])

    def test_no_host_can_take_the_name_of_another(self):
        server = fleets.Server({**self.hosts, 'cmp03': self.hosts['cmp02']})
        server.add(fleet_input._UNAME, 1, instance='cmp03.example:9100', nodename='cmp02')
        hosts, problems = self.read(server)
        self.assertEqual((['cmp01'], 2), (list(hosts), len(problems)))

    def test_an_answer_that_is_not_http_is_a_problem(self):
        for error in (BadStatusLine('SSH-2.0'), IncompleteRead(b'{')):
            with self.subTest(error), self.assertRaisesRegex(fleet_input.FleetError, 'http://h: '):
                fleet_input.read('http://h', '', mock.Mock(side_effect=error))

    def test_no_answer_controls_the_terminal(self):
        server = fleets.Server({})
        server.add(fleet_input._TICK, 'NaN', instance='\x1b]0;x\x07')
        for open_url in (server.open, mock.Mock(side_effect=BadStatusLine('\x1b[2J'))):
            with self.assertRaises(fleet_input.FleetError) as caught:
                fleet_input.read('http://h', '', open_url)
            self.assertTrue(str(caught.exception).isprintable())

    def test_no_label_writes_lines_or_controls_into_a_log(self):
        metric = {'__name__': fleet_input._TICK, 'instance': 'cmp\x1b[2J\nforged'}
        _, [problem] = fleet_input.from_series(lambda _: [{'metric': metric, 'value': [1, '5']}])
        self.assertTrue(problem.isprintable(), problem)

    @given(ANSWERS)
    def test_an_answer_of_any_other_form_is_refused(self, answer):
        for value in (answer, {'data': {'result': answer}}, {'data': {'result': [answer]}}):
            with self.assertRaises(fleet_input.FleetError):
                fleet_input.read(
                    'http://h',
                    '',
                    lambda url, timeout, value=value: io.BytesIO(json.dumps(value).encode()),
                )

    def test_a_server_that_cannot_be_reached_is_a_problem_with_its_address(self):
        def refuse(url, timeout):
            raise urllib.error.URLError('refused')

        with self.assertRaisesRegex(fleet_input.FleetError, 'http://h: .*refused'):
            fleet_input.read('http://h', '', refuse)
