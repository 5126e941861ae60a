# SPDX-License-Identifier: Apache-2.0
"""The memory probes do what they claim; the speed of this machine's memory is not tested."""

import contextlib
import errno
import os
import threading
import unittest
from unittest import mock

from hypothesis import given, strategies as st

from nova_numa_pmc.core.pressure import LINE_BYTES
from nova_numa_pmc.exceptions import CalibrationError
from nova_numa_pmc.host.calibration import caches, memory_probe
from nova_numa_pmc.model import MIB
from tests.cases.root import RootCase

CPU = min(os.sched_getaffinity(0))


class ChainTest(unittest.TestCase):
    @given(st.integers(1, 3000), st.sampled_from([64, 128, 1024, 2048]))
    def test_each_line_of_the_memory_is_visited_once(self, lines, stride):
        offsets = memory_probe.chain_offsets(lines * stride, lines)
        self.assertEqual(list(range(lines)), sorted(offset // stride for offset in offsets))
        self.assertEqual({0}, {offset % LINE_BYTES for offset in offsets})

    def test_neighbouring_lines_do_not_follow_each_other(self):
        offsets = memory_probe.chain_offsets(256 * MIB, 1 << 17)
        near = sum(abs(a - b) < 8192 for a, b in zip(offsets, offsets[1:]))
        self.assertLess(near, len(offsets) / 100)

    def test_the_chain_leads_through_all_of_its_lines_in_random_order(self):
        with contextlib.closing(
            memory_probe.PointerChain(None, 4 * MIB, 2 * MIB, lines=2048)
        ) as chain:
            visited, address = [], chain._first
            with chain._memory.words() as words:
                while address:
                    visited.append(address - chain._memory.address)
                    address = words[visited[-1] // 8 + 2]
            self.assertEqual(memory_probe.chain_offsets(4 * MIB, 2048), visited)
            self.assertEqual(2048, chain.lines)
            self.assertGreater(chain.latency_ns(CPU, passes=3), 0)


class MemoryTest(unittest.TestCase):
    def test_memory_is_on_the_node_asked_for_or_refused(self):
        try:
            memory_probe.Memory(2 * MIB, 0).close()
        except CalibrationError as error:
            self.assertIn('mbind', str(error))  # A sandbox without it.
        with self.assertRaises(CalibrationError):
            memory_probe.Memory(2 * MIB, 1000)

    def test_read_bandwidth_of_this_machine_is_measured(self):
        rate = memory_probe.read_bytes_per_sec([CPU], None, 2 * MIB, runs=1, run_s=0.001)
        self.assertGreater(rate, 0)


class CpusTest(unittest.TestCase):
    def test_a_cpu_out_of_reach_is_refused(self):
        with self.assertRaisesRegex(CalibrationError, 'CPU 9999'):
            memory_probe.read_bytes_per_sec([CPU, 9999], None, 2 * MIB, runs=1, run_s=0.001)

    def test_a_cpu_outside_the_affinity_of_this_process_is_used(self):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            self.skipTest('this process may use only one CPU')
        self.addCleanup(os.sched_setaffinity, 0, cpus)
        os.sched_setaffinity(0, cpus[:1])
        used: list[set[int]] = []
        memory_probe.run_on_cpus(cpus[1:2], [lambda: used.append(os.sched_getaffinity(0))])
        self.assertEqual([{cpus[1]}], used)
        self.assertEqual({cpus[0]}, os.sched_getaffinity(0))

    def test_an_error_in_a_measuring_thread_is_raised(self):
        def fail():
            raise ValueError('here')

        with self.assertRaisesRegex(ValueError, 'here'):
            memory_probe.run_on_cpus([CPU], [fail])


class TogetherTest(unittest.TestCase):
    """Two threads begin to measure at the same time."""

    def setUp(self):
        super().setUp()
        self.begun = []

    def assert_raised_in_time(self, error_class, text):
        raised = []

        def measure():
            try:
                memory_probe.read_bytes_per_sec([CPU, CPU], None, 2 * MIB, runs=1, run_s=0.001)
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=measure, name='measure', daemon=True)
        thread.start()
        thread.join(8)
        self.begun[0].join(1)
        self.assertEqual([False, False], [thread.is_alive(), self.begun[0].is_alive()])
        with self.assertRaisesRegex(error_class, text):
            raise raised[0]

    def is_second(self, thread):
        """Return whether a thread is the second of the two to begin."""
        if thread.name == 'measure' or thread in self.begun:
            return False
        self.begun.append(thread)
        return len(self.begun) == 2

    def patch_affinity(self, act):
        """Call ``act`` in the second thread before it goes to its CPU."""
        real_set = os.sched_setaffinity

        def set_affinity(pid, cpus):
            if self.is_second(threading.current_thread()):
                act()
            real_set(pid, cpus)

        return mock.patch.object(os, 'sched_setaffinity', set_affinity)

    def test_a_thread_does_not_wait_for_one_that_cannot_use_its_cpu(self):
        def fail():
            raise OSError(errno.EINVAL, 'offline')

        with self.patch_affinity(fail):
            self.assert_raised_in_time(OSError, 'offline')

    def test_a_thread_does_not_wait_for_one_that_cannot_be_started(self):
        real_start = threading.Thread.start

        def start(thread):
            if self.is_second(thread):
                raise RuntimeError('no thread is available')
            real_start(thread)

        with mock.patch.object(threading.Thread, 'start', start):
            self.assert_raised_in_time(RuntimeError, 'no thread')

    def test_a_thread_waits_for_the_other_for_a_limited_time(self):
        with mock.patch.object(memory_probe, '_START_TIMEOUT_S', 0.01):
            with self.patch_affinity(lambda: self.begun[0].join()):
                self.assert_raised_in_time(CalibrationError, 'another program occupies it')


class SizesTest(unittest.TestCase):
    def test_sizes_of_the_probe_follow_the_caches(self):
        small = memory_probe.probe_sizes(8 * MIB, 8 * MIB, 4)
        self.assertEqual((256 * MIB, 16 * MIB, 8 * MIB), small)
        self.assertEqual(272 * MIB, small.total_bytes(4))
        large = memory_probe.probe_sizes(32 * MIB, 512 * MIB, 8)
        self.assertEqual((256 * MIB, 64 * MIB, 256 * MIB), large)
        self.assertEqual(2048 * MIB, large.total_bytes(8))


class CachesTest(RootCase):
    def cache(self, cpu, index, level, size, shared):
        path = os.path.join(self.root, 'sys/devices/system/cpu/cpu%d/cache/index%d' % (cpu, index))
        os.makedirs(path)
        for name, text in (('level', level), ('size', size), ('shared_cpu_list', shared)):
            with open(os.path.join(path, name), 'w') as file:
                file.write(text + '\n')

    def test_the_last_level_is_found_and_distinct_caches_are_summed(self):
        for cpu, shared in ((0, '0-1'), (1, '0-1'), (2, '2')):
            self.cache(cpu, 0, '1', '32K', str(cpu))
            self.cache(cpu, 3, '3', '16384K', shared)
        self.assertEqual((16 * MIB, frozenset((0, 1))), caches.read_last_level(1, self.root))
        self.assertEqual(32 * MIB, caches.read_total_bytes((0, 1, 2), self.root))

    def test_a_missing_or_malformed_cache_is_unknown(self):
        self.assertIsNone(caches.read_last_level(0, self.root))
        self.assertEqual(0, caches.read_total_bytes((0, 1), self.root))
        for cpu, values in enumerate(
            (
                ('3', 'big', '0'),
                ('x', '8K', '1'),
                ('3', '8K', '9-1'),
                ('3', '', '3'),
                ('3', '8K', '7'),
            )
        ):
            self.cache(cpu, 3, *values)
            self.assertIsNone(caches.read_last_level(cpu, self.root))

    def test_the_last_level_cache_of_this_machine_has_its_cpu(self):
        cache = caches.read_last_level(CPU)
        if cache is not None:
            self.assertIn(CPU, cache[1])
