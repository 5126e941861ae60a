# SPDX-License-Identifier: Apache-2.0
"""Guests that Nova pins itself, among guests that it does not, under both filters."""

from tests.nova import base

BUSY, CALM = (0.9, 0.9), (0.2, 0.2)


class PinnedTest(base.NovaTest):

    def setUp(self):
        # Of each node two CPUs are for pinned guests and two are shared.
        self.flags(cpu_dedicated_set='0-1,4-5', cpu_shared_set='2-3,6-7', group='compute')
        super().setUp()
        self.start_hosts('one', 'two')
        self.plain = self.flavor()
        self.pinned = self.flavor(vcpus=2, hw__cpu_policy='dedicated')
        self.two_nodes = self.flavor(vcpus=2, hw__numa_nodes='2')

    def test_a_pinned_guest_goes_where_nova_has_cpus_for_it(self):
        self.send(one=CALM, two=BUSY)
        for _ in range(2):
            self.assertEqual('one', self.host_of(self.boot(self.pinned)))
        # Both nodes' dedicated CPUs are gone there: Nova's filter leaves the other host only.
        self.assertEqual('two', self.host_of(self.boot(self.pinned)))
        self.assertEqual('one', self.host_of(self.boot(self.plain)))

    def test_a_guest_of_two_nodes_follows_the_pressure(self):
        self.send(one=BUSY, two=CALM)
        self.assertEqual('two', self.host_of(self.boot(self.two_nodes)))

    def test_a_pinned_guest_moves(self):
        self.send(one=CALM, two=BUSY)
        server = self.boot(self.pinned)
        self._live_migrate(server)
        self.assertEqual('two', self.host_of(server))

    def test_many_of_each(self):
        self.send(one=CALM, two=CALM)
        pinned = self.spread(self.boot_many(self.pinned, 4))
        self.assertEqual({'one': 2, 'two': 2}, pinned)
        self._run_periodics()
        self.assertEqual({'one': 4, 'two': 4}, self.spread(self.boot_many(self.plain, 8)))
