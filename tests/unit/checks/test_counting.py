# SPDX-License-Identifier: Apache-2.0
"""What a host does not count is found, with what to do about it."""

import unittest

from nova_numa_pmc.checks import publication
from nova_numa_pmc.core import pressure


class TestCounting(unittest.TestCase):
    def codes(self, source, bandwidth):
        nodes = {
            node: pressure.node_pressure(None, ratio, 0.1 if node == 0 else None)
            for node, ratio in bandwidth.items()
        }
        text, findings = publication.describe_counting(source, nodes)
        for finding in findings:
            self.assertIn('nova-numa-rebalance check --events', finding.remedy)
        return text, [finding.code for finding in findings]

    def test_a_host_that_counts_all_has_no_finding(self):
        self.assertEqual(
            ('memory accesses from guests by thread; bandwidth of nodes 0,1; links of node 0', []),
            self.codes('guests by thread', {0: 0.5, 1: 0.0}),
        )

    def test_a_host_that_counts_nothing_is_found_once(self):
        for source in ('', 'pages'):
            with self.subTest(source):
                text, codes = self.codes(source, {0: None, 1: None})
                self.assertEqual(['counts-nothing'], codes)
                self.assertIn('bandwidth of no node', text)

    def test_unknown_bandwidth_and_guests_that_are_not_counted_are_found(self):
        for source, bandwidth, expected in (
            ('resctrl', {0: 0.5, 1: None}, ['bandwidth-unknown']),
            ('cpus', {0: None, 1: None}, ['bandwidth-unknown']),
            ('pages', {0: 0.5, 1: 0.5}, ['guests-not-counted']),
            ('', {0: None, 1: 0.5}, ['bandwidth-unknown', 'guests-not-counted']),
        ):
            with self.subTest(source=source, bandwidth=bandwidth):
                self.assertEqual(expected, self.codes(source, bandwidth)[1])
