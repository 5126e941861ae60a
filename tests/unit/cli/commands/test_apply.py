# SPDX-License-Identifier: Apache-2.0
"""Test the commands plan, apply and undo on a host with an uneven load."""

import contextlib
import io
import os
import shutil
import signal

from nova_numa_pmc.cli import arguments
from nova_numa_pmc.cli.commands.undo import UndoError
from nova_numa_pmc.cli.context import UnknownGuest
from nova_numa_pmc.cmd import rebalance
from nova_numa_pmc.exceptions import StateLocked
from nova_numa_pmc.state import move_lock, overrides
from tests.cases.operating import OperatingCase
from tests.cases.rebalancing import PAGES
from tests.fixtures import fake_host
from tests.fixtures.services import add_process


class PlanTest(OperatingCase):
    def test_plan_shows_what_would_pay_and_writes_nothing(self):
        before = self.places()
        code, out, _ = self.run_command('plan')
        self.assertEqual(arguments.NOT_MADE, code)
        self.assertIn('moves from node 0 to node 1', out)
        self.assertIn('waiting for CPUs', out)
        self.assertNotIn('lost so far', out)
        self.assertEqual((before, []), (self.places(), self.history_entries()))

    def test_plan_moves_only_guests_that_are_named(self):
        _, answer = self.run_json('plan', fake_host.name_of(3))
        self.assertEqual([fake_host.name_of(3)], [move['name'] for move in answer['moves']])
        with self.assertRaisesRegex(UnknownGuest, 'instance-00000001'):
            self.run_command('plan', 'instance-0000000x')

    def test_a_widened_guest_goes_home_only_where_no_agent_runs(self):
        with self.locked() as draft:
            promise = draft.promises[fake_host.uuid_of(1)]
            draft.put(promise._replace(widened_nodes=(0, 1)))
        self.hold(1, '0-7')
        self.wait = lambda seconds: setattr(self, 'now_s', self.now_s + seconds)
        self.assertEqual(['narrow'], [move['kind'] for move in self.run_json('plan')[1]['moves']])
        add_process(self.root, 99, ('/usr/bin/python3', '/usr/local/bin/nova-numa-agent'))
        self.load_node_0(self.now_s)
        self.assertEqual([], self.run_json('plan')[1]['moves'])

    def test_a_guest_that_the_hook_never_saw_is_counted_and_nothing_written(self):
        shutil.rmtree(self.directory)
        self.run_command('plan')
        self.assertFalse(os.path.exists(self.directory))

    def test_a_guest_that_is_pinned_or_ignored_is_left(self):
        for number, what in ((1, 'pin'), (2, 'ignore')):
            overrides.put(
                overrides.Override(fake_host.uuid_of(number), what, fake_host.name_of(number)),
                self.root,
            )
        _, out, _ = self.run_command('plan')
        self.assertIn(fake_host.name_of(3) + ' moves', out)
        self.assertIn('(pinned by the operator): ' + fake_host.name_of(1), out)
        self.assertIn('(ignored by the operator): ' + fake_host.name_of(2), out)


class ApplyTest(OperatingCase):
    def test_apply_with_yes_moves_without_asking(self):
        code, out, _ = self.run_command('apply', '--yes')
        self.assertEqual((arguments.OK, 1), (code, len(self.moved())))
        self.assertIn('1 of 1 moves made', out)
        [entry] = self.history_entries()
        self.assertEqual(
            ('apply', 'done', PAGES * 4096), (entry.mover, entry.result, entry.moved_bytes)
        )
        self.assertIn('waiting for CPUs', entry.why)

    def test_apply_moves_only_after_a_yes(self):
        self.assertEqual(
            arguments.NOT_MADE, self.run_command('apply', on_terminal=True, answers=['n'])[0]
        )
        self.assertEqual([], self.moved())
        self.assertEqual(
            arguments.OK, self.run_command('apply', on_terminal=True, answers=['y'])[0]
        )
        self.assertEqual((1, 2), (len(self.moved()), len(self.asked)))

    def test_apply_without_a_terminal_demands_yes_before_it_measures(self):
        for more in ([], ['--json']):
            code, _, err = self.run_command('apply', *more, on_terminal=bool(more))
            self.assertEqual(arguments.USAGE, code)
            self.assertIn('--yes', err)
        self.assertEqual(0, self.now_s)  # reported before anything is measured

    def test_a_signal_takes_back_the_move_in_progress(self):
        self.signals = [(1, signal.SIGTERM)]
        code, out, _ = self.run_command('apply', '--yes')
        self.assertEqual((arguments.PROBLEM, []), (code, self.moved()))
        self.assertIn('ended by signal 15', out)
        self.assertEqual(['taken_back'], [entry.result for entry in self.history_entries()])

    def test_apply_beside_another_command_moves_nothing(self):
        with move_lock.MoveLock(self.directory, 'nova-numa-rebalance undo') as other:
            other.take()
            with self.assertRaisesRegex(
                StateLocked, 'rebalance undo .* is moving guests: nothing was'
            ):
                self.run_command('apply', '--yes', '--wait', '0.1')
        self.assertEqual([], self.moved())
        self.assertEqual(arguments.OK, self.run_command('apply', '--yes', '--wait', '0.1')[0])

    def test_a_guest_that_another_has_moved_meanwhile_is_not_moved_again(self):
        def answer(prompt):
            self.answer = lambda prompt: 'y'
            self.run_command('apply', '--yes')
            return 'y'

        self.answer = answer
        code, out, _ = self.run_command('apply', on_terminal=True)
        self.assertEqual((arguments.PROBLEM, 1), (code, len(self.moved())))
        self.assertIn('not made: the guest has moved', out)
        self.assertEqual(['done'], [entry.result for entry in self.history_entries()])

    def test_a_move_that_no_longer_pays_when_its_turn_comes_is_not_made(self):
        def answer(prompt):
            asked_s, load = self.now_s, self.load_node_0
            # From now on, the guests want a twentieth of what they did.
            self.load_node_0 = lambda at_s: load(asked_s + (at_s - asked_s) / 20)
            return 'y'

        self.answer = answer
        code, out, _ = self.run_command('apply', on_terminal=True)
        self.assertEqual((arguments.PROBLEM, [], []), (code, self.moved(), self.history_entries()))
        self.assertIn('0 of 1 moves made', out)
        self.assertIn(': not made: it no longer pays: it would gain ', out)


class UndoTest(OperatingCase):
    def test_undo_of_an_undo_moves_there_again(self):
        self.run_command('apply', '--yes')
        there = self.places()
        code, out, _ = self.run_command('undo', '--yes')
        self.assertEqual((arguments.OK, []), (code, self.moved()))
        self.assertIn('as before move %s' % self.history_entries()[0].id, out)
        self.assertEqual(arguments.OK, self.run_command('undo', '--yes')[0])
        self.assertEqual(there, self.places())
        self.assertEqual(
            ['apply', 'undo', 'undo'], [entry.mover for entry in self.history_entries()]
        )

    def test_undo_moves_only_after_a_yes(self):
        with self.assertRaisesRegex(UndoError, 'nothing to undo'):
            self.run_command('undo', '--yes')
        self.run_command('apply', '--yes')
        self.assertEqual(arguments.USAGE, self.run_command('undo')[0])
        self.assertEqual(
            arguments.NOT_MADE, self.run_command('undo', on_terminal=True, answers=[''])[0]
        )
        self.assertEqual(1, len(self.moved()))


class UsageTest(OperatingCase):
    def test_wrong_usage_exits_with_its_code(self):
        for argv in (
            ['--no-such'],
            ['no-such'],
            ['plan', '--interval', 'x'],
            ['pin'],
            ['history', '--last', '0'],
            ['pause', '--reason', 'a\nb'],
        ):
            with (
                self.subTest(argv),
                self.assertRaises(SystemExit) as ended,
                contextlib.redirect_stderr(io.StringIO()),
            ):
                rebalance.main(argv)
            self.assertEqual(arguments.USAGE, ended.exception.code)
