# SPDX-License-Identifier: Apache-2.0
"""The hook, the agent, the commands and the scheduler obey one table of guests to leave alone."""

import contextlib
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.cli.commands import explain
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import eligibility
from nova_numa_pmc.host import guests
from nova_numa_pmc.scheduler import request
from tests.cases.hook import HookCase
from tests.cases.rebalancing import RebalancingCase
from tests.fixtures import fake_host
from tests.fixtures.model_records import MIB
from tests.fixtures.nova_stand_ins import request_spec

ACTIONS = ('place', 'hold', 'fetch', 'move', 'proceed')
NOBODY = eligibility.Rule('nobody', lambda case: True, 'nobody may be touched', ACTIONS)


@contextlib.contextmanager
def excluding_everybody():
    """Make the first rule of the table one that applies to each guest."""
    rules, texts = (NOBODY, *eligibility.RULES), {NOBODY.code: NOBODY.text}
    with mock.patch.object(eligibility, 'RULES', rules), mock.patch.dict(eligibility.TEXTS, texts):
        yield


class HookTest(HookCase):
    def test_a_start_places_holds_and_promises_nothing(self):
        with excluding_everybody():
            tree = self.host.launch(1, bytes_by_node={0: 0, 1: 40 * MIB})
            for operation in ('start', 'started'):
                self.assertEqual(0, self.call(operation, 1))
        promise = self.promises()[fake_host.uuid_of(1)]
        self.assertEqual(((), model.FLOATING), (promise.cpu_nodes, promise.origin))
        self.assertEqual('', tree.held())

    def test_a_guest_excluded_between_start_and_started_is_not_held(self):
        tree = self.host.launch(1, bytes_by_node={0: 40 * MIB})
        self.call('start', 1)
        with excluding_everybody():
            self.call('started', 1)
        self.assertEqual('', tree.held())

    def test_explain_says_what_the_hook_does(self):
        guest = guests.parse(fake_host.domain_xml(1))
        options = host_options.read_under_root(self.root)
        with excluding_everybody():
            decision, _ = explain.decide_unrecorded(guest, options, self.root)
        self.assertEqual([], explain.possible_places(decision, options.placement_options))
        self.assertIn('nobody', decision.why)


class AgentTest(RebalancingCase):
    def test_nothing_is_written_or_moved(self):
        with excluding_everybody():
            agent = self.open_agent()
            for at_s in range(0, 60, 5):
                self.load_node_0(at_s)
                self.tick(agent, at_s)
                self.assertIsNone(agent.step())
        for number in self.NUMBERS:
            self.assertEqual('', self.tree(number).held())
            self.assertEqual((0,), self.promises()[fake_host.uuid_of(number)].cpu_nodes)


class SchedulerTest(HookCase):
    def test_hosts_are_not_compared_for_the_guest(self):
        with excluding_everybody():
            self.assertEqual(NOBODY.text, request.read(request_spec(4, 8192)).why_not_weighed)
