# SPDX-License-Identifier: Apache-2.0
"""The simulated host serves only what it has, and counts what is lost."""

import unittest

from tests.fixtures.model_records import GIB
from tests.sim.host import SimGuest, SimHost
from tests.sim.loads import SimulatedLoad, total_cost
from tests.sim.policies import NoMoves, PlannerPolicy, ThresholdPolicy


def host(*guests):
    """Build a host of two nodes of two cores; guests are (cores wanted, lines, nodes)."""
    sim_host = SimHost((2, 2), (8 * GIB,) * 2, (10e9,) * 2, ((80.0, 160.0), (160.0, 80.0)))
    for at, (wanted, lines, nodes) in enumerate(guests):
        guest = SimGuest(f'g{at}', 4, GIB, GIB, 2)
        guest.put(nodes)
        guest.wanted, guest.lines = wanted, lines
        sim_host.guests.append(guest)
    return sim_host


class SimHostTest(unittest.TestCase):
    def test_a_crowded_node_serves_its_cores(self):
        crowded = host((2.0, 0.0, (0,)), (2.0, 0.0, (0,)), (1.0, 0.0, (1,)))
        crowded.step(1.0, {})
        self.assertAlmostEqual(3.0, crowded.useful)
        self.assertAlmostEqual(2.0, crowded.lost)
        self.assertEqual([1.0, 1.0, 1.0], [guest.useful for guest in crowded.guests])

    def test_a_wide_guest_fills_idle_cores(self):
        mixed = host((2.0, 0.0, (0,)), (2.0, 0.0, (0, 1)))
        mixed.step(1.0, {})
        self.assertAlmostEqual(4.0, mixed.useful)
        self.assertAlmostEqual(2.0, mixed.guests[1].ran[1], places=6)

    def test_distance_costs_the_time_that_it_takes(self):
        # 12.5 million lines at 80 ns more each: one second of stall per second of work.
        far = host((1.0, 12.5e6, (0,)))
        far.guests[0].bytes = [0.0, GIB]
        far.step(1.0, {})
        self.assertAlmostEqual(0.5, far.useful, places=6)
        self.assertAlmostEqual(0.5 * 12.5e6, far.guests[0].remote, delta=10)

    def test_a_saturated_memory_slows_the_guests_that_use_it(self):
        hot = host((2.0, 2e8, (0,)), (1.0, 0.0, (1,)))
        for _ in range(60):
            hot.reset()
            hot.step(1.0, {})
        self.assertLess(hot.guests[0].useful, 1.5)
        self.assertAlmostEqual(1.0, hot.guests[1].useful)
        self.assertLess(hot.busy[0], 1.2)  # closed loop: guests cannot get more than there is

    def test_memory_follows_at_the_limited_rate(self):
        moving = host((1.0, 1e6, (0,)))
        moving.change(moving.guests[0], (1,), 1)
        moving.step(1.0, {})
        self.assertEqual(moving.bytes_per_sec, moving.guests[0].bytes[1])
        for _ in range(9):
            moving.step(1.0, {})
        self.assertEqual([0.0, GIB], moving.guests[0].bytes)
        self.assertAlmostEqual(0.5 + 4.0 + GIB / 4096 * 2e-6, moving.cost)
        self.assertEqual([], moving.queue)

    def test_each_run_of_a_seed_is_the_same(self):
        load = SimulatedLoad(1, 120, 0.1)
        once, again = (load.run(PlannerPolicy()) for _ in range(2))
        self.assertEqual((once.lost, once.cost, once.moves), (again.lost, again.cost, again.moves))

    def test_the_planner_loses_less_than_simpler_planners(self):
        sums = {name: 0.0 for name in ('floating', 'static', 'threshold', 'planned')}
        for seed in range(2):
            load = SimulatedLoad(seed, 600, 0.5, load=(0.7, 0.95))
            for name, policy, floating in (
                ('floating', NoMoves(), True),
                ('static', NoMoves(), False),
                ('threshold', ThresholdPolicy(), False),
                ('planned', PlannerPolicy(), False),
            ):
                sums[name] += total_cost(load.run(policy, floating))
        self.assertEqual(min(sums.values()), sums['planned'], sums)
