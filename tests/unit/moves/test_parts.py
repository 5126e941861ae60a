# SPDX-License-Identifier: Apache-2.0
"""What is promised to a guest that is moved, and whether its memory has followed its CPUs."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.host.paging import guest_mover
from nova_numa_pmc.moves import parts
from tests.fixtures.hosts import LIMITS, MIB, guest, topology


class HasFollowedTest(unittest.TestCase):
    def followed(self, **known):
        return parts.has_followed(guest_mover.Progress(guest_mover.PARTLY, **known))

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
        self.assertTrue(parts.has_followed(guest_mover.Progress(guest_mover.DONE)))


class WithinL3Test(unittest.TestCase):
    def test_the_cache_is_one_of_the_nodes_that_it_has_now(self):
        caches = tuple(frozenset((cpu, cpu + 1)) for cpu in range(0, 8, 2))
        host = topology((4, 4))._replace(l3s=(caches[:2], (caches[2] | caches[3],)))
        own = guest()
        for node, before, after in ((0, (), (0, 1)), (0, (4, 5), (0, 1)), (1, (0, 1), ())):
            with self.subTest(node=node, before=before):
                promise = model.Promise(
                    own.uuid, own.name, (node,), (node,), own.vcpus, 300 * MIB, cpus=before
                )
                self.assertEqual(
                    promise._replace(cpus=after),
                    parts.narrow_to_l3(promise, own, host, (), LIMITS),
                )
