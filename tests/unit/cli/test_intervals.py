# SPDX-License-Identifier: Apache-2.0
import datetime
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.cli import intervals
from nova_numa_pmc.exceptions import NumaPmcError
from tests.fixtures.clock import Clock


class TestPace(unittest.TestCase):
    def taken(self, costs, interval_s=5.0):
        """Return the times at which samples were taken if each took this long."""
        clock, left, times = Clock(), iter(costs), []

        def take():
            times.append(clock.now_s)
            clock.now_s += next(left)

        stream = intervals.sample_every(take, interval_s, clock.wait, clock)
        for _ in range(len(costs) - 1):
            next(stream)
        return times

    def test_the_pace_does_not_drift_by_what_a_sample_costs(self):
        self.assertEqual([100.0, 105.5, 110.5, 115.5], self.taken([0.5, 1.0, 4.0, 0.0]))

    def test_a_whole_interval_passes_after_a_sample_that_took_too_long(self):
        self.assertEqual([100.0, 105.0, 122.0, 127.0], self.taken([0.0, 12.0, 1.0, 0.0]))

    def test_a_replay_waits_between_samples_only(self):
        waited = []
        self.assertEqual(
            [1, 2, 3], list(intervals.replay_every(iter([1, 2, 3]), 2.0, waited.append))
        )
        self.assertEqual([2.0, 2.0], waited)


class TestTimes(unittest.TestCase):
    def test_durations_are_read_with_their_unit(self):
        for text, expected in (
            ('90', 90),
            ('1.5s', 1.5),
            ('15m', 900),
            ('2h', 7200),
            ('7d', 604800),
            ('1w', 604800),
        ):
            self.assertEqual(expected, intervals.parse_duration_s(text))

    @given(st.text(max_size=6) | st.sampled_from(['-1', '0', 'nan', 'inf', '1e999d', 'm', '']))
    def test_any_text_gives_a_positive_duration_or_a_value_error(self, text):
        try:
            self.assertGreater(intervals.parse_duration_s(text), 0)
        except ValueError:
            pass

    def test_times_are_read_relative_absolute_or_in_seconds(self):
        local = datetime.datetime(2026, 11, 21, 14, 0).timestamp()
        for text, expected in (
            ('+2h', 8200.0),
            ('-30m', 3200.0),
            ('@17.5', 17.5),
            ('', None),
            ('2026-11-21T14:00', local),
            ('2026-11-21 14:00:00', local),
            ('1970-01-01T00:01:00+00:00', 60.0),
        ):
            self.assertEqual(expected, intervals.parse_time_s(text, 1000.0, 5000.0))

    def test_windows_may_be_open_at_either_end(self):
        self.assertEqual((None, 4600.0), intervals.parse_window_s('..+1h', 1000.0, 9000.0))
        self.assertEqual((8940.0, None), intervals.parse_window_s('-1m..', 1000.0, 9000.0))

    def test_a_text_that_is_no_time_is_told_how_to_write_one(self):
        for text in ('yesterday', '+', '-x', '@inf', '@', '2026-13-01', '99999999999999999'):
            with self.assertRaisesRegex(NumaPmcError, 'write 2026'):
                intervals.parse_time_s(text, 0.0, 1.0)
        with self.assertRaisesRegex(NumaPmcError, r'write A\.\.B'):
            intervals.parse_window_s('+1h', 0.0, 1.0)
