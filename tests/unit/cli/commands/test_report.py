# SPDX-License-Identifier: Apache-2.0
"""Samples are summed up by their time, and what is not known stays unknown."""

import unittest

from nova_numa_pmc.cli.commands import report
from tests.fixtures import samples

PATH = 'FILE'


class MeansTest(unittest.TestCase):
    def test_means_weigh_samples_by_their_time(self):
        recorded = report.gather(
            PATH,
            [
                samples.sample(10.0, 1.0, nodes=(samples.node_sample(waiting_cores=4.0),)),
                samples.sample(20.0, 3.0, nodes=(samples.node_sample(waiting_cores=0.0),)),
                samples.sample(30.0, 9.0, nodes=(samples.node_sample(waiting_cores=None),)),
            ],
        )
        self.assertEqual(1.0, recorded.means.get((('host', ''), 'waiting_cores')))

    def test_a_cpi_that_cannot_be_relied_on_is_left_out(self):
        recorded = report.gather(
            PATH,
            [
                samples.sample(
                    nodes=(samples.node_sample(0, cpi=None), samples.node_sample(1, cpi=2.0))
                )
            ],
        )
        self.assertEqual(0.5, recorded.means.get((('host', ''), 'ipc')))

    def test_instructions_per_cycle_is_of_all_cycles(self):
        # 3 core-seconds at 1 instruction per cycle and 1 at a quarter: 3.25 of 4.
        guests = [
            samples.guest_sample(1, cores=3.0, cpi=1.0),
            samples.guest_sample(1, cores=1.0, cpi=4.0),
        ]
        recorded = report.gather(
            PATH,
            (samples.sample(float(at), 1.0, guests=(guest,)) for at, guest in enumerate(guests)),
        )
        guest = ('guest', samples.guest_sample(1).uuid)
        self.assertAlmostEqual(3.25 / 4, recorded.means.get((guest, 'ipc')))

    def test_a_source_with_only_ratios_is_summed_up_by_them(self):
        guests = [
            samples.guest_sample(1, cores=3.0, remote_ratio=0.5, local_per_sec=None),
            samples.guest_sample(1, cores=1.0, remote_ratio=0.1, local_per_sec=None),
        ]
        recorded = report.gather(
            PATH,
            (samples.sample(float(at), 1.0, guests=(guest,)) for at, guest in enumerate(guests)),
        )
        guest = ('guest', samples.guest_sample(1).uuid)
        self.assertAlmostEqual(0.4, recorded.means.get((guest, 'remote_ratio')), places=6)

    def test_a_sum_over_a_host_with_an_unknown_node_is_unknown(self):
        recorded = report.gather(
            PATH,
            [
                samples.sample(
                    nodes=(
                        samples.node_sample(0),
                        samples.node_sample(1, local_per_sec=None, remote_ratio=None),
                    )
                )
            ],
        )
        host = ('host', '')
        self.assertIsNone(recorded.means.get((host, 'local_per_sec')))
        self.assertEqual(0.1, round(recorded.means.get((host, 'remote_ratio')), 6))
