# SPDX-License-Identifier: Apache-2.0
"""Test the modelled effect of another place on a guest."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view
from nova_numa_pmc.core.rebalance import host_model, plan_records, planner
from nova_numa_pmc.core.rebalance.host_model import Place
from tests.fixtures.model_records import PLACEMENT_OPTIONS, topology
from tests.sim.constant import GIB, ConstantHost, guest_load

OPTIONS = plan_records.RebalanceOptions()


def host_of(*guests, waiting_cores=()):
    """Build a model of three nodes of 12 cores."""
    host = ConstantHost((12,) * 3, (64 * GIB,) * 3, guests)
    return host_model.HostModel(host.situation()._replace(waiting_cores=waiting_cores), OPTIONS)


class BandwidthTest(unittest.TestCase):
    def is_known(self, **fields):
        """Return whether it is if only the last of three nodes has no known maximum."""
        host = ConstantHost((12,) * 3, (64 * GIB,) * 3, [], bandwidth_max=1e10)
        situation = host.situation()
        *nodes, last = situation.view.nodes
        last = last._replace(bandwidth_max_bytes_per_sec=None, **fields)
        view = situation.view._replace(nodes=(*nodes, last))
        return host_model.HostModel(situation._replace(view=view), OPTIONS).bandwidth_known

    def test_each_node_with_memory_needs_a_maximum(self):
        self.assertFalse(self.is_known())
        self.assertFalse(self.is_known(cores=0.0))

    def test_a_node_of_huge_pages_alone_needs_a_maximum(self):
        self.assertFalse(self.is_known(capacity_bytes=0, huge_free_bytes=((1 << 30, 0),)))

    def test_a_node_without_memory_needs_no_maximum(self):
        self.assertTrue(self.is_known(capacity_bytes=0))


class MayTest(unittest.TestCase):
    def allows(self, place, **fields):
        laid_out = host_of(guest_load('g', 4, fields.pop('at', 0), 2.0, **fields))
        return laid_out.allows(laid_out.guests['g'], place)

    def test_a_guest_may_go_where_it_has_a_cpu_for_each_of_its_own(self):
        self.assertTrue(self.allows(Place((1,), 1)))
        self.assertTrue(self.allows(Place((0, 1), None)))
        self.assertFalse(self.allows(Place((1,), 1), allowed_cpu_counts=((0, 12), (2, 12))))
        laid_out = host_of(guest_load('g', 16, (0, 1), 2.0))
        self.assertFalse(laid_out.allows(laid_out.guests['g'], Place((2,), 2)))

    def test_a_guest_may_go_where_it_may_use_a_cpu_for_each_of_its_own(self):
        for count, may in ((3, False), (4, True)):
            counts = ((0, 12), (1, count))
            self.assertEqual(may, self.allows(Place((1,), 1), allowed_cpu_counts=counts))
        # Where it is, it may stay, and its memory may come.
        self.assertTrue(self.allows(Place((0,), 0), allowed_cpu_counts=((0, 2),)))

    def test_a_guest_that_must_not_be_touched_may_go_nowhere(self):
        for place in (Place((0,), None), Place((1,), 1), Place((0, 1), None)):
            self.assertFalse(self.allows(place, why_fixed='placed_by_others'))

    def test_memory_whose_place_is_unknown_stays(self):
        self.assertFalse(self.allows(Place((1,), 1), memory_at=()))
        self.assertTrue(self.allows(Place((1,), None), memory_at=()))

    def test_a_guest_that_floats_may_not_go_to_a_node_that_is_too_small_for_it(self):
        host = topology((12, 12), (64 * GIB, 24 * GIB))
        loads = {n: model.NodeLoad(1.0) for n in (0, 1)}
        for memory_gib, may in ((20, True), (30, False)):
            promise = model.Promise('g', 'g', (), (), 4, memory_gib * GIB)
            view = host_view.view(host, [promise], PLACEMENT_OPTIONS, loads)
            load = guest_load('g', 4, (0, 1), 2.0, promise.memory_bytes, GIB, mem_nodes=())
            situation = ConstantHost((12,) * 2, (GIB,) * 2, [load]).situation()
            laid_out = host_model.HostModel(situation._replace(view=view), OPTIONS)
            self.assertEqual(may, laid_out.allows(laid_out.guests['g'], Place((1,), 1)))


class CostTest(unittest.TestCase):
    def cost(self, mib_per_s):
        host = ConstantHost((12,) * 2, (64 * GIB,) * 2, [guest_load('g', 4, 0, 2.0)])
        options = OPTIONS._replace(bytes_per_sec=mib_per_s << 20)
        laid_out = host_model.HostModel(host.situation(), options)
        return laid_out.cost(laid_out.guests['g'], Place((1,), 1))

    def test_a_slower_move_costs_more_however_slow_it_is(self):
        costs = [self.cost(mib_per_s) for mib_per_s in (64, 16, 4, 1)]
        self.assertEqual(costs, sorted(costs))
        self.assertEqual(4, len(set(costs)))


class WidenTest(unittest.TestCase):
    def gain(self, at, to, *waiting_cores):
        """Return what a guest next to those of two busy nodes gains by more nodes [cores]."""
        beside = [guest_load(f'b{n}{k}', 4, n, 3.5) for n in (0, 1) for k in range(3)]
        laid_out = host_of(guest_load('g', 4, at, 4.0), *beside, waiting_cores=waiting_cores)
        return planner.gain_of(laid_out, 'g', Place(to, None))

    def test_each_further_node_helps_a_guest_among_full_ones(self):
        self.assertGreater(self.gain((0,), (0, 2)), 1.0)
        self.assertGreater(self.gain((0, 1), (0, 1, 2)), 0.1)

    def test_a_widened_guests_bursts_use_idle_cores_of_another_node(self):
        for at, to in (((0,), (0, 2)), ((0, 1), (0, 1, 2))):
            steady = self.gain(at, to, (0, 2.6), (1, 0.0), (2, 0.0))
            self.assertGreater(self.gain(at, to, (0, 4.0), (1, 2.0), (2, 0.0)), steady)
