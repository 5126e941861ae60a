# SPDX-License-Identifier: Apache-2.0
"""The agent obeys the operator: it pauses, shares the move lock, and leaves guests alone."""

import os
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.cli import arguments
from nova_numa_pmc.conf import opts
from nova_numa_pmc.exceptions import StateLocked
from nova_numa_pmc.host import files
from nova_numa_pmc.state import move_lock, overrides, pause
from tests.cases.operating import OperatingCase
from tests.cases.rebalancing import LOG, RebalancingCase
from tests.fixtures import fake_host


class CommandedCase(RebalancingCase):
    def put_override(self, number, what):
        overrides.put(
            overrides.Override(fake_host.uuid_of(number), what, fake_host.name_of(number)),
            self.root,
        )

    def ticks(self, agent, count=8):
        """Tick and move for a while; return where the guests are then."""
        for at_s in range(0, 5 * count, 5):
            self.load_node_0(at_s)
            self.tick(agent, at_s)
            self.finish_move(agent)
        return self.places()

    def reset(self, number):
        """Reset a guest's cpuset, as a restart of libvirt may; return a function that reads it."""
        self.hold(number, '0-7')
        return self.tree(number).held


class PauseTest(CommandedCase):
    def test_a_pause_plans_nothing_and_holds_guests(self):
        pause.begin(self.root, 'firmware')
        cpus = self.reset(2)
        self.assertEqual([self.HOME] * 3, list(self.ticks(self.open_agent()).values()))
        self.assertEqual('0-3', cpus())
        self.assertIsNotNone(self.read_publication())

    def test_a_pause_in_the_middle_of_a_move_undoes_it(self):
        agent = self.open_agent()
        at_s = self.tick_until_moving(agent)
        pause.begin(self.root, 'firmware')
        with self.assertLogs(LOG, 'INFO') as logs:
            tick = self.tick(agent, at_s + 5)
        self.assertEqual('paused: firmware', str(tick.paused))
        self.assertIsNone(agent.step())
        self.assertEqual([self.HOME] * 3, list(self.places().values()))
        self.assertIn('paused: firmware', ' '.join(logs.output))


class MoveLockTest(CommandedCase):
    def test_guests_are_held_but_none_is_planned_for_while_a_command_has_the_turn(self):
        agent, command = self.open_agent(), move_lock.MoveLock(self.directory, 'apply')
        with command:
            cpus = self.reset(2)
            self.ticks(agent)
            self.assertEqual('0-3', cpus())
            self.assertEqual([self.HOME] * 3, list(self.places().values()))
        self.assertIn(self.AWAY, self.ticks(agent).values())

    def test_only_the_guest_that_a_command_is_moving_is_not_held(self):
        agent, command = self.open_agent(), move_lock.MoveLock(self.directory, 'apply')
        with command:
            command.renew([fake_host.uuid_of(2)])
            cpus = [self.reset(number) for number in self.NUMBERS]
            self.ticks(agent, 2)
            self.assertEqual(['0-3', '0-7', '0-3'], [held() for held in cpus])
        self.tick(agent, 10)
        self.assertEqual(['0-3'] * 3, [held() for held in cpus])

    def test_a_suspended_command_keeps_no_guest_from_being_held_and_later_none_from_moving(self):
        now_ns = files.boottime_ns()
        agent = self.open_agent()
        command = move_lock.MoveLock(self.directory, 'apply', clock=lambda: now_ns)
        now_ns -= int(1e9 * move_lock.LEASE_S)
        command.take()
        command.renew([fake_host.uuid_of(2)])
        cpus = self.reset(2)
        self.assertIn(self.AWAY, self.ticks(agent).values())
        self.assertNotEqual('0-7', cpus())
        now_ns = files.boottime_ns()
        with self.assertRaisesRegex(move_lock.TurnLost, 'apply .* expired'):
            command.renew()

    def test_an_agent_that_was_suspended_in_a_move_ends_it(self):
        agent = self.open_agent()
        at_s = self.tick_until_moving(agent)
        lapsed = files.boottime_ns() + int(2e9 * move_lock.LEASE_S)
        with (
            mock.patch.object(agent._move_lock, '_clock', lambda: lapsed),
            self.assertLogs(LOG, 'WARNING') as logs,
        ):
            self.tick(agent, at_s + 5)
            self.finish_move(agent)
        self.assertIn('expired while it did not go on: its moves end', ' '.join(logs.output))
        self.assertEqual([self.HOME] * 3, list(self.places().values()))

    def test_a_command_waits_while_the_agent_moves(self):
        agent, command = self.open_agent(), move_lock.MoveLock(self.directory, 'apply')
        self.tick_until_moving(agent)
        with self.assertRaisesRegex(StateLocked, 'nova-numa-agent'):
            command.take()
        self.finish_move(agent)
        with command:
            command.take()


class AfterCommandTest(OperatingCase):
    def test_no_move_is_planned_from_measurements_before_the_moves_of_a_command(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        code, _, _ = self.run_command('apply', '--yes', fake_host.name_of(3))
        self.assertEqual((arguments.OK, [3]), (code, self.moved()))
        self.now_s += 1
        self.load_node_0(self.now_s)
        [*_, guest] = self.tick(agent, self.now_s).sample.guests
        self.assertEqual((fake_host.name_of(3), 0), (guest.name, dict(guest.bytes_by_node)[0]))
        self.assertIsNone(agent.step())
        self.wait(5)
        self.tick(agent, self.now_s)
        self.assertIsNotNone(agent.step())


class OverridesTest(CommandedCase):
    def test_a_pinned_guest_is_held_and_another_one_moved(self):
        for number in (1, 2):
            self.put_override(number, model.PIN)
        cpus = self.reset(1)
        self.assertEqual({1: self.HOME, 2: self.HOME, 3: self.AWAY}, self.ticks(self.open_agent()))
        self.assertEqual('0-3', cpus())

    def test_a_guest_that_is_pinned_while_it_is_moved_goes_back(self):
        agent = self.open_agent()
        at_s = self.tick_until_moving(agent)
        for number in self.NUMBERS:
            self.put_override(number, model.PIN)
        self.tick(agent, at_s + 5)
        self.finish_move(agent)
        self.assertEqual([self.HOME] * 3, list(self.places().values()))

    def test_no_guest_is_moved_where_the_overrides_cannot_be_trusted(self):
        self.put_override(1, model.PIN)
        os.chmod(os.path.join(self.root, overrides.DIRECTORY, overrides.FILE), 0o666)
        with self.assertLogs(LOG, 'WARNING') as logs:
            self.ticks(self.open_agent(opts.AUTO))
        self.assertEqual([(0,)] * 3, [nodes for nodes, _, _ in self.places().values()])
        self.assertEqual(1, sum('users other than root' in text for text in logs.output))
