# SPDX-License-Identifier: Apache-2.0
import tempfile
import unittest

from hypothesis import given
from hypothesis import strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.host import cpu_times
from tests.fixtures import sysfs

STAT = '''\
cpu  1399406 95283 135585 1014532 6065 0 2297 2667 0 0
cpu0 100 20 3 500 60 7 8 900 50 1
cpu3 1 0 0 0 0 0 0 0 0 0
intr 16217312 0 0
'''
SCHEDSTAT = '''\
version 15
timestamp 4295671530
cpu0 0 0 0 0 0 0 11 22 33
domain0 00000000,0000000f 0 0
cpu3 0 0 0 0 0 0 44 55 66
'''


class CpuTimesTest(unittest.TestCase):

    def read(self, reader, path, text):
        with tempfile.TemporaryDirectory() as root:
            if text is not None:
                sysfs.write(root, path, text)
            return reader(root)

    def busy(self, text):
        return self.read(cpu_times.busy_ns, 'proc/stat', text)

    def waiting(self, text):
        return self.read(cpu_times.waiting_ns, 'proc/schedstat', text)

    def test_busy_is_neither_idle_nor_waiting_for_io_nor_stolen(self):
        self.assertEqual({0: (100 + 20 + 3 + 7 + 8) * 10**7, 3: 10**7}, self.busy(STAT))

    def test_waiting(self):
        self.assertEqual({0: 22, 3: 55}, self.waiting(SCHEDSTAT))

    def test_of_this_kernel(self):
        self.assertIn(0, cpu_times.busy_ns())

    def test_missing_or_malformed_is_unknown(self):
        for text in (None, '', 'cpu0 1 2\n', 'cpu0 1 2 3 4 5 6 -7\n', 'cpux 1 2 3 4 5 6 7\n'):
            with self.subTest(text=text):
                self.assertIsNone(self.busy(text))
        for text in (None, '', SCHEDSTAT.replace('15', 'x', 1), SCHEDSTAT.replace(' 33', '', 1),
                     SCHEDSTAT.replace('22', '٢', 1), SCHEDSTAT.replace('version 15', 'cpu')):
            with self.subTest(text=text):
                self.assertIsNone(self.waiting(text))

    @given(st.text(max_size=60), st.text(max_size=60))
    def test_garbage_does_not_crash(self, head, tail):
        for text in (head, STAT[:40] + head + tail, 'version 15\ncpu0 ' + head):
            for found in (self.busy(text.encode('utf-8', 'replace')),
                          self.waiting(text.encode('utf-8', 'replace'))):
                self.assertTrue(found is None or min(found.values()) >= 0)

    def test_by_node(self):
        nodes = [model.Node(0, frozenset((0, 1))), model.Node(1, frozenset((2, 3))),
                 model.Node(2, frozenset())]
        host = model.Topology(tuple(nodes), (), ())
        before, after = {0: 1, 1: 2, 2: 3, 3: 4}, {0: 11, 1: 22, 2: 33, 3: 44}
        self.assertEqual({0: 30, 1: 70, 2: 0}, cpu_times.by_node(before, after, host))
        # A CPU that came up meanwhile, one whose time went backwards, no reading.
        del before[1]
        after[3] = 3
        self.assertEqual({0: None, 1: None, 2: 0}, cpu_times.by_node(before, after, host))
        self.assertEqual({0: None, 1: None, 2: 0}, cpu_times.by_node(None, after, host))
