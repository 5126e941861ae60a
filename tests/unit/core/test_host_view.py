# SPDX-License-Identifier: Apache-2.0
"""Each node's cores, capacity and promises follow from the topology and the guests."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view as subject
from tests.fixtures.model_records import GIB, MIB, PLACEMENT_OPTIONS, guest, topology


def promised(name, mem_nodes=(), memory=GIB, cpu_nodes=None, vcpus=1, **fields):
    return model.Promise(
        name,
        name,
        mem_nodes if cpu_nodes is None else cpu_nodes,
        mem_nodes,
        vcpus,
        memory,
        **fields,
    )


class CapacityTest(unittest.TestCase):
    def test_pools_unreclaimable_and_reserve_come_off_before_the_ram_ratio(self):
        node = model.Node(
            0,
            frozenset({0}),
            16 * GIB,
            0,
            GIB,
            (model.HugePages(2 * MIB, 1024, 10), model.HugePages(GIB, 2, 2)),
        )
        placement_options = model.PlacementOptions(ram_ratio=1.5, reserve_bytes=GIB)
        self.assertEqual(15 * GIB, subject.capacity_bytes(node, placement_options))


class CoresTest(unittest.TestCase):
    def cores(self, host, **placement_options):
        return [
            node.cores
            for node in subject.view(
                host, (), PLACEMENT_OPTIONS._replace(**placement_options)
            ).nodes
        ]

    def test_a_sibling_adds_a_quarter(self):
        self.assertEqual([5.0, 2.5], self.cores(topology((8, 4), threads=2)))
        self.assertEqual([4.0, 2.0], self.cores(topology((8, 4), threads=2), smt_ratio=0))

    def test_a_core_with_one_usable_thread_is_a_whole_core(self):
        host = topology((4, 4), threads=2)
        first = host.nodes[0]._replace(cpus=frozenset({1, 2, 3}))
        self.assertEqual([2.25, 2.5], self.cores(host._replace(nodes=(first, host.nodes[1]))))

    def test_cpus_without_a_core_count_as_cores(self):
        self.assertEqual([3.0, 1.0], self.cores(topology((3, 1))._replace(cores=())))


class PromisesTest(unittest.TestCase):
    def promised(self, host, *promises):
        return [
            node.promised_bytes for node in subject.view(host, promises, PLACEMENT_OPTIONS).nodes
        ]

    def test_a_floating_guest_spreads_in_proportion_to_capacity(self):
        host = topology((2, 2), (3 * GIB, GIB))
        self.assertEqual([3 * GIB // 4, GIB // 4], self.promised(host, promised('a')))

    def test_memory_of_several_nodes_is_spread_by_capacity_where_even_parts_do_not_fit(self):
        host = topology((2, 2), (4 * GIB, 2 * GIB))
        for size, expected in ((3 * GIB, [1.5, 1.5]), (6 * GIB, [4, 2])):
            wide = promised('wide', (0, 1), size)
            self.assertEqual([part * GIB for part in expected], self.promised(host, wide))

    def test_memory_of_several_nodes_is_divided_evenly_unless_recorded(self):
        host = topology((2, 2), (8 * GIB, 8 * GIB))
        bound = promised('cells', (0, 1), 4 * GIB, origin=model.BY_OTHERS)
        busy = promised('one', (0,), 5 * GIB)
        self.assertEqual([7 * GIB, 2 * GIB], self.promised(host, bound, busy))
        with self.subTest('huge pages'):
            pools = tuple((model.HugePages(GIB, total, total),) for total in (6, 3))
            nodes = subject.view(
                topology(memory=(8 * GIB, 8 * GIB), huge_pages=pools),
                [bound._replace(page_bytes=GIB)],
                PLACEMENT_OPTIONS,
            ).nodes
            self.assertEqual(
                [((GIB, 4 * GIB),), ((GIB, GIB),)], [node.huge_free_bytes for node in nodes]
            )

    def test_a_promise_of_more_than_fits_is_still_counted(self):
        host = topology((2, 2), (GIB, GIB))
        self.assertEqual(
            [4 * GIB, 3 * GIB],
            self.promised(host, promised('wide', (0, 1), 6 * GIB), promised('one', (0,), GIB)),
        )

    def test_a_node_that_is_gone_leaves_the_guest_floating(self):
        self.assertEqual([GIB // 2] * 2, self.promised(topology(), promised('a', (7,))))

    def test_a_widened_guest_counts_where_it_may_run(self):
        wide = promised('a', (0,), cpu_nodes=(0,), vcpus=4, widened_nodes=(0, 1))
        nodes = subject.view(topology((2, 2)), [wide], PLACEMENT_OPTIONS).nodes
        self.assertEqual([(2.0, GIB), (2.0, 0)], [(n.vcpus, n.promised_bytes) for n in nodes])

    def test_huge_pages_count_against_their_pool_only(self):
        pools = tuple((model.HugePages(2 * MIB, total, total),) for total in (1024, 0))
        host = topology(memory=(4 * GIB, 4 * GIB), huge_pages=pools)
        nodes = subject.view(
            host, [promised('a', (0,), page_bytes=2 * MIB)], PLACEMENT_OPTIONS
        ).nodes
        self.assertEqual([0, 0], [node.promised_bytes for node in nodes])
        self.assertEqual([2 * GIB, 4 * GIB], [node.capacity_bytes for node in nodes])
        self.assertEqual(((2 * MIB, GIB),), nodes[0].huge_free_bytes)

    def test_huge_pages_are_divided_as_whole_pages(self):
        pools = tuple((model.HugePages(GIB, total, total),) for total in (5, 2))
        wide = promised('wide', (0, 1), 6 * GIB, page_bytes=GIB)
        nodes = subject.view(
            topology(memory=(8 * GIB, 8 * GIB), huge_pages=pools), [wide], PLACEMENT_OPTIONS
        ).nodes
        self.assertEqual([((GIB, GIB),), ((GIB, 0),)], [node.huge_free_bytes for node in nodes])

    def test_huge_pages_taken_by_others_are_not_free(self):
        host = topology(memory=(4 * GIB, 4 * GIB), huge_pages=((model.HugePages(GIB, 3, 1),), ()))
        self.assertEqual(
            ((GIB, GIB),), subject.view(host, (), PLACEMENT_OPTIONS).nodes[0].huge_free_bytes
        )


class MeasuredTest(unittest.TestCase):
    def test_the_demand_of_an_unmeasured_node_is_none(self):
        nodes = subject.view(topology(), (), PLACEMENT_OPTIONS, {1: model.NodeLoad(0.0)}).nodes
        self.assertEqual([None, 0.0], [node.demand_cores for node in nodes])


class RequestTest(unittest.TestCase):
    def test_without_history_a_guest_asks_for_a_prior_share_of_its_vcpus(self):
        request = subject.request(guest(vcpus=4), PLACEMENT_OPTIONS)
        self.assertEqual(2.0, request.demand_cores)
        self.assertIsNone(request.bandwidth_bytes_per_sec)

    def test_with_history_a_guest_asks_for_what_others_wanted(self):
        history = model.DemandHistory(5, 4.5, 10**9)
        specs = (('numa_pmc:memory_intensity', 'high'),)
        request = subject.request(
            guest(vcpus=2, extra_specs=specs), PLACEMENT_OPTIONS, history=history
        )
        self.assertEqual(2 * 45 / 64, request.demand_cores)  # 0.7, rounded to 1/64
        self.assertAlmostEqual(3e9 * 2 * 45 / 64, request.bandwidth_bytes_per_sec)

    def test_a_guest_asks_for_what_it_has_and_says_what_it_may_grow_to(self):
        growing = guest(vcpus=2, vcpus_max=8, memory=GIB, memory_max_bytes=4 * GIB)
        request = subject.request(growing, PLACEMENT_OPTIONS)
        self.assertEqual(
            (2, 1.0, GIB), (request.vcpus, request.demand_cores, request.memory_bytes)
        )
        self.assertEqual((8, 4 * GIB), (request.vcpus_max, request.memory_max_bytes))
