# SPDX-License-Identifier: Apache-2.0
"""What was just placed is not moved again on the same evidence."""

import unittest

from hypothesis import given, settings
from hypothesis import strategies as st

from nova_numa_pmc.core import ledger as ledgers
from nova_numa_pmc.core import moves, placement, rebalance
from tests.fixtures.hosts import GIB, LIMITS, guest, host, node

INTERVAL_S = 5.0


@st.composite
def equal_hosts(draw):
    """Draw a host of equal nodes whose CPUs alone are measured, and a guest that asks."""
    cores = draw(st.sampled_from((4, 8, 16, 32)))
    view = host(*(node(
        at, cores, capacity=64 * GIB, promised=draw(st.integers(0, 40)) * GIB,
        vcpus=draw(st.integers(0, 40)), guests=draw(st.integers(0, 9)),
        demand_cores=draw(st.integers(0, 140 * cores)) / 100)
        for at in range(draw(st.integers(2, 4)))), rotation=draw(st.integers(0, 3)))
    return view, guest(vcpus=draw(st.sampled_from((1, 2, 4))),
                       memory=draw(st.sampled_from((1, 4, 8))) * GIB)


def placed(view, new):
    """Return the situation with the guest on its node, wanting what it was expected to."""
    request = placement.request(new, LIMITS, (), placement.history(view, LIMITS))
    at, = placement.place(view, request, LIMITS).nodes
    after = view._replace(nodes=tuple(one if one.id != at else one._replace(
        demand_cores=one.demand_cores + request.demand_cores,
        promised_bytes=one.promised_bytes + new.memory_bytes, vcpus=one.vcpus + new.vcpus)
        for one in view.nodes))
    return moves.Situation(after, (moves.GuestLoad(
        new.uuid, new.name, new.vcpus, new.memory_bytes, (at,), (at,), (at,), (),
        ((at, GIB),), ((at, request.demand_cores),), request.demand_cores,
        request.demand_cores),))


class JustPlacedTest(unittest.TestCase):

    @settings(max_examples=200, deadline=None)
    @given(equal_hosts())
    def test_it_goes_nowhere(self, drawn):
        situation = placed(*drawn)
        terms = moves.Terms(widen=False)
        for plan in (rebalance.propose(situation, terms),
                     rebalance.plan(situation, ledgers.Ledger(), terms, INTERVAL_S, 0.0)[0]):
            self.assertEqual((), plan.moves)
