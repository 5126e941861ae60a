# SPDX-License-Identifier: Apache-2.0
"""A promise follows the memory that has to stay where it is."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import promising
from nova_numa_pmc.model import GIB, MIB
from tests.fixtures.model_records import PLACEMENT_OPTIONS, topology

UUID = '00000000-0000-4000-8000-000000000001'


class FollowingMemoryTest(unittest.TestCase):
    def follow(self, vcpus, bytes_by_node):
        promise = model.Promise(
            UUID, 'a', vcpus=vcpus, memory_bytes=GIB, cpu_nodes=(0,), mem_nodes=(0,)
        )
        host = topology(cpus=(2, 2, 0), memory=(2 * GIB,) * 3)
        nodes = tuple(
            node._replace(online_cpus=node.cpus, is_far=not node.cpus) for node in host.nodes
        )
        host = host._replace(nodes=nodes)
        return promising.following_memory(promise, vcpus, bytes_by_node, host, PLACEMENT_OPTIONS)

    def test_the_cpus_are_those_of_the_node_with_most_of_the_memory(self):
        promise, cpus = self.follow(2, {0: 20 * MIB, 1: 900 * MIB})
        self.assertEqual(((1,), (1,), {2, 3}), (promise.cpu_nodes, promise.mem_nodes, cpus))
        self.assertEqual(GIB, sum(promise.mem_node_bytes))

    def test_further_nodes_are_added_until_there_is_a_cpu_for_each_vcpu(self):
        promise, cpus = self.follow(3, {0: 400 * MIB, 1: 600 * MIB})
        self.assertEqual(((0, 1), (0, 1)), (promise.cpu_nodes, promise.mem_nodes))
        self.assertEqual({0, 1, 2, 3}, cpus)
        self.assertEqual(GIB, sum(promise.mem_node_bytes))

    def test_nothing_follows_to_too_few_cpus_or_to_memory_that_is_not_for_guests(self):
        self.assertIsNone(self.follow(3, {1: 600 * MIB}))
        self.assertIsNone(self.follow(5, {0: 400 * MIB, 1: 600 * MIB}))
        self.assertIsNone(self.follow(2, {1: 100 * MIB, 2: 600 * MIB}))


class UpdatedTest(unittest.TestCase):
    def updated(self, **fields):
        promise = model.Promise(UUID, 'a', (0,), (0,), 2, GIB, origin=model.PLACED)
        one = model.Guest(UUID, 'a', fields.pop('vcpus', 2), GIB, **fields)
        host = topology(cpus=(2, 2, 0), memory=(2 * GIB,) * 3)
        nodes = tuple(node._replace(online_cpus=node.cpus) for node in host.nodes)
        return promising.updated_promise(promise, one, host._replace(nodes=nodes))

    def test_cpus_follow_memory_that_was_bound_to_other_nodes(self):
        bound = self.updated(placed_by=('numatune',), numatune_nodes=(1,))
        self.assertEqual(((1,), (1,)), (bound.cpu_nodes, bound.mem_nodes))

    def test_cpus_stay_if_memory_was_bound_to_a_node_without_any(self):
        bound = self.updated(placed_by=('numatune',), numatune_nodes=(2,))
        self.assertEqual((0,), bound.cpu_nodes)

    def test_more_vcpus_get_more_nodes_unless_none_of_the_promised_cpus_is_left(self):
        self.assertEqual((0, 1), self.updated(vcpus=4).cpu_nodes)
        nowhere = self.updated(vcpus=4, allowed_cpus=frozenset({2}))
        self.assertEqual((0,), nowhere.cpu_nodes)
