# SPDX-License-Identifier: Apache-2.0
"""Nodes that share their memory channels count as one place."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.core import memory_domains
from tests.fixtures.host_views import hosts
from tests.fixtures.model_records import GIB, node_view, two_level_distances, view_of_nodes

PAIRS = ((10, 11, 20, 22), (11, 10, 20, 22), (20, 20, 10, 11), (22, 22, 11, 10))
LABELS = st.lists(st.integers(0, 3), max_size=6)


def paired(*nodes):
    """Return a view of four nodes; the first two and the last two are a domain each."""
    return view_of_nodes(*nodes, distances=PAIRS)._replace(domains=(0, 0, 2, 2))


class FirstTouchTest(unittest.TestCase):
    def test_memory_comes_from_the_first_node_of_the_kernels_fallback_list(self):
        # "Fallback order for Node N" in the log of Debian's kernel 6.1.192: (distances between
        # nodes, ids of those with memory, the first node of each list other than itself).
        for distances, with_memory, first in (
            (two_level_distances(6, 6, near=20), (0, 2, 5), (2, 5, 5, 5, 5, 0)),
            (two_level_distances(4, 4, near=20), (1, 2), (1, 2, 1, 2)),
            (two_level_distances(4, 2, near=12), (0, 2), (2, 0, 0, 2)),
        ):
            view = view_of_nodes(
                *(
                    node_view(node, capacity=GIB if node in with_memory else 0)
                    for node in range(len(first))
                ),
                distances=distances,
            )
            expected = [node if node in with_memory else other for node, other in enumerate(first)]
            self.assertEqual(expected, memory_domains.first_touch_positions(view))

    @given(hosts())
    def test_memory_comes_from_a_nearest_node_that_has_some(self, view):
        has_memory = [not memory_domains.is_memoryless(node) for node in view.nodes]
        for position, other in enumerate(memory_domains.first_touch_positions(view)):
            if has_memory[position]:
                self.assertEqual(position, other)
            elif other is None:
                self.assertFalse(any(has_memory))
            else:
                self.assertTrue(has_memory[other])
                distances = [
                    memory_domains.distance(view, position, at)
                    for at in range(len(view.nodes))
                    if has_memory[at]
                ]
                self.assertLessEqual(
                    memory_domains.distance(view, position, other), min(distances) + 1
                )


class MergedTest(unittest.TestCase):
    def test_figures_of_a_domains_nodes_are_added_up(self):
        nodes = (
            node_view(at, 4, capacity=GIB, promised=at, vcpus=2, demand_cores=1.5)
            for at in range(4)
        )
        view, members = memory_domains.merge(paired(*nodes))
        self.assertEqual(((0, 1), (2, 3)), members)
        self.assertEqual(
            [(8, 2 * GIB, 1, 4, 3.0), (8, 2 * GIB, 5, 4, 3.0)],
            [
                (
                    merged.cores,
                    merged.capacity_bytes,
                    merged.promised_bytes,
                    merged.vcpus,
                    merged.demand_cores,
                )
                for merged in view.nodes
            ],
        )

    def test_a_figure_unknown_of_one_node_is_unknown_of_its_domain(self):
        nodes = (node_view(at, demand_cores=None if at == 1 else 1.0) for at in range(4))
        view, _ = memory_domains.merge(paired(*nodes))
        self.assertEqual([None, 2.0], [merged.demand_cores for merged in view.nodes])

    @given(hosts())
    def test_a_view_where_each_node_is_a_domain_stays_the_same(self, view):
        merged, members = memory_domains.merge(view)
        self.assertIs(view, merged)
        self.assertEqual([(at,) for at in range(len(view.nodes))], list(members))

    def test_huge_pages_are_added_up_by_their_size(self):
        free = (((2 << 20, GIB),), ((2 << 20, GIB), (GIB, 4 * GIB)), (), ((GIB, GIB),))
        nodes = (node_view(at, huge_free_bytes=value) for at, value in enumerate(free))
        view, _ = memory_domains.merge(paired(*nodes))
        self.assertEqual(
            [{2 << 20: 2 * GIB, GIB: 4 * GIB}, {GIB: GIB}],
            [dict(one.huge_free_bytes) for one in view.nodes],
        )


class LabelTest(unittest.TestCase):
    @given(LABELS)
    def test_equal_labels_are_one_domain_named_by_its_first(self, labels):
        domains = memory_domains.domains_from_labels(labels)
        if len(set(labels)) == len(labels):
            self.assertEqual((), domains)
        else:
            self.assertEqual(tuple(map(labels.index, labels)), domains)
