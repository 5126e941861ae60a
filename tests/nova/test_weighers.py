# SPDX-License-Identifier: Apache-2.0
"""``explain --hosts`` calls Nova's own weighers if Nova is installed."""

import json
import os
import subprocess
import sys

import fixtures
import testtools

from nova_numa_pmc.scheduler import saved_hosts
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
"""


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
