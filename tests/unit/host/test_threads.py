# SPDX-License-Identifier: Apache-2.0
"""A guest's threads, their times and their CPUs are read, or are unknown."""

import os

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.host import guest_use
from tests.cases.root import RootCase
from tests.fixtures import measured_host

GUEST = model.Guest('u', 'g', 2, 1, pid=50)


class ThreadsTest(RootCase):
    def setUp(self):
        super().setUp()
        self.host = measured_host.MeasuredHost(self.root)
        self.addCleanup(self.host.close)

    def read(self, tid, last=None):
        return guest_use.read_thread((50, tid), last, self.root)

    def test_threads_of_vcpus_are_found_by_status_file_name_or_all(self):
        self.assertEqual((7, 8), guest_use.find_vcpus(GUEST._replace(vcpu_tids=(7, 8)), self.root))
        self.assertEqual((), guest_use.find_vcpus(GUEST, self.root))
        self.host.set_thread_times(50, 50, 0, name='qemu-system-x86')
        self.host.set_thread_times(50, 51, 0, name='worker')
        self.assertEqual((50, 51), guest_use.find_vcpus(GUEST, self.root))
        self.host.set_thread_times(50, 53, 0, name='CPU 1/TCG')
        self.host.set_thread_times(50, 52, 0, name='CPU 0/TCG')
        self.assertEqual((52, 53), guest_use.find_vcpus(GUEST, self.root))

    def test_all_threads_are_those_of_the_process_and_of_the_emulators_group(self):
        for pid, tid in ((50, 50), (50, 51), (77, 77)):
            self.host.set_thread_times(pid, tid, 0)
        self.assertEqual(
            {(50, 50), (50, 51), (77, 77)}, guest_use.all_threads(50, (50, 77), self.root)
        )
        for pid in (49, None):
            self.assertEqual({(77, 77)}, guest_use.all_threads(pid, (77,), self.root))

    def test_a_thread_that_has_not_run_is_not_read_again(self):
        self.host.set_thread_times(50, 51, 5, start_ticks=10)
        first = self.read(51)
        os.unlink(os.path.join(self.root, 'proc/50/task/51/stat'))
        self.assertIs(first, self.read(51, first))
        self.host.set_thread_times(50, 51, 1, cpu=3, start_ticks=20)  # its id was used again
        self.assertEqual((10**9, 0, 3, 20), tuple(self.read(51, first)))
        self.assertIsNone(self.read(52))

    @given(st.binary(max_size=80), st.binary(max_size=200))
    def test_garbage_for_a_thread_gives_no_times(self, schedstat, stat):
        self.host.write('proc/50/task/60/schedstat', schedstat)
        self.host.write('proc/50/task/60/stat', stat)
        reading = self.read(60)
        self.assertTrue(reading is None or min(reading) >= 0)
