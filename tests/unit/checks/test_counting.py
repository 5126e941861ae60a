# SPDX-License-Identifier: Apache-2.0
"""What a host does not count is found, with what to do about it."""

import unittest

from nova_numa_pmc.checks import publication


class TestCounting(unittest.TestCase):
    def test_what_is_not_counted_is_found_once(self):
        for source, bandwidth, expected in (
            ('guests by thread', {0: 0.5, 1: 0.0}, []),
            ('', {0: None, 1: None}, ['counts-nothing']),
            ('pages', {0: None, 1: None}, ['counts-nothing']),
            ('resctrl', {0: 0.5, 1: None}, ['bandwidth-unknown']),
            ('cpus', {0: None, 1: None}, ['bandwidth-unknown']),
            ('pages', {0: 0.5, 1: 0.5}, ['guests-not-counted']),
            ('', {0: None, 1: 0.5}, ['bandwidth-unknown', 'guests-not-counted']),
        ):
            with self.subTest(source=source, bandwidth=bandwidth):
                findings = list(publication.check_counting(source, bandwidth))
                self.assertEqual(expected, [finding.code for finding in findings])
