# SPDX-License-Identifier: Apache-2.0
"""Durations and whole numbers are read, or an error says how to write them."""

import argparse
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.cli import parse


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
