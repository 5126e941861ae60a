# SPDX-License-Identifier: Apache-2.0
"""Test counters with software events of the kernel that runs the tests."""

import fcntl
import os
import struct
import subprocess
import sys
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc import exceptions
from nova_numa_pmc.core.rates import CounterReading
from nova_numa_pmc.host.perf import counters, events, perf_event
from tests.cases.counting import CountingCase
from tests.fixtures import fake_pmus
from tests.fixtures.software_events import software_event
from tests.fixtures.working_child import touch

FAULTS = events.Event('faults', 'page-faults', 'software', 1, 2)
SWITCHES = events.Event('switches', 'context-switches', 'software', 1, 3)
CLOCK = events.Event('clock', 'cpu-clock', 'software', 1, 0)
#: include/uapi/linux/perf_event.h: PERF_EVENT_IOC_DISABLE, PERF_IOC_FLAG_GROUP
DISABLE, OF_GROUP = 0x2401, 1
ABSENT = events.Event('absent', 'absent', 'software', 1, 0xFFF)
ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
)


def is_private(path):
    """Return whether only the owners can search a directory or one of its parents."""
    while os.stat(path).st_mode & 0o001:
        if path == '/':
            return False
        path = os.path.dirname(path)
    return True


class CountersCase(CountingCase):
    def setUp(self):
        super().setUp()
        self.owners = counters.OwnerCounters()
        self.addCleanup(self.owners.close)

    def sample(self, target=None, *chosen, idle_is_zero=True):
        """Return ({role: delta of one owner's target}, or None, and problems)."""
        wanted = {'o': {0: (target, chosen)} if chosen else {}}
        deltas, problems = self.owners.sample(wanted, idle_is_zero)
        return deltas.get('o'), problems


class TestThread(CountersCase):
    def test_page_faults_are_those_that_the_kernel_accounts(self):
        child = self.start_child(lambda: touch(3000))
        target = perf_event.thread(child.pid)
        faults, switches = int(child.field(7)), child.switches()
        self.assertEqual((None, ()), self.sample(target, FAULTS, SWITCHES))
        child.run()
        deltas, _ = self.sample(target, FAULTS, SWITCHES)
        self.assertEqual(int(child.field(7)) - faults, deltas['faults'].value)
        self.assertEqual(child.switches() - switches, deltas['switches'].value)
        self.assertGreaterEqual(deltas['faults'].value, 3000)

    def test_an_ended_thread_cannot_be_a_target(self):
        child = self.start_child(lambda: None)
        target = perf_event.thread(child.pid)
        child.end()
        self.assertIsNone(perf_event.thread(child.pid))
        for _ in range(2):
            self.assertEqual((None, ()), self.sample(target, FAULTS))

    def test_a_thread_id_used_again_is_not_counted_as_the_old_one(self):
        child = self.start_child(lambda: None)
        imposter = perf_event.thread(child.pid)._replace(start_ticks=1)
        for _ in range(2):
            self.assertEqual((None, ()), self.sample(imposter, FAULTS))


class TestCpu(CountersCase):
    def test_what_cannot_be_counted_is_none_beside_what_can(self):
        for _ in range(2):
            deltas, problems = self.sample(perf_event.on_cpu(0), CLOCK, ABSENT, FAULTS)
        self.assertIsNone(deltas['absent'])
        self.assertIsNotNone(deltas['clock'])
        self.assertIsNotNone(deltas['faults'])
        self.assertEqual(1, len(problems))

    def test_a_group_of_a_pmu_that_refuses_none_has_no_more_events_than_counters(self):
        event = FAULTS._replace(role='mem_traffic', pmu='amd_df')
        groups, missing = perf_event.open_groups((event,) * 10, perf_event.on_cpu(0))
        for group in groups:
            self.addCleanup(group.close)
        self.assertEqual(([4, 4, 2], ()), ([len(group.events) for group in groups], missing))

    def test_a_group_that_was_never_counted_is_opened_again_in_smaller_ones(self):
        chosen = tuple(software_event(str(at), at) for at in range(3))
        pmus = fake_pmus.FakePmus(lambda path, text: None, '')
        pmus.counters = 1
        with pmus.counting():
            known = []
            for _ in range(3):
                deltas, _ = self.sample(perf_event.on_cpu(0), *chosen, idle_is_zero=False)
                known.append(deltas and [delta is not None for delta in deltas.values()])
                pmus.run(5, {})
            self.owners.close()
        self.assertEqual([None, [False] * 3, [False] * 3], known)

    def test_a_counter_that_stopped_is_opened_again(self):
        # As if a CPU went offline and came back: counters whose time stands still.
        target = perf_event.on_cpu(0)
        self.sample(target, CLOCK, idle_is_zero=False)
        [opened] = self.owners._open.values()
        fcntl.ioctl(opened.groups[0].fds[0], DISABLE, OF_GROUP)
        is_known = []
        for _ in range(4):
            deltas, _ = self.sample(target, CLOCK, idle_is_zero=False)
            is_known.append(deltas['clock'] is not None)
        self.assertTrue(is_known[-1])
        self.assertFalse(is_known[1])

    def test_counters_of_targets_that_left_are_closed(self):
        before = len(os.listdir('/proc/self/fd'))
        self.sample(perf_event.on_cpu(0), CLOCK, FAULTS)
        self.assertEqual(before + 2, len(os.listdir('/proc/self/fd')))
        self.sample()
        self.assertEqual(before, len(os.listdir('/proc/self/fd')))


class TestRefusals(CountingCase):
    def run_python(self, code, **kwargs):
        code = (
            'import sys; sys.path.insert(0, %r)\n'
            % ROOT
            + 'from nova_numa_pmc.host.perf import counters, events, perf_event\n'
            'CLOCK = events.Event("clock", "cpu-clock", "software", 1, 0)\n' + code
        )
        return subprocess.run(
            [sys.executable, '-c', code],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            **kwargs,
        ).stdout

    COUNT = (
        'owners = counters.OwnerCounters()\n'
        'def sample():\n'
        '    wanted = {n: {0: (perf_event.on_cpu(0), (CLOCK,))} for n in range(20)}\n'
        '    return owners.sample(wanted, True)\n'
    )

    def test_the_limit_of_descriptors_is_raised(self):
        output = self.run_python(
            'import resource\n'
            'resource.setrlimit(resource.RLIMIT_NOFILE, (8, 64))\n' + self.COUNT + 'sample()\n'
            'deltas, problems = sample()\n'
            'print(problems, len(deltas), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n'
        )
        self.assertEqual('() 20 64\n', output)

    def test_descriptors_that_run_out_for_good_are_reported(self):
        output = self.run_python(
            'import resource\n'
            'resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\n' + self.COUNT + 'sample()\n'
            'deltas, [problem] = sample()\n'
            'print(problem, 5 < len(deltas) < 14)\n'
        )
        self.assertIn('LimitNOFILE', output)
        self.assertIn('True', output)

    def test_a_missing_capability_is_reported_with_the_remedy(self):
        if os.geteuid() or (perf_event.read_paranoid() or 0) < 1:
            self.skipTest('needs root, and a kernel that refuses others')
        if is_private(os.path.dirname(os.__file__)):
            self.skipTest("the interpreter's library is in a private home")
        output = self.run_python(
            'import os\n'
            'os.setgroups([]); os.setgid(65534); os.setuid(65534)\n' + self.COUNT + 'try:\n'
            '    sample()\n'
            'except Exception as error:\n'
            '    print(type(error).__name__, error)\n'
        )
        self.assertIn('CAP_PERFMON', output)


class TestAttr(unittest.TestCase):
    def test_attributes_of_an_event_do_not_exclude_guests(self):
        attr = perf_event.pack_attr(CLOCK._replace(type=4, config=0x1D3, config1=0x730004477))
        self.assertEqual(112, len(attr))
        kind, size, config = struct.unpack_from('=IIQ', attr)
        self.assertEqual((4, 112, 0x1D3), (kind, size, config))
        (flags,) = struct.unpack_from('=Q', attr, 40)
        self.assertEqual(0, flags)  # exclude_guest is bit 20
        self.assertEqual(0x730004477, struct.unpack_from('=Q', attr, 56)[0])

    def test_an_event_without_a_type_is_unsupported(self):
        with self.assertRaises(exceptions.CounterUnsupported):
            perf_event.open_event(CLOCK._replace(type=None), perf_event.on_cpu(0))


class TestParseGroup(unittest.TestCase):
    def data(self, *words):
        return struct.pack('=%dQ' % len(words), *words)

    def test_garbage_for_a_group_gives_no_reading(self):
        for data in (
            b'',
            b'\0' * 8,
            b'x' * 33,
            self.data(1, 8, 7),
            self.data(9, 9, 8, 30),
            self.data(1, 8, 9, 30),
            self.data(2, 9, 8, 30, 40),
        ):
            self.assertEqual((None,), perf_event.parse_group(data, 1))

    @given(st.binary(max_size=80) | st.binary(min_size=40, max_size=40))
    def test_parsing_any_bytes_gives_one_reading_for_each_event(self, data):
        counts = perf_event.parse_group(data, 2)
        self.assertEqual(2, len(counts))

    def test_a_group_is_parsed_in_the_order_of_opening(self):
        self.assertEqual(
            (CounterReading(30, 9, 8), CounterReading(40, 9, 8)),
            perf_event.parse_group(self.data(2, 9, 8, 30, 40), 2),
        )
