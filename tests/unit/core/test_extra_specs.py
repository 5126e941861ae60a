# SPDX-License-Identifier: Apache-2.0
"""Our extra specs are read, and an invalid one is named and costs only itself."""

import unittest

from hypothesis import given, strategies

from nova_numa_pmc import model
from nova_numa_pmc.core import extra_specs


class ParseTest(unittest.TestCase):
    def test_without_extra_specs_of_ours_there_are_defaults(self):
        self.assertEqual((model.AUTO, None, 'medium', ()), extra_specs.parse({}))
        self.assertEqual((), extra_specs.parse({'hw:numa_nodes': '2', 'numa_pmcx': '1'}).problems)

    def test_valid_extra_specs_are_read(self):
        flavor_specs = extra_specs.parse(
            {
                'numa_pmc:policy': 'one_node',
                'numa_pmc:max_pressure': '0.8',
                'numa_pmc:memory_intensity': 'high',
            }
        )
        self.assertEqual(('one_node', 0.8, 'high', ()), flavor_specs)
        self.assertEqual('spread', extra_specs.parse([('numa_pmc:policy', 'spread')]).policy)

    def test_an_invalid_extra_spec_is_ignored_and_named(self):
        for key, texts in (
            ('numa_pmc:policy', ('', 'Auto', 'auto ', 'both', None)),
            ('numa_pmc:memory_intensity', ('', '3', 'HIGH', None)),
            (
                'numa_pmc:max_pressure',
                ('', '0', '0.0', '-1', 'nan', 'inf', '64.1', '.', '1.2.3', None),
            ),
        ):
            for text in texts:
                with self.subTest(key=key, text=text):
                    flavor_specs = extra_specs.parse({key: text})
                    self.assertEqual((model.AUTO, None, 'medium'), flavor_specs[:3])
                    (problem,) = flavor_specs.problems
                    self.assertIn(key, problem)

    @given(strategies.text(), strategies.text())
    def test_any_text_gives_printable_problems_of_bounded_length(self, name, text):
        for key in (model.POLICY_KEY, extra_specs.MAX_PRESSURE_KEY, 'numa_pmc:' + name):
            flavor_specs = extra_specs.parse({key: text})
            for problem in flavor_specs.problems:
                self.assertTrue(problem.isprintable())
                self.assertLess(len(problem), 1000)
