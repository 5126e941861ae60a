# SPDX-License-Identifier: Apache-2.0
"""Test the rebalancer's input for each guest."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core.measurements import GuestSample, NodeSample, Sample
from nova_numa_pmc.moves import situations
from tests.fixtures.model_records import GIB, guest, node_view, view_of_nodes

VIEW = view_of_nodes(node_view(0, cpus=frozenset({0, 1})), node_view(1, cpus=frozenset({2, 3})))
NODES = (
    NodeSample(0, 2.0, bandwidth_bytes_per_sec=6e9),
    NodeSample(1, 2.0, bandwidth_bytes_per_sec=2e9),
)
PROMISE = model.Promise('uuid-g', 'g', (0,), (0,), 2, GIB, started=True)


def load_of(guest_sample, one=None, promise=PROMISE, nodes=NODES, **more):
    one = one or guest('g', 2, GIB)
    (load,) = situations.guest_loads(
        Sample(0.0, 5.0, '', nodes, (guest_sample,)),
        {one.uuid: one},
        {one.uuid: promise},
        VIEW,
        **more,
    )
    return load


def sample(**fields):
    return GuestSample('uuid-g', 'g', '', '', **fields)


class GuestLoadTest(unittest.TestCase):
    def test_demand_is_what_ran_and_what_waited(self):
        load = load_of(sample(cores=1.5, waiting_cores=0.5))
        self.assertEqual((2.0, 1.5), (load.demand_cores, load.served_cores))
        self.assertEqual(1.5, load_of(sample(cores=1.5)).demand_cores)
        self.assertIsNone(load_of(sample()).demand_cores)

    def test_unknown_accesses_stay_unknown(self):
        load = load_of(sample(cores=1.0, remote_ratio=0.5))
        self.assertIsNone(load.lines_per_sec)
        self.assertIsNone(load.bandwidth_bytes_per_sec)

    def test_controllers_traffic_is_shared_out_by_accesses(self):
        # 8e9 bytes per second were served, 5e7 accesses counted: 160 bytes each.
        load = load_of(sample(local_per_sec=4e7, remote_per_sec=1e7))
        self.assertEqual(5e7, load.lines_per_sec)
        self.assertAlmostEqual(8e9, load.bandwidth_bytes_per_sec)

    def test_counted_bytes_are_the_bandwidth_of_a_guest(self):
        load = load_of(sample(bandwidth_bytes_per_sec=6.4e9))
        self.assertEqual((1e8, 6.4e9), (load.lines_per_sec, load.bandwidth_bytes_per_sec))

    def test_a_guest_is_not_charged_the_accesses_of_the_host(self):
        # The CPUs made 2e8 accesses, of which 5e7 were the guest's: a quarter of 8e9 bytes.
        nodes = (
            NODES[0]._replace(local_per_sec=1.4e8, remote_per_sec=1e7),
            NODES[1]._replace(local_per_sec=5e7, remote_per_sec=0.0),
        )
        load = load_of(sample(local_per_sec=4e7, remote_per_sec=1e7), nodes=nodes)
        self.assertAlmostEqual(2e9, load.bandwidth_bytes_per_sec)

    def test_a_guest_is_charged_at_most_what_the_nodes_of_its_memory_served(self):
        for bytes_by_node, expected in (
            (((0, 0), (1, GIB)), 2e9),
            (((0, GIB), (1, GIB)), 8e9),
            (((1, GIB), (9, GIB)), 8e9),
        ):
            counted = sample(local_per_sec=4e7, remote_per_sec=0.0, bytes_by_node=bytes_by_node)
            self.assertAlmostEqual(expected, load_of(counted).bandwidth_bytes_per_sec)

    def test_without_controllers_traffic_is_unknown(self):
        nodes = tuple(node._replace(bandwidth_bytes_per_sec=None) for node in NODES)
        load = load_of(sample(local_per_sec=4e7, remote_per_sec=1e7), nodes=nodes)
        self.assertIsNone(load.bandwidth_bytes_per_sec)

    def test_memory_that_is_not_for_guests_does_not_hide_their_traffic(self):
        counted = sample(local_per_sec=4e7, remote_per_sec=1e7)
        load = load_of(counted, nodes=(*NODES, NodeSample(9, 0.0)))
        self.assertAlmostEqual(8e9, load.bandwidth_bytes_per_sec)

    def test_cpus_without_memory_do_not_hide_the_traffic_of_guests(self):
        counted = sample(local_per_sec=4e7, remote_per_sec=1e7)
        for memory_bytes, expected in ((0, 8e9), (GIB, None), (None, None)):
            nodes = (*NODES, NodeSample(2, 2.0, memory_bytes=memory_bytes))
            self.assertEqual(expected, load_of(counted, nodes=nodes).bandwidth_bytes_per_sec)

    def test_a_guest_may_run_where_its_cpus_are(self):
        self.assertEqual(
            ((1, 1),),
            load_of(sample(), guest('g', 2, GIB, allowed_cpus=frozenset({2}))).allowed_cpu_counts,
        )
        self.assertIsNone(load_of(sample()).allowed_cpu_counts)

    def test_a_widened_guest_has_a_home_node(self):
        load = load_of(sample(), promise=PROMISE._replace(widened_nodes=(0, 1)))
        self.assertEqual(((0, 1), (0,)), (load.held_nodes, load.home_nodes))

    def test_a_guest_that_is_paused_is_fixed(self):
        self.assertEqual('', load_of(sample(cores=1.0)).why_fixed)
        self.assertEqual('paused', load_of(sample(), guest('g', 2, GIB, state='paused')).why_fixed)

    def test_only_vcpus_that_are_plugged_need_a_thread(self):
        self.assertEqual(2, load_of(sample(), guest('g', 2, GIB, vcpus_max=4)).vcpus)


class WaitingTest(unittest.TestCase):
    def test_waiting_is_divided_as_guests_ran(self):
        samples = [
            sample(waiting_cores=1.0, cores_by_node=((0, 3.0), (1, 1.0))),
            sample(waiting_cores=0.5, cores_by_node=((1, 2.0),)),
        ]
        self.assertEqual(((0, 0.75), (1, 0.75)), situations.waiting_cores(samples))

    def test_a_node_where_one_is_unknown_is_left_out(self):
        samples = [
            sample(waiting_cores=1.0, cores_by_node=((0, 1.0), (1, 1.0))),
            sample(cores_by_node=((1, 2.0),)),
            sample(waiting_cores=1.0),
            sample(waiting_cores=1.0, cores_by_node=((0, 0.0),)),
        ]
        self.assertEqual(((0, 0.5),), situations.waiting_cores(samples))
