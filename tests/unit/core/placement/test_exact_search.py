# SPDX-License-Identifier: Apache-2.0
"""Compare the benchmark's exact search with plain enumeration."""

import unittest
from itertools import product

from hypothesis import given, settings, strategies as st

from tests.bench.exact_search import Host, Search
from tests.fixtures.model_records import two_level_distances

NODES = st.lists(st.tuples(st.sampled_from((2, 4)), st.integers(4, 12)), min_size=2, max_size=3)
GUESTS = st.lists(
    st.tuples(st.sampled_from((0.5, 0.75, 1.0, 2.0)), st.integers(1, 4), st.integers(1, 2)),
    min_size=1,
    max_size=5,
)


class ExactSearchTest(unittest.TestCase):
    @settings(max_examples=60)
    @given(NODES, GUESTS)
    def test_exact_search_finds_what_enumeration_finds(self, nodes, guests):
        cores, capacity = zip(*nodes)
        host = Host(cores, cores, capacity, two_level_distances(len(nodes), 1))
        pressures, losses = [], []
        for homes in product(range(len(nodes)), repeat=len(guests)):
            demand, size = [0.0] * len(nodes), [0] * len(nodes)
            for at, (wanted, memory, _) in zip(homes, guests):
                demand[at] += wanted
                size[at] += memory
            if all(has <= room for has, room in zip(size, capacity)):
                pressures.append(host.pressures(demand))
                losses.append(host.waiting(demand))
        worst = [99.0] * len(nodes)
        found = Search(host, guests, True).pressures(worst)
        for ours, best in zip(found, min(pressures) if pressures else worst):
            self.assertAlmostEqual(best, ours)
        self.assertAlmostEqual(min(losses, default=99.0), Search(host, guests, True).loss(99.0))
