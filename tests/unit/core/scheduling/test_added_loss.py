# SPDX-License-Identifier: Apache-2.0
"""One more guest causes no loss where there is room, and never less loss where load is higher."""

import math
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import pressure
from nova_numa_pmc.core.placement import loss
from nova_numa_pmc.core.scheduling import outcome as subject
from nova_numa_pmc.core.scheduling.host_columns import to_columns
from nova_numa_pmc.core.scheduling.outcome import Outcome, expected_guest
from tests.fixtures.host_views import hosts
from tests.fixtures.model_records import node_view, view_of_nodes

LINES = 1e7
demands = st.floats(0, 200)
capacities = st.floats(0.5, 100)


def guest(cores=2.0, policy=model.AUTO):
    return expected_guest(4, 1024, policy, cores_per_vcpu=cores / 4)


def on(*cpus, mems=None):
    """Return the outcome of a guest on these nodes."""
    mems = cpus if mems is None else mems
    return Outcome('any', (0.0,), tuple(sorted({*cpus, *mems})), cpus, mems)


def added(*nodes, outcome=None, cores=2.0, lines=LINES, distances=None, **more):
    view = view_of_nodes(*nodes, distances=distances) if distances else view_of_nodes(*nodes)
    return subject.added_loss(to_columns(view), outcome or on(0), guest(cores, **more), lines)


class WaitingTest(unittest.TestCase):
    def test_demand_waits_as_an_integral_over_the_normal_distribution_says(self):
        for demand, capacity in ((1.0, 4.0), (4.0, 4.0), (12.0, 4.0), (20.0, 24.0)):
            sigma, step = math.sqrt(2 * demand), 1e-3
            total = sum(
                max(0.0, demand + sigma * z * step - capacity)
                * math.exp(-((z * step) ** 2) / 2)
                * step
                for z in range(-8000, 8000)
            ) / math.sqrt(2 * math.pi)
            self.assertAlmostEqual(total, loss.mean_waiting_cores(demand, capacity), places=5)

    @given(demands, demands, capacities)
    def test_more_demand_waits_more_and_no_more_than_it_is(self, one, other, capacity):
        low, high = sorted((one, other))
        waits = loss.mean_waiting_cores(high, capacity) - loss.mean_waiting_cores(low, capacity)
        self.assertTrue(
            -1e-9 <= loss.mean_waiting_cores(low, capacity) <= low + math.sqrt(2 * low)
        )
        self.assertGreaterEqual(waits, -1e-9)

    def test_nothing_waits_without_demand(self):
        self.assertEqual(0.0, loss.mean_waiting_cores(0.0, 4.0))


class AddedLossTest(unittest.TestCase):
    def test_nothing_is_lost_where_a_node_has_room(self):
        idle = node_view(0, cores=48.0, demand_cores=1.0)
        self.assertLess(added(idle, node_view(1, cores=48.0, demand_cores=1.0)).loss_ratio, 1e-6)

    def test_rounding_makes_no_loss_negative(self):
        for hundredths in range(900, 1300):
            nodes = [node_view(at, cores=48.0, demand_cores=hundredths / 100) for at in range(2)]
            self.assertGreaterEqual(added(*nodes, cores=0.5).loss_ratio, 0.0)

    def test_an_odd_distance_makes_no_loss_negative(self):
        nodes = [node_view(at, cores=48.0, demand_cores=0.0) for at in range(2)]
        loss = added(*nodes, outcome=on(0, 1), distances=((10, 1), (1, 10)))
        self.assertGreaterEqual(loss.loss_ratio, 0.0)

    def test_half_of_what_a_guest_adds_waits_on_a_node_that_is_just_full(self):
        full = [node_view(at, cores=24.0, demand_cores=24.0) for at in range(2)]
        loss = added(*full, cores=0.25)
        self.assertAlmostEqual(0.5, loss.loss_ratio, delta=0.07)
        self.assertAlmostEqual(24.25 / 24, loss.cpu_ratio)

    def test_nearly_all_waits_on_an_overloaded_node(self):
        over = [node_view(at, cores=4.0, demand_cores=40.0) for at in range(2)]
        self.assertGreater(added(*over).loss_ratio, 0.99)

    def test_most_of_a_nodes_demand_counts_as_if_spread_over_its_host(self):
        nodes = (
            node_view(0, cores=10.0, demand_cores=8.0),
            node_view(1, cores=10.0, demand_cores=2.0),
        )
        self.assertAlmostEqual((0.2 * 8 + 0.8 * 5 + 2) / 10, added(*nodes).cpu_ratio)
        self.assertAlmostEqual(
            (0.2 * 2 + 0.8 * 5 + 2) / 10, added(*nodes, outcome=on(1)).cpu_ratio
        )

    def test_a_guest_on_two_nodes_loses_to_their_distance(self):
        nodes = [node_view(at, cores=48.0, demand_cores=0.0) for at in range(2)]
        loss = added(*nodes, outcome=on(0, 1), distances=((10, 20), (20, 10)))
        # Half of the lines take 80 ns longer, four of them at a time.
        self.assertAlmostEqual(LINES / 2 * 80e-9 / 4, loss.loss_ratio, delta=1e-6)
        spread = added(
            *nodes, outcome=on(0, 1), distances=((10, 20), (20, 10)), policy=model.SPREAD
        )
        self.assertLess(spread.loss_ratio, 1e-6)

    def test_memory_that_may_lie_anywhere_counts_as_spread(self):
        nodes = [node_view(at, cores=48.0, demand_cores=0.0) for at in range(2)]
        loss = added(*nodes, outcome=on(0, mems=()), distances=((10, 20), (20, 10)))
        self.assertAlmostEqual(LINES / 2 * 80e-9 / 4, loss.loss_ratio, delta=1e-6)

    def test_busy_memory_makes_lines_wait(self):
        nodes = [
            node_view(
                at,
                cores=48.0,
                demand_cores=0.0,
                bandwidth_bytes_per_sec=90e9,
                bandwidth_max_bytes_per_sec=100e9,
            )
            for at in range(2)
        ]
        loss = added(*nodes)
        self.assertAlmostEqual((90e9 + 2 * LINES * 64) / 100e9, loss.bandwidth_ratio)
        expected = LINES * 0.15 * 80e-9 * pressure.added_queueing(loss.bandwidth_ratio) / 4
        self.assertAlmostEqual(min(1.0, expected), loss.loss_ratio)

    def test_a_link_counts_where_lines_cross_it(self):
        nodes = [node_view(at, cores=48.0, demand_cores=0.0, link_ratio=0.9) for at in range(2)]
        self.assertEqual(0.9, added(*nodes).link_ratio)
        self.assertLess(added(*nodes).loss_ratio, 1e-6)
        idle = [node_view._replace(link_ratio=0.0) for node_view in nodes]
        both = on(0, 1)
        self.assertGreater(
            added(*nodes, outcome=both).loss_ratio, added(*idle, outcome=both).loss_ratio
        )

    @settings(deadline=None)
    @given(hosts(), st.data(), st.floats(0, 20))
    def test_a_loss_is_a_share_on_every_host(self, view, data, cores):
        columns = to_columns(view)
        usable = [at for at, cores_there in enumerate(columns.cores) if cores_there] or [0]
        cpus = tuple(data.draw(st.lists(st.sampled_from(usable), min_size=1, unique=True)))
        mems = data.draw(st.sampled_from((cpus, ())))
        loss = subject.added_loss(columns, on(*cpus, mems=mems), guest(cores), LINES)
        self.assertTrue(0.0 <= loss.loss_ratio <= 1.0)
        self.assertGreaterEqual(loss.pressure, 0.0)

    @given(demands, demands)
    def test_a_host_that_is_wanted_more_never_costs_less(self, one, other):
        low, high = (
            added(*(node_view(at, cores=24.0, demand_cores=demand) for at in range(2))).loss_ratio
            for demand in sorted((one, other))
        )
        self.assertLessEqual(low, high + 1e-9)
