# SPDX-License-Identifier: Apache-2.0
"""Nova's own weighers: ``explain --hosts`` calls them, and ``whatif`` agrees with them."""

import json
import os
import random
import subprocess
import sys

import fixtures
import testtools
from nova import objects
from nova.scheduler import weights
from nova.scheduler.weights import cpu, disk, io_ops, ram

from nova_numa_pmc.scheduler import nova_weighers, saved_hosts, what_if_hosts
from tests.fixtures.compute_nodes import compute_node_row
from tests.fixtures.expected_losses import cpu_loss

MULTIPLIER = saved_hosts.defaults()['weight_multiplier']
NOVA_CONF = """
[filter_scheduler]
weight_classes = nova.scheduler.weights.all_weighers, odd_weigher.Odd,
    nova_numa_pmc.scheduler.weigher.NUMAPressureWeigher
ram_weight_multiplier = 2.0
[numa_pmc]
max_pressure = 2
"""
#: A weigher of another package that needs an attribute which rows do not have.
ODD = """
from nova.scheduler import weights

class Odd(weights.BaseHostWeigher):
    def _weigh_object(self, host_state, weight_properties):
        return host_state.no_such_thing

class Cell(weights.BaseHostWeigher):
    def _weigh_object(self, host_state, weight_properties):
        return float(host_state.cell_uuid == 'cell2')
"""
#: Nova's weighers in the order of what_if_hosts.MULTIPLIERS.
SIMULATED = cpu.CPUWeigher, ram.RAMWeigher, disk.DiskWeigher, io_ops.IoOpsWeigher


class WeighersTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.write('odd_weigher.py', ODD)

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, 'w') as file:
            file.write(text)
        return path

    def explain(self, rows, conf, *arguments):
        """Run the command with Nova's Python; return what it printed."""
        done = subprocess.run(
            [
                sys.executable,
                '-c',
                'import sys; from nova_numa_pmc.cmd import rebalance; sys.exit(rebalance.main())',
                'explain',
                *('--hosts', self.write('hosts.json', json.dumps(rows))),
                *('--nova-conf', self.write('nova.conf', conf)),
                *('--vcpus', '2', '--memory', '1G', *arguments),
            ],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            cwd=self.directory,
            env={**os.environ, 'PYTHONPATH': os.pathsep.join([self.directory, *sys.path])},
        )
        return done.stdout

    def test_each_weigher_of_nova_conf_weighs_the_hosts(self):
        size = {'memory_mb': 16384, 'memory_mb_used': 4096}
        explained = json.loads(
            self.explain(
                [
                    compute_node_row('roomy', 3.5, 3.5, **dict(size, memory_mb=65536)),
                    compute_node_row('calm', 0.1, 0.1, **size),
                    compute_node_row(
                        'other', 3.5, 3.5, aggregates=[{'ram_weight_multiplier': '0'}], **size
                    ),
                    compute_node_row('full', 9.0, 9.0, **size),
                ],
                NOVA_CONF,
                '--json',
            )
        )
        ours = {host['host']: host['added_weight'] for host in explained['hosts']}
        hosts = explained['weighers']['hosts']
        self.assertEqual({'roomy', 'calm', 'other'}, set(hosts))
        # One core more on one of two nodes of four cores, where a tenth of a core is wanted.
        self.assertAlmostEqual(ours['calm'], -MULTIPLIER * cpu_loss((0.1, 0.1), 0, 1.0, 4))
        for name, host in hosts.items():
            self.assertAlmostEqual(ours[name], host['added_weights']['NUMAPressureWeigher'])
            self.assertAlmostEqual(sum(host['added_weights'].values()), host['weight'])
        self.assertEqual(
            [2.0, 0.4, 0.0],
            [
                round(hosts[name]['added_weights']['RAMWeigher'], 9)
                for name in ('roomy', 'calm', 'other')
            ],
        )
        self.assertIn('CPUWeigher', hosts['calm']['added_weights'])
        self.assertIn('no_such_thing', explained['weighers']['failed']['Odd'])
        self.assertEqual('calm', explained['weighers']['chosen'])

    def test_the_table_has_a_column_for_each_weigher_that_tells_hosts_apart(self):
        rows = [
            compute_node_row('roomy', 0.1, 0.1, memory_mb=65536, vcpus_used=5),
            compute_node_row('calm', 0.1, 0.1, memory_mb=16384),
        ]
        conf = NOVA_CONF.replace('odd_weigher.Odd,', '')
        text = self.explain(rows, conf + '[numa_pmc]\npenalty_floor = 0.05\n')
        self.assertRegex(text, r'(?m)^host +weight +(CPU|RAM)Weigher +(RAM|CPU)Weigher$')
        self.assertRegex(text, r'(?m)^roomy +2\.983 ')
        self.assertRegex(text, r'(?m)^calm +1\.400 ')
        self.assertIn('the same for all hosts: ', text)
        self.assertIn('chosen by all weighers: roomy', text)

    def test_weighers_know_the_cell_of_each_host(self):
        rows = [
            compute_node_row('first', 0.1, 0.1, cell='cell1', memory_mb=65536),
            compute_node_row('second', 0.1, 0.1, cell='cell2', memory_mb=16384),
        ]
        conf = NOVA_CONF.replace('odd_weigher.Odd', 'odd_weigher.Cell')
        weighers = json.loads(
            self.explain(rows, conf + '[numa_pmc]\npenalty_floor = 1\n', '--json')
        )['weighers']
        self.assertEqual(
            {'first': 0.0, 'second': 1.0},
            {name: host['added_weights']['Cell'] for name, host in weighers['hosts'].items()},
        )
        self.assertEqual({}, weighers['failed'])


class WhatIfTest(testtools.TestCase):
    def choose_with_nova(self, rows, requests, multipliers):
        """Return the hosts that Nova's weighers choose for the instances of the requests."""
        objects.register_all()
        weighers = []
        for weigher_class, name in zip(SIMULATED, what_if_hosts.MULTIPLIERS):
            weigher = weigher_class()
            weigher.weight_multiplier = lambda _, name=name: multipliers[name]
            weighers.append(weigher)
        states, chosen = [nova_weighers._host_state(row) for row in rows], []
        for request in requests:
            spec = nova_weighers._spec(
                saved_hosts.SavedFlavor(request['vcpus'], request['memory_mb'])
            )
            spec.flavor.root_gb = request['disk_gb']
            saved_io_ops = [state.num_io_ops for state in states]
            for _ in range(request['count']):
                best = weights.HostWeightHandler().get_weighed_objects(weighers, states, spec)[0]
                best.obj.consume_from_request(spec)
                chosen.append(best.obj.host)
            for state, count in zip(states, saved_io_ops):
                state.num_io_ops = count
        return chosen

    def choose_with_whatif(self, rows, requests, multipliers):
        choices = what_if_hosts.choices(
            json.dumps(rows),
            what_if_hosts.read_requests(json.dumps(requests)),
            saved_hosts.defaults(),
            multipliers,
            0.0,
        )
        return [choice.unweighed.host for choice in choices]

    def test_whatif_chooses_the_hosts_that_novas_weighers_choose(self):
        rng = random.Random(1)
        for _ in range(50):
            rows = [
                compute_node_row(
                    'host%d' % number,
                    vcpus=64,
                    vcpus_used=rng.randrange(0, 100, 20),
                    memory_mb=1 << 20,
                    memory_mb_used=rng.randrange(0, 1 << 19, 1 << 16),
                    local_gb=10_000,
                    local_gb_used=rng.randrange(0, 5000, 1000),
                    disk_allocation_ratio=rng.choice([1.0, 2.0]),
                    disk_available_least=rng.choice([None, -100, 2000, 7000]),
                    stats={'io_workload': rng.choice(['0', '0', '2'])},
                    metrics='[]',
                )
                for number in range(5)
            ]
            requests = [
                {
                    'vcpus': rng.choice([1, 4]),
                    'memory_mb': rng.choice([512, 8192]),
                    'disk_gb': rng.choice([0, 40]),
                    'count': rng.randint(1, 5),
                }
                for _ in range(4)
            ]
            multipliers = {
                name: rng.choice([-5.0, -1.0, 0.0, 1.0]) for name in what_if_hosts.MULTIPLIERS
            }
            self.assertEqual(
                self.choose_with_nova(rows, requests, multipliers),
                self.choose_with_whatif(rows, requests, multipliers),
                multipliers,
            )

    def test_whatif_and_nova_alternate_between_idle_hosts_that_are_to_be_filled(self):
        rows = [
            compute_node_row(name, memory_mb=32768, metrics='[]', local_gb=200) for name in 'ab'
        ]
        requests = [{'vcpus': 2, 'memory_mb': 512, 'disk_gb': 0, 'count': 4}]
        multipliers = {name: 1.0 for name in what_if_hosts.MULTIPLIERS}
        multipliers.update(ram_weight_multiplier=-5.0, io_ops_weight_multiplier=-1.0)
        for choose in (self.choose_with_nova, self.choose_with_whatif):
            self.assertEqual(['a', 'b', 'a', 'b'], choose(rows, requests, multipliers))
