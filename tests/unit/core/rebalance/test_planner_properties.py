# SPDX-License-Identifier: Apache-2.0
"""Properties that hold for every host that is rebalanced."""

import random
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import json_values, model
from nova_numa_pmc.core.rebalance import plan_records, planner
from nova_numa_pmc.core.rebalance.host_model import HostModel
from nova_numa_pmc.core.rebalance.plan_records import explain_move
from nova_numa_pmc.core.rebalance.planner_state import PlannerState
from nova_numa_pmc.model import MIB
from tests.sim.constant import GIB, ConstantHost, guest_load, slit_latencies_ns

QUICK = settings(max_examples=25, deadline=None)
OPTIONS = plan_records.RebalanceOptions(measured_min_s=0.0)
#: Without limits that would end the moves before all are made.
UNBOUNDED = OPTIONS._replace(moved_ratio_per_day=1e6)
#: A state in which each claim counts in full.
TRUSTING = PlannerState(trust=((1.0, 1.0),) * 3)
MINUTE_S, DAY_S = 60.0, 86400.0

GUEST = st.tuples(
    st.integers(0, 3),
    st.integers(1, 4),
    st.floats(0.05, 1.0),
    st.integers(1, 8),
    st.sampled_from((None, 0.0, 1e6, 2e7)),
    st.floats(0, 1),
)
HOSTS = st.tuples(
    st.lists(st.sampled_from((4, 6, 8)), min_size=2, max_size=4),
    st.lists(GUEST, max_size=9),
    st.sampled_from((None, 4e9)),
    st.sampled_from((12, 24, 64)),
)

UNKNOWN = st.none() | st.just(0.0) | st.floats(0, 30)
NODE_IDS = st.lists(st.sampled_from((0, 3, 6, 9, 99)), unique=True, max_size=3).map(
    lambda ids: tuple(sorted(ids))
)
#: Cores, CPUs, capacity, promised; demand, traffic, maximum.
ODD_NODE = st.tuples(
    st.sampled_from((0.0, 2.0, 8.0)),
    st.sampled_from((0, 2, 8)),
    st.sampled_from((0, 8 * GIB)),
    st.just(GIB),
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
)
ODD_GUEST = st.builds(
    plan_records.GuestLoad,
    st.just(''),
    st.just('g'),
    st.integers(0, 8),
    st.sampled_from((0, GIB, 64 * GIB)),
    NODE_IDS,
    NODE_IDS,
    NODE_IDS,
    st.just(()) | st.just((GIB,)),
    NODE_IDS.map(lambda ids: tuple((node, GIB) for node in ids)),
    NODE_IDS.map(lambda ids: tuple((node, 0.5) for node in ids)),
    UNKNOWN,
    UNKNOWN,
    st.just(()) | st.tuples(st.floats(0, 30), st.floats(0, 30)),
    st.just(0.0),
    st.none() | st.floats(0, 1),
    UNKNOWN.map(lambda lines: lines and lines * 1e7),
    st.none() | st.floats(0, 1),
    UNKNOWN,
    st.none() | NODE_IDS.map(lambda ids: tuple((node, 1 + node) for node in ids)),
    st.sampled_from(('', '', 'placed_by_others')),
)


def build(drawn, ids=None):
    """Build a host whose promises fit, with these node ids if given."""
    cores, wanted, bandwidth_max, capacity = drawn
    ids = ids or list(range(len(cores)))
    guests, left = [], [capacity * GIB] * len(cores)
    for at, (node, vcpus, busy, size, lines, away) in enumerate(wanted):
        node %= len(cores)
        if left[node] < size * GIB:
            continue
        left[node] -= size * GIB
        other, resident = (node + 1) % len(cores), size * 700 * MIB
        demand = vcpus * busy
        uncounted = {'lines_per_sec': None, 'bandwidth_bytes_per_sec': None}
        guests.append(
            guest_load(
                f'g{at}',
                vcpus,
                ids[node],
                demand,
                size * GIB,
                lines=demand * (lines or 0.0),
                **(uncounted if lines is None else {}),
                memory_at=(
                    (ids[node], int(resident * (1 - away))),
                    (ids[other], int(resident * away)),
                ),
            )
        )
    return ConstantHost(cores, [capacity * GIB] * len(cores), guests, bandwidth_max, ids=ids)


def moves_of(plans):
    return [move for plan in plans for move in plan.moves]


class PropertyTest(unittest.TestCase):
    @QUICK
    @given(HOSTS)
    def test_a_plan_on_constant_input_becomes_empty_and_stays_so(self, drawn):
        # A tick takes a day, so that even a minimal gain has paid for its move.
        options, host = UNBOUNDED._replace(interval_max_s=DAY_S), build(drawn)
        _, state = host.run(options, 40, DAY_S)
        plans, _ = host.run(options, 20, DAY_S, state=state)
        self.assertEqual([], moves_of(plans))

    @QUICK
    @given(HOSTS)
    def test_each_move_spares_the_loss_that_it_says(self, drawn):
        host = build(drawn)
        for _ in range(20):
            before = sum(HostModel(host.situation(), UNBOUNDED).host_loss.by_cause())
            (plan,), _ = host.run(UNBOUNDED, 1, MINUTE_S, state=TRUSTING)
            spared = before - sum(HostModel(host.situation(), UNBOUNDED).host_loss.by_cause())
            if any(move.kind in ('widen', 'narrow') for move in plan.moves):
                break  # where a guest on several nodes runs is measured, and unknown here
            self.assertAlmostEqual(sum(move.gain_cores for move in plan.moves), spared, places=6)

    @QUICK
    @given(HOSTS, st.integers(0, 99))
    def test_promises_never_exceed_a_capacity(self, drawn, seed):
        host, rng = build(drawn), random.Random(seed)
        for _ in range(12):
            host.run(UNBOUNDED, 1, MINUTE_S)
            for node in host.situation().view.nodes:
                self.assertLessEqual(node.promised_bytes, node.capacity_bytes)
            host.guests = [
                guest._replace(demand_cores=guest.vcpus * rng.random()) for guest in host.guests
            ]

    @QUICK
    @given(HOSTS, st.integers(0, 99))
    def test_noise_moves_few_guests_and_those_only_where_it_pays(self, drawn, seed):
        host, rng = build(drawn), random.Random(seed)
        _, state = host.run(UNBOUNDED, 100, MINUTE_S)

        def noisy(guest, tick):
            factor = rng.uniform(0.8, 1.2)
            demand = min(guest.vcpus, guest.demand_cores * factor)
            lines = guest.lines_per_sec and guest.lines_per_sec * rng.uniform(0.8, 1.2)
            return guest._replace(demand_cores=demand, served_cores=demand, lines_per_sec=lines)

        plans, _ = host.run(OPTIONS, 120, 5.0, noise=noisy, state=state)
        for move in moves_of(plans):
            self.assertGreaterEqual(move.regret_core_sec, move.cost_core_sec)
        self.assertLessEqual(
            sum(bool(move.to_move_bytes) for move in moves_of(plans)), max(2, len(host.guests))
        )
        self.assertLessEqual(len(moves_of(plans)), 20)

    @QUICK
    @given(HOSTS, st.permutations([3, 7, 12, 40]))
    def test_renaming_nodes_changes_nothing_else(self, drawn, names):
        names = names[: len(drawn[0])]
        renamed = dict(enumerate(names))
        order = sorted(range(len(names)), key=lambda at: names[at])
        plain, other = build(drawn), build(drawn, ids=names)
        # A view lists its nodes by ascending id.
        other.ids = [names[at] for at in order]
        other.cores = [drawn[0][at] for at in order]
        options = UNBOUNDED._replace(widen=False)
        ours, theirs = (
            planner.plan(host.situation(), PlannerState(), options, MINUTE_S, 0.0)[0]
            for host in (plain, other)
        )
        self.assertAlmostEqual(ours.loss_cores, theirs.loss_cores)
        self.assertEqual(bool(ours.moves), bool(theirs.moves))
        if ours.moves:
            self.assertAlmostEqual(ours.moves[0].gain_cores, theirs.moves[0].gain_cores)
            self.assertEqual(ours.moves[0].to_move_bytes, theirs.moves[0].to_move_bytes)
            if len(set(drawn[0])) == len(drawn[0]):  # no two nodes are equal
                self.assertEqual(
                    (ours.moves[0].name, tuple(renamed[node] for node in ours.moves[0].to_nodes)),
                    (theirs.moves[0].name, theirs.moves[0].to_nodes),
                )

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(ODD_NODE, min_size=1, max_size=4), st.lists(ODD_GUEST, max_size=6), st.booleans()
    )
    def test_a_plan_is_made_whatever_is_unknown_or_absent(self, nodes, guests, waited):
        nodes = tuple(
            model.NodeView(3 * at, *node[:4])._replace(
                demand_cores=node[4],
                bandwidth_bytes_per_sec=node[5],
                bandwidth_max_bytes_per_sec=node[6],
            )
            for at, node in enumerate(nodes)
        )
        view = model.HostView(nodes, ())
        situation = plan_records.Situation(
            view,
            tuple(guest._replace(uuid=f'g{at}') for at, guest in enumerate(guests)),
            slit_latencies_ns(view),
            waiting_cores=((0, 1.0), (3, 0.0), (99, 1.0)) if waited else (),
            available_bytes=((0, GIB),) if waited else (),
        )
        state = PlannerState()
        for tick in range(3):
            plan, state = planner.plan(situation, state, UNBOUNDED, MINUTE_S, MINUTE_S * tick)
            kept = json_values.encode(state, 1)
            self.assertEqual(state, json_values.decode(PlannerState, kept, 1))
            for move in plan.moves:
                explain_move(move)
                self.assertTrue(move.to_nodes)
                guest = situation.guests[int(move.uuid[1:])]
                self.assertEqual('', guest.why_fixed)
                self.assertIsNotNone(guest.demand_cores)
        planner.propose(situation, UNBOUNDED)

    def test_a_thousand_quiet_guests_are_left_alone(self):
        rng = random.Random(1)
        guests = [
            guest_load(
                f'g{at:04}',
                2,
                at % 8,
                rng.uniform(0.1, 0.4),
                4 * GIB,
                GIB,
                lines=rng.choice((1e4, 1e6)),
            )
            for at in range(1000)
        ]
        host = ConstantHost((48,) * 8, (2048 * GIB,) * 8, guests, 1e11)
        plans, _ = host.run(OPTIONS, 3, MINUTE_S)
        self.assertEqual([], moves_of(plans))
