# SPDX-License-Identifier: Apache-2.0
"""The scheduler's fast path agrees with place() on every host."""

import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import placement, ranking
from nova_numa_pmc.core.scheduling import outcome
from nova_numa_pmc.core.scheduling.host_columns import to_columns
from tests.fixtures.host_views import hosts
from tests.fixtures.model_records import MIB, PLACEMENT_OPTIONS, node_view, view_of_nodes

asked = st.builds(
    outcome.ExpectedGuest,
    st.integers(1, 24),
    st.integers(0, 99),
    st.floats(0, 20),
    st.sampled_from((model.AUTO, model.AUTO, model.ONE_NODE, model.SPREAD)),
    st.sampled_from((0.3, 1.0, 3.0)),
)
#: As on real hosts, the same quantities are known for all nodes.
even = st.builds(
    lambda view, demand, bandwidth, link: view._replace(
        nodes=tuple(
            one._replace(
                demand_cores=one.demand_cores if demand else None,
                bandwidth_bytes_per_sec=one.bandwidth_bytes_per_sec if bandwidth else None,
                link_ratio=one.link_ratio if link else None,
            )
            for one in view.nodes
        )
    ),
    hosts(measured=True),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def domains_of(outcome_, columns):
    return {node for at in outcome_.positions for node in columns.members[at]}


class OutcomeTest(unittest.TestCase):
    @settings(max_examples=150, deadline=None)
    @given(even | hosts(), asked)
    def test_the_outcome_is_where_place_would_put_the_guest(self, view, wanted):
        columns = to_columns(view)
        result = outcome.outcome(columns, wanted, PLACEMENT_OPTIONS)
        placed = placement.place(view, outcome.request(columns, wanted), PLACEMENT_OPTIONS)
        if placed.cpu_nodes:
            self.assertEqual({*placed.cpu_nodes, *placed.mem_nodes}, domains_of(result, columns))
            self.assertEqual(placed.reasons[0].code, result.code)
            self.assertEqual(dict(placed.reasons[0].values)['pressure'], result.pressures[0])
        else:
            self.assertEqual(placed.reasons[0].code, result.code)
            self.assertEqual(
                {at for at, cores in enumerate(columns.cores) if cores}, set(result.positions)
            )

    @settings(max_examples=150, deadline=None)
    @given(even | hosts(), asked)
    def test_the_outcome_by_the_short_way_is_that_of_the_general_one(self, view, wanted):
        columns = to_columns(view)
        short = outcome.outcome(columns, wanted, PLACEMENT_OPTIONS)
        long = outcome.outcome_by_placement(columns, wanted, PLACEMENT_OPTIONS)
        self.assertEqual(long.code, short.code)
        self.assertEqual(long.positions, short.positions)
        self.assertEqual(long.pressures, tuple(short.pressures))

    def test_the_outcome_of_an_ordinary_host_takes_the_short_way(self):
        columns = to_columns(
            view_of_nodes(node_view(0, 4, capacity=9 * MIB), node_view(1, 4, capacity=9 * MIB))
        )
        self.assertTrue(columns.uniform)
        result = outcome.outcome(columns, outcome.expected_guest(2, 4), PLACEMENT_OPTIONS)
        self.assertEqual(('one_node', (0.25,), (0,), (0,), (0,)), tuple(result))

    def test_a_guest_too_large_for_a_node_spans(self):
        columns = to_columns(
            view_of_nodes(node_view(0, 4, capacity=9 * MIB), node_view(1, 4, capacity=9 * MIB))
        )
        result = outcome.outcome(columns, outcome.expected_guest(6, 4), PLACEMENT_OPTIONS)
        self.assertEqual(('span', (0.375, 0.375)), tuple(result)[:2])

    def test_a_guest_too_large_for_the_host_floats_over_all_nodes(self):
        columns = to_columns(
            view_of_nodes(node_view(0, 4, capacity=9 * MIB), node_view(1, 4, capacity=9 * MIB))
        )
        result = outcome.outcome(columns, outcome.expected_guest(16, 4), PLACEMENT_OPTIONS)
        self.assertEqual(('too_few_cpus', (1.0, 1.0)), tuple(result)[:2])

    def test_a_host_without_a_usable_cpu_is_beyond_any_pressure(self):
        columns = to_columns(
            view_of_nodes(
                *(
                    node_view(at, 0, cpu_count=0, capacity=9 * MIB, demand_cores=30.0)
                    for at in range(2)
                )
            )
        )
        result = outcome.outcome(columns, outcome.expected_guest(2, 4), PLACEMENT_OPTIONS)
        self.assertEqual(('too_few_cpus', (ranking.PRESSURE_MAX,)), tuple(result)[:2])
