# SPDX-License-Identifier: Apache-2.0
"""What guests lose at a place is a share, 0 where there is room, and more where load is higher."""

import math
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc.core import pressure
from nova_numa_pmc.core.placement import loss as subject
from tests.fixtures.host_views import hosts
from tests.fixtures.model_records import node_view, view_of_nodes

LINES = 1e7
demands = st.floats(0, 200)
capacities = st.floats(0.5, 100)


def lost(*nodes, cpus=(0,), mems=None, cores=2.0, distances=((10, 20), (20, 10))):
    """Return what is lost because of a guest of four vCPUs on these nodes."""
    host, _ = subject.columns(view_of_nodes(*nodes, distances=distances))
    return subject.of_place(host, cpus, cpus if mems is None else mems, 4, cores, LINES, False)


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
            self.assertAlmostEqual(total, subject.mean_waiting_cores(demand, capacity), places=5)

    @given(demands, demands, capacities)
    def test_more_demand_waits_more_and_no_more_than_it_is(self, one, other, capacity):
        low, high = sorted((one, other))
        least, most = (subject.mean_waiting_cores(each, capacity) for each in (low, high))
        self.assertTrue(-1e-9 <= least <= low + math.sqrt(2 * low))
        self.assertGreaterEqual(most - least, -1e-9)

    def test_nothing_waits_without_demand(self):
        self.assertEqual(0.0, subject.mean_waiting_cores(0.0, 4.0))


class PlaceTest(unittest.TestCase):
    def idle(self, **fields):
        return [node_view(at, cores=48.0, demand_cores=0.0, **fields) for at in range(2)]

    def test_a_guest_on_two_nodes_loses_to_their_distance(self):
        # Half of the lines take 80 ns longer, four of them at a time.
        expected = LINES / 2 * 80e-9 / 4
        self.assertAlmostEqual(expected, lost(*self.idle(), cpus=(0, 1)), delta=1e-6)
        # Memory that may be anywhere counts as spread.
        self.assertAlmostEqual(expected, lost(*self.idle(), mems=()), delta=1e-6)

    def test_an_odd_distance_makes_no_loss_negative(self):
        self.assertGreaterEqual(lost(*self.idle(), cpus=(0, 1), distances=((10, 1), (1, 10))), 0.0)

    def test_busy_memory_makes_lines_wait(self):
        busy = self.idle(bandwidth_bytes_per_sec=90e9, bandwidth_max_bytes_per_sec=100e9)
        used = (90e9 + 2 * LINES * 64) / 100e9
        expected = LINES * 0.15 * 80e-9 * pressure.added_queueing(used) / 4
        self.assertAlmostEqual(expected, lost(*busy))

    def test_a_link_counts_where_lines_cross_it(self):
        busy, idle = self.idle(link_ratio=0.9), self.idle(link_ratio=0.0)
        self.assertLess(lost(*busy), 1e-6)
        self.assertGreater(lost(*busy, cpus=(0, 1)), lost(*idle, cpus=(0, 1)))

    @settings(deadline=None)
    @given(hosts(), st.data(), st.floats(0, 20))
    def test_no_loss_is_negative_on_any_host(self, view, data, cores):
        usable = [at for at, node in enumerate(view.nodes) if node.cores] or [0]
        cpus = tuple(data.draw(st.lists(st.sampled_from(usable), min_size=1, unique=True)))
        mems = data.draw(st.sampled_from((cpus, ())))
        host, _ = subject.columns(view._replace(domains=()))
        self.assertGreaterEqual(subject.of_place(host, cpus, mems, 4, cores, LINES, True), 0.0)
