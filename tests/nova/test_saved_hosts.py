# SPDX-License-Identifier: Apache-2.0
"""A decision that is repeated from the database's rows is the same as Nova's."""

import shutil

import sqlalchemy
from nova import context
from nova.db.main import api as db

from nova_numa_pmc.scheduler import saved_hosts
from tests.nova import base

#: As in doc/source/admin/nova.rst, but without MySQL's UNIX_TIMESTAMP().
ROWS = sqlalchemy.text("""
    SELECT JSON_OBJECT('host', hypervisor_hostname, 'metrics', metrics,
        'vcpus', vcpus, 'vcpus_used', vcpus_used,
        'memory_mb', memory_mb, 'memory_mb_used', memory_mb_used,
        'cpu_allocation_ratio', cpu_allocation_ratio,
        'ram_allocation_ratio', ram_allocation_ratio,
        'disk_allocation_ratio', disk_allocation_ratio)
    FROM compute_nodes WHERE deleted = 0""")


class ReplayTest(base.NovaTest):
    def replayed(self, vcpus=1, memory_mb=512, **extra_specs):
        """Return the decisions on the hosts as they are in the database now."""
        engine = db.get_engine(context=context.get_admin_context())
        with engine.connect() as connection:
            rows = '\n'.join(row for (row,) in connection.execute(ROWS))
        hosts, saved_s = saved_hosts.read(rows)
        return saved_hosts.rank(
            hosts,
            saved_hosts.SavedFlavor(vcpus, memory_mb, extra_specs),
            saved_hosts.defaults(),
            saved_s,
        )

    def test_a_replay_chooses_the_same_host(self):
        self.start_hosts('one', 'two', 'three')
        flavor = self.flavor()
        for one, two, three in (
            ((0.9, 0.9), (0.5, 0.9), (0.9, 0.2)),
            ((0.3, 0.9), (0.9, 0.9), (0.6, 0.6)),
            ((0.95, 0.9), (0.7, 0.75), (0.9, 0.85)),
        ):
            self.send(one=one, two=two, three=three)
            expected = self.replayed()[0].host
            self.assertEqual(expected, self.host_of(self.boot(flavor)))

    def test_a_replay_chooses_the_same_host_if_one_is_unknown(self):
        self.start_hosts('known', 'unknown')
        shutil.rmtree(self.state_dir('unknown'))
        flavor, chosen = self.flavor(vcpus=4), []
        for pressure in (0.9, 0.5, 0.0):
            self.send(known=(pressure, pressure))
            decisions = self.replayed(vcpus=4)
            self.assertEqual(
                {'known': True, 'unknown': False},
                {decision.host: decision.estimate.outcome is not None for decision in decisions},
            )
            chosen.append(decisions[0].host)
            self.assertEqual(chosen[-1], self.host_of(self.boot(flavor)))
        self.assertEqual('unknown', chosen[0])

    def test_a_replay_refuses_the_same_hosts(self):
        self.start_hosts('one', 'two')
        self.send(one=(0.9, 0.9), two=(0.6, 0.9))
        specs = {'numa_pmc:max_pressure': '0.5'}
        self.assertEqual([False, False], [decision.passes for decision in self.replayed(**specs)])
        self.boot(self.flavor(**specs), expected_state='ERROR')
        specs = {'numa_pmc:max_pressure': '0.9'}
        self.assertEqual(
            [('two', True), ('one', False)],
            [(decision.host, decision.passes) for decision in self.replayed(**specs)],
        )
        self.assertEqual('two', self.host_of(self.boot(self.flavor(**specs))))
