# SPDX-License-Identifier: Apache-2.0
"""Samples are read as they were recorded, and damage costs only the samples that it hits."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zlib

from hypothesis import given, strategies as st

from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.recordings import columns, recording
from nova_numa_pmc.sample_records import DeviceSample, GuestSample, NodeSample, Sample
from tests.fixtures import samples

NUMBERS = (
    st.none()
    | st.integers(-(10**15), 10**15)
    | st.floats(-1e20, 1e20, allow_nan=False).map(lambda x: float('%.6g' % x))
)
NODE_IDS = st.integers(0, 1000)
SHARES = st.lists(st.tuples(NODE_IDS, NUMBERS.filter(lambda x: x is not None)), max_size=3).map(
    tuple
)
KINDS = {
    'id': NODE_IDS,
    'cpi_reliable': st.booleans(),
    'cores_by_node': SHARES,
    'bytes_by_node': SHARES,
    'uuid': st.text(max_size=40),
    'name': st.text(max_size=40),
    'source': st.text(max_size=9),
    'basis': st.text(max_size=9),
    'devices': st.lists(
        st.builds(
            DeviceSample, st.text(max_size=9), st.none() | NODE_IDS, st.none() | st.booleans()
        ),
        max_size=2,
    ).map(tuple),
}


def records(kind):
    return st.lists(
        st.builds(kind, **{name: KINDS.get(name, NUMBERS) for name in kind._fields}), max_size=3
    ).map(tuple)


TIMES = st.integers(0, 10**12).map(lambda ms: ms / 1000)
SAMPLES = st.builds(
    Sample,
    TIMES,
    TIMES,
    st.text(max_size=9),
    records(NodeSample),
    records(GuestSample),
    st.lists(st.text(max_size=20), max_size=2).map(tuple),
)


def whole(data):
    return [block.sample for block in recording.decode(data) if block.sample is not None]


def of_next_release(member):
    """Return a member of a sample as the next major version might write it."""
    text = zlib.decompress(member, 31).replace(b'{"v":[2,', b'{"v":[3,')
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    return pack.compress(text) + pack.flush()


class TestMembers(unittest.TestCase):
    @given(st.lists(SAMPLES, max_size=3))
    def test_a_sample_is_read_as_it_was_written(self, given_samples):
        data = b''.join(map(recording.encode, given_samples))
        self.assertEqual(given_samples, whole(data))

    def test_digits_beyond_the_sixth_are_dropped_but_bytes_and_times_are_kept(self):
        sample = samples.sample(
            1700000000.1239, nodes=(samples.node_sample(cpi=1.23456789, free_bytes=123456789012),)
        )
        (read,) = whole(recording.encode(sample))
        self.assertEqual(
            (1700000000.124, 1.23457, 123456789012),
            (read.taken_s, read.nodes[0].cpi, read.nodes[0].free_bytes),
        )

    def test_infinite_and_nan_figures_are_read_as_unknown(self):
        (read,) = whole(
            recording.encode(
                samples.sample(
                    nodes=(samples.node_sample(cpi=float('nan'), pressure=float('inf')),)
                )
            )
        )
        self.assertEqual((None, None), (read.nodes[0].cpi, read.nodes[0].pressure))

    def test_a_cut_at_any_byte_loses_only_the_sample_it_is_in(self):
        members = [recording.encode(samples.sample(float(at), nodes=())) for at in range(3)]
        data, ends = b''.join(members), [sum(map(len, members[:n])) for n in range(4)]
        for length in range(len(data) + 1):
            expected = [float(at) for at in range(3) if ends[at + 1] <= length]
            self.assertEqual(expected, [s.taken_s for s in whole(data[:length])])

    @given(st.data())
    def test_damage_never_gives_a_wrong_sample_and_spares_the_rest(self, data):
        written = [samples.sample(float(at)) for at in range(4)]
        members = [recording.encode(sample) for sample in written]
        clean = b''.join(members)
        at = data.draw(st.integers(0, len(clean) - 1))
        junk = data.draw(st.binary(min_size=1, max_size=40))
        damaged = clean[:at] + junk + clean[at + len(junk) :]
        read = whole(damaged)
        self.assertLessEqual({s.taken_s for s in read}, {0.0, 1.0, 2.0, 3.0})
        for sample in read:
            self.assertEqual(written[int(sample.taken_s)], sample)
        start = 0
        for sample, member in zip(written, members):
            if start + len(member) <= at or start >= at + len(junk):
                self.assertIn(sample, read)
            start += len(member)

    @given(st.binary(max_size=300))
    def test_garbage_holds_no_sample(self, data):
        self.assertEqual([], whole(data))
        self.assertEqual([], whole(recording.MARKER + data))

    @given(st.lists(st.binary(max_size=20) | st.just(b''), max_size=4))
    def test_all_bytes_are_accounted_for_by_samples_or_gaps(self, junk):
        data = b''.join(
            part + recording.encode(samples.sample(float(at))) for at, part in enumerate(junk)
        )
        spans = list(recording.decode(data))
        self.assertEqual(len(junk), len([s for s in spans if s.sample is not None]))
        self.assertEqual(len(data), sum(span.end - span.start for span in spans))

    def member(self, text):
        pack = zlib.compressobj(9, zlib.DEFLATED, 31)
        return pack.compress(text) + pack.flush()

    def test_zcat_gives_a_line_of_json_for_each_sample(self):
        zcat = shutil.which('zcat')
        if zcat is None:
            self.skipTest('no zcat here')
        written = [samples.sample(float(at)) for at in range(3)]
        text = subprocess.run(
            [zcat],
            input=b''.join(map(recording.encode, written)),
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        self.assertTrue(text.endswith(b'\n'))
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual([[2, 0]] * 3, [line['v'] for line in lines])
        self.assertEqual(written, [columns.from_columns(line) for line in lines])

    def test_a_sample_longer_than_one_unpacked_block_is_read(self):
        written = [
            samples.sample(float(at), problems=(os.urandom(60000).hex(),)) for at in range(2)
        ]
        self.assertEqual(written, whole(b''.join(map(recording.encode, written))))

    def test_hostile_payloads_with_a_right_checksum_hold_no_sample(self):
        good = dict(columns.to_columns(samples.sample()), v=[2, 0])
        self.assertEqual([samples.sample()], whole(self.member(json.dumps(good).encode())))
        for text in (
            b'',
            b'x',
            b'[' * 100000,
            b'{"v":[2,0],"taken_s":' + b'9' * 5000 + b'}',
            b' ' * (40 << 20),
            *(
                json.dumps(dict(good, **changes)).encode()
                for changes in (
                    {'v': None},
                    {'v': []},
                    {'v': ['2', 0]},
                    {'v': [1, 0]},
                    {'v': [3, 0]},
                    {'taken_s': None},
                    {'taken_s': float('nan')},
                    {'elapsed_s': '5'},
                    {'nodes': []},
                    {'nodes': {'id': [True]}},
                    {'nodes': {'id': 'ab'}},
                    {'nodes': {'id': [0], 'cpi': [1, 2]}},
                    {'nodes': {'id': [10**9]}},
                    {'guests': {'uuid': ['a']}},
                    {'guests': None},
                    {'guests': {'uuid': ['a'], 'name': ['b'], 'devices': [[[1, 2, 3]]]}},
                    {'problems': 'x'},
                    {'problems': [1]},
                )
            ),
        ):
            self.assertEqual([], whole(self.member(text)))

    def test_columns_of_other_releases_are_ignored_or_unknown(self):
        data = dict(columns.to_columns(samples.sample()), v=[2, 7])
        data['nodes']['from_the_future'] = [1, 2]
        del data['nodes']['io_miss_ratio']
        (read,) = whole(self.member(json.dumps(data).encode()))
        self.assertEqual(samples.sample(), read)


class TestFile(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, 'samples')

    def write(self, times, max_bytes=1 << 20, keep=9):
        writer = recording.RecordingWriter(self.path, max_bytes, keep)
        for taken_s in times:
            writer.append(samples.sample(taken_s))
        writer.close()
        return writer

    def times(self):
        return [sample.taken_s for sample in recording.read(self.path)]

    def put(self, data):
        with open(self.path, 'wb') as file:
            file.write(data)

    def test_samples_are_appended_after_what_is_there(self):
        self.write([1.0, 2.0])
        self.write([3.0])
        self.assertEqual([1.0, 2.0, 3.0], self.times())

    def test_a_torn_end_is_cut_before_the_next_sample(self):
        member = recording.encode(samples.sample(1.0))
        for torn in range(1, len(member)):
            self.put(member + member[:torn])
            self.assertEqual(torn, self.write([2.0]).cut_bytes)
            self.assertEqual([1.0, 2.0], self.times())

    def test_a_file_torn_in_its_first_sample_begins_anew(self):
        for torn in (1, 3, 20):
            self.put(recording.encode(samples.sample())[:torn])
            self.write([2.0])
            self.assertEqual([2.0], self.times())

    def test_damage_in_the_middle_of_a_file_is_reported_and_left_there(self):
        members = [recording.encode(samples.sample(float(at))) for at in range(3)]
        members[1] = members[1][:30] + b'damage' + members[1][36:]
        self.put(b''.join(members))
        self.write([3.0])
        damage = []
        read = [sample.taken_s for sample in recording.read(self.path, damage.append)]
        self.assertEqual([0.0, 2.0, 3.0], read)
        self.assertEqual(1, len(damage))
        self.assertIn(self.path, damage[0])

    def test_a_recording_rotates_and_keeps_the_newest_files(self):
        member = len(recording.encode(samples.sample(10.0)))
        self.write(map(float, range(10, 20)), max_bytes=2 * member + 9, keep=3)
        self.assertEqual([14.0, 15.0, 16.0, 17.0, 18.0, 19.0], self.times())
        self.assertEqual(
            [self.path + '.2', self.path + '.1', self.path], recording.existing_files(self.path)
        )
        self.write([20.0], max_bytes=member, keep=1)
        self.assertEqual([20.0], self.times())

    def test_a_rotation_that_was_killed_half_way_loses_no_sample(self):
        member = len(recording.encode(samples.sample(10.0)))
        self.write(map(float, range(10, 13)), max_bytes=member, keep=9)
        os.rename(self.path + '.2', self.path + '.3')
        os.rename(self.path + '.1', self.path + '.2')
        with open(self.path + '.old', 'w') as file:
            file.write('none of ours')
        self.assertEqual([10.0, 11.0, 12.0], self.times())
        self.write([13.0], max_bytes=member, keep=4)
        self.assertEqual([11.0, 12.0, 13.0], self.times())
        self.assertTrue(os.path.exists(self.path + '.old'))

    def test_a_second_recorder_is_refused(self):
        writer = recording.RecordingWriter(self.path, 1 << 20, 2)
        self.addCleanup(writer.close)
        with self.assertRaisesRegex(RecordingError, 'another recorder'):
            recording.RecordingWriter(self.path, 1 << 20, 2)

    def test_other_files_are_neither_read_nor_touched(self):
        newer = of_next_release(recording.encode(samples.sample()))
        for data, why in (
            (b'root:x:0:0\n', 'not a recording'),
            (gzip.compress(b'root:x:0:0\n'), 'not a recording'),
            (gzip.compress(b'root:x:0:0\n')[:-1], 'not a recording'),
            (newer, 'format 3.x is not supported'),
        ):
            self.put(data)
            with self.assertRaisesRegex(RecordingError, why) as caught:
                self.times()
            self.assertIn(self.path, str(caught.exception))
            with self.assertRaisesRegex(RecordingError, 'record to another one'):
                self.write([1.0])
            with open(self.path, 'rb') as file:
                self.assertEqual(data, file.read())

    def test_samples_of_a_newer_release_behind_ours_are_not_cut_off(self):
        member = recording.encode(samples.sample(1.0))
        newer = of_next_release(member)
        for cut in (0, 1):
            self.put(member + newer[: len(newer) - cut])
            with self.assertRaisesRegex(RecordingError, 'record to another one'):
                self.write([2.0])
            self.assertEqual([1.0], self.times())

    def test_a_recording_of_the_former_format_is_refused_and_kept(self):
        former = recording.OLD_MARKER + b'\x05\0\0\0' + bytes(9)
        self.put(former)
        for use in (self.times, lambda: self.write([1.0])):
            with self.assertRaisesRegex(RecordingError, 'older release.*move it away') as caught:
                use()
            self.assertIn(self.path, str(caught.exception))
        with open(self.path, 'rb') as file:
            self.assertEqual(former, file.read())

    def test_a_missing_or_irregular_file_is_an_error(self):
        with self.assertRaisesRegex(RecordingError, 'no such file'):
            self.times()
        os.mkfifo(self.path)
        for path in (self.path, '/dev/null'):
            with self.assertRaisesRegex(RecordingError, 'not a regular file'):
                list(recording.read(path))
        with self.assertRaises(IsADirectoryError):
            list(recording.read(os.path.dirname(self.path)))

    def test_an_empty_file_has_no_samples(self):
        self.put(b'')
        self.assertEqual([], self.times())

    def test_a_full_file_system_leaves_whole_samples(self):
        # A limit on the file size simulates it: write(2) is cut short in the same way.
        member = len(recording.encode(samples.sample(1.0)))
        script = textwrap.dedent(
            """
            import resource, signal, sys
            from nova_numa_pmc import exceptions
            from nova_numa_pmc.recordings import recording
            from tests.fixtures import samples
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (%d, %d))
            writer = recording.RecordingWriter(sys.argv[1], 1 << 20, 2)
            writer.append(samples.sample(1.0))
            try:
                writer.append(samples.sample(2.0))
            except exceptions.RecordingError as error:
                print(error)
            """
            % (member + 50, member + 50)
        )
        done = subprocess.run(
            [sys.executable, '-c', script, self.path], capture_output=True, text=True, timeout=60
        )
        self.assertIn('make room', done.stdout, done.stderr)
        self.assertEqual(member, os.path.getsize(self.path))
        self.assertEqual([1.0], self.times())
