# SPDX-License-Identifier: Apache-2.0
"""Samples have each figure for which there is evidence, and no other."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import build_sample
from nova_numa_pmc.core.build_sample import NodeCapacities, NodeUse
from nova_numa_pmc.core.sample_records import (
    COUNTED,
    INFERRED,
    DeviceSample,
    Evidence,
    RunningGuest,
)

NODES = tuple(model.Node(id, frozenset(range(4 * id, 4 * id + 4)), 1000, 600) for id in (0, 1))
ABLE = NodeCapacities((4.0, 4.0), (1e9, None), ((60.0, 100.0), (100.0, 60.0)), 1)
UNABLE = NodeCapacities((4.0, 4.0), (None, None), None, 1)
GUEST = RunningGuest(
    model.Guest('u', 'g', 2, 1, devices=(model.HostDevice(model.PCI, '0000:3b:00.1'),)),
    {},
    1.0,
    0.25,
    {0: 0.75, 1: 0.25},
    {0: 10, 1: 30},
)
EVIDENCE = Evidence('guests by thread', COUNTED, 300.0, 100.0, 0.25, None, 2000.0, 1000.0, 0.5)


class NodeSamplesTest(unittest.TestCase):
    def test_a_node_of_which_all_is_known_has_each_figure(self):
        uses = (NodeUse(3.0, 2.0, 3e6, 1e6, 2e9, 1e9, 5e8), NodeUse(6.0, 4.0, 4e6, 0.0))
        first, second = build_sample.node_samples(NODES, uses, ABLE, ())
        self.assertEqual(
            (0.75, 0.5, 0.75), (first.cpu_ratio, first.bandwidth_ratio, first.pressure)
        )
        self.assertEqual((0.25, 2.0, True), (first.remote_ratio, first.cpi, first.cpi_reliable))
        # Queueing on node 0 at u = 0.5: 0.15 · 60 ns on each of its own lines.
        self.assertAlmostEqual((3e6 * 9 + 1e6 * 40) / 1e9, first.distance_cores)
        self.assertEqual((0.0, 2.0), (first.waiting_cores, second.waiting_cores))
        self.assertEqual((1000, 600), (second.memory_bytes, second.free_bytes))
        self.assertEqual((None, 1.5), (second.bandwidth_ratio, second.pressure))

    def test_figures_of_a_node_without_evidence_are_unknown(self):
        for node in build_sample.node_samples(NODES, (NodeUse(), NodeUse()), UNABLE, ()):
            fields = node._asdict()
            for name in ('id', 'capacity_cores', 'memory_bytes', 'free_bytes'):
                fields.pop(name)
            self.assertEqual({False, None}, set(fields.values()))

    def test_bandwidth_follows_from_all_traffic(self):
        uses = (
            NodeUse(local_per_sec=3e6, remote_per_sec=1e6),
            NodeUse(local_per_sec=0.0, remote_per_sec=2e6, bandwidth_bytes_per_sec=7.0),
        )
        first, second = build_sample.node_samples(NODES, uses, ABLE, (), all_traffic=True)
        self.assertEqual(
            (64 * 5e6, 7.0), (first.bandwidth_bytes_per_sec, second.bandwidth_bytes_per_sec)
        )
        self.assertIsNone(build_sample.node_samples(NODES, uses, ABLE, ())[0].bandwidth_ratio)

    def test_remote_accesses_go_where_guests_pages_are(self):
        nodes = (*NODES, model.Node(2, frozenset()))
        uses = (
            NodeUse(local_per_sec=0.0, remote_per_sec=100.0),
            NodeUse(local_per_sec=0.0, remote_per_sec=0.0),
            NodeUse(local_per_sec=0.0, remote_per_sec=0.0),
        )
        latencies_ns = ((60, 100, 160), (100, 60, 160), (160, 160, 60))
        able = NodeCapacities((4, 4, 0), (None,) * 3, latencies_ns, 1)
        guest = build_sample.guest_sample(
            GUEST._replace(bytes_by_node={0: 5, 1: 10, 2: 30}), EVIDENCE, ()
        )
        first = build_sample.node_samples(nodes, uses, able, (guest,))[0]
        self.assertAlmostEqual((25 * 40 + 75 * 100) / 1e9, first.distance_cores, places=15)


class GuestRatesByNodeTest(unittest.TestCase):
    def rates(self, *guests, **evidence):
        return {
            node: tuple(rates[:2])
            for node, rates in build_sample.guest_rates_by_node(guests, evidence, (0, 1)).items()
        }

    def test_rates_of_guests_go_to_the_nodes_where_they_ran(self):
        other = GUEST._replace(guest=GUEST.guest._replace(uuid='v'), cores_by_node={1: 1.0})
        self.assertEqual(
            {0: (225.0, 75.0), 1: (375.0, 125.0)}, self.rates(GUEST, other, u=EVIDENCE, v=EVIDENCE)
        )
        idle = other._replace(cores=0.0, cores_by_node={1: 0.0})
        self.assertEqual({0: (225.0, 75.0), 1: (75.0, 25.0)}, self.rates(GUEST, idle, u=EVIDENCE))

    def test_a_guest_that_was_not_counted_hides_its_nodes(self):
        other = GUEST._replace(guest=GUEST.guest._replace(uuid='v'), cores_by_node={1: 1.0})
        for evidence in (
            {},
            {'v': EVIDENCE._replace(basis=INFERRED)},
            {'v': EVIDENCE._replace(local_per_sec=None)},
        ):
            self.assertEqual({0: (225.0, 75.0)}, self.rates(GUEST, other, u=EVIDENCE, **evidence))
        lost = other._replace(cores_by_node={})
        self.assertEqual({}, self.rates(GUEST, lost, u=EVIDENCE, v=EVIDENCE))
        self.assertEqual({}, self.rates())


class GuestSampleTest(unittest.TestCase):
    def test_a_counted_guest_has_each_figure(self):
        sample = build_sample.guest_sample(
            GUEST, EVIDENCE, (('0000:3b:00.1', 1), ('0000:3c:00.0', 0), ('0000:3d:00.0', None))
        )
        self.assertEqual(('u', 'g', 'guests by thread', COUNTED, 1.0, 0.25), sample[:6])
        self.assertEqual(
            (((0, 0.75), (1, 0.25)), ((0, 10), (1, 30))),
            (sample.cores_by_node, sample.bytes_by_node),
        )
        self.assertEqual(
            (0.25, 2.0, True, 400.0, 0.5),
            (
                sample.remote_ratio,
                sample.cpi,
                sample.cpi_reliable,
                sample.accesses_per_1000_instructions,
                sample.counted_ratio,
            ),
        )
        self.assertEqual(
            (
                DeviceSample('0000:3b:00.1', 1, False),
                DeviceSample('0000:3c:00.0', 0, True),
                DeviceSample('0000:3d:00.0', None, None),
            ),
            sample.devices,
        )

    def test_a_guest_without_evidence_has_unknown_figures(self):
        sample = build_sample.guest_sample(
            GUEST._replace(cores=None, waiting_cores=None, cores_by_node={}, bytes_by_node={}),
            None,
            (('0000:3b:00.1', 1),),
        )
        self.assertEqual(('', '', None, None, (), ()), sample[2:8])
        self.assertIsNone(sample.devices[0].local)
