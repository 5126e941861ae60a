# SPDX-License-Identifier: Apache-2.0
"""What a tick of the agent leaves of guests' starts, a later tick does."""

from unittest import mock

from nova_numa_pmc import promises
from nova_numa_pmc.conf import agent as agent_conf
from nova_numa_pmc.core.rebalance.plan_records import RebalanceOptions
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host.page_moves.mappings import PAGE_BYTES
from tests.cases.agent import START_NS, AgentCase
from tests.cases.rebalancing import LOG, PAGES, RebalancingCase
from tests.fixtures import fake_host


class StartTest(AgentCase):
    def test_a_start_that_cannot_be_finished_is_logged_and_finished_later(self):
        agent = self.open_agent()
        tree = self.launch(1)
        self.promise(1, 1, started=False, since_ns=START_NS)
        self.tick(agent, 0)
        with (
            mock.patch.object(promises, 'replace_running', side_effect=StateError('full')),
            self.assertLogs(LOG, 'WARNING') as logs,
        ):
            self.assertEqual(0, self.tick(agent, 5).starts_taken_over)
        self.assertIn(
            'guest %s: its start could not be finished: full' % fake_host.name_of(1),
            ' '.join(logs.output),
        )
        self.assertEqual(('', False), (tree.held(), self.promises()[fake_host.uuid_of(1)].started))
        self.assertEqual(1, self.tick(agent, 10).starts_taken_over)
        self.assertEqual('4-7', tree.held())


class FetchTest(RebalancingCase):
    def test_memory_of_several_guests_is_fetched_within_the_limit_of_each_tick(self):
        guest_bytes = PAGES * PAGE_BYTES
        for limit_bytes, guests_fetched in (
            (1, [1, 2, 3]),  # more than the limit is fetched alone
            (2 * guest_bytes, [2, 3]),
            (3 * guest_bytes, [3]),
        ):
            with self.subTest(limit_bytes=limit_bytes):
                for number in self.NUMBERS:
                    memory = self.kernel.memories[4000 + number]
                    memory.nodes[:] = [1] * PAGES
                    memory.write_files()
                    self.promise(number, 0, since_ns=START_NS)
                agent = self.open_agent(
                    agent_conf.OFF, rebalance_options=RebalanceOptions(bytes_per_tick=limit_bytes)
                )
                for tick_number, count in enumerate(guests_fetched):
                    self.tick(agent, 5 * tick_number)
                    self.finish_move(agent)
                    self.assertEqual({('fetch', 'made'): count}, agent._executor.totals.ended)
