# SPDX-License-Identifier: Apache-2.0
"""Test what the rebalancer remembers of its moves, and when it forgets it."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.core.rebalance import host_model, plan_records, planner_state
from nova_numa_pmc.core.rebalance.planner_state import (
    Caution,
    PlannerState,
    Regret,
    Trial,
    TrialPart,
)
from tests.sim.constant import GIB, ConstantHost, guest_load

OPTIONS = plan_records.RebalanceOptions()
NOW_S = 10_000.0
#: Guest d moved from node 0 to node 1, with its memory.
PART = TrialPart('d', (0,), ((0, 1.0),), (1,))
TRIAL = Trial((PART,), 100.0, 0.0, NOW_S - 60)


def host_of(at=1, demand=4.0, guests='abcd', options=OPTIONS):
    """Build a model of two nodes of 12 cores: d on one of them, the others on the first."""
    return host_model.HostModel(
        ConstantHost(
            (12, 12),
            (64 * GIB,) * 2,
            [guest_load(name, 4, at if name == 'd' else 0, demand) for name in guests],
        ).situation(),
        options,
    )


def after_interval(known, laid_out=None, elapsed_s=5.0, now_s=NOW_S):
    return planner_state.after_interval(known, laid_out or host_of(), elapsed_s, now_s)


def move(*uuids, size=0, mems=()):
    parts = tuple(plan_records.PlanPart(uuid, uuid, (0,), (1,), mems, size) for uuid in uuids)
    return plan_records.Move(plan_records.MOVE, parts, 1.0, 0.5, 0.6, size * len(uuids))


def trial(*uuids):
    return Trial(tuple(TrialPart(uuid, (0,), (), (1,)) for uuid in uuids), 0.5, 0.0, NOW_S)


class TrialTest(unittest.TestCase):
    def credit(self, known):
        [trial] = known.trials
        return trial.credit_core_sec

    def test_a_trial_is_credited_what_its_reverse_would_lose_each_interval(self):
        once = after_interval(PlannerState(trials=(TRIAL,)))
        # If it were on node 0 again, 16 of 12 cores would be wanted; bursts would also wait.
        self.assertGreater(self.credit(once), 4.0 * 5)
        self.assertLess(self.credit(once), 5.0 * 5)
        twice = self.credit(after_interval(once, elapsed_s=3.0))
        self.assertAlmostEqual(self.credit(once) * 8 / 5, twice)

    def test_an_interval_in_which_a_guest_was_not_measured_changes_nothing(self):
        known = PlannerState(trials=(TRIAL,), cautions=(Caution('d', 4.0, NOW_S),))
        situation = ConstantHost(
            (12, 12), (64 * GIB,) * 2, [guest_load('d', 4, 1, 4.0)]
        ).situation()
        unmeasured = situation._replace(
            guests=tuple(load._replace(demand_cores=None) for load in situation.guests)
        )
        laid_out = host_model.HostModel(unmeasured, OPTIONS)
        self.assertEqual(known, after_interval(known, laid_out))

    def test_a_load_that_went_away_credits_nothing(self):
        self.assertLess(
            self.credit(after_interval(PlannerState(trials=(TRIAL,)), host_of(demand=0.1))), 0.1
        )

    def test_a_move_that_proves_wrong_is_debited(self):
        wrong = TRIAL._replace(parts=(TrialPart('d', (1,), ((1, 1.0),), (0,)),))
        self.assertAlmostEqual(
            -self.credit(after_interval(PlannerState(trials=(TRIAL,)))),
            self.credit(after_interval(PlannerState(trials=(wrong,)), host_of(at=0))),
        )

    def test_a_trial_that_has_paid_ends_and_halves_its_guests_caution(self):
        paid = PlannerState(
            (), (TRIAL._replace(credit_core_sec=81.0),), (Caution('d', 8.0, NOW_S),)
        )
        self.assertEqual(PlannerState(cautions=(Caution('d', 4.0, NOW_S),)), after_interval(paid))
        self.assertEqual(PlannerState(), after_interval(paid._replace(cautions=())))

    def test_a_trial_that_has_not_paid_leaves_the_caution(self):
        kept = after_interval(PlannerState((), (TRIAL,), (Caution('d', 8.0, NOW_S),)))
        self.assertEqual((Caution('d', 8.0, NOW_S),), kept.cautions)

    def test_a_trial_whose_guest_has_gone_or_was_moved_is_dropped(self):
        for why, laid_out in (('gone', host_of(guests='abc')), ('moved', host_of(at=0))):
            with self.subTest(why):
                self.assertEqual(
                    (), after_interval(PlannerState(trials=(TRIAL,)), laid_out).trials
                )

    def test_a_trial_of_another_hour_or_of_the_future_is_dropped(self):
        for since_s, kept in (
            (NOW_S, True),
            (NOW_S - planner_state.HOUR_S, True),
            (NOW_S - planner_state.HOUR_S - 1, False),
            (NOW_S + 1, False),
        ):
            with self.subTest(since_s):
                known = after_interval(PlannerState(trials=(TRIAL._replace(since_s=since_s),)))
                self.assertEqual(kept, bool(known.trials))

    def test_accesses_to_a_node_that_has_gone_are_left_out(self):
        parts = (PART._replace(mem_shares=((0, 1.0), (7, 0.5))),)
        kept, cut = (
            PlannerState(trials=(trial,)) for trial in (TRIAL, TRIAL._replace(parts=parts))
        )
        self.assertEqual(self.credit(after_interval(kept)), self.credit(after_interval(cut)))


class BudgetTest(unittest.TestCase):
    def test_moves_count_for_an_hour(self):
        times = (NOW_S - planner_state.HOUR_S, NOW_S - planner_state.HOUR_S + 1, NOW_S, NOW_S + 1)
        known = after_interval(PlannerState(moved_s=times, changed_s=times))
        self.assertEqual((times[1:3],) * 2, (known.moved_s, known.changed_s))

    def test_each_interval_pays_a_tick_of_what_a_large_guest_owes(self):
        known = after_interval(
            PlannerState(owed_bytes=5 * GIB),
            host_of(options=OPTIONS._replace(bytes_per_tick=4 * GIB)),
        )
        self.assertEqual(GIB, known.owed_bytes)
        self.assertEqual(0, after_interval(known).owed_bytes)

    def test_caution_is_halved_each_hour_and_ends_at_one(self):
        old = NOW_S - planner_state.HOUR_S - 1
        for before, after in (
            (Caution('a', 8.0, old), (Caution('a', 4.0, NOW_S),)),
            (Caution('a', 2.0, old), ()),
            (Caution('a', 8.0, NOW_S + 1), (Caution('a', 4.0, NOW_S),)),
            (Caution('a', 8.0, NOW_S), (Caution('a', 8.0, NOW_S),)),
            (Caution('gone', 8.0, NOW_S), ()),
        ):
            with self.subTest(before):
                self.assertEqual(after, after_interval(PlannerState(cautions=(before,))).cautions)

    def test_settling_trials_leaves_regrets_as_they_are(self):
        kept = (Regret((('a', (1,), (1,)),), 2.5),)
        self.assertEqual(kept, after_interval(PlannerState(kept)).regrets)


class BookedTest(unittest.TestCase):
    def test_each_next_move_of_a_guest_costs_twice_as_much_up_to_a_bound(self):
        known, factors = PlannerState(), []
        for _ in range(8):
            known = planner_state.with_move_recorded(known, move('a'), trial('a'), NOW_S)
            factors.append(planner_state.caution_factors(known)['a'])
        self.assertEqual([2, 4, 8, 16, 32, 64, 64, 64], factors)
        self.assertEqual(1, len(known.trials))  # only the later one

    def test_a_recorded_move_replaces_regrets_and_trials_of_its_guests(self):
        of_a, of_b, of_both = (
            (('a', (1,), ()),),
            (('b', (1,), ()),),
            (('b', (), ()), ('a', (), ())),
        )
        before = PlannerState(
            tuple(Regret(key, 1.0) for key in (of_a, of_b, of_both)), (trial('b', 'a'), trial('b'))
        )
        after = planner_state.with_move_recorded(before, move('a'), trial('a'), NOW_S)
        self.assertEqual((Regret(of_b, 1.0),), after.regrets)
        self.assertEqual((trial('b'), trial('a')), after.trials)

    def test_each_guest_of_a_swap_counts_in_the_budget(self):
        after = planner_state.with_move_recorded(
            PlannerState(), move('a', 'b', size=GIB, mems=(1,)), trial('a', 'b'), NOW_S
        )
        self.assertEqual(((NOW_S, NOW_S), ()), (after.moved_s, after.changed_s))
        self.assertEqual({'a': 2.0, 'b': 2.0}, planner_state.caution_factors(after))
        self.assertEqual(2 * GIB, after.owed_bytes)

    def test_a_guest_that_goes_to_its_memory_counts_as_moved(self):
        after = planner_state.with_move_recorded(
            PlannerState(), move('a', mems=(1,)), trial('a'), NOW_S
        )
        self.assertEqual(((NOW_S,), (), 0), (after.moved_s, after.changed_s, after.owed_bytes))

    def test_a_change_of_cpus_alone_has_a_budget_of_its_own(self):
        after = planner_state.with_move_recorded(
            PlannerState(moved_s=(1.0,)), move('a'), trial('a'), NOW_S
        )
        self.assertEqual(((1.0,), (NOW_S,)), (after.moved_s, after.changed_s))
        self.assertEqual(0, after.owed_bytes)


NAMES = st.lists(st.sampled_from('abcdef'), min_size=1, max_size=3, unique=True)
BOOKED = st.lists(st.tuples(NAMES, st.integers(0, GIB)), max_size=6)


def after_moves(moves):
    """Return the regrets after moves of these guests, and one regret for each pair of them."""
    known = PlannerState()
    for at, (uuids, size) in enumerate(moves):
        known = planner_state.with_move_recorded(
            known, move(*uuids, size=size), trial(*uuids), NOW_S + at
        )
        key = tuple((uuid, (1,), (1,)) for uuid in uuids)
        known = known._replace(regrets=(*known.regrets, Regret(key, 1.0)))
    return known


class PropertyTest(unittest.TestCase):
    @given(BOOKED)
    def test_a_guest_is_in_one_trial_at_most(self, moves):
        known = after_moves(moves)
        on_trial = [uuid for trial in known.trials for uuid, *_ in trial.parts]
        self.assertEqual(len(on_trial), len(set(on_trial)))
        self.assertEqual(
            {uuid for uuids, _ in moves for uuid in uuids},
            set(planner_state.caution_factors(known)),
        )
        self.assertEqual(sum(size * len(uuids) for uuids, size in moves), known.owed_bytes)

    @given(BOOKED, NAMES)
    def test_forgetting_failed_guests_drops_their_regrets_and_trials_only(self, moves, failed):
        known = after_moves(moves)
        after = planner_state.without_guests(known, iter(failed))
        for before, kept, guests in (
            (known.regrets, after.regrets, lambda trial: {uuid for uuid, *_ in trial.key}),
            (known.trials, after.trials, lambda trial: {uuid for uuid, *_ in trial.parts}),
        ):
            self.assertEqual(
                [trial for trial in before if not guests(trial) & set(failed)], [*kept]
            )
        # Its costs, and the record that these guests were moved, remain.
        self.assertEqual(
            known._replace(regrets=(), trials=()), after._replace(regrets=(), trials=())
        )

    @given(BOOKED, st.floats(0, 3 * planner_state.HOUR_S))
    def test_time_without_moves_adds_nothing(self, moves, later_s):
        known = after_moves(moves)
        after = after_interval(known, elapsed_s=0.0, now_s=NOW_S + later_s)
        before = planner_state.caution_factors(known)
        for uuid, factor in planner_state.caution_factors(after).items():
            self.assertTrue(1 < factor <= before[uuid])
        self.assertLessEqual(set(after.moved_s), set(known.moved_s))
        self.assertLessEqual(after.owed_bytes, known.owed_bytes)
        self.assertLessEqual(len(after.trials), len(known.trials))
