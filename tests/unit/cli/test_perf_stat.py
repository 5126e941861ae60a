# SPDX-License-Identifier: Apache-2.0
"""Output of ``perf stat`` is read in each of its forms, and what gives no rates is refused."""

import json
import pathlib
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.cli import recordings
from nova_numa_pmc.core.measurements import COUNTED
from nova_numa_pmc.exceptions import RecordingError

DECK = pathlib.Path(__file__).resolve().parents[2] / 'fixtures' / 'deck'
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


GROUP = 'machine.slice/machine-qemu\\x2d1\\x2dx.scope'
FEED = f"""\
1.000000001,N0,2,300,,local_dram,/,2000000000,100.00,,
1.000000001,N0,2,100,,remote_dram,/,2000000000,100.00,,
1.000000001,N1,2,0,,remote_dram,/,2000000000,100.00,,
1.000000001,N0,2,30,,local_dram,{GROUP},2000000000,50.00,,
1.000000001,N1,2,0,,local_dram,{GROUP},2000000000,100.00,,
1.000000001,N0,2,10,,remote_dram,{GROUP},2000000000,100.00,,
1.000000001,N0,2,4000,,instructions:GH,{GROUP},2000000000,100.00,,
1.000000001,N0,2,8000,,cycles:GH,{GROUP},2000000000,100.00,,
"""


class ReadTest(unittest.TestCase):
    def read(self, text, cpu=None):
        self.damaged = []
        return list(recordings.from_perf('FILE', text.splitlines(), self.damaged.append, cpu))

    def test_intervals_are_read_in_each_layout(self):
        for text, ends in (
            (ALL, [0.303063611, 0.401864263]),
            (BY_NODE, [0.300361353]),
            (BY_GROUP, [0.300374733]),
        ):
            with self.subTest(text=text[:40]):
                taken = self.read(text + '0.5,1,,cycles,9,100.00,,\n', 'skylake-sp')
                self.assertEqual(([*ends, 0.5], []), ([s.taken_s for s in taken], self.damaged))

    def test_the_tables_of_the_deck_are_read(self):
        found = []
        for name in ('unpinned', 'pinned'):
            table = json.loads((DECK / (name + '.json')).read_text(encoding='utf-8'))
            lines = ['10.0,%d,,%s,9,100.00,,\n' % (n, e) for e, n in table['counts'].items()]
            found += self.read(''.join(lines), cpu='westmere-dp')
        before, after = (one.nodes[0] for one in found)
        self.assertEqual((0.42, 0.47), (round(1 / before.cpi, 2), round(1 / after.cpi, 2)))
        self.assertAlmostEqual(56.0, before.remote_per_sec / after.remote_per_sec, delta=0.06)
        self.assertIn('not distinguished', found[0].problems[0])

    def test_events_by_perfs_own_names_are_read_with_or_without_the_cpu(self):
        for local, remote in (
            ('mem_load_l3_miss_retired.local_dram', 'mem_load_l3_miss_retired.remote_dram'),
            ('ls_any_fills_from_sys.dram_io_near', 'ls_any_fills_from_sys.dram_io_far:GH'),
            ('ls_any_fills_from_sys.dram_io_near', 'ls_any_fills_from_sys.alternate_memories'),
            ('mem_load_l3_miss_retired.local_dram', 'mem_load_retired.local_cxl_mem'),
            ('cpu/mem_uncore_retired.local_dram/', 'cpu/mem_uncore_retired.remote_dram/GH'),
        ):
            text = '1.0,30,,%s,9,100.00,,\n1.0,10,,%s,9,100.00,,\n' % (local, remote)
            for cpu in (None, 'skylake-sp'):
                with self.subTest(local=local, cpu=cpu):
                    [sample] = self.read(text, cpu)
                    self.assertEqual(0.25, sample.nodes[0].remote_ratio)

    def test_output_that_gives_no_rates_is_refused(self):
        with self.assertRaisesRegex(RecordingError, '-I'):
            self.read('447,,context-switches,407942749,100.00,,\n')
        for name in ('S0', 'S0-D0-C1', 'D1'):
            with self.subTest(name=name), self.assertRaisesRegex(RecordingError, 'per-node'):
                self.read(BY_CPU.replace('CPU0', name))

    def test_events_of_unknown_meaning_are_refused_with_the_remedy(self):
        for cpu in (None, 'skylake-sp'):
            with self.assertRaisesRegex(RecordingError, 'context-switches.*--cpu'):
                self.read(BY_CPU, cpu)

    @given(st.text(max_size=100), st.integers(0, 300), st.integers(0, 60))
    def test_garbage_is_refused_or_gives_valid_rates(self, text, at, length):
        whole = ALL + BY_NODE + BY_GROUP
        for lines in (text, whole[:at] + text + whole[at + length :]):
            try:
                taken = self.read(lines)
            except RecordingError:
                continue
            for sample in taken:
                self.assertLess(0, sample.elapsed_s)

    def test_perf_stat_by_node_and_group_is_read(self):
        [sample] = self.read(FEED)
        self.assertEqual([], self.damaged)
        first, second = sample.nodes
        self.assertEqual((0, 0.25, 1), (first.id, first.remote_ratio, second.id))
        self.assertIsNone(second.remote_ratio)
        [guest] = sample.guests
        self.assertEqual((GROUP, GROUP.rpartition('/')[2], 'perf stat', COUNTED), guest[:4])
        self.assertEqual(
            (0.25, 2.0, 0.5, 10.0),
            (
                guest.remote_ratio,
                guest.cpi,
                guest.counted_ratio,
                guest.accesses_per_1000_instructions,
            ),
        )
        self.assertAlmostEqual(30, guest.local_per_sec, places=3)
        self.assertIsNone(guest.stalled_ratio)

    def test_remote_accesses_that_an_event_includes_are_subtracted(self):
        lines = (
            '1.0,N0,2,10,,r37,%s,2000000000,100.00,,',
            '1.0,N0,2,4,,r31,%s,2000000000,100.00,,',
        )
        both = '\n'.join(line % group for group in ('/', GROUP) for line in lines)
        [sample] = self.read(both, cpu='neoverse-n1')
        for one in (*sample.nodes, *sample.guests):
            self.assertEqual(
                (6.0, 4.0, 0.4), (one.local_per_sec, one.remote_per_sec, one.remote_ratio)
            )
        [sample] = self.read(lines[0] % '/', cpu='neoverse-n1')
        self.assertIsNone(sample.nodes[0].local_per_sec)
