# SPDX-License-Identifier: Apache-2.0
"""Samples are summed up by their time, and what is not known stays unknown."""

import unittest

from nova_numa_pmc.cli.commands import report
from tests.fixtures import samples


class MeansTest(unittest.TestCase):
    def test_means_weigh_samples_by_their_time(self):
        recorded = report.gather(
            [
                samples.sample(10.0, 1.0, nodes=(samples.node_sample(waiting_cores=4.0),)),
                samples.sample(20.0, 3.0, nodes=(samples.node_sample(waiting_cores=0.0),)),
                samples.sample(30.0, 9.0, nodes=(samples.node_sample(waiting_cores=None),)),
            ]
        )
        self.assertEqual(1.0, report.mean(recorded, ('host', ''), 'waiting_cores'))

    def test_a_sum_over_a_host_with_an_unknown_node_is_unknown(self):
        recorded = report.gather(
            [
                samples.sample(
                    nodes=(
                        samples.node_sample(0),
                        samples.node_sample(1, local_per_sec=None, remote_ratio=None),
                    )
                )
            ]
        )
        host = ('host', '')
        self.assertIsNone(report.mean(recorded, host, 'local_per_sec'))
        self.assertEqual(0.1, round(report.mean(recorded, host, 'remote_ratio'), 6))
