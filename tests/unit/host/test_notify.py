# SPDX-License-Identifier: Apache-2.0
"""systemd is notified of the service's state if it listens, and its watchdog's time is read."""

import os
import socket
import tempfile
import unittest

from nova_numa_pmc.host import process


class NotifyTest(unittest.TestCase):
    def test_systemd_is_notified_by_path_or_abstract_name(self):
        with tempfile.TemporaryDirectory() as directory:
            for address in (os.path.join(directory, 'notify'), '@numa-pmc-%d' % os.getpid()):
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                    manager.bind(address.replace('@', '\0'))
                    self.assertTrue(
                        process.notify(
                            'READY=1', 'STATUS=x', environment={'NOTIFY_SOCKET': address}
                        )
                    )
                    self.assertEqual(b'READY=1\nSTATUS=x', manager.recv(100))

    def test_the_watchdogs_seconds_are_those_for_this_process(self):
        for environment, seconds in (
            ({}, None),
            ({'WATCHDOG_USEC': '90000000'}, 90.0),
            ({'WATCHDOG_USEC': '5', 'WATCHDOG_PID': '1'}, None),
            ({'WATCHDOG_USEC': '2000000', 'WATCHDOG_PID': str(os.getpid())}, 2.0),
            ({'WATCHDOG_USEC': '0'}, None),
            ({'WATCHDOG_USEC': 'x'}, None),
        ):
            self.assertEqual(seconds, process.watchdog_s(environment))
