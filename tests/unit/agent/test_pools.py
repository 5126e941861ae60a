# SPDX-License-Identifier: Apache-2.0
"""The agent follows changes of the floating pool while guests run."""

from tests.cases.agent import LOG, AgentCase
from tests.fixtures import domains, fake_host

NOVA_CONF = '[compute]\ncpu_dedicated_set = %s\n'


class PoolTest(AgentCase):
    def setUp(self):
        super().setUp()
        self.tree = self.launch(1)
        self.promise(1, 0)

    def held(self):
        return {self.tree.read(directory, 'cpuset.cpus') for directory in self.tree.children}

    def held_to(self, cpus):
        """Hold the guest to these CPUs, as an earlier start has."""
        for directory in self.tree.children:
            self.tree.write(directory + '/cpuset.cpus', cpus + '\n')

    def test_floating_guests_are_held_to_the_cpus_left_for_them(self):
        agent = self.open_agent()
        self.held_to('0-3')
        self.tick(agent, 0)
        self.assertEqual({'0-3'}, self.held())
        self.host.write('etc/nova/nova.conf', NOVA_CONF % '2-3,6-7')
        with self.assertLogs(LOG, 'INFO') as logs:
            self.tick(agent, 61)
        self.assertEqual({'0-1'}, self.held())
        self.assertIn('floating pool: CPUs 0-1,4-5, from nova.conf', ' '.join(logs.output))
        self.assertEqual('nova.conf', self.read_publication().pool_source)

    def test_guests_held_before_the_shared_set_was_known_are_narrowed_to_it(self):
        self.held_to('0-3')
        self.host.write('etc/nova/nova.conf', NOVA_CONF % '2-3,6-7')
        self.tick(self.open_agent(), 0)
        self.assertEqual({'0-1'}, self.held())

    def test_a_dedicated_guest_that_comes_takes_its_cpus_along(self):
        agent = self.open_agent()
        self.held_to('0-3')
        self.tick(agent, 0)
        self.launch(
            2,
            xml=domains.domain(
                fake_host.name_of(2), fake_host.uuid_of(2), placement=domains.DEDICATED
            ),
        )
        self.tick(agent, 5)
        self.assertEqual(({'0-1,3'}, 'guests'), (self.held(), self.read_publication().pool_source))
        self.assertEqual(0, self.promises()[fake_host.uuid_of(2)].vcpus)
        self.host.end(2)
        self.tick(agent, 10)
        self.assertEqual({'0-3'}, self.held())
