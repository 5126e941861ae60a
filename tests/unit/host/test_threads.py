# SPDX-License-Identifier: Apache-2.0
"""A guest's threads, their times and their CPUs are read with a bounded number of open files."""

import os
import resource

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.host import run_times
from tests.cases.root import RootCase
from tests.fixtures import measured_host

GUEST = model.Guest('u', 'g', 2, 1, pid=50)


class ThreadsTest(RootCase):
    def setUp(self):
        super().setUp()
        self.host = measured_host.MeasuredHost(self.root)
        self.addCleanup(self.host.close)

    def test_threads_of_vcpus_are_found_by_status_file_name_or_all(self):
        self.assertEqual((7, 8), run_times.find_vcpus(GUEST._replace(vcpu_tids=(7, 8)), self.root))
        self.assertEqual((), run_times.find_vcpus(GUEST, self.root))
        self.host.set_thread_times(50, 50, 0, name='qemu-system-x86')
        self.host.set_thread_times(50, 51, 0, name='worker')
        self.assertEqual((50, 51), run_times.find_vcpus(GUEST, self.root))
        self.host.set_thread_times(50, 53, 0, name='CPU 1/TCG')
        self.host.set_thread_times(50, 52, 0, name='CPU 0/TCG')
        self.assertEqual((52, 53), run_times.find_vcpus(GUEST, self.root))

    def test_all_threads_are_those_of_the_process_and_of_the_emulators_group(self):
        for pid, tid in ((50, 50), (50, 51), (77, 77)):
            self.host.set_thread_times(pid, tid, 0)
        self.assertEqual(
            {(50, 50), (50, 51), (77, 77)}, run_times.all_threads(50, (50, 77), self.root)
        )
        self.assertEqual({(77, 77)}, run_times.all_threads(49, (77,), self.root))
        self.assertEqual({(77, 77)}, run_times.all_threads(None, (77,), self.root))

    def test_the_count_changes_with_the_threads(self):
        self.assertIsNone(run_times.task_link_count(50, self.root))
        self.assertIsNone(run_times.task_link_count(None, self.root))
        counts = set()
        for tid in (50, 51):
            self.host.set_thread_times(50, tid, 0)
            counts.add(run_times.task_link_count(50, self.root))
        self.assertEqual(2, len(counts))

    def test_open_files_follow_their_threads_and_are_closed(self):
        kept = run_times.ThreadReader(self.root)
        self.host.set_thread_times(50, 51, 1)
        descriptors = len(os.listdir('/proc/self/fd'))
        self.assertEqual({(50, 51)}, kept.read({(50, 51), (50, 52)}).keys())
        self.assertEqual(descriptors + 1, len(os.listdir('/proc/self/fd')))  # it has not run since
        self.host.set_thread_times(50, 51, 2)
        self.assertEqual(2 * measured_host.SECOND_NS, kept.read({(50, 51)})[50, 51].run_ns)
        self.assertEqual(descriptors + 2, len(os.listdir('/proc/self/fd')))
        kept.read(set())
        self.assertEqual(descriptors, len(os.listdir('/proc/self/fd')))
        kept.read({(50, 51)})
        kept.close()
        self.assertEqual(descriptors, len(os.listdir('/proc/self/fd')))

    def test_open_files_are_at_most_an_eighth_of_the_descriptors(self):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept = run_times.ThreadReader(self.root)
        self.addCleanup(kept.close)
        wanted = {(50, 51 + at) for at in range(20)}
        for pid, tid in wanted:
            self.host.set_thread_times(pid, tid, 1)
        descriptors = len(os.listdir('/proc/self/fd'))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, limit[1]))
        self.assertEqual(wanted, kept.read(wanted).keys())
        self.assertEqual(descriptors + 20, len(os.listdir('/proc/self/fd')))

    def test_a_thread_id_used_again_is_read_anew(self):
        kept = run_times.ThreadReader(self.root)
        self.addCleanup(kept.close)
        self.host.set_thread_times(50, 51, 5, start_ticks=10)
        kept.read({(50, 51)})
        for name in ('stat', 'schedstat'):
            self.host.write('proc/50/task/51/' + name, '')  # as after its end: ESRCH in procfs
            os.unlink(os.path.join(self.root, 'proc/50/task/51', name))
        self.host.set_thread_times(50, 51, 1, start_ticks=20)
        self.assertEqual(20, kept.read({(50, 51)})[50, 51].start_ticks)

    @given(st.binary(max_size=80), st.binary(max_size=200))
    def test_garbage_for_a_thread_gives_no_times(self, schedstat, stat):
        self.host.write('proc/50/task/60/schedstat', schedstat)
        self.host.write('proc/50/task/60/stat', stat)
        ran = measured_host.read_thread(50, 60, self.root)
        self.assertTrue(ran is None or min(ran) >= 0)
        self.host.set_thread_times(50, 60, 1)
        self.host.write('proc/50/task/60/schedstat', schedstat)
        ran = measured_host.read_thread(50, 60, self.root)
        if ran is not None:
            self.assertEqual([ran.run_ns, ran.wait_ns], [int(n) for n in schedstat.split()[:2]])
