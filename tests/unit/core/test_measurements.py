# SPDX-License-Identifier: Apache-2.0
"""Samples have each figure for which there is evidence, and no other."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import measurements
from nova_numa_pmc.core.measurements import COUNTED, Evidence, NodeSample, RunningGuest

GUEST = RunningGuest(
    model.Guest('u', 'g', 2, 1), {}, 1.0, 0.25, {0: 0.75, 1: 0.25}, {0: 10, 1: 30}
)
EVIDENCE = Evidence('guests by thread', COUNTED, 300.0, 100.0, None, None, 2000.0, 1000.0, 0.5)


class CompleteNodesTest(unittest.TestCase):
    def test_a_node_of_which_all_is_known_has_each_figure(self):
        first, second = measurements.complete_nodes(
            (
                NodeSample(
                    0,
                    4.0,
                    3.0,
                    bandwidth_bytes_per_sec=5e8,
                    bandwidth_max_bytes_per_sec=1e9,
                    local_per_sec=3e6,
                    remote_per_sec=1e6,
                ),
                NodeSample(1, 4.0, 6.0, local_per_sec=4e6, remote_per_sec=0.0),
            ),
            (),
        )
        self.assertEqual(
            (0.75, 0.5, 0.75), (first.cpu_ratio, first.bandwidth_ratio, first.pressure)
        )
        self.assertEqual(0.25, first.remote_ratio)
        self.assertEqual((0.0, 2.0), (first.waiting_cores, second.waiting_cores))
        self.assertEqual((None, 1.5), (second.bandwidth_ratio, second.pressure))

    def test_figures_of_a_node_without_evidence_are_unknown(self):
        nodes = (NodeSample(0, 4.0), NodeSample(1, 4.0))
        self.assertEqual(nodes, measurements.complete_nodes(nodes, ()))

    def test_bandwidth_follows_from_all_traffic(self):
        nodes = (
            NodeSample(0, local_per_sec=3e6, remote_per_sec=1e6, bandwidth_max_bytes_per_sec=1e9),
            NodeSample(1, local_per_sec=0.0, remote_per_sec=2e6, bandwidth_bytes_per_sec=7.0),
        )
        first, second = measurements.complete_nodes(nodes, (), all_traffic=True)
        self.assertEqual(
            (64 * 5e6, 7.0), (first.bandwidth_bytes_per_sec, second.bandwidth_bytes_per_sec)
        )
        first, _ = measurements.complete_nodes(nodes, ())
        self.assertIsNone(first.bandwidth_ratio)

    def test_remote_accesses_go_where_guests_pages_are(self):
        nodes = (
            NodeSample(0, local_per_sec=0.0, remote_per_sec=100.0),
            *(NodeSample(node, local_per_sec=0.0, remote_per_sec=0.0) for node in (1, 2)),
        )
        guest = measurements.guest_sample(
            GUEST._replace(bytes_by_node={0: 5, 1: 10, 2: 30}), EVIDENCE
        )
        for guests, expected in (((guest,), [0, 25, 75]), ((), [0, 50, 50])):
            completed = measurements.complete_nodes(nodes, guests, all_traffic=True)
            self.assertEqual(
                [64 * lines for lines in expected],
                [node.bandwidth_bytes_per_sec for node in completed],
            )


class SumByNodeTest(unittest.TestCase):
    def rates(self, *guests, **evidence):
        return {
            node: (of_node.local_per_sec, of_node.remote_per_sec, of_node.cycles_per_sec)
            for node, of_node in measurements.sum_by_node(guests, evidence, (0, 1)).items()
        }

    def test_rates_of_guests_go_to_the_nodes_where_they_ran(self):
        other = GUEST._replace(guest=GUEST.guest._replace(uuid='v'), cores_by_node={1: 1.0})
        self.assertEqual(
            {0: (225.0, 75.0, 1500.0), 1: (375.0, 125.0, 2500.0)},
            self.rates(GUEST, other, u=EVIDENCE, v=EVIDENCE),
        )
        idle = other._replace(cores=0.0, cores_by_node={1: 0.0})
        self.assertEqual((75.0, 25.0, 500.0), self.rates(GUEST, idle, u=EVIDENCE)[1])

    def test_a_guest_that_was_not_counted_hides_its_nodes(self):
        other = GUEST._replace(guest=GUEST.guest._replace(uuid='v'), cores_by_node={1: 1.0})
        unknown = (None, None, None)
        self.assertEqual(
            {0: (225.0, 75.0, 1500.0), 1: unknown}, self.rates(GUEST, other, u=EVIDENCE)
        )
        executed = EVIDENCE._replace(local_per_sec=None, remote_per_sec=None)
        self.assertEqual((None, None, 2500.0), self.rates(GUEST, other, u=EVIDENCE, v=executed)[1])
        lost = other._replace(cores_by_node={})
        self.assertEqual({0: unknown, 1: unknown}, self.rates(GUEST, lost, u=EVIDENCE, v=EVIDENCE))
        self.assertEqual({}, self.rates())


class GuestSampleTest(unittest.TestCase):
    def test_a_counted_guest_has_each_figure(self):
        sample = measurements.guest_sample(GUEST, EVIDENCE)
        self.assertEqual(('u', 'g', 'guests by thread', COUNTED, 1.0, 0.25), sample[:6])
        self.assertEqual(
            (((0, 0.75), (1, 0.25)), ((0, 10), (1, 30))),
            (sample.cores_by_node, sample.bytes_by_node),
        )
        self.assertEqual(
            (0.25, 2.0, 400.0, 0.5),
            (
                sample.remote_ratio,
                sample.cpi,
                sample.accesses_per_1000_instructions,
                sample.counted_ratio,
            ),
        )

    def test_a_guest_without_evidence_has_unknown_figures(self):
        sample = measurements.guest_sample(
            GUEST._replace(cores=None, waiting_cores=None, cores_by_node={}, bytes_by_node={})
        )
        self.assertEqual(('', '', None, None, (), ()), sample[2:8])
