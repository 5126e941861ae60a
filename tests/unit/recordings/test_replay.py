# SPDX-License-Identifier: Apache-2.0
"""Recordings, JSON lines and output of ``perf stat`` are replayed as samples."""

import json
import os
import pathlib
import tempfile
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.recordings import columns, recording, replay
from nova_numa_pmc.sample_records import COUNTED, to_data
from tests.fixtures import samples

DECK = pathlib.Path(__file__).resolve().parents[2] / 'fixtures' / 'deck'
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


class ReplayTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, 'file')

    def read(self, text, **how):
        with open(self.path, 'wb') as file:
            file.write(text.encode('utf-8', 'surrogatepass') if isinstance(text, str) else text)
        self.broken = []
        return list(replay.read(self.path, self.broken.append, **how))

    def test_samples_as_json_lines_are_replayed(self):
        taken = [samples.sample(1000.0), samples.sample(1005.0, guests=())]
        text = '\n'.join(json.dumps(to_data(one)) for one in taken)
        self.assertEqual((taken, []), (self.read(text + '\n'), self.broken))
        self.assertEqual(taken[:1], self.read(text[:-40]))
        self.assertEqual(1, len(self.broken))

    def test_a_recording_is_replayed_also_after_its_rotation(self):
        taken = samples.sample()
        self.assertEqual([taken], self.read(recording.encode(taken)))
        os.rename(self.path, self.path + '.1')
        self.assertEqual([taken], list(replay.read(self.path)))
        self.assertEqual([taken], self.read(''))

    def test_replay_of_a_recording_of_the_former_format_is_refused(self):
        with open(self.path, 'wb') as file:
            file.write(recording.OLD_MARKER + bytes(20))
        with self.assertRaisesRegex(RecordingError, self.path + '.*move it away'):
            list(replay.read(self.path))

    def test_the_tables_of_the_deck_are_replayed(self):
        samples = []
        for name in ('unpinned', 'pinned'):
            table = json.loads((DECK / (name + '.json')).read_text(encoding='utf-8'))
            lines = ['10.0,%d,,%s,9,100.00,,\n' % (n, e) for e, n in table['counts'].items()]
            samples += self.read(''.join(lines), cpu='westmere-dp')
        before, after = (one.nodes[0] for one in samples)
        self.assertEqual((0.42, 0.47), (round(1 / before.cpi, 2), round(1 / after.cpi, 2)))
        self.assertAlmostEqual(56.0, before.remote_per_sec / after.remote_per_sec, delta=0.06)
        self.assertAlmostEqual(0.528, before.remote_ratio, places=3)
        self.assertIn('not distinguished', samples[0].problems[0])

    def test_perf_stat_by_node_and_group_is_replayed(self):
        [sample] = self.read(FEED)
        self.assertEqual([], self.broken)
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
        self.assertEqual((None, None), (guest.remote_cache_per_sec, guest.stalled_ratio))

    def test_perf_stat_of_stalled_cycles_and_remote_hits_is_replayed(self):
        text = FEED + ''.join(
            '1.000000001,N0,2,%s,%s,2000000000,100.00,,\n' % (counted, GROUP)
            for counted in ('2000,,r53014c', '7,,r53040f', '5,,r5301a2')
        )
        [sample] = self.read(text, cpu='westmere-dp')
        [guest] = sample.guests
        self.assertEqual(5 / 8000, guest.stalled_ratio)
        self.assertAlmostEqual(7, guest.remote_cache_per_sec, places=3)

    def test_figures_not_counted_in_a_part_are_unknown(self):
        text = FEED.replace(',10,,remote_dram', ',<not counted>,,remote_dram')
        [guest] = self.read(text)[0].guests
        self.assertEqual(
            ('', None, None), (guest.source, guest.remote_per_sec, guest.remote_ratio)
        )

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

    def test_perf_stat_by_cpu_is_replayed_on_node_0(self):
        text = ''.join(
            '2.5,CPU%d,%d,,%s,9,100.00,,\n' % (cpu, cpu, event)
            for cpu in (0, 5)
            for event in ('local_dram', 'remote_dram')
        )
        [sample] = self.read(text)
        self.assertEqual(
            [(0, 2.0, 0.5)],
            [(node.id, node.remote_per_sec, node.remote_ratio) for node in sample.nodes],
        )
        self.assertIn('not distinguished', sample.problems[0])

    def test_bandwidth_by_memory_controllers_is_replayed(self):
        [sample] = self.read(
            '1.0,N1,1,64,MiB,uncore_imc/cas_count_read/,9,100.00,,\n'
            '1.0,N1,1,16,MiB,uncore_imc/cas_count_write/,9,100.00,,\n'
        )
        self.assertEqual(80 << 20, sample.nodes[0].bandwidth_bytes_per_sec)

    def test_a_file_of_no_known_format_is_refused(self):
        for text in (
            'hello\n',
            '{"counts": {}}',
            '{"elapsed_sec": 0, "counts": {"a": 1}}',
            '{"elapsed_sec": 1, "counts": {"a": -1}}',
            '{',
            '[]',
            '{"nodes": 1}',
        ):
            with self.subTest(text=text), self.assertRaisesRegex(RecordingError, self.path):
                self.read(text)
        for path in (self.path + '-absent', os.path.dirname(self.path)):
            with self.assertRaises(RecordingError):
                list(replay.read(path))

    def test_names_in_json_and_in_recordings_are_not_those_of_renamed_fields(self):
        sample = samples.sample()
        guest = to_data(sample)['guests'][0]
        self.assertEqual((4.2, 0.75), (guest['intensity'], guest['counted_share']))
        column = columns.to_columns(sample)['guests']
        self.assertEqual(
            (4.2, 0.75, COUNTED),
            (column['intensity'][0], column['counted_share'][0], column['sure'][0]),
        )

    @given(st.text(max_size=120))
    def test_garbage_raises_only_the_named_error(self, text):
        whole = json.dumps(to_data(samples.sample()))
        for content in (
            text,
            '{' + text,
            whole[: len(text)] + text + whole[2 * len(text) :],
            FEED[: len(text)] + text + FEED[len(text) :],
        ):
            try:
                self.read(content)
            except RecordingError:
                pass
