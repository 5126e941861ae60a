# SPDX-License-Identifier: Apache-2.0
"""Servers that move or come back go to hosts of low pressure, and may stay where they are."""

from nova_numa_pmc.scheduler import hosts
from tests.nova import base

BUSY, CALM = (0.95, 0.95), (0.2, 0.2)


class MoveTest(base.NovaTest):
    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_hosts('home', 'busy', 'calm')
        self.server = self.boot(self.flavor(memory_mb=1024), host='home')
        self.send(home=BUSY, busy=BUSY, calm=CALM)

    def confirmed(self, server):
        self._confirm_resize(server)
        return self.host_of(server)

    def test_a_resized_server_goes_to_the_calm_host(self):
        self._resize_server(self.server, self.flavor(vcpus=2, memory_mb=2048))
        self.assertEqual('calm', self.confirmed(self.server))

    def test_a_resized_server_stays_if_its_host_is_the_calmest(self):
        self.send(home=CALM, busy=BUSY, calm=BUSY)
        self._resize_server(self.server, self.flavor(vcpus=2, memory_mb=2048))
        self.assertEqual('home', self.confirmed(self.server))

    def test_a_resize_subtracts_the_old_size_from_the_servers_host(self):
        relieved, read = [], hosts.read

        def spied(*arguments):
            host = read(*arguments)
            relieved.append((host.own_vcpus, host.own_mib))
            return host

        self.stub_out('nova_numa_pmc.scheduler.hosts.read', spied)
        self._resize_server(self.server, self.flavor(vcpus=2, memory_mb=2048))
        self.assertEqual({(0, 0), (1, 1024)}, set(relieved))

    def test_a_guest_of_one_node_grows_where_its_own_memory_makes_room(self):
        self.start_hosts('own')
        one_node = {'numa_pmc__policy': 'one_node'}
        server = self.boot(self.flavor(memory_mb=5000, **one_node), host='own')
        self.publish('own', *CALM, promised_mb=(5000, 5000))
        for name in ('home', 'busy', 'calm'):
            self.publish(name, *CALM, promised_mb=(5000, 5000))
        self._run_periodics()
        # Without the guest, one node has 8192 MiB.
        self._resize_server(server, self.flavor(memory_mb=7000, **one_node))
        self.assertEqual('own', self.confirmed(server))

    def test_a_reverted_resize_returns_to_the_former_host(self):
        self._resize_server(self.server, self.flavor(vcpus=2, memory_mb=2048))
        self._revert_resize(self.server)
        self.assertEqual('home', self.host_of(self.server))

    def test_a_cold_migration_goes_to_the_calm_host(self):
        self._migrate_server(self.server)
        self.assertEqual('calm', self.confirmed(self.server))

    def test_a_live_migration_goes_to_the_calm_host(self):
        self._live_migrate(self.server)
        self.assertEqual('calm', self.host_of(self.server))

    def test_an_evacuated_server_goes_to_the_calm_host(self):
        (service,) = self.api.get_services(host='home', binary='nova-compute')
        self.api.put_service_force_down(service['id'], True)
        self._evacuate_server(self.server)
        self.assertEqual('calm', self.host_of(self.server))

    def test_a_server_is_evacuated_although_all_hosts_are_above_the_limit(self):
        self.flags(max_pressure=0.1, group='numa_pmc')
        (service,) = self.api.get_services(host='home', binary='nova-compute')
        self.api.put_service_force_down(service['id'], True)
        self._evacuate_server(self.server)
        self.assertEqual('calm', self.host_of(self.server))
        self.boot(self.flavor(), expected_state='ERROR')

    def test_a_resize_that_may_not_stay_has_no_limit(self):
        self.flags(allow_resize_to_same_host=False)
        self.flags(max_pressure=0.1, group='numa_pmc')
        self._resize_server(self.server, self.flavor(vcpus=2, memory_mb=2048))
        self.assertEqual('calm', self.confirmed(self.server))

    def test_an_unshelved_server_goes_to_the_calm_host(self):
        self._shelve_server(self.server)
        self._unshelve_server(self.server)
        self.assertEqual('calm', self.host_of(self.server))

    def test_a_rebuilt_server_stays_whatever_the_pressure(self):
        self.send(home=(3.0, 3.0), busy=CALM, calm=CALM)
        self._rebuild_server(self.server, self.glance.auto_disk_config_enabled_image['id'])
        self.assertEqual('home', self.host_of(self.server))

    def test_a_second_move_follows_the_new_pressure(self):
        self._migrate_server(self.server)
        self._confirm_resize(self.server)
        self.send(home=CALM, busy=BUSY, calm=BUSY)
        self._migrate_server(self.server)
        self.assertEqual('home', self.confirmed(self.server))
