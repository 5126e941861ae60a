# SPDX-License-Identifier: Apache-2.0
"""Only one process at a time moves guests; the agent reports when it does not have the lock."""

import errno
import logging
import os
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc.exceptions import StateError, StateLocked
from nova_numa_pmc.state import move_lock

LOG = logging.getLogger('nova_numa_pmc.state.move_lock')


class MoveLockTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = os.path.join(directory.name, 'state')

    def lock(self, holder='apply'):
        lock = move_lock.MoveLock(self.directory, holder)
        self.addCleanup(lock.release)
        return lock

    def test_one_process_has_the_lock_until_it_ends(self):
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

    def test_a_holder_that_did_not_say_its_name_is_another_process(self):
        for text in (b'', b'\xff', b'a\x1b[2J'):
            first = self.lock()
            first.take()
            with open(os.path.join(self.directory, move_lock.LOCK), 'wb') as file:
                file.write(text)
            with self.assertRaisesRegex(StateLocked, '^another process is moving guests'):
                self.lock().take()
            first.release()

    def test_the_agent_logs_once_that_it_waits_and_once_that_it_goes_on(self):
        ours, command = move_lock.AgentMoveLock(self.directory, LOG), self.lock()
        self.addCleanup(ours.release)
        command.take()
        with self.assertLogs(LOG, 'INFO') as logs:
            self.assertEqual([False, False], [ours.take() for _ in range(2)])
            command.release()
            self.assertEqual([True, True], [ours.take() for _ in range(2)])
        self.assertEqual(2, len(logs.output), logs.output)
        with self.assertRaisesRegex(StateLocked, '^nova-numa-agent '):
            command.take()

    def test_the_agent_waits_while_it_cannot_open_the_lock(self):
        command = self.lock()
        command.take()
        ours = move_lock.AgentMoveLock(self.directory, LOG)
        self.addCleanup(ours.release)
        full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with self.assertLogs(LOG, 'INFO') as logs:
            with mock.patch.object(os, 'open', side_effect=full):
                self.assertEqual([False, False], [ours.take() for _ in range(2)])
            command.release()
            self.assertTrue(ours.take())
        self.assertEqual(2, len(logs.output), logs.output)

    def test_the_agent_learns_once_that_another_process_had_the_lock(self):
        ours, command = move_lock.AgentMoveLock(self.directory, LOG), self.lock()
        self.addCleanup(ours.release)

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

    def test_an_agent_goes_on_without_a_lock_and_a_command_does_not(self):
        os.mkdir(self.directory)
        os.chmod(self.directory, 0o777)
        self.assertTrue(move_lock.AgentMoveLock(self.directory, LOG).take())
        with self.assertRaises(StateError):
            self.lock().take()
