# SPDX-License-Identifier: Apache-2.0
"""A guest that was just placed is not moved again on the same evidence."""

import unittest

from hypothesis import assume, given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view
from nova_numa_pmc.core.placement import placement
from nova_numa_pmc.core.rebalance import plan_records, planner
from nova_numa_pmc.core.rebalance.planner_state import PlannerState
from tests.fixtures.model_records import GIB, PLACEMENT_OPTIONS, guest, node_view, view_of_nodes
from tests.sim.constant import slit_latencies_ns

INTERVAL_S = 5.0


@st.composite
def hosts(draw, equal, bandwidth):
    """Draw a host and a request.

    :param equal: all nodes have the same size
    :param bandwidth: all nodes have a known bandwidth, in addition to CPU; otherwise none has
    """
    sizes = [draw(st.sampled_from((4, 8, 16, 32))) for _ in range(draw(st.integers(2, 4)))]
    maxima = [draw(st.sampled_from((5e10, 1e11))) for _ in sizes]
    if equal:
        sizes, maxima = sizes[:1] * len(sizes), maxima[:1] * len(sizes)
    view = view_of_nodes(
        *(
            node_view(
                at,
                cores,
                capacity=64 * GIB,
                promised=draw(st.integers(0, 40)) * GIB,
                vcpus=draw(st.integers(0, 40)),
                guests=draw(st.integers(0, 9)),
                demand_cores=draw(st.integers(0, 140 * cores)) / 100,
                **(
                    {
                        'bandwidth_bytes_per_sec': draw(st.integers(0, 140)) / 100 * maxima[at],
                        'bandwidth_max_bytes_per_sec': maxima[at],
                    }
                    if bandwidth
                    else {}
                ),
            )
            for at, cores in enumerate(sizes)
        ),
        rotation=draw(st.integers(0, 3)),
    )
    return view, guest(
        vcpus=draw(st.sampled_from((1, 2, 4))), memory=draw(st.sampled_from((1, 4, 8))) * GIB
    )


def placed(view, new, *, just_placed=False):
    """Return the situation with the guest on its node and with the expected demand.

    Return None if the guest spans nodes because it wants more bandwidth than a node has.
    """
    request = host_view.request(
        new, PLACEMENT_OPTIONS, (), placement.with_traffic_per_core(model.DemandHistory(), view)
    )
    nodes = placement.place(view, request, PLACEMENT_OPTIONS).cpu_nodes
    if len(nodes) > 1:
        return None
    at, bytes_per_sec = nodes[0], request.bandwidth_bytes_per_sec
    after = view._replace(
        nodes=tuple(
            one
            if one.id != at
            else one._replace(
                demand_cores=one.demand_cores + request.demand_cores,
                bandwidth_bytes_per_sec=bytes_per_sec
                and one.bandwidth_bytes_per_sec + bytes_per_sec,
                promised_bytes=one.promised_bytes + new.memory_bytes,
                vcpus=one.vcpus + new.vcpus,
            )
            for one in view.nodes
        )
    )
    return plan_records.Situation(
        after,
        (
            plan_records.GuestLoad(
                new.uuid,
                new.name,
                new.vcpus,
                new.memory_bytes,
                (at,),
                (at,),
                (at,),
                (),
                ((at, GIB),),
                ((at, request.demand_cores),),
                request.demand_cores,
                request.demand_cores,
                (request.demand_cores,) * 2,
                1e6,
                None,
                bytes_per_sec and bytes_per_sec / 64,
                None,
                bytes_per_sec,
                just_placed=just_placed,
            ),
        ),
        slit_latencies_ns(after),
    )


class JustPlacedTest(unittest.TestCase):
    def assert_stays(self, situation):
        assume(situation is not None)
        options = plan_records.RebalanceOptions(widen=False)
        for plan in (
            planner.propose(situation, options),
            planner.propose(situation, options, 86400.0),
            planner.plan(situation, PlannerState(), options, INTERVAL_S, 0.0)[0],
        ):
            self.assertEqual((), plan.moves)

    @settings(max_examples=200, deadline=None)
    @given(hosts(equal=True, bandwidth=False))
    def test_a_just_placed_guest_stays_where_cpu_alone_decides(self, drawn):
        self.assert_stays(placed(*drawn))

    @settings(max_examples=300, deadline=None)
    @given(st.booleans().flatmap(lambda equal: hosts(equal, bandwidth=True)))
    def test_a_young_guest_stays_where_bandwidth_decides(self, drawn):
        self.assert_stays(placed(*drawn, just_placed=True))

    @settings(max_examples=200, deadline=None)
    @given(hosts(equal=False, bandwidth=False))
    def test_a_just_placed_guest_stays_among_nodes_of_several_sizes(self, drawn):
        self.assert_stays(placed(*drawn, just_placed=True))

    def of_two(self, just_placed):
        """Return a situation in which queueing losses favour node 1, and pressure node 0."""
        view = view_of_nodes(
            *(
                node_view(
                    at,
                    16,
                    capacity=64 * GIB,
                    demand_cores=cores,
                    bandwidth_bytes_per_sec=served,
                    bandwidth_max_bytes_per_sec=1e11,
                )
                for at, (cores, served) in enumerate(((2.0, 0.95e11), (18.0, 0.2e11)))
            )
        )
        one_node = (('numa_pmc:policy', 'one_node'),)
        return placed(
            view, guest(vcpus=4, memory=GIB, extra_specs=one_node), just_placed=just_placed
        )

    def test_a_young_guest_goes_where_placement_would_now_put_it(self):
        situation = self.of_two(just_placed=True)
        self.assertEqual(
            (), planner.propose(situation, plan_records.RebalanceOptions(widen=False)).moves
        )
        here, there = situation.view.nodes
        calmer = situation._replace(
            view=situation.view._replace(
                nodes=(here._replace(demand_cores=30.0), there._replace(demand_cores=2.0))
            )
        )
        plan = planner.propose(calmer, plan_records.RebalanceOptions(widen=False))
        self.assertEqual([(1,)], [move.parts[0].to_nodes for move in plan.moves])
