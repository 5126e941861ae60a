# SPDX-License-Identifier: Apache-2.0
"""A guest that spans nodes gets the smallest sets that hold it, the nearest or best first."""

import unittest
from itertools import combinations
from unittest import mock

from hypothesis import given, settings, strategies as st

from nova_numa_pmc.core.placement import node_sets


def apart(a, b):
    return 10 if a == b else 20


def holds(room, need, positions):
    return all(
        sum(room[position][kind] for position in positions) >= required
        for kind, required in enumerate(need)
    )


def smallest_sets(room, need, distance=apart, pressure_keys=None):
    """Return the sets; without keys, for nodes of the same pressure."""
    return node_sets.smallest_sets(room, need, distance, pressure_keys or [(0,)] * len(room))


class SmallestTest(unittest.TestCase):
    def test_sets_of_the_smallest_size_are_found_nearest_first(self):
        room = [(2, 4), (2, 1), (2, 3), (2, 0)]
        self.assertEqual([(0, 1), (0, 2)], smallest_sets(room, (4, 5))[:2])

    @settings(max_examples=200)
    @given(
        st.integers(2, 3).flatmap(
            lambda resources: st.tuples(
                st.lists(st.tuples(*[st.integers(0, 9)] * resources), min_size=1, max_size=9),
                st.tuples(st.integers(1, 30), *[st.integers(0, 30)] * (resources - 1)),
            )
        )
    )
    def test_the_search_finds_no_larger_sets_than_an_enumeration(self, drawn):
        room, need = drawn
        size = next(
            (
                size
                for size in range(1, len(room) + 1)
                for positions in combinations(range(len(room)), size)
                if holds(room, need, positions)
            ),
            None,
        )
        for enumerated_max in (0, 300):
            with mock.patch.object(node_sets, 'ENUMERATED_MAX', enumerated_max):
                sets = smallest_sets(room, need)
            self.assertEqual(size is not None, bool(sets))
            for chosen in sets:
                self.assertEqual(size, len(chosen))
                self.assertTrue(holds(room, need, chosen))

    def test_the_smallest_set_of_sixteen_and_more_nodes_is_found(self):
        for count in (16, 24, 32, 64):
            # Only the last two together hold the guest, and each looks worse than the others.
            room = [(9, 5), (5, 9)] * (count // 2 - 1) + [(14, 0), (1, 15)]
            for need in ((15, 15), (43, 43)):
                sets = smallest_sets(room, need)
                self.assertEqual({2 if need == (15, 15) else 6}, {len(chosen) for chosen in sets})
                for chosen in sets:
                    self.assertTrue(holds(room, need, chosen))

    @settings(max_examples=100)
    @given(
        st.lists(
            st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 5)),
            min_size=2,
            max_size=12,
        ),
        st.tuples(st.integers(1, 30), st.integers(0, 30)),
    )
    def test_each_set_found_by_pressure_holds_the_guest(self, drawn, need):
        room, pressure_keys = (
            [node_room[:2] for node_room in drawn],
            [node_room[2:] for node_room in drawn],
        )
        with mock.patch.object(node_sets, 'ENUMERATED_MAX', 0):
            sets = smallest_sets(room, need, apart, pressure_keys)
        self.assertEqual(bool(smallest_sets(room, need)), bool(sets))
        for chosen in sets:
            self.assertEqual(sorted(set(chosen)), list(chosen))
            for kind in (0, 1):
                self.assertGreaterEqual(sum(room[at][kind] for at in chosen), need[kind])

    def test_among_equal_nodes_the_best_are_found(self):
        room, pressure_keys = [(2, 4)] * 24, [(at * 7 % 24,) for at in range(24)]
        best = tuple(sorted(sorted(range(24), key=pressure_keys.__getitem__)[:4]))
        self.assertIn(best, smallest_sets(room, (8, 8), apart, pressure_keys))

    def test_the_best_and_nearest_of_many_sets_are_returned(self):
        room, pressure_keys = [(1, 1)] * 24, [(at % 12,) for at in range(24)]
        sets = smallest_sets(
            room, (2, 0), lambda a, b: 11 if a // 12 == b // 12 else 32, pressure_keys
        )
        self.assertEqual(node_sets.RETURNED_MAX, len(sets))
        self.assertLessEqual({(0, 1), (12, 13), (0, 12)}, set(sets))
        self.assertEqual(sorted(sets), sets)
