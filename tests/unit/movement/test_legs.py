# SPDX-License-Identifier: Apache-2.0
"""Whether a guest's memory has followed its CPUs."""

import unittest

from nova_numa_pmc.host import migrate
from nova_numa_pmc.movement import legs


class HasFollowedTest(unittest.TestCase):

    def followed(self, **known):
        return legs.has_followed(migrate.Progress(migrate.PARTLY, **known))

    def test_half_of_it_is_enough(self):
        self.assertTrue(self.followed(moved_bytes=5, left_bytes=5, left_at_first_bytes=10))
        self.assertFalse(self.followed(moved_bytes=4, left_bytes=6, left_at_first_bytes=10))

    def test_what_numa_balancing_brought_counts(self):
        self.assertTrue(self.followed(moved_bytes=1, left_bytes=4, left_at_first_bytes=10))

    def test_what_was_allocated_elsewhere_meanwhile_takes_nothing_from_what_was_moved(self):
        self.assertTrue(self.followed(moved_bytes=8, left_bytes=5, left_at_first_bytes=10))

    def test_where_nothing_is_told_of_what_is_left_it_has_not(self):
        self.assertFalse(self.followed(moved_bytes=8))

    def test_what_is_done_has_followed(self):
        self.assertTrue(legs.has_followed(migrate.Progress(migrate.DONE)))
