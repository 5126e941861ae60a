# SPDX-License-Identifier: Apache-2.0
"""The memory that a guest may grow to is promised as far as its host could give it."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import promise_limit
from tests.fixtures.model_records import GIB, MIB, PLACEMENT_OPTIONS, guest, topology

PIB = 1 << 50


class MostTest(unittest.TestCase):
    def test_the_most_to_promise_is_the_capacity_of_the_nodes(self):
        host = topology(memory=(2 * GIB, 6 * GIB), unreclaimable=(GIB, 0))
        for nodes, most in (((), 8), ((0,), 2), ((1,), 6), ((9,), 8)):
            self.assertEqual(
                most * GIB, promise_limit.promisable_bytes(host, PLACEMENT_OPTIONS, node_ids=nodes)
            )
        twice = PLACEMENT_OPTIONS._replace(ram_ratio=2.0)
        self.assertEqual(16 * GIB, promise_limit.promisable_bytes(host, twice))

    def test_the_most_to_promise_of_huge_pages_is_their_pool(self):
        pool = model.HugePages(2 * MIB, 100, 0), model.HugePages(GIB, 1, 1)
        host = topology(huge_pages=(pool, ()))
        for page_bytes, most in ((2 * MIB, 200 * MIB), (GIB, GIB), (16 * GIB, 0)):
            self.assertEqual(
                most, promise_limit.promisable_bytes(host, PLACEMENT_OPTIONS, page_bytes)
            )


class BoundedTest(unittest.TestCase):
    def bounded(self, memory, plugged=None, **fields):
        asked = guest(memory=memory, plugged_bytes=plugged, **fields)
        limited, problems = promise_limit.limit_memory(
            asked, topology(memory=(4 * GIB, 4 * GIB)), PLACEMENT_OPTIONS
        )
        self.assertEqual(asked, limited._replace(memory_bytes=memory))
        return limited.memory_bytes, problems

    def test_memory_that_the_host_could_give_is_promised(self):
        for memory, plugged in ((GIB, None), (8 * GIB, None), (8 * GIB, GIB)):
            self.assertEqual((memory, ()), self.bounded(memory, plugged))

    def test_memory_that_cannot_be_plugged_is_not_promised(self):
        for memory in (8 * GIB + 1, PIB):
            promised, (why,) = self.bounded(memory, GIB)
            self.assertEqual(GIB, promised)
            self.assertIn('it is promised 1024 MiB, the memory that it has now', why)
            self.assertIn('the host has at most 8192 MiB', why)

    def test_a_guest_larger_than_the_host_is_promised_all_of_it(self):
        for memory, plugged in ((9 * GIB, None), (PIB, 9 * GIB)):
            promised, (why,) = self.bounded(memory, plugged)
            self.assertEqual(8 * GIB, promised)
            self.assertIn('all that the host has', why)

    def test_the_kernels_own_memory_comes_and_goes_and_changes_no_promise(self):
        for memory, plugged in ((8 * GIB - MIB, None), (8 * GIB - MIB, GIB), (9 * GIB, None)):
            asked = guest(memory=memory, plugged_bytes=plugged)
            self.assertEqual(
                1,
                len(
                    {
                        promise_limit.limit_memory(
                            asked,
                            topology(memory=(4 * GIB, 4 * GIB), unreclaimable=own),
                            PLACEMENT_OPTIONS,
                        )
                        for own in ((0, 0), (4096, 0), (300 * MIB, GIB))
                    }
                ),
            )

    def test_a_guest_bound_by_others_is_promised_what_its_node_has(self):
        for plugged, most in ((GIB, GIB), (None, 4 * GIB)):
            self.assertEqual(
                most, self.bounded(6 * GIB, plugged, numatune_nodes=(1,), mem_bound=True)[0]
            )
            self.assertEqual((6 * GIB, ()), self.bounded(6 * GIB, plugged, numatune_nodes=(1,)))

    def test_huge_pages_that_the_host_lacks_are_promised_as_asked(self):
        self.assertEqual((PIB, ()), self.bounded(PIB, GIB, page_bytes=2 * MIB))
