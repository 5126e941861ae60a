# SPDX-License-Identifier: Apache-2.0
"""Nova's API accepts exactly those values of our extra specs that we read."""

import re
import unittest
from typing import Any

from hypothesis import given, strategies

from nova_numa_pmc.api import extra_spec_validators
from nova_numa_pmc.core import extra_specs


class SpecsTest(unittest.TestCase):
    def test_each_extra_spec_of_ours_has_a_validator(self):
        self.assertEqual(
            list(extra_specs.KEYS), [name for name, _, _ in extra_spec_validators.SPECS]
        )

    def test_choices_in_the_validators_are_those_that_are_read(self):
        specs: Any = extra_spec_validators.SPECS
        for name, _, value in specs:
            for choice in value.get('enum', ()):
                with self.subTest(name=name, choice=choice):
                    self.assertEqual((), extra_specs.parse({name: choice}).problems)

    def test_max_pressure_is_a_decimal_above_0_and_up_to_64(self):
        for text in ('0.8', '1', '0.000001', '63.999999', '64', '64.0', '10'):
            with self.subTest(text=text):
                self.assertTrue(self.accepts(text))
        refused = '0 0.0 00 -1 64.1 65 100 1e1 nan inf .5 1. 1_0 ٣ 0.1234567'.split()
        for text in (*refused, '', ' 1', '1 ', '1\n'):
            with self.subTest(text=text):
                self.assertFalse(self.accepts(text))

    @given(strategies.from_regex(extra_spec_validators.PRESSURE_PATTERN, fullmatch=True))
    def test_an_extra_spec_that_novas_api_accepts_is_read(self, text):
        if self.accepts(text):
            self.assertEqual((), extra_specs.parse({extra_specs.MAX_PRESSURE_KEY: text}).problems)

    def accepts(self, text):
        """Match as ExtraSpecValidator does."""
        pattern = extra_spec_validators.PRESSURE_PATTERN
        return re.fullmatch(pattern, text) is not None
