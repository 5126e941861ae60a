# SPDX-License-Identifier: Apache-2.0
"""Compare the rebalance benchmark's exact search with plain enumeration."""

import unittest
from itertools import product

from hypothesis import given, settings, strategies as st

from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.core.rebalance.host_model import HostModel
from nova_numa_pmc.core.rebalance.layout import Place
from nova_numa_pmc.model import MIB
from tests.bench.exact_rebalance import EQUAL_CORES, EQUAL_RATIO, Search
from tests.sim.constant import GIB, ConstantHost, guest_load

OPTIONS = plan_records.RebalanceOptions()
GUESTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from((0.5, 1.0, 2.0, 3.0)),
        st.integers(1, 3),
        st.sampled_from((0.0, 5e6, 4e7)),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def enumerate_all(situation):
    """Yield (burden, bytes) of every division that fits."""
    count = len(situation.guests)
    for homes in product((None, 0, 1, 2), repeat=count):
        host_model = HostModel(situation, OPTIONS)
        guests = [host_model.guests[guest.uuid] for guest in situation.guests]
        proposal = tuple(
            (guest, Place((n,), n)) for guest, n in zip(guests, homes) if n is not None
        )
        if all(host_model.allows(*part) for part in proposal) and host_model.fits(proposal):
            size = sum(host_model.bytes_to_move(*part) for part in proposal)
            host_model.apply(proposal)
            yield sum(host_model.host_loss.by_cause()), size


class ExactRebalanceTest(unittest.TestCase):
    @settings(max_examples=25, deadline=None)
    @given(GUESTS, st.sampled_from((None, 4e9)), st.sampled_from((6, 12)))
    def test_exact_rebalancing_finds_what_enumeration_finds(self, drawn, bandwidth_max, capacity):
        guests = [
            guest_load(
                f'g{at}',
                4,
                node,
                demand,
                size * GIB,
                lines=demand * lines,
                memory_at=((node, 600 * MIB), ((node + 1) % 3, 300 * MIB if split else 0)),
            )
            for at, (node, demand, size, lines, split) in enumerate(drawn)
        ]
        host = ConstantHost((4, 4, 4), (capacity * GIB,) * 3, guests, bandwidth_max)
        every = list(enumerate_all(host.situation()))
        least = min(lost for lost, _ in every)
        search = Search(host.situation(), OPTIONS)
        self.assertAlmostEqual(least, search.least_loss(1e9), places=6)
        self.assertTrue(search.proven)
        limit = least + max(EQUAL_CORES, EQUAL_RATIO * least)
        fewest = min(size for lost, size in every if lost <= limit + 1e-9)
        self.assertEqual(fewest, Search(host.situation(), OPTIONS).fewest_bytes(least, 1 << 60))
