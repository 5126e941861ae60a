# SPDX-License-Identifier: Apache-2.0
"""Servers boot at the lowest pressure and spread within a request, in addition to Nova's rules."""

from tests.nova import base

COUNT = 20


class BootTest(base.NovaTest):
    def test_of_four_hosts_the_one_with_a_calm_node_is_chosen(self):
        self.start_hosts('one', 'two', 'three', 'four')
        self.send(one=(0.9, 0.9), two=(0.9, 0.9), three=(0.9, 0.1), four=(0.9, 0.9))
        self.assertEqual('three', self.host_of(self.boot(self.flavor())))

    def test_free_memory_does_not_outweigh_saturated_nodes(self):
        self.start_hosts('roomy', 'calm')
        big = self.flavor(memory_mb=6144)
        self.boot(big, host='calm')
        self.publish('calm', 0.3, 0.3, promised_mb=(6144, 0))
        self.send(roomy=(1.1, 1.1), calm=(0.3, 0.3))
        roomy, calm = map(self.compute_node, ('roomy', 'calm'))
        self.assertGreater(roomy.free_ram_mb, calm.free_ram_mb)
        self.assertEqual('calm', self.host_of(self.boot(self.flavor())))

    def test_a_host_of_unknown_pressure_is_not_the_best(self):
        # Nova's own weighers weigh the three equally, so the first of the best is chosen.
        self.flags(
            cpu_weight_multiplier=0.0,
            ram_weight_multiplier=0.0,
            disk_weight_multiplier=0.0,
            group='filter_scheduler',
        )
        self.start_hosts('busy', 'unknown', 'calm')
        self.publish('unknown', 0.1, 0.1, taken_s=0)
        # As many vCPUs as Nova's fake host has CPUs, which are assumed to want 4.8 of ten cores.
        self.boot(self.flavor(vcpus=16), host='unknown')
        self.send(busy=(0.75, 0.75), calm=(0.1, 0.1))
        self.assertEqual('calm', self.host_of(self.boot(self.flavor())))


class StockBootTest(base.NovaTest):
    """Nova without the package, to prove that the tests above depend on the package."""

    ADDITIONAL_FILTERS = []
    WEIGHERS = ['nova.scheduler.weights.all_weighers']

    def test_the_host_with_the_most_free_memory_is_chosen(self):
        self.start_hosts('roomy', 'calm')
        self.boot(self.flavor(memory_mb=6144), host='calm')
        self.send(roomy=(1.1, 1.1), calm=(0.3, 0.3))
        self.assertEqual('roomy', self.host_of(self.boot(self.flavor())))


class HerdTest(base.NovaTest):
    """A request for many servers, for which the hosts are read once and no metric changes."""

    def boots(self, *hosts):
        """Return {host: servers of one request for COUNT} after each host has reported once."""
        self.start_hosts(*hosts)
        self._run_periodics()
        before = {name: self.compute_node(name).metrics for name in hosts}
        servers = self.boot_many(self.flavor(), COUNT)
        self.assertEqual(before, {name: self.compute_node(name).metrics for name in hosts})
        return self.spread(servers)

    def test_four_equal_hosts_share_the_servers(self):
        counts = self.boots('one', 'two', 'three', 'four').values()
        self.assertLessEqual(max(counts) - min(counts), 1, counts)
