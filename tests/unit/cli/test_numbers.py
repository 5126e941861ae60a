# SPDX-License-Identifier: Apache-2.0
import argparse
import unittest

from nova_numa_pmc.cli import numbers


class WholeNumberTest(unittest.TestCase):
    def test_a_whole_number_within_the_bounds_is_parsed(self):
        parse = numbers.whole_number(1, 20)
        self.assertEqual([1, 7, 20], [parse(text) for text in ('1', '7', '20')])

    def test_other_text_is_refused_as_a_whole_number(self):
        for text in ('', '0', '21', '-1', '1.5', 'x', '²'):
            with (
                self.subTest(text=text),
                self.assertRaisesRegex(argparse.ArgumentTypeError, 'from 1 to 20'),
            ):
                numbers.whole_number(1, 20)(text)
