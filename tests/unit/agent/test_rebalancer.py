# SPDX-License-Identifier: Apache-2.0
"""Guests are moved when the load has changed, and are always where the record says."""

import json
import os
import shutil

from nova_numa_pmc.checks import publication
from nova_numa_pmc.conf import opts
from nova_numa_pmc.core.rebalance.planner_state import PlannerState
from nova_numa_pmc.host import files
from nova_numa_pmc.host.page_moves.process_pages import PAGE_BYTES
from nova_numa_pmc.moves import situations
from nova_numa_pmc.state import overrides, pause
from tests.cases.agent import SECOND, START_NS
from tests.cases.rebalancing import LOG, PAGES, RebalancingCase
from tests.fixtures import fake_host, sysfs


def situation(agent, tick):
    """Return the rebalancer's input for an agent's tick."""
    return situations.situation(
        tick.sample,
        tick.host,
        tick.host_promises,
        tick.guests,
        agent._sampler,
        agent.options.host_options.placement_options,
        agent._root,
    )


class RebalancingTest(RebalancingCase):
    def test_no_guest_is_moved_where_rebalancing_is_off(self):
        agent = self.open_agent(opts.OFF)
        for at_s in (0, 5, 10, 15, 20):
            self.load_node_0(at_s)
            self.tick(agent, at_s)
            self.assertIsNone(agent.step())
        self.assertEqual([self.HOME] * 3, list(self.places().values()))

    def test_a_dry_run_goes_on_as_if_its_moves_were_made_and_moves_no_guest(self):
        agent = self.open_agent(opts.DRY_RUN)
        with self.assertLogs(LOG, 'INFO') as logs:
            for at_s in range(0, 300, 5):
                self.load_node_0(at_s)
                self.tick(agent, at_s)
                self.assertIsNone(agent.step())
        messages = [text for text in logs.output if 'dry run' in text]
        self.assertEqual(1, len(messages), messages)
        self.assertIn('moves from node 0 to node 1', messages[0])
        self.assertIn('waiting for CPUs', messages[0])
        self.assertEqual([self.HOME] * 3, list(self.places().values()))

    def test_a_widened_guest_stays_wide_over_a_restart_of_the_agent(self):
        for change, cpus, widened_nodes in (
            ({}, '0-7', (0, 1)),
            ({'rebalance': opts.OFF}, '0-3', ()),
        ):
            with self.subTest(change), self.locked() as draft:
                draft.put(draft.promises[fake_host.uuid_of(1)]._replace(widened_nodes=(0, 1)))
            self.hold(1, '0-7')
            self.tick(self.open_agent(**change), 5)
            self.assertEqual(cpus, self.tree(1).held())
            self.assertEqual(widened_nodes, self.promises()[fake_host.uuid_of(1)].widened_nodes)

    def test_a_widened_guest_that_the_operator_pins_goes_home(self):
        with self.locked() as draft:
            draft.put(draft.promises[fake_host.uuid_of(1)]._replace(widened_nodes=(0, 1)))
        self.hold(1, '0-7')
        overrides.put(
            overrides.Override(fake_host.uuid_of(1), 'pin', fake_host.name_of(1)), self.root
        )
        self.tick(self.open_agent(), 5)
        self.assertEqual((), self.promises()[fake_host.uuid_of(1)].widened_nodes)
        self.assertEqual('0-3', self.tree(1).held())

    def test_one_of_three_guests_goes_to_the_idle_node_with_its_memory(self):
        agent = self.open_agent()
        with self.assertLogs(LOG, 'INFO') as logs:
            self.tick_until_moving(agent)
            self.finish_move(agent)
        self.assertEqual(
            [self.AWAY, self.HOME, self.HOME], sorted(self.places().values(), reverse=True)
        )
        [message] = [text for text in logs.output if ': move: from node 0 to node 1' in text]
        self.assertIn('waiting for CPUs', message)

    def test_a_move_that_is_refused_costs_no_budget(self):
        agent = self.open_agent()
        at_s = 0
        while not agent._executor.busy:
            self.load_node_0(at_s)
            self.tick(agent, at_s)
            at_s += 5
        self.assertEqual(1, len(agent._rebalancer._planner_state.moved))
        for number in self.NUMBERS:
            self.begin_job(number, 'snapshot')
        with self.assertLogs('nova_numa_pmc', 'WARNING'):
            self.finish_move(agent)
        self.load_node_0(at_s)
        self.tick(agent, at_s)
        state = agent._rebalancer._planner_state
        self.assertEqual(((), None), (state.moved, state.trial))

    def planner_state(self, at_s):
        """Return the planner's state after a first tick of another agent."""
        agent = self.open_agent()
        self.tick(agent, at_s)
        return agent._rebalancer._planner_state

    def test_another_agent_goes_on_with_the_regret_of_the_last(self):
        agent = self.open_agent()
        at_s = self.tick_until_moving(agent)
        self.finish_move(agent)
        before = agent._rebalancer._planner_state
        self.assertNotEqual((), before.regrets)
        self.assertEqual(before, self.planner_state(at_s + 5))

    def test_regret_from_a_damaged_file_starts_from_zero_with_a_warning(self):
        boot_id = files.read_boot_id(self.root)
        for damage in ('{', '[]', json.dumps({'boot_id': boot_id, 'memory': {}})):
            self.host.write('run/nova-numa-pmc/rebalance-memory', damage)
            with self.subTest(damage), self.assertLogs(LOG, 'WARNING') as logs:
                self.assertEqual(PlannerState(), self.planner_state(0))
                self.assertIn('regret of moves starts from zero again', ' '.join(logs.output))

    def test_regret_of_another_boot_starts_from_zero_without_a_warning(self):
        saved = {'schema': '4.0', 'boot_id': 'x', 'memory': {}}
        self.host.write('run/nova-numa-pmc/rebalance-memory', json.dumps(saved))
        with self.foreseen() as texts:
            self.assertEqual(PlannerState(), self.planner_state(0))
        self.assertNotIn('regret of moves', ' '.join(texts))

    def test_a_move_that_cannot_be_recorded_is_neither_made_nor_counted(self):
        agent, path = self.open_agent(), os.path.join(self.directory, 'rebalance-memory')
        self.tick(agent, 0)
        os.mkdir(path)
        with self.assertLogs(LOG, 'WARNING') as logs:
            for at_s in range(5, 60, 5):
                self.load_node_0(at_s)
                self.tick(agent, at_s)
                self.assertIsNone(agent.step())
        self.assertIn('rebalancing failed: %s' % path, ' '.join(logs.output))
        self.assertEqual([self.HOME] * 3, list(self.places().values()))
        kept = agent._rebalancer._planner_state
        self.assertEqual(((), None), (kept.moved, kept.trial))
        os.rmdir(path)
        self.load_node_0(60)
        self.tick(agent, 60)
        self.assertEqual(1, len(agent._rebalancer._planner_state.moved))
        self.finish_move(agent)
        self.assertIn(self.AWAY, self.places().values())

    def test_moves_that_do_not_pay_stop_for_a_day_or_until_a_command(self):
        agent = self.open_agent()
        agent._rebalancer._planner_state = PlannerState(outcomes=(-1.0,) * 10)
        for at_s in (0, 5):
            self.load_node_0(at_s)
            self.tick(agent, at_s)
        self.finish_move(agent)
        agent._rebalancer._planner_state = PlannerState()
        before = self.places()
        for at_s in range(10, 40, 5):
            self.load_node_0(at_s)
            self.assertTrue(self.tick(agent, at_s).moves_stopped)
            self.assertIsNone(agent.step())
        self.assertEqual(before, self.places())
        stopped = pause.read(self.root)
        self.assertEqual('the last 10 moves cost more than they gained', stopped.reason)
        self.assertEqual(86400.0, stopped.until_s - stopped.since_s)
        [finding] = publication.check_paused(self.root)
        self.assertEqual('moves-stopped', finding.code)
        self.assertTrue(pause.end(self.root))
        self.load_node_0(40)
        self.assertFalse(self.tick(agent, 40).moves_stopped)

    def test_the_page_cache_is_no_room_for_a_move(self):
        agent = self.open_agent(opts.OFF)
        tick = self.tick(agent, 0)
        sysfs.write_zones(self.root, {0: 300 << 20}, cache_bytes=40 << 30)
        seen = situation(agent, tick)
        self.assertEqual(((0, 300 << 20),), seen.available_bytes)

    def test_a_guest_whose_promise_was_changed_meanwhile_is_not_touched(self):
        agent = self.open_agent()
        for tick_number in range(6):
            self.load_node_0(5 * tick_number)
            self.tick(agent, 5 * tick_number)
            if agent._executor.busy:
                break
        for number in self.NUMBERS:
            self.promise(number, 0, since_ns=7)
        with self.assertLogs(LOG, 'WARNING') as logs:
            self.finish_move(agent)
        self.assertIn('its promise has changed since', ' '.join(logs.output))
        self.assertEqual([self.HOME] * 3, list(self.places().values()))

    def test_a_guest_that_ends_while_it_is_moved_leaves_no_promise(self):
        agent = self.open_agent()
        self.tick_until_moving(agent)
        for number in self.NUMBERS:
            shutil.rmtree(self.host.path('proc/%d' % (4000 + number)))
            shutil.rmtree(self.tree(number).scope)
            self.host.end(number)
        self.finish_move(agent)
        self.tick(agent, 60)
        self.assertEqual({}, self.promises())


class AfterMovesTest(RebalancingCase):
    def tick_later(self, agent, at_s):
        """Tick; return (the tick, {name: bytes by node} of its sample)."""
        self.load_node_0(at_s)
        tick = self.tick(agent, at_s)
        return tick, {guest.name: dict(guest.bytes_by_node) for guest in tick.sample.guests}

    def test_no_move_is_planned_from_the_measurements_of_an_interval_with_a_move(self):
        agent = self.open_agent()
        at_s = self.tick_until_moving(agent)
        self.finish_move(agent)
        tick, bytes_by_node = self.tick_later(agent, at_s + 5)
        self.assertTrue(tick.guests_moved)
        [moved] = [number for number, place in self.places().items() if place == self.AWAY]
        self.assertEqual(
            {0: 0, 1: PAGES * PAGE_BYTES, 2: 0}, bytes_by_node[fake_host.name_of(moved)]
        )
        self.assertIsNone(agent.step())
        tick, _ = self.tick_later(agent, at_s + 10)
        self.assertFalse(tick.guests_moved)
        self.assertIsNotNone(agent.step())

    def test_no_move_is_planned_from_the_measurements_of_the_end_of_a_longer_move(self):
        agent = self.open_agent()
        at_s = self.tick_until_moving(agent)
        self.tick_later(agent, at_s + 5)
        self.finish_move(agent)
        tick, _ = self.tick_later(agent, at_s + 10)
        self.assertTrue(tick.guests_moved)
        self.assertIsNone(agent.step())


class JustPlacedTest(RebalancingCase):
    def test_a_guest_that_got_its_place_since_the_interval_began_is_left_there(self):
        agent = self.open_agent()
        for tick_number in range(6):
            for number in self.NUMBERS:  # all were placed during the last interval
                self.promise(number, 0, since_ns=START_NS + (5 * tick_number - 2) * SECOND)
            self.load_node_0(5 * tick_number)
            self.tick(agent, 5 * tick_number)
            self.assertIsNone(agent.step())
        at_s, waits_s = 25, None
        while waits_s is None:
            at_s += 5
            self.load_node_0(at_s)
            self.tick(agent, at_s)
            waits_s = agent.step()
        # The first interval to count began a minute after the last placement, which was at 23 s.
        self.assertEqual(90, at_s)


class OtherPoolTest(RebalancingCase):
    """Guests may use CPUs outside the floating pool."""

    def xml(self, number):
        return fake_host.domain_xml(number, cpuset='0-7')

    def setUp(self):
        super().setUp()
        self.host.write('etc/nova/nova.conf', '[compute]\ncpu_shared_set = 0-2,4-6\n')

    def test_guests_of_another_pool_are_left_alone_and_not_counted_in_this(self):
        agent = self.open_agent()
        for at_s in range(0, 60, 5):
            self.load_node_0(at_s)
            tick = self.tick(agent, at_s)
            self.assertIsNone(agent.step())
        before = situation(agent, tick)
        self.assertEqual(
            {('other_pool', None)},
            {(guest.why_fixed, guest.demand_cores) for guest in before.guests},
        )
        self.assertEqual((3, 3.0), (before.view.nodes[0].cpu_count, before.view.nodes[0].cores))

    def test_the_same_guests_in_the_floating_pool_are_moved(self):
        self.host.write('etc/nova/nova.conf', '[compute]\ncpu_shared_set = 0-7\n')
        self.tick_until_moving(self.open_agent())
