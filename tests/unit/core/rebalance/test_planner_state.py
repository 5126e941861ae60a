# SPDX-License-Identifier: Apache-2.0
"""Test what the planner remembers of its moves, and how it judges them."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc import json_values
from nova_numa_pmc.core.rebalance import host_model, plan_records, planner_state
from nova_numa_pmc.core.rebalance.planner_state import (
    STAY_AFTER_RETURN_S,
    STAY_S,
    PlannerState,
    Regret,
)
from tests.sim.constant import GIB, ConstantHost, guest_load

NOW_S = 10_000.0
WAITING = (2.0, 0.0, 0.0)
NOTHING = PlannerState()


def after(state, waits=0.0, seconds=600.0, now_s=NOW_S, **fields):
    """Return the state after the guests of two nodes have waited for so many cores each."""
    guests = [
        guest_load(name, 4, at, 2.0, served_cores=2.0 - waits, **fields)
        for at, name in enumerate('ab')
    ]
    host = ConstantHost((4, 4), (64 * GIB,) * 2, guests)
    model = host_model.HostModel(host.situation(), plan_records.RebalanceOptions())
    return planner_state.after_interval(state, model, seconds, now_s)


def moved(state, uuid='a', route=((0,), (1,)), now_s=NOW_S, claims=WAITING, cost=10.0):
    from_nodes, to_nodes = route
    move = plan_records.Move(
        plan_records.MOVE, uuid, uuid, from_nodes, to_nodes, to_nodes, GIB, cost_core_sec=cost
    )
    return planner_state.with_move_recorded(state, move, claims, now_s)


class JudgedTest(unittest.TestCase):
    def judge(self, before, later, claims=WAITING, state=NOTHING, **fields):
        """Return the state after a move, by what each of two guests waited for."""
        state = moved(after(state, before, **fields), claims=claims)
        state = after(state, later, 500.0, **fields)
        self.assertIsNotNone(state.trial, 'it is judged over a quarter of an hour')
        state = after(state, later, 500.0, **fields)
        self.assertIsNone(state.trial)
        return state

    def test_a_claim_that_came_true_keeps_its_trust(self):
        state = self.judge(1.0, 0.0)
        self.assertEqual((1.0, 0.5, 0.1), tuple(round(r, 9) for r in state.trust_ratios))
        self.assertAlmostEqual(2.0 * planner_state.PAYBACK_S - 10.0, state.outcomes[0])

    def test_trust_falls_with_claims_that_do_not_come_true(self):
        state = self.judge(1.0, 1.0)
        self.assertAlmostEqual(0.9 * 4 / (0.9 * 4 + 2), state.trust_ratios[0])
        self.assertEqual([-10.0], list(state.outcomes))

    def test_stalls_say_what_distance_gained_only_where_they_are_counted(self):
        uncounted = self.judge(0.0, 0.0, (0.0, 1.0, 0.0))
        self.assertEqual((planner_state.TRUST_AT_FIRST, ()), (uncounted.trust, uncounted.outcomes))
        counted = self.judge(0.0, 0.0, (0.0, 1.0, 0.0), stalled_ratio=0.2)
        self.assertLess(counted.trust_ratios[1], 0.5)

    def test_ten_moves_that_cost_more_than_they_gain_are_enough(self):
        state = PlannerState()
        for count in range(10):
            self.assertFalse(state.moves_do_not_pay, count)
            state = self.judge(0.5, 0.6, state=state)
        self.assertTrue(state.moves_do_not_pay)
        self.assertFalse(self.judge(2.0, 0.0, state=state).moves_do_not_pay)

    def test_moves_at_once_are_judged_together(self):
        state = moved(moved(after(PlannerState(), 1.0)), 'b', ((1,), (0,)))
        trial = state.trial
        self.assertEqual((2, (4.0, 0.0, 0.0)), (trial.moves, trial.claims))
        state = after(state, 0.0, 1000.0)
        self.assertEqual(2, len(state.outcomes))

    @given(st.floats(0, 2), st.floats(0, 2), st.tuples(*[st.floats(0, 50)] * 3), st.floats(0, 1))
    def test_trust_is_a_share_and_the_state_can_be_kept(self, before, later, claims, stalled):
        state = self.judge(before, later, claims, stalled_ratio=stalled)
        self.assertTrue(all(0 <= ratio <= 1 for ratio in state.trust_ratios))
        kept = json_values.encode(state, 1)
        self.assertEqual(state, json_values.decode(PlannerState, kept, 1))


class StaysTest(unittest.TestCase):
    def test_a_moved_guest_stays_for_a_day_unless_it_waits_and_never_goes_back_then(self):
        state = moved(PlannerState())
        for later_s, waits, to_nodes, stays in (
            (STAY_S - 1, False, (2,), True),
            (STAY_S - 1, True, (2,), False),
            (STAY_S - 1, True, (0,), True),
            (STAY_S, False, (0,), False),
        ):
            with self.subTest(later_s=later_s, waits=waits, to_nodes=to_nodes):
                self.assertEqual(stays, state.stays('a', waits, to_nodes, NOW_S + later_s))
        self.assertFalse(state.stays('b', False, (2,), NOW_S + 1))

    def test_a_guest_that_came_back_stays_for_a_week(self):
        back_s = NOW_S + 2 * STAY_S
        state = moved(after(moved(PlannerState()), now_s=back_s), route=((1,), (0,)), now_s=back_s)
        self.assertTrue(state.stays('a', True, (1,), back_s + STAY_AFTER_RETURN_S - 1))
        state = after(state, now_s=back_s + STAY_AFTER_RETURN_S)
        self.assertFalse(state.stays('a', False, (1,), back_s + STAY_AFTER_RETURN_S))

    def test_a_guest_that_was_widened_when_it_was_moved_does_not_go_back_either(self):
        state = moved(PlannerState(), route=((0, 1), (1,)))
        self.assertTrue(state.stays('a', True, (0,), NOW_S + STAY_S - 1))
        self.assertFalse(state.stays('a', True, (2,), NOW_S + STAY_S - 1))
        back = moved(state, route=((1,), (0,)), now_s=NOW_S + STAY_S)
        self.assertTrue(back.stays('a', True, (1,), NOW_S + 7 * STAY_S))

    def test_memory_counts_for_a_day(self):
        state = moved(moved(PlannerState()), 'b')
        self.assertEqual(2 * GIB, state.moved_bytes(NOW_S + STAY_S - 1))
        self.assertEqual(0, state.moved_bytes(NOW_S + STAY_S))

    def test_a_change_of_cpus_alone_is_neither_judged_nor_counted(self):
        move = plan_records.Move(plan_records.WIDEN, 'a', 'a', (0,), (0, 1), (), 0)
        state = PlannerState(regrets=(Regret(('a', (0, 1), ()), 1.0),))
        self.assertEqual(
            PlannerState(), planner_state.with_move_recorded(state, move, WAITING, NOW_S)
        )
