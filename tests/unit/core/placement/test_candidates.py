# SPDX-License-Identifier: Apache-2.0
"""A guest that spans nodes gets the smallest sets that hold it."""

import unittest
from itertools import combinations
from unittest import mock

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import candidates
from tests.fixtures.model_records import MIB, node_view


def smallest_sets(nodes, vcpus, memory_mib, distance=lambda a, b: 10 if a == b else 20):
    """Return the sets; ``nodes`` are (cores, unpromised MiB, demand [cores])."""
    everywhere = range(len(nodes))
    view = model.HostView(
        tuple(
            node_view(at, cores=cores, cpu_count=cores, demand_cores=demand, capacity=mib * MIB)
            for at, (cores, mib, demand) in enumerate(nodes)
        ),
        tuple(tuple(distance(a, b) for b in everywhere) for a in everywhere),
    )
    inputs = candidates.PlacementInput(view, model.Request(vcpus, memory_mib * MIB))
    return candidates.smallest_sets(inputs, True)


NODES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=9
)


class SmallestTest(unittest.TestCase):
    @settings(max_examples=150)
    @given(NODES, st.integers(1, 30), st.integers(0, 30))
    def test_a_set_is_found_whenever_one_holds_the_guest(self, nodes, vcpus, memory_mib):
        def holds(chosen):
            return (
                sum(nodes[at][0] for at in chosen) >= vcpus
                and sum(nodes[at][1] for at in chosen) >= memory_mib
            )

        size = next(
            (
                size
                for size in range(1, len(nodes) + 1)
                if any(map(holds, combinations(range(len(nodes)), size)))
            ),
            None,
        )
        for enumerated_max in (300, 0):
            with mock.patch.object(candidates, 'ENUMERATED_MAX', enumerated_max):
                sets = smallest_sets(nodes, vcpus, memory_mib)
            self.assertEqual(size is not None, bool(sets))
            for chosen in sets:
                self.assertTrue(holds(chosen))
                self.assertEqual(sorted(set(chosen)), list(chosen))
                if enumerated_max:
                    self.assertEqual(size, len(chosen))

    def test_on_a_large_host_near_nodes_of_low_pressure_are_taken(self):
        # Two sockets of 12 nodes each; of the second, every other node is busy.
        nodes = [(2, 4, 1)] * 12 + [(2, 4, at % 2) for at in range(12)]
        sets = smallest_sets(nodes, 8, 16, lambda a, b: 13 if a // 12 == b // 12 else 32)
        self.assertIn((12, 14, 16, 18), sets)
        self.assertEqual({4}, {len(chosen) for chosen in sets})
        self.assertTrue(all(len({at // 12 for at in chosen}) == 1 for chosen in sets))

    def test_four_of_eleven_nodes_are_taken_where_four_hold_the_guest(self):
        # Four nodes have more cores, or more memory, than those near them.
        for large, small, vcpus, memory_mib in (
            ((4, 4, 0), (3, 4, 0), 16, 8),
            ((4, 4, 0), (4, 3, 0), 8, 16),
            ((4, 4, 0), (3, 3, 0), 16, 16),
        ):
            nodes = [large if at in (0, 3, 6, 9) else small for at in range(11)]
            sets = smallest_sets(nodes, vcpus, memory_mib, lambda a, b: 10 + abs(a - b))
            self.assertEqual([(0, 3, 6, 9)], sets)

    def test_nodes_without_room_are_left_out_on_a_large_host(self):
        nodes = [(2, 0 if at % 2 else 4, 0) for at in range(24)]
        for chosen in smallest_sets(nodes, 8, 16):
            self.assertFalse([at for at in chosen if at % 2])
