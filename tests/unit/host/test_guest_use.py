# SPDX-License-Identifier: Apache-2.0
"""Cores and memory that guests use are read by node, and forgotten when they end."""

import os
import tempfile
import unittest

from nova_numa_pmc.core.measurements import ThreadTimes
from nova_numa_pmc.host import guest_use, guests, topology
from tests.fixtures import domains, fake_host, measured_host

SECOND = measured_host.SECOND_NS
HOME = {0: 0, 1: 0, 2: 1, 3: 1}


class PassedTest(unittest.TestCase):
    def test_cores_are_counted_on_the_nodes_where_threads_ran(self):
        before = {1: ThreadTimes(0, 0, 0, 9), 2: ThreadTimes(SECOND, 0, 3, 9)}
        after = {1: ThreadTimes(2 * SECOND, SECOND, 1, 9), 2: ThreadTimes(2 * SECOND, 0, 2, 9)}
        self.assertEqual(
            (1.5, 0.5, {0: 1.0, 1: 0.5}, {0: 0.25, 1: 0.25}),
            guest_use.use_between(before, after, HOME, 2 * SECOND),
        )

    def test_threads_that_cannot_be_compared_are_left_out(self):
        old, new = ThreadTimes(SECOND, 5, 0, 9), ThreadTimes(2 * SECOND, 5, 0, 9)
        for before, after in (
            ({}, {1: new}),
            ({1: old}, {}),
            ({1: new}, {1: old}),
            ({1: old}, {1: new._replace(start_ticks=10)}),
            ({1: old}, {1: new._replace(wait_ns=4)}),
        ):
            with self.subTest(before=before, after=after):
                self.assertEqual(
                    guest_use.ThreadUse(), guest_use.use_between(before, after, HOME, SECOND)
                )
        self.assertEqual(guest_use.ThreadUse(), guest_use.use_between({1: old}, {1: new}, HOME, 0))


class GuestsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.host = measured_host.MeasuredHost(directory.name)
        self.addCleanup(self.host.close)
        self.topology = topology.read(directory.name)
        self.status_files = guests.StatusFiles(directory.name)
        self.guests = guest_use.GuestUseReader(directory.name)

    def read(self, at_s, elapsed_s=5):
        running, problems = self.status_files.read()
        return (
            self.guests.read(running, self.topology, at_s * SECOND, elapsed_s * SECOND),
            problems,
        )

    def test_the_use_of_guests_is_known_from_the_second_tick(self):
        for number in (2, 1):
            self.host.launch(number, {0: 3 << 20, 1: 1 << 20})
            self.host.set_thread_times(4000 + number, 5000 + number, 0, cpu=0)
        uses, problems = self.read(0, 0)
        self.assertEqual([], problems)
        self.assertEqual(
            [fake_host.name_of(1), fake_host.name_of(2)], [one.guest.name for one in uses]
        )
        self.assertEqual(
            (None, {}, {0: 3 << 20, 1: 1 << 20}),
            (uses[0].cores, uses[0].cores_by_node, uses[0].bytes_by_node),
        )
        self.host.set_thread_times(4001, 5001, 5, cpu=4)
        uses, _ = self.read(5)
        self.assertEqual([1.0, 0.0], [one.cores for one in uses])
        self.assertEqual({0: 0.5, 1: 0.5}, uses[0].cores_by_node)

    def test_memory_of_a_guest_on_v1_is_read_and_kept_for_a_while(self):
        tree = self.host.launch(1, {0: 3 << 20, 1: 1 << 20}, version=1)
        self.assertEqual({0: 3 << 20, 1: 1 << 20}, self.read(0)[0][0].bytes_by_node)
        tree.set_bytes({0: 1 << 20, 1: 3 << 20})
        self.assertEqual({0: 3 << 20, 1: 1 << 20}, self.read(5)[0][0].bytes_by_node)
        self.assertEqual({0: 1 << 20, 1: 3 << 20}, self.read(15)[0][0].bytes_by_node)

    def test_huge_pages_count_and_without_them_nothing_is_known(self):
        xml = fake_host.domain_xml(1, extra=domains.HUGE_PAGES_2M)
        self.host.launch(1, {0: 5, 1: 0}, xml=xml)
        self.assertEqual({}, self.read(0)[0][0].bytes_by_node)
        self.host.write(
            'proc/4001/numa_maps',
            '7f12 bind:0 file=/ram huge dirty=6 N1=4 kernelpagesize_kB=2048\n',
        )
        self.assertEqual({0: 5, 1: 8 << 20}, self.read(20)[0][0].bytes_by_node)

    def test_memory_that_is_unknown_is_read_again_later(self):
        tree = self.host.launch(1)
        os.unlink(os.path.join(tree.memory, 'memory.numa_stat'))
        self.assertEqual({}, self.read(0)[0][0].bytes_by_node)
        tree.set_bytes({0: 7, 1: 8})
        self.assertEqual({0: 7, 1: 8}, self.read(20)[0][0].bytes_by_node)
