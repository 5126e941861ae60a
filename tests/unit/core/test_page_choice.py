# SPDX-License-Identifier: Apache-2.0
"""Test which pages are moved, and to which nodes."""

import unittest
from array import array

from hypothesis import given, strategies as st

from nova_numa_pmc.core import page_choice

ABSENT = -2


class NotableBytesElsewhereTest(unittest.TestCase):
    def test_bytes_elsewhere_count_above_what_is_negligible(self):
        for bytes_by_node, negligible_bytes, expected in (
            ({0: 500, 1: 10, 2: 1}, 10, 11),
            ({0: 500, 1: 10}, 10, 0),  # not above it
            ({0: 1979, 1: 20, 2: 1}, 10, 21),  # also above 1 % of all
            ({0: 1980, 1: 20}, 10, 0),  # 1 % of all is more
            ({}, 10, 0),
        ):
            with self.subTest(bytes_by_node):
                self.assertEqual(
                    expected,
                    page_choice.notable_bytes_elsewhere(bytes_by_node, (0,), negligible_bytes),
                )


class MisplacedPagesTest(unittest.TestCase):
    @given(st.lists(st.integers(-20, 4)), st.sets(st.integers(0, 4), min_size=1))
    def test_misplaced_pages_are_present_pages_off_the_home_nodes(self, statuses, homes):
        self.assertEqual(
            [i for i, node in enumerate(statuses) if node >= 0 and node not in homes],
            page_choice.misplaced_pages(array('i', statuses), homes),
        )


class WholeUnitsTest(unittest.TestCase):
    def test_a_unit_wholly_on_one_wrong_node_is_moved_as_one(self):
        statuses = array('i', [1, 1, 1, 1, 1, 0, 1, 1, ABSENT, 1, 1, 1, 1])
        self.assertEqual([1, 10], page_choice.whole_units(statuses, {0}, 1, 3))

    @given(st.lists(st.integers(-2, 2), max_size=40), st.integers(0, 8), st.integers(2, 8))
    def test_units_are_aligned_whole_and_away(self, statuses, first, unit):
        statuses = array('i', statuses)
        for at in page_choice.whole_units(statuses, {0}, first, unit):
            self.assertEqual(first % unit, at % unit)
            self.assertEqual(1, len(set(statuses[at : at + unit])))
            self.assertGreater(statuses[at], 0)
            self.assertLessEqual(at + unit, len(statuses))


class TargetTest(unittest.TestCase):
    def test_the_next_target_is_the_node_that_lacks_most(self):
        wanted = {0: 100, 1: 100}
        self.assertEqual(1, page_choice.next_target(wanted, {0: 60, 1: 10}, [0, 1]))
        self.assertEqual(0, page_choice.next_target(wanted, {0: 60, 1: 10}, [0]))
        self.assertEqual(0, page_choice.next_target(wanted, {}, [1, 0]))
        self.assertIsNone(page_choice.next_target(wanted, {}, []))

    @given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=4), st.integers(0, 1 << 40))
    def test_shares_of_nodes_add_up_as_promised(self, promised, total):
        mems = tuple(range(len(promised)))
        wanted_bytes = page_choice.wanted_bytes_by_node(mems, tuple(promised), total)
        self.assertEqual(set(mems), set(wanted_bytes))
        self.assertLessEqual(sum(wanted_bytes.values()), total)
        self.assertLessEqual(total - sum(wanted_bytes.values()), len(mems))
        if len(mems) == 2 and promised[0] > promised[1]:
            self.assertGreaterEqual(wanted_bytes[0], wanted_bytes[1])
