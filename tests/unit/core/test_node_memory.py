# SPDX-License-Identifier: Apache-2.0
"""Memory of nodes without CPUs is kept from guests, unless the operator decides otherwise."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core.host_view import view
from nova_numa_pmc.core.placement import placement
from nova_numa_pmc.core.rebalance import plan_records
from tests.fixtures import model_records
from tests.fixtures.model_records import GIB, PLACEMENT_OPTIONS
from tests.sim.constant import ConstantHost, guest_load

#: The distances of a Grace Hopper: two sockets, two GPUs.
FAR = ((10, 40, 80, 80), (40, 10, 80, 80), (80, 80, 10, 80), (80, 80, 80, 10))


def host(cpus=(4, 4, 0, 0), sizes=(16 * GIB, 16 * GIB, 96 * GIB, 96 * GIB)):
    """Build a host of two nodes with CPUs and two without."""
    topology = model_records.topology(cpus=cpus, memory=sizes, distances=FAR)
    return topology._replace(
        nodes=topology.nodes[:2] + tuple(node._replace(is_far=True) for node in topology.nodes[2:])
    )


def floating(gib):
    return model.Promise('f', 'f', (), (), 2, gib * GIB, None, False, model.FLOATING, 0)


class KeptMemoryTest(unittest.TestCase):
    def view(self, promises=(), placement_options=PLACEMENT_OPTIONS):
        return view(host(), promises, placement_options)

    def place(self, gib, placement_options=PLACEMENT_OPTIONS):
        return placement.place(
            self.view((), placement_options), model.Request(2, gib * GIB), placement_options
        )

    def test_no_floating_promise_is_spread_to_kept_memory(self):
        view = self.view([floating(12)])
        self.assertEqual([6 * GIB, 6 * GIB, 0, 0], [n.promised_bytes for n in view.nodes])
        self.assertEqual([16 * GIB, 16 * GIB, 0, 0], [n.capacity_bytes for n in view.nodes])

    def test_no_guest_is_placed_on_kept_memory(self):
        for gib in (8, 24, 31, 60):
            with self.subTest(gib=gib):
                placed = self.place(gib)
                self.assertLessEqual({*placed.cpu_nodes, *placed.mem_nodes}, {0, 1})
        self.assertEqual((), self.place(60).mem_nodes, 'wide: it fits nowhere')

    def test_the_operator_may_let_guests_have_kept_memory(self):
        asked = PLACEMENT_OPTIONS._replace(guest_memory_nodes=frozenset({3}))
        self.assertEqual((0, 3), self.place(60, placement_options=asked).mem_nodes)

    def test_huge_pages_of_kept_memory_are_for_no_guest(self):
        pool = (model.HugePages(GIB, 8, 8),)
        topology = host()
        topology = topology._replace(
            nodes=tuple(n._replace(huge_pages=pool) for n in topology.nodes)
        )
        seen = view(topology, [], PLACEMENT_OPTIONS)
        self.assertEqual(
            [8 * GIB, 8 * GIB, 0, 0],
            [sum(dict(node.huge_free_bytes).values()) for node in seen.nodes],
        )
        placed = placement.place(seen, model.Request(2, 12 * GIB, GIB), PLACEMENT_OPTIONS)
        self.assertEqual((0, 1), placed.mem_nodes)

    def test_a_guest_that_numatune_binds_to_kept_memory_is_counted_there(self):
        bound = model.Promise('p', 'p', (0,), (2,), 2, 4 * GIB, None, False, model.BY_OTHERS, 0)
        self.assertEqual([0, 0, 4 * GIB, 0], [n.promised_bytes for n in self.view([bound]).nodes])


class BandwidthTest(unittest.TestCase):
    """The bandwidth of memory that is kept from guests is not available to them."""

    GB_PER_SEC = 1e9

    def place(
        self,
        wanted,
        kept_maxima,
        placement_options=PLACEMENT_OPTIONS,
        sizes=(256, 256, 96, 96),
        cpus=(32, 32, 0, 0),
    ):
        """Place a guest of 4 vCPUs and 8 GiB on nodes of 200 GB/s each that are used this much."""
        loads = {
            node: model.NodeLoad(
                10.0 if cpus[node] else None,
                180 * self.GB_PER_SEC if node < 2 else None,
                None if most is None else most * self.GB_PER_SEC,
            )
            for node, most in enumerate((200, 200, *kept_maxima))
        }
        shape = host(cpus=cpus, sizes=tuple(size * GIB for size in sizes))
        return placement.place(
            view(shape, [], placement_options, loads),
            model.Request(4, 8 * GIB, bandwidth_bytes_per_sec=wanted * self.GB_PER_SEC),
            placement_options,
        )

    def test_bandwidth_of_kept_memory_does_not_change_the_place(self):
        for wanted in (150, 250, 405, 414, 432, 600):
            alone = self.place(wanted, (0, 0))
            self.assertEqual((0, 1), alone.mem_nodes)
            for maxima in ((60, 60), (None, None), (None, 60), (4000, 30), (4000, 4000)):
                with self.subTest(wanted=wanted, maxima=maxima):
                    self.assertEqual(alone, self.place(wanted, maxima))


class DomainTest(unittest.TestCase):
    """Nodes that share their channels, some without memory."""

    SHAPE = model_records.topology(
        cpus=(2, 2, 2, 2),
        memory=(16 * GIB, 0, 8 * GIB, 0),
        distances=model_records.two_level_distances(4, 2, near=11),
    )

    def view(self):
        return view(self.SHAPE, [], PLACEMENT_OPTIONS)._replace(domains=(0, 0, 2, 2))

    def test_memory_of_a_domain_is_on_its_nodes_that_have_any(self):
        for gib, nodes, mem_nodes in ((12, (0, 1), (0,)), (20, (0, 1, 2, 3), (0, 2))):
            with self.subTest(gib=gib):
                placed = placement.place(
                    self.view(), model.Request(3, gib * GIB), PLACEMENT_OPTIONS
                )
                self.assertEqual((nodes, mem_nodes), (placed.cpu_nodes, placed.mem_nodes))


class RebalanceTest(unittest.TestCase):
    def plans(self, host):
        moves, _ = host.run(plan_records.RebalanceOptions(measured_min_s=0.0), 240, 60.0)
        return [move for plan in moves for move in plan.moves]

    def test_memory_that_spilled_to_a_device_comes_home(self):
        guests = [
            guest_load(
                'far',
                4,
                0,
                3.0,
                8 * GIB,
                lines=1e7,
                mem_nodes=(0,),
                memory_at=((0, 2 * GIB), (2, 6 * GIB)),
            ),
            *(guest_load('g%d' % n, 4, 0, 3.0, 4 * GIB, lines=1e7) for n in range(3)),
        ]
        host = ConstantHost((8, 8, 0, 0), (32 * GIB, 32 * GIB, 0, 0), guests, distances=FAR)
        parts = self.plans(host)
        self.assertTrue(parts)
        self.assertLessEqual({node for part in parts for node in part.mem_nodes}, {0, 1})
        self.assertEqual(
            {0, 1}, {node for guest in host.guests for node, _ in guest.bytes_by_node}
        )
