# SPDX-License-Identifier: Apache-2.0
"""Moving takes turns with a lease; the agent reports when it is another process's turn."""

import errno
import logging
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc.exceptions import StateError, StateLocked
from nova_numa_pmc.host import files
from nova_numa_pmc.state import move_lock

LOG = logging.getLogger('nova_numa_pmc.state.move_lock')
LEASE_NS = int(move_lock.LEASE_S * 1e9)
#: A process that takes the turn, says so, and takes the next step of its moves when told how much
#: time has passed [ns].
HOLDER = """
import sys
from nova_numa_pmc.host import files
from nova_numa_pmc.state import move_lock

passed_ns = 0
turn = move_lock.MoveLock(sys.argv[1], 'apply', lambda: files.boottime_ns() + passed_ns)
turn.take()
print('taken', flush=True)
passed_ns = int(sys.stdin.readline())
try:
    turn.renew()
    print('goes on', flush=True)
except move_lock.TurnLost as error:
    print(error, flush=True)
turn.release()
"""


class MoveLockCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = os.path.join(directory.name, 'state')
        self.now_ns = files.boottime_ns()

    def lock(self, holder='apply'):
        lock = move_lock.MoveLock(self.directory, holder, clock=lambda: self.now_ns)
        self.addCleanup(lock.release)
        return lock

    def holders_lapsed(self):
        with mock.patch.object(files, 'boottime_ns', lambda: self.now_ns):
            return [turn.holder for turn in move_lock.read_lapsed(self.directory)]


class MoveLockTest(MoveLockCase):
    def test_one_process_has_the_turn_until_it_ends_it(self):
        first, second = self.lock(), self.lock('undo')
        first.take()
        first.take()  # still held
        with self.assertRaisesRegex(
            StateLocked, r'^apply \(process %d\) is moving guests' % os.getpid()
        ):
            second.take()
        first.release()
        first.release()
        second.take()
        with self.assertRaisesRegex(StateLocked, '^undo '):
            first.take()

    def test_turns_that_cannot_be_read_are_nobody_s(self):
        for content in (
            b'',
            b'\xff',
            b'{"last": 1}',
            b'{"last": {"holder": "a\\u001b[2J"}}',
            b'[',
        ):
            self.lock().take()
            with open(os.path.join(self.directory, move_lock.FILE), 'wb') as file:
                file.write(content)
            self.assertEqual((), move_lock.read_lapsed(self.directory))
            with self.lock('undo'):
                pass

    def test_a_turn_is_over_once_its_lease_has_expired(self):
        suspended, other = self.lock(), self.lock('undo')
        suspended.take()
        suspended.renew(['a'])
        self.assertEqual({'a'}, other.guests_of_others())
        self.assertEqual(set(), suspended.guests_of_others())
        self.now_ns += LEASE_NS
        self.assertEqual(set(), other.guests_of_others())
        other.take()
        for _ in range(2):
            with self.assertRaisesRegex(move_lock.TurnLost, '^the turn of apply .* expired'):
                suspended.renew(['a'])
        suspended.release()
        with self.assertRaisesRegex(StateLocked, '^undo '):
            self.lock().take()

    def test_a_turn_goes_on_for_as_long_as_it_is_renewed(self):
        mover, other = self.lock(), self.lock('undo')
        mover.take()
        for _ in range(10):
            self.now_ns += LEASE_NS - 1
            mover.renew()
            with self.assertRaises(StateLocked):
                other.take()

    def test_a_turn_that_cannot_be_renewed_goes_on_until_its_lease_expires(self):
        mover = self.lock()
        mover.take()
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.now_ns += LEASE_NS // 2
        with mock.patch.object(files, 'replace_file', side_effect=full):
            mover.renew()
        self.now_ns += LEASE_NS // 2
        with self.assertRaises(move_lock.TurnLost):
            mover.renew()

    def test_a_turn_is_lost_even_if_the_process_that_took_it_has_ended_its_own(self):
        mover = self.lock()
        mover.take()
        self.now_ns += LEASE_NS
        with self.lock('undo'):
            pass
        self.now_ns -= 1  # when the mover looked at the clock, before it was suspended
        with self.assertRaisesRegex(move_lock.TurnLost, 'another process has moved guests'):
            mover.renew(['a'])

    def test_a_lease_of_an_earlier_boot_stops_nobody(self):
        self.lock().take()
        self.now_ns -= 3600 * 10**9
        self.lock('undo').take()

    def test_holders_whose_leases_expired_are_named_until_they_end(self):
        first, second, third = self.lock('first'), self.lock('second'), self.lock('third')
        first.take()
        self.assertEqual([], self.holders_lapsed())
        self.now_ns += LEASE_NS
        self.assertRegex(self.holders_lapsed()[0], '^first ')
        second.take()
        self.now_ns += LEASE_NS
        third.take()
        self.assertEqual(['first', 'second'], [name.split()[0] for name in self.holders_lapsed()])
        first.release()
        self.assertEqual(['second'], [name.split()[0] for name in self.holders_lapsed()])
        third.release()
        second.release()
        self.assertEqual([], self.holders_lapsed())


class ProcessesTest(MoveLockCase):
    def start(self):
        holder = subprocess.Popen(
            [sys.executable, '-c', HOLDER, self.directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(holder.__exit__, None, None, None)
        self.addCleanup(holder.kill)
        self.assertEqual('taken\n', holder.stdout.readline())
        self.now_ns = files.boottime_ns()
        return holder

    def test_the_turn_of_a_process_that_was_killed_is_over_at_once(self):
        holder = self.start()
        with self.assertRaisesRegex(StateLocked, 'apply .process %d. is moving' % holder.pid):
            self.lock().take()
        holder.kill()
        holder.wait()
        self.lock().take()
        self.assertEqual([], self.holders_lapsed())

    def test_a_process_that_is_stopped_for_longer_than_its_lease_does_not_go_on(self):
        holder, other = self.start(), self.lock('undo')
        holder.send_signal(signal.SIGSTOP)
        with self.assertRaises(StateLocked):
            other.take()
        self.now_ns = files.boottime_ns() + LEASE_NS
        for _ in range(2):  # also once another has the turn
            self.assertEqual(['apply (process %d)' % holder.pid], self.holders_lapsed())
            other.take()
        holder.send_signal(signal.SIGCONT)
        output, _ = holder.communicate('%d\n' % LEASE_NS)
        self.assertIn('expired while it did not go on', output)
        self.assertEqual([], self.holders_lapsed())
        with self.assertRaisesRegex(StateLocked, '^undo '):
            self.lock().take()


class AgentMoveLockTest(MoveLockCase):
    def agent_lock(self):
        lock = move_lock.AgentMoveLock(self.directory, LOG, clock=lambda: self.now_ns)
        self.addCleanup(lock.release)
        return lock

    def test_the_agent_waits_while_it_cannot_open_the_lock(self):
        self.lock().take()
        ours = self.agent_lock()
        full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with self.assertLogs(LOG, 'INFO') as logs:
            with mock.patch.object(os, 'open', side_effect=full):
                self.assertEqual([False, False], [ours.try_take() for _ in range(2)])
            self.now_ns += LEASE_NS
            self.assertTrue(ours.try_take())
        self.assertEqual(2, len(logs.output), logs.output)

    def test_turns_that_cannot_be_read_at_the_moment_are_not_nobody_s(self):
        self.lock().take()
        ours, undisturbed = self.agent_lock(), os.open

        def open_but_the_turns(path, *args, **kwargs):
            if path == move_lock.FILE:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return undisturbed(path, *args, **kwargs)

        with mock.patch.object(os, 'open', open_but_the_turns), self.assertLogs(LOG, 'INFO'):
            self.assertFalse(ours.try_take())
        self.now_ns += LEASE_NS
        with self.assertLogs(LOG, 'INFO'):
            self.assertTrue(ours.try_take())

    def test_the_agent_learns_once_that_another_process_had_the_turn(self):
        ours, command = self.agent_lock(), self.lock()

        def take_and_release(*locks):
            for lock in locks:
                lock.take()
                lock.release()
            return ours.pop_others_moved()

        self.assertTrue(take_and_release(ours))  # who had it before is unknown
        self.assertFalse(take_and_release(ours, ours))
        self.assertFalse(take_and_release(command))  # the agent has yet to take it
        self.assertTrue(take_and_release(ours, ours))
        self.assertFalse(take_and_release(ours))

    def test_an_agent_goes_on_without_turns_and_a_command_does_not(self):
        os.mkdir(self.directory)
        os.chmod(self.directory, 0o777)
        ours = self.agent_lock()
        self.assertTrue(ours.try_take())
        ours.renew(['a'])
        with self.assertRaises(StateError):
            self.lock().take()
