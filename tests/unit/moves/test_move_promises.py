# SPDX-License-Identifier: Apache-2.0
"""Test the promise that a guest has after a move."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.moves import move_promises
from tests.fixtures.model_records import MIB, PLACEMENT_OPTIONS, guest, topology


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
                    move_promises._narrow_to_l3(promise, own, host, (), PLACEMENT_OPTIONS),
                )


class PromiseAfterTest(unittest.TestCase):
    def test_memory_that_is_fetched_stays_divided_as_promised(self):
        before = model.Promise('u', 'g', (0, 1), (0, 1), 8, 400 * MIB, mem_node_bytes=(300, 100))
        for mem_nodes, divided in (((0, 1), (300, 100)), ((0,), ())):
            move = plan_records.Move(
                plan_records.FETCH, 'u', 'g', (0, 1), (0, 1), mem_nodes, 0, 'its start'
            )
            after = move_promises.promise_after(move, before)
            self.assertEqual((mem_nodes, divided), (after.mem_nodes, after.mem_node_bytes))
