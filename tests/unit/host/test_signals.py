# SPDX-License-Identifier: Apache-2.0
"""Signals arrive while a process waits for them, and at no other time."""

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
