# SPDX-License-Identifier: Apache-2.0
"""Test the promise of a moved guest, and whether its memory has followed its CPUs."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.host.page_moves import guest_move
from nova_numa_pmc.moves import parts
from tests.fixtures.model_records import MIB, PLACEMENT_OPTIONS, guest, topology


class HasFollowedTest(unittest.TestCase):
    def followed(self, **known):
        return parts.has_followed(guest_move.Progress(guest_move.PARTLY, **known))

    def test_half_of_the_memory_is_enough_to_have_followed(self):
        self.assertTrue(self.followed(moved_bytes=5, left_bytes=5, left_at_first_bytes=10))
        self.assertFalse(self.followed(moved_bytes=4, left_bytes=6, left_at_first_bytes=10))

    def test_memory_that_numa_balancing_brought_has_followed(self):
        self.assertTrue(self.followed(moved_bytes=1, left_bytes=4, left_at_first_bytes=10))

    def test_memory_allocated_elsewhere_meanwhile_does_not_count(self):
        self.assertTrue(self.followed(moved_bytes=8, left_bytes=5, left_at_first_bytes=10))

    def test_memory_of_which_the_rest_is_unknown_has_not_followed(self):
        self.assertFalse(self.followed(moved_bytes=8))

    def test_memory_of_a_move_that_is_done_has_followed(self):
        self.assertTrue(parts.has_followed(guest_move.Progress(guest_move.DONE)))


class WithinL3Test(unittest.TestCase):
    def test_a_promise_has_a_cache_of_its_present_node(self):
        caches = tuple(frozenset((cpu, cpu + 1)) for cpu in range(0, 8, 2))
        host = topology((4, 4))._replace(l3s=(caches[:2], (caches[2] | caches[3],)))
        own = guest()
        for node, before, after in ((0, (), (0, 1)), (0, (4, 5), (0, 1)), (1, (0, 1), ())):
            with self.subTest(node=node, before=before):
                promise = model.Promise(
                    own.uuid, own.name, (node,), (node,), own.vcpus, 300 * MIB, l3_cpus=before
                )
                self.assertEqual(
                    promise._replace(l3_cpus=after),
                    parts.narrow_to_l3(promise, own, host, (), PLACEMENT_OPTIONS),
                )


class PromiseAfterTest(unittest.TestCase):
    def test_memory_that_is_fetched_stays_divided_as_promised(self):
        before = model.Promise('u', 'g', (0, 1), (0, 1), 8, 400 * MIB, mem_node_bytes=(300, 100))
        for mem_nodes, divided in (((0, 1), (300, 100)), ((0,), ())):
            part = plan_records.PlanPart('u', 'g', (0, 1), (0, 1), mem_nodes, 0)
            move = plan_records.requested_move(plan_records.FETCH, (part,), 'its start')
            after = parts.promise_after(move, part, before)
            self.assertEqual((mem_nodes, divided), (after.mem_nodes, after.mem_node_bytes))
