# SPDX-License-Identifier: Apache-2.0
"""Options take effect when they are reloaded, and those of an aggregate at the next request."""

import fixtures
import nova.conf
from oslo_config import fixture as config_fixture
from oslo_service import service

from tests.fixtures.scheduler_options import DEFAULTS
from tests.nova import base

CONF = nova.conf.CONF
MULTIPLIER = DEFAULTS['weight_multiplier']


class ReloadTest(base.NovaTest):
    """Of two hosts, the package prefers ``calm`` and Nova's own weighers prefer ``roomy``."""

    def setUp(self):
        super().setUp()
        # Only by free memory: guests use CPUs and disks of both.
        self.flags(
            ram_weight_multiplier=3.0,
            cpu_weight_multiplier=0.0,
            disk_weight_multiplier=0.0,
            group='filter_scheduler',
        )
        self.path = self.useFixture(fixtures.TempDir()).join('nova.conf')
        self.write()
        self.useFixture(config_fixture.Config(CONF)).set_config_files([self.path])
        self.small = self.flavor()
        self.start_hosts('roomy', 'calm')
        self.boot(self.flavor(memory_mb=6144), host='calm')
        self.send(roomy=(1.1, 1.1), calm=(0.3, 0.3))

    def write(self, **options):
        """Write nova.conf with these options of ``[numa_pmc]``."""
        with open(self.path, 'w') as file:
            file.write('[numa_pmc]\n')
            file.writelines(f'{name} = {value}\n' for name, value in options.items())

    def sighup(self, **options):
        """Change nova.conf and do what nova-scheduler does on SIGHUP if it uses eventlet.

        test_sighup.py sends the signal to a real one.

        ``nova.service.serve`` launches with ``restart_method='mutate'``, whose ``restart()`` is
        called by a worker's signal handler. With native threads, the main process changes its
        options in the same way, but forks new workers, with the aggregates of its own start.
        """
        self.write(**options)
        launcher = service.Launcher(CONF, restart_method='mutate')
        launcher.services.services.append(self.scheduler)
        launcher.restart()

    def chosen(self):
        return self.host_of(self.boot(self.small))

    def test_sighup_turns_the_weigher_off_and_on_again(self):
        self.assertEqual('calm', self.chosen())
        for options, expected in (
            ({'mode': 'off'}, 'roomy'),
            ({}, 'calm'),
            ({'weight_multiplier': 0}, 'roomy'),
            ({'mode': 'shadow', 'weight_multiplier': MULTIPLIER}, 'roomy'),
        ):
            with self.subTest(str(options)):
                self.sighup(**options)
                self.assertEqual(expected, self.chosen())

    def test_sighup_changes_the_limit_of_the_filter(self):
        self.sighup(max_pressure=0.2)
        self.boot(self.small, expected_state='ERROR')
        self.sighup(max_pressure=0.9)
        self.assertEqual('calm', self.chosen())

    def test_a_typo_does_not_stop_a_boot(self):
        for name in ('mode', 'weight_multiplier', 'max_pressure', 'penalty_floor'):
            with self.subTest(name):
                self.sighup(**{name: 'x'})
                self.chosen()
                self.assertIn(f'Value for option {name} from', self.stdlog.logger.output)

    def test_an_aggregates_mode_applies_to_the_next_request(self):
        aggregate = self._create_aggregate('not-yet')
        for host in ('roomy', 'calm'):
            self.api.add_host_to_aggregate(aggregate, host)
        for mode, expected in (('off', 'roomy'), (None, 'calm'), ('shadow', 'roomy')):
            self.api.api_post(
                f'/os-aggregates/{aggregate}/action',
                {'set_metadata': {'metadata': {'numa_pmc_mode': mode}}},
            )
            self.assertEqual(expected, self.chosen())
