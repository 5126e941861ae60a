# SPDX-License-Identifier: Apache-2.0
"""An operator sees which instances would get another host with the weigher."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

from nova_numa_pmc.cli import exits
from nova_numa_pmc.cmd import rebalance
from tests.fixtures.compute_nodes import compute_node_row
from tests.fixtures.expected_losses import cpu_loss


def host(name, *demand, memory_mb=32768, **fields):
    """Return a row including what Placement counts; 16 vCPUs, nodes of 4 cores."""
    disk = {'local_gb': 200, 'local_gb_used': 10}
    return compute_node_row(name, *demand, memory_mb=memory_mb, **{**disk, **fields})


#: The roomiest host is under pressure; the others have less free memory.
HOSTS = [
    host('roomy', 3.2, 3.2, memory_mb=65536),
    host('calm', 0.4, 0.4),
    host('blind', 0.4, memory_mb=24576, metrics='[]', vcpus_used=24),
]
REQUESTS = [
    {'vcpus': 2, 'memory_mb': 2048, 'disk_gb': 10, 'count': 2},
    {'vcpus': 2, 'memory_mb': 2048, 'extra_specs': {'numa_pmc:policy': 'none'}},
    {'vcpus': 16, 'memory_mb': 90000},
]


def rounded(name, *figures):
    return name, *(None if figure is None else round(figure, 6) for figure in figures)


def met(name, wanted):
    """Return what a guest meets on a host with this demand on its nodes [cores]."""
    others = 0.2 * min(wanted) + 0.8 * sum(wanted) / 2
    at = wanted.index(min(wanted))
    return rounded(name, (others + 1) / 4, cpu_loss(wanted, at, 1.0, 4))


class WhatIfTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def call(self, *arguments, hosts=HOSTS, requests=REQUESTS):
        """Run the command; return (exit code, output, errors)."""
        out, err = io.StringIO(), io.StringIO()
        paths = []
        for name, rows in (('hosts', hosts), ('requests', requests)):
            path = self.directory / name
            path.write_text(rows if isinstance(rows, str) else json.dumps(rows))
            paths += ['--' + name, str(path)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = rebalance.main(['whatif', *paths, *arguments])
        return code, out.getvalue(), err.getvalue()

    def test_json_has_the_hosts_with_and_without_the_weigher(self):
        code, out, _ = self.call('--json')
        answer = json.loads(out, parse_constant=self.fail)
        self.assertEqual(0, code)
        # Each wants one of the four cores on the less loaded node of its host; the demand that is
        # already there counts as 0.2 of that node's and 0.8 of the mean.
        calm = (0.4, 0.4), (1.4, 0.4)
        roomy = (3.2, 3.2), (4.2, 3.2)
        self.assertEqual(
            [
                # request, with, without
                (1, met('calm', calm[0]), met('roomy', roomy[0])),
                # Without the weigher, the build of the first instance outweighs the room.
                (1, met('calm', calm[1]), met('calm', calm[0])),
                (2, met('roomy', roomy[0]), met('roomy', roomy[1])),
                (3, (None, None, None), (None, None, None)),
            ],
            [
                (
                    choice['request'],
                    rounded(choice['host'], choice['pressure'], choice['loss']),
                    rounded(
                        choice['host_without'], choice['pressure_without'], choice['loss_without']
                    ),
                )
                for choice in answer['choices']
            ],
        )
        self.assertLess(answer['loss'], answer['loss_without'])
        self.assertEqual(
            (4, 1, 1, 1),
            tuple(
                answer[name]
                for name in ('instances', 'changed', 'without_room', 'without_room_otherwise')
            ),
        )

    def test_text_counts_instances_that_would_get_another_host(self):
        code, out, _ = self.call()
        self.assertEqual(0, code)
        self.assertIn('4 instances; 1 would get another host (25.0 %)', out)
        self.assertIn('no host had room for 1 instances (without the weigher: 1)', out)
        self.assertRegex(out, r'(?m)^ *1 +roomy +1\.05 +calm +0\.35$')
        self.assertRegex(
            out, r'mean loss that they cause, .* want: 0\.25\d\d with .*, 0\.43\d\d without'
        )

    def test_a_host_has_room_up_to_novas_allocation_ratios(self):
        small = {'vcpus': 1, 'memory_mb': 512}
        for large in ({'memory_mb': 40000}, {'vcpus': 100}, {'disk_gb': 300}):
            for ratio, without_room in ((None, 1), (0.0, 1), (8.0, 0)):
                with self.subTest((large, ratio)):
                    ratios = {kind + '_allocation_ratio': ratio for kind in ('cpu', 'ram', 'disk')}
                    _, out, _ = self.call(
                        '--json', hosts=[host('a', 0.4, **ratios)], requests=[{**small, **large}]
                    )
                    self.assertEqual(without_room, json.loads(out)['without_room'])

    def test_instances_to_which_the_filter_refuses_all_hosts_are_counted_separately(self):
        path = self.directory / 'nova.conf'
        path.write_text('[numa_pmc]\nmax_pressure = 0.2\n')
        options = '--nova-conf', str(path)
        small, large = {'vcpus': 2, 'memory_mb': 2048}, {'vcpus': 2, 'memory_mb': 90000}
        requests = [{**small, 'count': 2}, large]
        _, out, _ = self.call(*options, hosts=HOSTS[:2], requests=requests)
        self.assertIn('no host had room for 1 instances (without the weigher: 1)', out)
        self.assertIn(
            'for 2 instances, the filter refused every host that had room '
            '(without the weigher: 2)',
            out,
        )
        _, out, _ = self.call(*options, '--json', hosts=HOSTS[:2], requests=requests)
        answer = json.loads(out)
        self.assertEqual(
            (1, 1, 2, 2),
            tuple(
                answer[name]
                for name in (
                    'without_room',
                    'without_room_otherwise',
                    'refused',
                    'refused_otherwise',
                )
            ),
        )
        self.assertEqual(
            [(None, True), (None, True), (None, False)],
            [(choice['host'], choice['refused']) for choice in answer['choices']],
        )

    def test_options_and_nova_conf_change_the_answer(self):
        for options in (('--multiplier', '0'), ('--floor', '2')):
            code, out, _ = self.call('--json', *options)
            self.assertEqual((0, 0), (code, json.loads(out)['changed']), options)
        path = self.directory / 'nova.conf'
        path.write_text('[numa_pmc]\nmode = off\n')  # what the weigher would change
        answer = json.loads(self.call('--json', '--nova-conf', str(path))[1])
        self.assertEqual(1, answer['changed'])
        for multiplier in ('0', '-5', 'inf'):  # with the last two, the weigher does not weigh
            path.write_text('[numa_pmc]\nweight_multiplier = %s\n' % multiplier)
            answer = json.loads(self.call('--json', '--nova-conf', str(path))[1])
            self.assertEqual(0, answer['changed'], multiplier)

    def test_novas_weighers_have_the_multipliers_of_nova_conf(self):
        rows = [
            host('large', 0.4, 0.4, memory_mb=65536, vcpus_used=40),
            host('small', 0.4, 0.4, memory_mb=16384, vcpus_used=40),
            host('vacant', 0.4, 0.4, vcpus_used=0),
            host('empty', 0.4, 0.4, vcpus_used=40, local_gb_used=0),
            host('active', 0.4, 0.4, vcpus_used=40, stats='{"io_workload": 3}'),
        ]
        path = self.directory / 'nova.conf'
        for option, value, chosen in (
            ('ram_weight_multiplier', 1000.0, 'large'),
            ('ram_weight_multiplier', -1000.0, 'small'),
            ('cpu_weight_multiplier', 1000.0, 'vacant'),
            ('disk_weight_multiplier', 1000.0, 'empty'),
            ('io_ops_weight_multiplier', 1000.0, 'active'),
        ):
            with self.subTest(option, value=value):
                path.write_text(f'[filter_scheduler]\n{option} = {value}\n')
                _, out, _ = self.call(
                    *('--json', '--nova-conf', str(path)), hosts=rows, requests=REQUESTS[:1]
                )
                answer = json.loads(out)
                self.assertEqual(chosen, answer['choices'][0]['host_without'])
                self.assertEqual(value, answer['filter_scheduler'][option])

    def test_a_cloud_that_fills_hosts_is_replayed_as_one(self):
        rows = [host('vacant', 0.4, 0.4), host('filled', 0.4, 0.4, memory_mb_used=16384)]
        path = self.directory / 'nova.conf'
        for multiplier, chosen in ((1.0, 'vacant'), (-5.0, 'filled')):
            path.write_text(f'[filter_scheduler]\nram_weight_multiplier = {multiplier}\n')
            _, out, _ = self.call(
                *('--json', '--nova-conf', str(path)), hosts=rows, requests=REQUESTS[:1]
            )
            self.assertEqual(chosen, json.loads(out)['choices'][0]['host_without'], multiplier)

    def test_free_disk_is_weighed_without_the_allocation_ratio(self):
        # Beside the other host, of which 140 of 200 GiB are free.
        for fields, chosen in (
            ({'local_gb_used': 50}, 'a'),  # 150
            ({'local_gb_used': 80, 'disk_allocation_ratio': 2.0}, 'b'),  # 120
            ({'local_gb_used': 50, 'free_disk_gb': 150, 'disk_available_least': None}, 'a'),
            ({'local_gb_used': 50, 'free_disk_gb': 150, 'disk_available_least': 130}, 'b'),
            ({'local_gb_used': 50, 'disk_available_least': 130}, 'b'),
            ({'local_gb_used': 50, 'free_disk_gb': 150, 'disk_available_least': 190}, 'a'),
            ({'local_gb_used': 50, 'free_disk_gb': 150, 'disk_available_least': -3}, 'b'),
            ({'free_disk_gb': 130}, 'b'),
            ({'free_disk_gb': -10, 'disk_available_least': -10}, 'b'),
        ):
            with self.subTest(fields):
                rows = [host('a', 0.4, 0.4, **fields), host('b', 0.4, 0.4, local_gb_used=60)]
                _, out, _ = self.call('--json', hosts=rows, requests=REQUESTS[:1])
                self.assertEqual(chosen, json.loads(out)['choices'][0]['host_without'])

    def test_a_placed_instance_takes_free_disk(self):
        columns = {'free_disk_gb': 150, 'disk_available_least': 140}
        rows = [host(name, 0.4, 0.4, **columns) for name in 'ab']
        path = self.directory / 'nova.conf'
        path.write_text(
            '[filter_scheduler]\n'
            + ''.join(f'{name}_weight_multiplier = 0\n' for name in ('cpu', 'ram', 'io_ops'))
        )
        _, out, _ = self.call(
            '--json', '--nova-conf', str(path), hosts=rows, requests=REQUESTS[:1]
        )
        self.assertEqual(
            ['a', 'b'], [choice['host_without'] for choice in json.loads(out)['choices']]
        )

    def test_the_builds_of_a_request_count_until_the_next_request(self):
        # RAM attracts guests to the fullest host, but by less than a build keeps them away.
        path = self.directory / 'nova.conf'
        path.write_text('[filter_scheduler]\nram_weight_multiplier = -5\n')
        plain = {'vcpus': 2, 'memory_mb': 512}
        for requests, chosen in (
            ([{**plain, 'count': 4}], 'abab'),
            ([{**plain, 'count': 2}, plain, plain], 'abaa'),
            ([plain] * 4, 'aaaa'),
        ):
            for saved_builds in (0, 3):
                rows = [
                    host(name, 0.4, 0.4, stats=json.dumps({'io_workload': saved_builds}))
                    for name in 'ab'
                ]
                _, out, _ = self.call(
                    '--json', '--nova-conf', str(path), hosts=rows, requests=requests
                )
                hosts = [choice['host_without'] for choice in json.loads(out)['choices']]
                self.assertEqual(chosen, ''.join(hosts), saved_builds)

    def test_a_guest_with_dedicated_cpus_does_not_divert_plain_ones(self):
        rows = [host('calm', 2.0, 2.0, memory_mb=65536), host('busy', 2.1, 2.1)]
        pinned = {'vcpus': 8, 'memory_mb': 512, 'extra_specs': {'hw:cpu_policy': 'dedicated'}}
        plain = {'vcpus': 8, 'memory_mb': 512}
        for first, second_host in ((pinned, 'calm'), (plain, 'busy')):
            _, out, _ = self.call('--json', hosts=rows, requests=[first, plain])
            self.assertEqual(
                ['calm', second_host], [choice['host'] for choice in json.loads(out)['choices']]
            )

    def test_dedicated_cpus_take_vcpus_of_the_host(self):
        pinned = {'vcpus': 32, 'memory_mb': 512, 'extra_specs': {'hw:cpu_policy': 'dedicated'}}
        _, out, _ = self.call('--json', hosts=HOSTS[1:2], requests=[{**pinned, 'count': 2}])
        self.assertEqual(1, json.loads(out)['without_room'])

    def test_a_file_that_cannot_be_used_is_refused(self):
        for rows, word in (
            ({'hosts': '[]'}, 'no rows'),
            ({'hosts': [{'host': 'a'}]}, 'row 1'),
            ({'hosts': [host('a', 0.4, free_disk_gb='1')]}, 'row 1: free_disk_gb'),
            ({'hosts': [host('a', 0.4, stats='[' * 100_000)]}, 'row 1'),
            ({'hosts': [host('a', metrics='[' * 100_000)]}, 'row 1'),
            ({'requests': '[]'}, 'no requests'),
            ({'requests': [{'vcpus': 'x', 'memory_mb': 1}]}, 'request 1'),
            ({'requests': [{'vcpus': 2}]}, 'request 1'),
            ({'requests': '['}, 'not JSON'),
        ):
            with self.subTest(word):
                code, _, err = self.call(**rows)
                self.assertEqual(1, code)
                self.assertIn(word, err)
        code, _, err = self.call('--nova-conf', '/nowhere')
        self.assertEqual((1, True), (code, '/nowhere: no such file' in err))

    def test_a_multiplier_or_floor_that_is_not_a_number_of_at_least_0_is_a_usage_error(self):
        for options in (('--multiplier', '-1'), ('--multiplier', 'x'), ('--floor', 'nan')):
            with self.subTest(options), self.assertRaises(SystemExit) as ended:
                self.call(*options)
            self.assertEqual(exits.USAGE, ended.exception.code)
