# SPDX-License-Identifier: Apache-2.0
"""The plan for a fleet: what it moves, what it leaves alone, and that it never overdoes it."""

import random
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import fleet
from nova_numa_pmc.core.demand import Mean, UsageHistory
from tests.fixtures import fleets
from tests.fixtures.model_records import GIB

MANY = fleet.Budgets(100, 1 << 50)


def guests(first, count, demand_cores, size=8 * GIB, why_fixed=''):
    """Build equal guests."""
    return [fleets.guest(first + at, 8, size, demand_cores, why_fixed) for at in range(count)]


def demand(host):
    """Return what a host's guests want, and its cores."""
    return (
        sum(node.demand_cores for node in host.view.nodes),
        sum(node.cores for node in host.view.nodes),
    )


HOT = fleets.host([guests(0, 7, 5.0), guests(7, 7, 5.0)])
COLD = fleets.host([guests(20, 2, 5.0), guests(30, 2, 5.0)])


class PlanTest(unittest.TestCase):
    def plan(self, hosts, budgets=MANY, now_s=fleets.NOW_S):
        return fleet.plan(hosts, budgets, now_s)

    def test_a_saturated_host_gives_guests_to_an_idle_one_until_it_is_not(self):
        plan = self.plan({'hot': HOT, 'cold': COLD})
        self.assertEqual({('hot', 'cold')}, {(move.source, move.target) for move in plan.moves})
        self.assertLess(plan.moves[-1].source_ratios[1], fleet.SOURCE_RATIO)
        self.assertGreaterEqual(plan.moves[-1].source_ratios[0], fleet.SOURCE_RATIO)
        self.assertEqual((), plan.left_alone)

    def test_a_guest_that_may_not_leave_stays_and_the_host_is_named(self):
        fixed = fleets.host([guests(0, 7, 5.0, why_fixed='locked')] * 2)
        plan = self.plan({'hot': fixed, 'cold': COLD})
        self.assertEqual(((), (('hot', fleet.NONE_PAYS),)), tuple(plan))

    def test_a_guest_that_is_listed_twice_stays(self):
        for hosts in (
            {'hot': HOT._replace(guests=HOT.guests[:1] * 14), 'cold': COLD},
            {'hot': HOT, 'other': COLD._replace(guests=HOT.guests), 'cold': COLD},
        ):
            self.assertEqual(((), (('hot', fleet.NONE_PAYS),)), tuple(self.plan(hosts)))

    def test_traffic_of_which_the_maximum_is_unknown_is_no_pressure(self):
        nodes = tuple(node._replace(bandwidth_bytes_per_sec=5e9) for node in HOT.view.nodes)
        counted = HOT._replace(view=HOT.view._replace(nodes=nodes))
        self.assertEqual(
            self.plan({'hot': HOT, 'cold': COLD}), self.plan({'hot': counted, 'cold': COLD})
        )

    def test_a_host_whose_own_agent_can_relieve_it_is_left_alone(self):
        uneven = fleets.host([guests(0, 8, 5.0), []])
        plan = self.plan({'uneven': uneven, 'cold': COLD})
        self.assertEqual(((), (('uneven', fleet.RELIEVES_ITSELF),)), tuple(plan))

    def test_stale_and_unmeasured_hosts_neither_give_nor_get_guests(self):
        old = COLD._replace(taken_s=fleets.NOW_S - 2 * fleet.STALE_S)
        ahead = COLD._replace(taken_s=fleets.NOW_S + 2 * fleet.STALE_S)
        nodes = tuple(node._replace(demand_cores=None) for node in COLD.view.nodes)
        blind = COLD._replace(view=COLD.view._replace(nodes=nodes))
        plan = self.plan({'hot': HOT, 'old': old, 'ahead': ahead, 'blind': blind})
        self.assertEqual((), plan.moves)
        self.assertEqual(
            {
                'hot': fleet.NONE_PAYS,
                'old': fleet.STALE,
                'ahead': fleet.STALE,
                'blind': fleet.UNMEASURED,
            },
            dict(plan.left_alone),
        )

    def test_a_host_that_is_pressed_by_bandwidth_alone_is_relieved(self):
        def loaded(host, ratio):
            nodes = tuple(
                node._replace(
                    bandwidth_bytes_per_sec=ratio * 1e11, bandwidth_max_bytes_per_sec=1e11
                )
                for node in host.view.nodes
            )
            some = tuple(one._replace(bandwidth_bytes_per_sec=2e10) for one in host.guests)
            return host._replace(view=host.view._replace(nodes=nodes), guests=some)

        idle = COLD._replace(guests=())
        plan = self.plan({'hot': loaded(COLD, 1.1), 'cold': loaded(idle, 0.1)})
        self.assertTrue(plan.moves)

    def test_the_budget_of_moves_is_the_reason_given_for_what_is_left(self):
        plan = self.plan({'hot': HOT, 'cold': COLD}, fleet.Budgets(1, 1 << 50))
        self.assertEqual(1, len(plan.moves))
        self.assertEqual((('hot', fleet.BUDGET),), plan.left_alone)

    def test_nothing_pays_on_a_fleet_without_pressure(self):
        self.assertEqual(((), ()), tuple(self.plan({'a': COLD, 'b': COLD})))

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 300), st.floats(0.5, 1.3))
    def test_no_plan_exceeds_its_budgets_or_the_room_and_limit_of_a_host(
        self, seed, moves, gib, load
    ):
        hosts = fleets.draw(random.Random(seed), 8, load=load)
        plan = self.plan(hosts, fleet.Budgets(moves, gib * GIB))
        self.assertLessEqual(len(plan.moves), moves)
        self.assertLessEqual(sum(move.memory_bytes for move in plan.moves), gib * GIB)
        self.assertEqual(len(plan.moves), len({move.uuid for move in plan.moves}))
        self.assertFalse(
            {move.source for move in plan.moves} & {move.target for move in plan.moves}
        )
        wants = {one.uuid: one for host in hosts.values() for one in host.guests}
        for name in {move.target for move in plan.moves}:
            arrivals = [wants[move.uuid] for move in plan.moves if move.target == name]
            wanted, cores = demand(hosts[name])
            wanted += sum(one.demand_cores for one in arrivals)
            self.assertLessEqual(wanted, fleet.TARGET_RATIO_MAX * cores + 1e-6)
            free = sum(
                node.capacity_bytes - node.promised_bytes for node in hosts[name].view.nodes
            )
            self.assertLessEqual(sum(one.memory_bytes for one in arrivals), free)
        for move in plan.moves:
            self.assertFalse(wants[move.uuid].why_fixed)
            self.assertGreaterEqual(move.gain_cores, fleet.GAIN_MIN_CORES)

    @settings(max_examples=10, deadline=None)
    @given(st.integers(0, 10**6))
    def test_once_the_moves_are_made_none_of_these_guests_moves_again(self, seed):
        hosts = fleets.draw(random.Random(seed), 8)
        plan = self.plan(hosts)
        for move in plan.moves:
            hosts = moved(hosts, move)
        again = self.plan(hosts)
        self.assertFalse({move.uuid for move in plan.moves} & {move.uuid for move in again.moves})


def moved(hosts, move):
    """Return the hosts after a move, level as their agents make them."""
    (guest,) = (one for one in hosts[move.source].guests if one.uuid == move.uuid)
    changed = dict(hosts)
    for name, sign in ((move.source, -1), (move.target, 1)):
        host = hosts[name]
        nodes = tuple(
            node._replace(
                demand_cores=node.demand_cores + sign * guest.demand_cores / 2,
                promised_bytes=node.promised_bytes + sign * guest.memory_bytes // 2,
            )
            for node in host.view.nodes
        )
        others = tuple(one for one in host.guests if one is not guest)
        arrived = (guest._replace(why_fixed=fleet.ARRIVED),) if sign > 0 else ()
        view = host.view._replace(nodes=nodes)
        changed[name] = host._replace(view=view, guests=others + arrived)
    return changed


class GuestTest(unittest.TestCase):
    DAY_NS = int(fleet.SETTLED_S * 1e9)

    def of_guest(self, start_ns, why_fixed='', history=None):
        guest = model.Guest('u', 'n', 2, 4 * GIB, start_ns=start_ns)
        return fleet.of_guest(guest, why_fixed, history, 2 * fleet.SETTLED_S)

    def test_a_guest_that_came_within_a_day_or_at_an_unknown_time_stays(self):
        self.assertEqual('', self.of_guest(self.DAY_NS // 2).why_fixed)
        self.assertEqual(fleet.ARRIVED, self.of_guest(self.DAY_NS + 1).why_fixed)
        self.assertEqual(fleet.ARRIVED, self.of_guest(None).why_fixed)
        self.assertEqual('locked', self.of_guest(None, 'locked').why_fixed)

    def test_what_a_guest_wants_is_its_mean_over_a_day_or_unknown(self):
        history = UsageHistory(Mean(1.0, 2.0), Mean(None, None))
        guest = self.of_guest(0, history=history)
        self.assertEqual((2.0, None), (guest.demand_cores, guest.bandwidth_bytes_per_sec))
        self.assertIsNone(self.of_guest(0).demand_cores)


class ReliefTest(unittest.TestCase):
    def test_what_a_host_regains_is_at_least_what_the_guest_itself_loses_and_at_most_its_demand(
        self,
    ):
        for host in (HOT, COLD):
            for relief in fleet.reliefs(host):
                self.assertLessEqual(relief.lost_cores, relief.regained_cores + 1e-9)
                self.assertLessEqual(relief.regained_cores, relief.demand_cores + 1e-9)

    def test_nothing_is_claimed_on_a_host_that_was_not_measured(self):
        nodes = tuple(node._replace(demand_cores=None) for node in HOT.view.nodes)
        for relief in fleet.reliefs(HOT._replace(view=HOT.view._replace(nodes=nodes))):
            self.assertEqual(
                (None, None, None), (relief.demand_cores, relief.lost_cores, relief.regained_cores)
            )

    def test_what_moves_within_the_host_can_relieve_does_not_count(self):
        uneven = fleets.host([guests(0, 4, 5.0), []])
        even = fleets.host([guests(0, 2, 5.0), guests(2, 2, 5.0)])
        self.assertEqual(fleet.reliefs(even), fleet.reliefs(uneven))
