# SPDX-License-Identifier: Apache-2.0
"""Nova's API finds the package's validators by their entry point."""

import testtools
from nova import exception
from nova.api.validation.extra_specs import validators


class ExtraSpecsTest(testtools.TestCase):
    def test_valid_values_are_accepted(self):
        for key, value in (
            ('numa_pmc:policy', 'one_node'),
            ('numa_pmc:max_pressure', '0.85'),
            ('numa_pmc:memory_intensity', 'high'),
            ('numa_pmcx:policy', 'x'),
        ):
            validators.validate(key, value)

    def test_invalid_values_are_refused(self):
        for key, value in (
            ('numa_pmc:policy', 'both'),
            ('numa_pmc:max_pressure', 'nan'),
            ('numa_pmc:max_pressure', '0'),
            ('numa_pmc:memory_intensity', '3'),
            ('numa_pmc:polcy', 'auto'),
        ):
            self.assertRaises(exception.ValidationError, validators.validate, key, value)
