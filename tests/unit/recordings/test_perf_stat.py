# SPDX-License-Identifier: Apache-2.0
"""Output of ``perf stat`` is read in each of its forms, and what gives no rates is refused."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.core.rates import CounterDelta
from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.recordings import perf_stat
from nova_numa_pmc.recordings.perf_stat import CPU_SCOPE, HOST_SCOPE, NODE_SCOPE, PerfStatLine

# As written by perf 6.1; other machines' hardware counts have the same format.
ALL = """\
# started on Sat Nov 21 15:16:09 2026

     0.303063611,630,,context-switches,606496604,100.00,1.039,K/sec
     0.303063611,606.51,msec,cpu-clock,606505947,100.00,2.022,CPUs utilized
     0.303063611,<not supported>,,cycles,0,100.00,,
     0.303063611,<not counted>,,r53100f,0,0.00,,
     0.303063611,12.50,MiB,uncore_imc_0/cas_count_read/,606505947,100.00,,
     0.303063611,,,,,,0.42,insn per cycle
     0.401864263,185,,context-switches,197588469,74.50,936.332,/sec
"""
BY_NODE = """\
     0.300361353,N0,2,752,,cpu/event=0xd3,umask=0x1/GH,35283347258,100.00,,
     0.300361353,N1,12,7,,instructions:u,187392388,75.00,,
"""
BY_CPU = """\
     0.300348384,CPU0,549,,context-switches,303115450,100.00,,
     0.300348384,CPU11,92,,context-switches,300527552,100.00,,
"""
BY_GROUP = """\
     0.300374733,CPU0,493,,context-switches,/,906937737182,100.00,,
     0.300374733,N1,4,142,,cycles,machine.slice/machine-qemu\\x2d1\\x2dx.scope,3688,100.00,,
     0.300374733,<not counted>,,cycles,a/b,0,0.00,,
"""


def rows(text):
    broken = []
    intervals = list(perf_stat.parse(text.splitlines(), lambda *line: broken.append(line)))
    return intervals, broken


class ParseTest(unittest.TestCase):
    def test_lines_for_the_whole_host_are_read(self):
        (first, second), broken = rows(ALL)
        self.assertEqual([], broken)
        self.assertEqual((0.303063611, 0.303063611), (first.at_s, first.elapsed_s))
        self.assertEqual(
            (
                PerfStatLine(
                    HOST_SCOPE, None, '', 'context-switches', '', CounterDelta(630.0, 1.0)
                ),
                PerfStatLine(HOST_SCOPE, None, '', 'cpu-clock', 'msec', CounterDelta(606.51, 1.0)),
                PerfStatLine(HOST_SCOPE, None, '', 'cycles', '', None, False),
                PerfStatLine(HOST_SCOPE, None, '', 'r53100f', '', None),
                PerfStatLine(
                    HOST_SCOPE,
                    None,
                    '',
                    'uncore_imc_0/cas_count_read/',
                    'MiB',
                    CounterDelta(12.5, 1.0),
                ),
            ),
            first.lines,
        )
        self.assertAlmostEqual(0.098800652, second.elapsed_s)
        self.assertEqual(CounterDelta(185.0, 0.745), second.lines[0].delta)

    def test_lines_by_node_and_events_with_commas_are_read(self):
        ([interval], broken) = rows(BY_NODE)
        self.assertEqual([], broken)
        self.assertEqual(
            [
                (NODE_SCOPE, 0, 'cpu/event=0xd3,umask=0x1/GH', 752.0, 1.0),
                (NODE_SCOPE, 1, 'instructions:u', 7.0, 0.75),
            ],
            [(row.scope, row.id, row.event, *row.delta) for row in interval.lines],
        )

    def test_lines_by_cpu_are_read(self):
        ([interval], _) = rows(BY_CPU)
        self.assertEqual(
            [(CPU_SCOPE, 0, 549.0), (CPU_SCOPE, 11, 92.0)],
            [(row.scope, row.id, row.delta.value) for row in interval.lines],
        )

    def test_lines_by_control_group_are_read(self):
        ([interval], broken) = rows(BY_GROUP)
        self.assertEqual([], broken)
        self.assertEqual(
            [
                (CPU_SCOPE, 0, '/'),
                (NODE_SCOPE, 1, 'machine.slice/machine-qemu\\x2d1\\x2dx.scope'),
                (HOST_SCOPE, None, 'a/b'),
            ],
            [row[:3] for row in interval.lines],
        )

    def test_lines_with_another_separator_are_read(self):
        ([interval], broken) = rows(BY_CPU.replace(',', ';'))
        self.assertEqual(([], 2), (broken, len(interval.lines)))

    def test_a_second_run_in_one_file_is_read(self):
        intervals, _ = rows(ALL + BY_CPU)
        self.assertEqual(
            [0.303063611, 0.300348384], [intervals[0].elapsed_s, intervals[2].elapsed_s]
        )

    def test_other_lines_are_reported_by_their_number(self):
        intervals, broken = rows('hello\n' + BY_CPU + '0.3,CPU1,12' + '\n' + 'x' * 10000)
        self.assertEqual((1, [1, 4, 5]), (len(intervals), [number for number, _ in broken]))

    def test_output_that_gives_no_rates_is_refused(self):
        with self.assertRaisesRegex(RecordingError, '-I'):
            rows('447,,context-switches,407942749,100.00,,\n')
        for name in ('S0', 'S0-D0-C1', 'D1'):
            with self.subTest(name=name), self.assertRaisesRegex(RecordingError, 'per-node'):
                rows(BY_CPU.replace('CPU0', name))

    @given(st.text(max_size=100), st.integers(0, 300), st.integers(0, 60))
    def test_garbage_is_refused_or_gives_valid_rates(self, text, at, length):
        whole = ALL + BY_NODE + BY_GROUP
        for lines in (text, whole[:at] + text + whole[at + length :]):
            try:
                intervals, _ = rows(lines)
            except RecordingError:
                continue
            for interval in intervals:
                self.assertLess(0, interval.elapsed_s)
                for row in interval.lines:
                    self.assertTrue(
                        row.delta is None or (row.delta.value >= 0 and 0 < row.delta.share <= 1)
                    )


class RoleTest(unittest.TestCase):
    def test_roles_of_events_are_found_as_perf_writes_them(self):
        names = perf_stat.role_names('westmere-dp')
        for event, role in (
            ('cycles', 'cycles'),
            ('cpu-cycles:u', 'cycles'),
            ('instructions:GH', 'instructions'),
            ('r53100f', 'remote_dram'),
            ('r53080f:GH', 'local_dram'),
            ('cpu/local_dram/', 'local_dram'),
            ('numa_emu/remote_dram/GH', 'remote_dram'),
            ('uncore_imc_1/cas_count_write/', 'mem_write'),
            ('node-loads', None),
            ('r1', None),
            ('', None),
        ):
            with self.subTest(event=event):
                self.assertEqual(role, perf_stat.role_of(event, names))

    def test_raw_codes_mean_nothing_without_the_cpu(self):
        self.assertIsNone(perf_stat.role_of('r53100f', perf_stat.role_names()))

    def test_amounts_are_in_bytes_by_their_unit(self):
        row = PerfStatLine(HOST_SCOPE, None, '', 'x', 'MiB', CounterDelta(2.0, 1.0))
        self.assertEqual(2 << 20, perf_stat.amount(row, 'mem_read').value)
        self.assertEqual(128.0, perf_stat.amount(row._replace(unit=''), 'mem_read').value)
        self.assertIsNone(perf_stat.amount(row._replace(unit='furlong'), 'mem_read'))
        self.assertEqual(2.0, perf_stat.amount(row, 'cycles').value)
