# SPDX-License-Identifier: Apache-2.0
"""A calibration is read as it was kept, and its gaps follow from the distances."""

import json
import os
import stat
import tempfile
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.conf import counters as counters_conf
from nova_numa_pmc.exceptions import CalibrationError
from nova_numa_pmc.state import calibration
from nova_numa_pmc.state.calibration import HMAT, MEASURED, SLIT, Calibration

GOOD = Calibration(
    1700000000.0,
    (0, 2),
    (25e9, None),
    ((81.0, 139.5), (140.0, 82.0)),
    ((MEASURED, MEASURED), (SLIT, MEASURED)),
)


class TestCalibration(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, 'lib', 'calibration.json')

    def test_a_calibration_is_read_as_it_was_kept(self):
        calibration.write(GOOD, self.path)
        calibration.write(GOOD, self.path)
        self.assertEqual(GOOD, calibration.read(self.path))
        self.assertEqual(['calibration.json'], os.listdir(os.path.dirname(self.path)))
        self.assertTrue(stat.S_IMODE(os.stat(self.path).st_mode) & stat.S_IRUSR)

    def test_without_a_file_there_is_no_calibration(self):
        self.assertIsNone(calibration.read(self.path))

    def test_measured_latencies_stand_and_others_follow_the_distances(self):
        distances = ((10, 20, 30), (20, 10, 20), (30, 20, 10))
        measured = ((60.0, 130.0, None), (None, 70.0, None), (None, None, None))
        latencies, sources = calibration.fill_matrix(
            measured, distances, ((99.0, None, None), (None,) * 3, (190.0, None, None))
        )
        self.assertEqual(
            ((60.0, 130.0, 180.0), (140.0, 70.0, 140.0), (190.0, 140.0, 70.0)), latencies
        )
        self.assertEqual((MEASURED, MEASURED, SLIT), sources[0])
        self.assertEqual((HMAT, SLIT, SLIT), sources[2])

    def test_without_measurements_latencies_follow_the_distances(self):
        self.assertEqual(
            ((80.0, 168.0), (168.0, 80.0)),
            calibration.fill_matrix(
                ((None, None),) * 2, ((10, 21), (21, 10)), ((None, None),) * 2
            )[0],
        )

    def test_a_file_that_cannot_be_used_is_a_problem_and_no_more(self):
        options = counters_conf.CounterOptions()
        self.assertEqual((options, None), calibration.with_host_calibration(options, self.path))
        calibration.write(GOOD, self.path)
        self.assertEqual(
            ((0, 25e9),),
            calibration.with_host_calibration(options, self.path)[0].bandwidth_max_bytes_per_sec,
        )
        with open(self.path, 'w') as file:
            file.write('{')
        unchanged, problem = calibration.with_host_calibration(options, self.path)
        self.assertEqual(options, unchanged)
        self.assertIn('create it again', problem)

    def test_options_of_the_operator_go_before_a_calibration(self):
        options = calibration.apply_to(
            counters_conf.CounterOptions(
                bandwidth_max_bytes_per_sec=((0, 1e9),), latencies_ns=((2, (150.0, 90.0)),)
            ),
            GOOD,
        )
        self.assertEqual(((0, 1e9),), options.bandwidth_max_bytes_per_sec)
        self.assertEqual(((0, (81.0, 139.5)), (2, (150.0, 90.0))), options.latencies_ns)

    def test_the_lines_to_paste_mean_the_same_as_the_file(self):
        path = self.path + '.conf'
        os.makedirs(os.path.dirname(path))
        with open(path, 'w') as file:
            file.write('\n'.join(calibration.config_lines(GOOD)))
        options = counters_conf.read(path)
        self.assertEqual(((0, 25e9),), options.bandwidth_max_bytes_per_sec)
        self.assertEqual(((0, (81.0, 139.5)), (2, (140.0, 82.0))), options.latencies_ns)

    def refused(self, text):
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, 'wb') as file:
            file.write(text)
        with self.assertRaisesRegex(CalibrationError, 'create it again') as caught:
            calibration.read(self.path)
        self.assertIn(self.path, str(caught.exception))

    def test_a_file_that_is_not_a_calibration_is_refused_with_the_remedy(self):
        good = calibration.to_data(GOOD)
        self.refused(b'')
        self.refused(b'\xff')
        self.refused(b'[' * 100000)
        for changes in (
            {'format': 'x'},
            {'version': [2, 0]},
            {'version': 1},
            {'nodes': []},
            {'nodes': [2, 0]},
            {'nodes': [True, 2]},
            {'nodes': [0, 99999]},
            {'read_bytes_per_sec': [1e9]},
            {'read_bytes_per_sec': [1e9, 'x']},
            {'latencies_ns': [[1.0, 2.0]]},
            {'latencies_ns': [[1.0], [2.0]]},
            {'latencies_ns': [[0.0, 1.0], [1.0, 1.0]]},
            {'taken_s': None},
            {'latencies_ns': [[float('nan'), 1.0], [1.0, 1.0]]},
            {'sources': [['guessed', MEASURED]] * 2},
            {'sources': None},
        ):
            with self.subTest(changes):
                self.refused(json.dumps(dict(good, **changes)).encode())
        for name in good:
            self.refused(json.dumps({k: v for k, v in good.items() if k != name}).encode())

    @given(st.data())
    def test_damage_gives_an_error_or_a_checked_calibration(self, data):
        text = calibration.encode(GOOD)
        at = data.draw(st.integers(0, len(text)))
        junk = data.draw(st.text(max_size=5))
        try:
            read = calibration.decode(text[:at] + junk + text[at + len(junk) :])
        except CalibrationError:
            return
        for row in read.latencies_ns:
            self.assertTrue(all(0.1 <= value <= 1e6 for value in row))
