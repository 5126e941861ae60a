# SPDX-License-Identifier: Apache-2.0
"""Times, durations and whole numbers are read, or an error says how to write them."""

import argparse
import datetime
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.cli import parse
from nova_numa_pmc.exceptions import NumaPmcError


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
            self.assertEqual(expected, parse.duration_s(text))

    @given(st.text(max_size=6) | st.sampled_from(['-1', '0', 'nan', 'inf', '1e999d', 'm', '']))
    def test_any_text_gives_a_positive_duration_or_a_value_error(self, text):
        try:
            self.assertGreater(parse.duration_s(text), 0)
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
            self.assertEqual(expected, parse.time_s(text, 1000.0, 5000.0))

    def test_windows_may_be_open_at_either_end(self):
        self.assertEqual((None, 4600.0), parse.window_s('..+1h', 1000.0, 9000.0))
        self.assertEqual((8940.0, None), parse.window_s('-1m..', 1000.0, 9000.0))

    def test_an_error_about_a_malformed_time_says_how_to_write_one(self):
        for text in ('yesterday', '+', '-x', '@inf', '@', '2026-13-01', '99999999999999999'):
            with self.assertRaisesRegex(NumaPmcError, 'write 2026'):
                parse.time_s(text, 0.0, 1.0)
        with self.assertRaisesRegex(NumaPmcError, r'write A\.\.B'):
            parse.window_s('+1h', 0.0, 1.0)


class NumbersTest(unittest.TestCase):
    def test_an_integer_within_the_bounds_is_parsed(self):
        integer = parse.integer(20)
        self.assertEqual([1, 7, 20], [integer(text) for text in ('1', '7', '20')])

    def test_other_text_is_refused_as_an_integer(self):
        for text in ('', '0', '21', '-1', '1.5', 'x', '²'):
            with (
                self.subTest(text=text),
                self.assertRaisesRegex(argparse.ArgumentTypeError, 'from 1 to 20'),
            ):
                parse.integer(20)(text)
