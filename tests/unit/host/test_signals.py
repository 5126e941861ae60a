# SPDX-License-Identifier: Apache-2.0
"""Signals arrive while a process waits for them, and at no other time."""

import os
import signal
import threading
import unittest

from nova_numa_pmc.host import process


class SignalsTest(unittest.TestCase):
    def test_signals_are_kept_until_they_are_waited_for(self):
        with process.blocked() as wait:
            # Sent to this thread: it would end another thread, of another test.
            signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
            self.assertEqual(signal.SIGHUP, wait(0))
            self.assertIsNone(wait(-1))
        self.assertNotIn(signal.SIGHUP, signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    def test_a_descriptor_ends_the_wait_after_pending_signals(self):
        here, there = os.pipe()
        with process.blocked() as wait:
            wait.watch(here)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
            os.write(there, b'.')
            self.assertEqual({signal.SIGTERM, signal.SIGHUP}, {wait(60), wait(60)})
            self.assertIsNone(wait(60))
            os.read(here, 1)
            self.assertIsNone(wait(0))
        os.close(here)
        os.close(there)

    def test_handlers_of_signals_are_restored_afterwards(self):
        handler = signal.getsignal(signal.SIGTERM)
        with process.blocked():
            self.assertIsNot(handler, signal.getsignal(signal.SIGTERM))
        self.assertIs(handler, signal.getsignal(signal.SIGTERM))
        self.assertEqual(-1, signal.set_wakeup_fd(-1))
