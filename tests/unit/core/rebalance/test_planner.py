# SPDX-License-Identifier: Apache-2.0
"""Test which moves are planned, and when, and which are never planned."""

import random
import unittest

from nova_numa_pmc import json_values, model
from nova_numa_pmc.core.rebalance import plan_records, planner
from nova_numa_pmc.core.rebalance.planner_state import PlannerState
from nova_numa_pmc.model import MIB
from tests.sim.constant import GIB, ConstantHost, guest_load

TICK_S, DAY_S = 5.0, 86400.0
#: Without the time for which the demand of a guest is measured before it is moved.
OPTIONS = plan_records.RebalanceOptions(measured_min_s=0.0)


def skewed(**fields):
    """Build six equal guests, five on node 0 and one on node 1, as numad leaves them."""
    return ConstantHost(
        (12, 12),
        (64 * GIB, 64 * GIB),
        [
            guest_load(f'g{at}', 4, 0 if at < 5 else 1, 4.0, resident=GIB, **fields)
            for at in range(6)
        ],
    )


def count(host):
    return [sum(guest.held_nodes == (n,) for guest in host.guests) for n in host.ids]


def kinds(plans):
    return [move.kind for plan in plans for move in plan.moves]


class FiveToOneTest(unittest.TestCase):
    def test_two_guests_move_and_no_more_bytes_than_theirs(self):
        host = skewed()
        plans, _ = host.run(OPTIONS, 20)
        self.assertEqual([3, 3], count(host))
        self.assertEqual(['move', 'move'], kinds(plans))
        self.assertEqual(2 * GIB, sum(move.to_move_bytes for plan in plans for move in plan.moves))

    def test_a_move_waits_until_regret_covers_its_cost(self):
        host = skewed()
        host.guests = [
            guest._replace(bytes_by_node=((guest.held_nodes[0], 16 * GIB),))
            for guest in host.guests
        ]
        plans, _ = host.run(OPTIONS._replace(moved_ratio_per_day=9.0, widen=False), 20)
        first = next(at for at, plan in enumerate(plans) if plan.moves)
        move = plans[first].moves[0]
        self.assertGreaterEqual(move.regret_core_sec, move.cost_core_sec)
        spared = (move.gain_cores - OPTIONS.min_gain_cores) * TICK_S
        self.assertLess(spared * first, move.cost_core_sec)
        self.assertEqual([], [at for at, plan in enumerate(plans) if plan.moves][2:])
        self.assertEqual([3, 3], count(host))

    def test_a_plan_has_the_loss_before_and_after_it(self):
        plans, _ = skewed().run(OPTIONS, 1)
        self.assertAlmostEqual(8.0, plans[0].loss_cores)
        self.assertAlmostEqual(0.0, plans[0].loss_after_cores)

    def test_full_nodes_are_shared_evenly_though_as_many_cores_are_missing(self):
        guests = [guest_load(f'g{at}', 1, 0 if at < 5 else 1, 1.0, 300 * MIB) for at in range(6)]
        host = ConstantHost((2, 2), (2 * GIB, 2 * GIB), guests)
        plans, _ = host.run(OPTIONS, 20)
        self.assertEqual([3, 3], count(host))
        self.assertEqual(2, kinds(plans).count('move'))

    def test_an_operator_needs_no_regret(self):
        plan = planner.propose(skewed().situation(), OPTIONS)
        self.assertEqual(['move', 'move'], [move.kind for move in plan.moves])
        nothing = planner.propose(skewed().situation(), OPTIONS, payback_s=0.05)
        self.assertEqual([], [move for move in nothing.moves if move.to_move_bytes])


class FloatingFiveToOneTest(unittest.TestCase):
    """Guests that float, with the memory of five on one node: left by numad, or by installing us.

    Where the kernel runs such a guest in an interval, and how much it waits, is chance.
    """

    MEMORY_BYTES = 332 * MIB

    def host(self, lines):
        return ConstantHost(
            (2, 2),
            (2 * GIB, 2 * GIB),
            [
                guest_load(
                    f'g{at}',
                    1,
                    (),
                    0.6,
                    memory=400 * MIB,
                    memory_at=((int(at == 5), self.MEMORY_BYTES),),
                )._replace(lines_per_sec=lines)
                for at in range(6)
            ],
        )

    @staticmethod
    def measured(host, rng):
        """Return the situation as one interval shows it."""
        guests = []
        for guest in host.guests:
            demand, share = guest.demand_cores * rng.uniform(0.9, 1.1), rng.random()
            nodes = guest.held_nodes or (0, 1)
            shares = (share, 1 - share) if len(nodes) == 2 else (1.0,)
            guests.append(
                guest._replace(
                    demand_cores=demand,
                    served_cores=demand,
                    cores_by_node=tuple(zip(nodes, (demand * part for part in shares))),
                )
            )
        situation = host.situation(guests)
        nodes = tuple(
            node._replace(
                demand_cores=sum(dict(guest.cores_by_node).get(node.id, 0.0) for guest in guests)
            )
            for node in situation.view.nodes
        )
        return situation._replace(
            view=situation.view._replace(nodes=nodes), waiting_cores=((0, 0.1), (1, 0.1))
        )

    def assert_evened(self, host):
        self.assertEqual([3, 3], count(host))
        for guest in host.guests:
            self.assertEqual(guest.held_nodes, tuple(node for node, _ in guest.bytes_by_node))

    def test_what_is_proposed_ends_at_three_to_three_with_the_memory_at_home(self):
        options = OPTIONS._replace(widen=False)
        for seed in range(20):
            with self.subTest(seed=seed):
                rng, host = random.Random(seed), self.host(lines=1e6)
                moved_bytes = host.make(planner.propose(self.measured(host, rng), options))
                self.assert_evened(host)
                self.assertEqual(2 * self.MEMORY_BYTES, moved_bytes)
                self.assertEqual((), planner.propose(self.measured(host, rng), options).moves)

    def test_a_small_remainder_elsewhere_is_left_there(self):
        """It may be QEMU's own pages, which do not move; the CPUs are held all the same."""
        [guest, *_] = self.host(lines=1e7).guests
        guest = guest._replace(bytes_by_node=((0, self.MEMORY_BYTES), (1, 4 * MIB)))
        host = ConstantHost((2, 2), (2 * GIB,) * 2, [guest])
        [move] = planner.propose(host.situation(), OPTIONS).moves
        self.assertEqual(((0,), (), 0), (move.to_nodes, move.mem_nodes, move.to_move_bytes))

    def test_guests_whose_accesses_are_not_counted_are_evened_within_a_few_proposals(self):
        options = OPTIONS._replace(widen=False)
        for seed in range(20):
            with self.subTest(seed=seed):
                rng, host = random.Random(seed), self.host(lines=None)
                for _ in range(3):
                    host.make(planner.propose(self.measured(host, rng), options))
                self.assert_evened(host)

    def test_the_plan_of_each_tick_evens_them_too_though_gains_are_not_trusted_yet(self):
        for seed in range(5):
            with self.subTest(seed=seed):
                rng, host, state = random.Random(seed), self.host(lines=1e6), PlannerState()
                for tick in range(180):
                    plan, state = planner.plan(
                        self.measured(host, rng), state, OPTIONS, TICK_S, 1000.0 + tick * TICK_S
                    )
                    host.make(plan)
                at = [guest.bytes_by_node[0][0] for guest in host.guests]
                self.assertEqual([3, 3], [at.count(node) for node in (0, 1)])
                # One may be wide, as it waits; all are held to where their memory is.
                for guest, node in zip(host.guests, at):
                    self.assertIn(node, guest.held_nodes)

    def large(self):
        """Return a skewed host whose guests have so much memory that it is not moved at once."""
        host = skewed()
        host.guests = [
            guest._replace(bytes_by_node=((guest.held_nodes[0], 16 * GIB),))
            for guest in host.guests
        ]
        return host

    def test_memory_is_evaluated_once_a_minute(self):
        host, state, planned_s = self.large(), PlannerState(), []
        options = OPTIONS._replace(widen=False, moved_ratio_per_day=9.0)
        for at_s in range(1000, 1125, 5):
            plan, state = planner.plan(host.situation(), state, options, TICK_S, float(at_s))
            planned_s += [at_s] if host.make(plan) else []
        self.assertEqual([1060], planned_s)

    def test_memory_is_evaluated_at_once_where_the_last_time_is_ahead(self):
        options = OPTIONS._replace(widen=False)
        regrets = [
            planner.plan(self.large().situation(), state, options, TICK_S, 1000.0)[1].regrets
            for state in (PlannerState(), PlannerState(memory_at_s=5000.0))
        ]
        self.assertTrue(any(regret.moves_memory for regret in regrets[0]))
        self.assertEqual(*regrets)


class LastingTest(unittest.TestCase):
    def plan_of(self, mean_cores, **fields):
        """Plan for guests whose means and whose demand of the interval differ."""
        host = skewed()
        seen = host.situation()
        guests = tuple(guest._replace(mean_cores=mean_cores, **fields) for guest in seen.guests)
        state = PlannerState()
        for tick in range(4):
            plan, state = planner.plan(
                seen._replace(guests=guests), state, OPTIONS, 60.0, 1000.0 + tick * 60.0
            )
            if any(move.to_move_bytes for move in plan.moves):
                return True
        return False

    def test_memory_moves_for_a_gain_that_both_means_show(self):
        self.assertTrue(self.plan_of((4.0, 4.0)))
        for mean_cores in ((4.0, 1.0), (1.0, 4.0), ()):
            with self.subTest(mean_cores):
                self.assertFalse(self.plan_of(mean_cores))

    def test_a_load_that_is_calm_for_an_interval_still_moves_memory(self):
        self.assertTrue(self.plan_of((4.0, 4.0), demand_cores=0.5, served_cores=0.5))

    def test_memory_of_a_guest_that_was_hardly_measured_stays(self):
        plans, _ = skewed().run(OPTIONS._replace(measured_min_s=120.0), 20)
        self.assertEqual({'widen'}, set(kinds(plans)))

    def test_a_guest_that_stays_wide_moves_for_the_distance(self):
        guests = [
            guest_load('g', 4, (0, 1), 3.0, lines=2e7, home_nodes=(0,), mem_nodes=(0,)),
            guest_load('busy', 4, 0, 3.5, lines=1e5),
        ]
        guests[0] = guests[0]._replace(bytes_by_node=((0, GIB),))
        host = ConstantHost((4, 4), (8 * GIB,) * 2, guests)
        plans, _ = host.run(OPTIONS, 20)
        self.assertEqual((1,), host.guests[0].held_nodes, kinds(plans))


class CausesTest(unittest.TestCase):
    """Causes for moving guests."""

    def test_memory_bound_guests_are_parted_though_counts_are_equal(self):
        guests = [guest_load(f'm{at}', 4, 0, 2.0, lines=60e6) for at in range(3)]
        guests += [guest_load(f'c{at}', 4, 1, 2.0) for at in range(3)]
        host = ConstantHost((12, 12), (64 * GIB, 64 * GIB), guests, bandwidth_max=12e9)
        plans, _ = host.run(OPTIONS, 60)
        bound = [guest.held_nodes for guest in host.guests if guest.name.startswith('m')]
        self.assertEqual({(0,), (1,)}, set(bound))
        first = next(move for plan in plans for move in plan.moves)
        self.assertEqual('bandwidth', first.reasons[0].code)

    def test_bandwidth_without_a_known_maximum_is_not_a_reason_to_move(self):
        guests = [guest_load(f'm{at}', 4, 0, 2.0, lines=60e6) for at in range(3)]
        plans, _ = ConstantHost((12, 12), (64 * GIB,) * 2, guests).run(OPTIONS, 10)
        self.assertEqual([], kinds(plans))
        self.assertIn('bandwidth_dropped', [remark.code for remark in plans[0].remarks])

    def test_cpus_go_where_the_memory_is(self):
        guests = [guest_load('g', 2, 0, 1.0, lines=5e6, memory_at=((0, 8 * MIB), (1, GIB)))]
        host = ConstantHost((4, 4), (8 * GIB,) * 2, guests)
        plans, _ = host.run(OPTIONS, 20)
        self.assertEqual(['move'], kinds(plans))
        self.assertEqual((1,), host.guests[0].held_nodes)
        self.assertEqual(
            8 * MIB, plans[[len(p.moves) for p in plans].index(1)].moves[0].to_move_bytes
        )

    def test_memory_is_fetched_where_the_cpus_cannot_go(self):
        guests = [
            guest_load(
                'g',
                2,
                0,
                1.0,
                lines=5e6,
                memory_at=((0, 8 * MIB), (1, GIB)),
                allowed_cpu_counts=((0, 8),),
            )
        ]
        host = ConstantHost((4, 4), (8 * GIB,) * 2, guests)
        plans, _ = host.run(OPTIONS, 60)
        self.assertEqual(['fetch'], kinds(plans))
        self.assertEqual(((0, GIB + 8 * MIB),), host.guests[0].bytes_by_node)

    def test_floating_guests_are_narrowed_for_locality(self):
        guests = [guest_load(f'g{at}', 2, (0, 1), 1.5, lines=5e6) for at in range(4)]
        host = ConstantHost((4, 4), (16 * GIB,) * 2, guests)
        plans, _ = host.run(OPTIONS, 60)
        self.assertEqual({'narrow'}, set(kinds(plans)))
        self.assertEqual([2, 2], count(host))


class WidenTest(unittest.TestCase):
    def host(self, lines=(1e5, 1e6, 1e6)):
        """Build three guests whose demand no division over two nodes satisfies."""
        guests = [
            guest_load(f'g{at}', 4, 0 if at < 2 else 1, 2.7, 4 * GIB, lines=lines_per_sec)
            for at, lines_per_sec in enumerate(lines)
        ]
        return ConstantHost((4, 4), (9 * GIB,) * 2, guests)

    def test_the_calmest_guest_is_widened_to_idle_cores_elsewhere(self):
        host = self.host()
        plans, _ = host.run(OPTIONS, 20)
        self.assertEqual(['widen'], kinds(plans))
        self.assertEqual((0, 1), host.guests[0].held_nodes)
        self.assertEqual((0,), host.guests[0].home_nodes)
        self.assertEqual(0, plans[[len(p.moves) for p in plans].index(1)].moves[0].to_move_bytes)

    def test_a_widened_guest_goes_home_when_there_is_room(self):
        host = self.host()
        _, state = host.run(OPTIONS, 20)
        host.guests[1:] = [
            guest._replace(demand_cores=0.5, served_cores=0.5) for guest in host.guests[1:]
        ]
        plans, _ = host.run(OPTIONS, 60, state=state)
        self.assertEqual(['narrow'], kinds(plans))
        self.assertEqual((0,), host.guests[0].held_nodes)

    def test_a_guest_stays_wide_where_its_home_would_be_crowded(self):
        host = self.host()
        _, state = host.run(OPTIONS, 20)
        host.guests[1] = host.guests[1]._replace(demand_cores=1.1, served_cores=1.1)
        plans, _ = host.run(OPTIONS, 60, state=state)
        self.assertEqual([], kinds(plans))

    def test_a_guest_of_two_nodes_goes_home_when_they_have_room_together(self):
        for demand, wanted in ((9.0, ['narrow']), (15.0, [])):
            with self.subTest(demand=demand):
                guest = guest_load(
                    'g', 16, (0, 1, 2), demand, 4 * GIB, home_nodes=(0, 1), mem_nodes=(0, 1)
                )
                host = ConstantHost((8,) * 4, (64 * GIB,) * 4, [guest])
                plans, _ = host.run(OPTIONS, 60)
                self.assertEqual(wanted, kinds(plans))

    def test_a_guest_goes_home_for_the_memory_that_it_would_allocate_elsewhere(self):
        host = self.host()
        host.run(OPTIONS, 20)
        host.guests[1:] = []
        plan = planner.propose(host.situation(), OPTIONS)
        self.assertEqual(['narrow'], kinds([plan]))
        self.assertIn('away', [reason.code for reason in plan.moves[0].reasons])
        self.assertNotIn('bursts', [reason.code for reason in plan.moves[0].reasons])

    def test_no_guest_goes_home_where_that_is_left_to_another(self):
        host = self.host()
        host.run(OPTIONS, 20)
        host.guests[1:] = []
        plan = planner.propose(host.situation(), OPTIONS._replace(go_home=False))
        self.assertEqual([], kinds([plan]))

    def test_bursts_are_shared_whether_or_not_nodes_are_full(self):
        for cores, bursting, calm in ((1.2, 0.6, 0.0), (1.5, 1.0, 0.5)):
            guests = [guest_load(f'g{at}', 2, at // 3, cores, lines=1e4) for at in range(6)]
            host = ConstantHost((4, 4), (64 * GIB,) * 2, guests)
            for waiting, wanted in ((bursting, {'widen'}), (calm, set())):
                with self.subTest(cores=cores, waiting=waiting):
                    seen = host.situation()._replace(waiting_cores=((0, waiting), (1, waiting)))
                    plan, _ = planner.plan(seen, PlannerState(), OPTIONS, TICK_S, 0.0)
                    self.assertEqual(wanted, set(kinds([plan])))

    def test_bursts_of_full_nodes_are_not_shared_where_accesses_are_not_counted(self):
        guests = [guest_load(f'g{at}', 2, at // 3, 1.5, lines_per_sec=None) for at in range(6)]
        seen = (
            ConstantHost((4, 4), (64 * GIB,) * 2, guests)
            .situation()
            ._replace(waiting_cores=((0, 1.0), (1, 1.0)))
        )
        plan, _ = planner.plan(seen, PlannerState(), OPTIONS, TICK_S, 0.0)
        self.assertEqual((), plan.moves)

    def test_no_guest_is_widened_where_the_option_forbids_it(self):
        plans, _ = self.host().run(OPTIONS._replace(widen=False), 20)
        self.assertEqual([], kinds(plans))


class LeftAloneTest(unittest.TestCase):
    def test_a_fixed_guest_is_never_touched(self):
        plans, _ = skewed(why_fixed='placed_by_others').run(OPTIONS, 20)
        self.assertEqual([], kinds(plans))
        self.assertAlmostEqual(8.0, plans[0].loss_cores)  # but its loss counts

    def test_unknown_demand_is_not_a_reason_to_move(self):
        guests = skewed().guests
        unknown = [guest._replace(demand_cores=None, served_cores=None) for guest in guests]
        seen = skewed().situation()._replace(guests=tuple(unknown))
        plan, _ = planner.plan(seen, PlannerState(), OPTIONS, 60.0, 0.0)
        self.assertEqual((), plan.moves)

    def test_no_move_is_planned_between_nodes_of_which_one_is_unmeasured(self):
        seen = skewed().situation()
        nodes = seen.view.nodes
        for at in (0, 1):
            with self.subTest(node=at):
                cut = tuple(
                    node._replace(demand_cores=None) if node.id == at else node for node in nodes
                )
                plan, _ = planner.plan(
                    seen._replace(view=seen.view._replace(nodes=cut)),
                    PlannerState(),
                    OPTIONS,
                    60.0,
                    0.0,
                )
                self.assertEqual((), plan.moves)
                self.assertIn(model.Reason('demand_unknown', (('nodes', (at,)),)), plan.remarks)

    def test_a_move_that_gains_nothing_any_more_is_not_planned(self):
        """It is not planned even though the earlier regret remains if no gain is too small."""
        host = skewed()
        options = OPTIONS._replace(min_gain_cores=0.0, widen=False, bytes_per_sec=1.0)
        for ticks in (1, 40):
            with self.subTest(ticks=ticks):
                plans, state = host.run(options, ticks)
                self.assertEqual([], kinds(plans))
                self.assertTrue(state.regrets)
                calm = [
                    guest._replace(demand_cores=0.0, served_cores=0.0) for guest in host.guests
                ]
                plan, later = planner.plan(
                    host.situation(calm),
                    state,
                    OPTIONS._replace(min_gain_cores=0.0, widen=False),
                    TICK_S,
                    2000.0,
                )
                self.assertTrue(later.regrets)
                self.assertEqual((), plan.moves)

    def test_available_memory_is_left_on_the_target(self):
        seen = skewed().situation()
        for available, moved in (
            (GIB, 0),
            (GIB + OPTIONS.reserve_bytes, 1),
            (2 * GIB + OPTIONS.reserve_bytes, 2),
        ):
            with self.subTest(available=available):
                plan, _ = planner.plan(
                    seen._replace(available_bytes=((1, available),)),
                    PlannerState(),
                    OPTIONS._replace(widen=False),
                    60.0,
                    0.0,
                )
                self.assertEqual(moved, len(plan.moves))


class BudgetTest(unittest.TestCase):
    def test_a_day_bounds_the_memory_that_is_moved(self):
        options = OPTIONS._replace(widen=False, bytes_per_sec=GIB / planner.COPYING_MIN_S)
        host = skewed()
        plans, state = host.run(options, 20)
        self.assertEqual(['move'], kinds(plans))
        self.assertEqual(model.Reason('budget', (('used', GIB),)), plans[-1].remarks[0])
        plan, _ = planner.plan(host.situation(), state, options, TICK_S, DAY_S + 2000.0)
        self.assertEqual(['move'], kinds([plan]))

    def test_no_memory_is_moved_where_that_is_turned_off(self):
        for change in ({'moved_ratio_per_day': 0.0}, {'may_move': False}):
            plans, _ = skewed().run(OPTIONS._replace(**change), 20)
            self.assertEqual({'widen'}, set(kinds(plans)))

    def test_a_late_tick_does_not_multiply_one_sample(self):
        host = skewed()
        host.guests = [
            guest._replace(bytes_by_node=((guest.held_nodes[0], 160 * GIB),))
            for guest in host.guests
        ]
        plan, _ = planner.plan(
            host.situation(), PlannerState(), OPTIONS._replace(widen=False), 86400.0, 0.0
        )
        self.assertEqual((), plan.moves)


class RegretsTest(unittest.TestCase):
    def test_regrets_survive_a_restart(self):
        host = skewed()
        host.guests = [
            guest._replace(bytes_by_node=((guest.held_nodes[0], 16 * GIB),))
            for guest in host.guests
        ]
        _, state = host.run(OPTIONS._replace(widen=False), 2, TICK_S)
        self.assertTrue(state.regrets)
        kept = json_values.encode(state, 1)
        self.assertEqual(state, json_values.decode(PlannerState, kept, 1))

    def test_guests_and_nodes_that_are_gone_are_dropped(self):
        host = skewed()
        host.guests = [
            guest._replace(bytes_by_node=((guest.held_nodes[0], 16 * GIB),))
            for guest in host.guests
        ]
        _, state = host.run(OPTIONS, 2)
        host.guests = host.guests[5:]
        _, state = host.run(OPTIONS, 1, state=state)
        self.assertEqual((), state.regrets)


class DomainTest(unittest.TestCase):
    def test_nodes_that_share_their_channels_are_one_place(self):
        near = ((10, 11, 20, 20), (11, 10, 20, 20), (20, 20, 10, 11), (20, 20, 11, 10))
        guests = [guest_load(f'g{at}', 4, 0 if at < 3 else 2, 3.0) for at in range(3)]
        host = ConstantHost(
            (6, 6, 6, 6), (16 * GIB,) * 4, guests, distances=near, domains=(0, 0, 2, 2)
        )
        plans, _ = host.run(OPTIONS, 20)
        self.assertEqual([], kinds(plans))  # nine cores are wanted, the first pair has twelve

    def test_an_empty_host_has_an_empty_plan(self):
        plans, state = ConstantHost((4, 4), (GIB, GIB), []).run(OPTIONS, 2)
        self.assertEqual([], kinds(plans))
        self.assertEqual(((), ()), (state.regrets, state.moved))
