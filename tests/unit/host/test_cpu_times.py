# SPDX-License-Identifier: Apache-2.0
"""The time for which CPUs were busy is read from /proc/stat, or is unknown."""

import tempfile
import unittest

from nova_numa_pmc.host import guest_use
from tests.fixtures import sysfs

STAT = """\
cpu  1399406 95283 135585 1014532 6065 0 2297 2667 0 0
cpu0 100 20 3 500 60 7 8 900 50 1
cpu3 1 0 0 0 0 0 0 0 0 0
intr 16217312 0 0
"""


class CpuTimesTest(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as root:
            if text is not None:
                sysfs.write(root, 'proc/stat', text)
            return guest_use.read_cpus(root)

    def test_busy_time_is_not_idle_nor_waiting_for_io_nor_stolen(self):
        times = self.read(STAT)
        self.assertEqual({0: (100 + 20 + 3 + 7 + 8) * 10**7, 3: 10**7}, times.busy_ns)
        self.assertEqual({0: 900 * 10**7, 3: 0}, times.stolen_ns)

    def test_missing_or_malformed_cpu_times_are_unknown(self):
        for text in (
            None,
            '',
            'cpu0 1 2\n',
            'cpu0 1 2 3 4 5 6 -7\n',
            'cpux 1 2 3 4 5 6 7\n',
            STAT.replace('20', '٢', 1),
        ):
            with self.subTest(text=text):
                self.assertEqual(guest_use.CpuTimes(), self.read(text))

    def test_cores_between_two_readings_leave_out_cpus_that_changed(self):
        before, after = {0: 10, 1: 20, 2: 30}, {0: 20, 1: 19, 3: 40}
        # A CPU that came online, one that went offline, and one whose time went backwards.
        self.assertEqual({0: 2.0}, guest_use.cores_between(before, after, 5))
        for before, after, elapsed_ns in (
            (None, {0: 1}, 5),
            ({0: 1}, None, 5),
            ({0: 1}, {0: 1}, 0),
        ):
            self.assertEqual({}, guest_use.cores_between(before, after, elapsed_ns))
