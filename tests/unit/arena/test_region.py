# SPDX-License-Identifier: Apache-2.0
"""A region's run is repeatable, loses no guest, and has the faults and delays that it is given."""

import types
import unittest
from unittest import mock

import numpy as np

from nova_numa_pmc.compute import deadband
from tests.arena import (
    cells,
    fleet as fleets,
    hosts,
    inside,
    loads,
    parameters as p,
    policies,
    region,
)


def prepared(number, seed=1, count=16, seconds=1800):
    """Return a small cell with its hosts and trace."""
    cell = cells.cells()[number].shortened(count, seconds, seconds)
    shape = hosts.Hosts(cell.shape, count, np.random.default_rng((seed, number, 0)))
    return cell, shape, loads.Trace(cell, shape, seed)


def run(number, policy, seed=1, way=inside.placed):
    """Run a cell; return the region."""
    cell, shape, trace = prepared(number, seed)
    ran = region.Region(cell, shape, trace, policies.POLICIES[policy], seed, way)
    ran.run()
    return ran


class DefaultsTest(unittest.TestCase):
    def test_metrics_are_sent_as_by_the_monitor_by_default(self):
        self.assertEqual((deadband.RATIO, deadband.RESEND_S), (p.DEADBAND, p.HEARTBEAT_S))


class DeterminismTest(unittest.TestCase):
    def test_a_run_is_the_same_to_the_bit(self):
        for policy in ('stock-10', 'numa-pressure', 'load-variation'):
            with self.subTest(policy):
                one, other = (run(3, policy).result for _ in range(2))
                self.assertEqual(one.lost.tobytes(), other.lost.tobytes())
                self.assertEqual(one.lost_second.tobytes(), other.lost_second.tobytes())
                self.assertEqual(one.emptied, other.emptied)

    def test_policies_meet_the_same_guests(self):
        one, other = (prepared(9)[2] for _ in range(2))
        self.assertEqual(one.wants.tobytes(), other.wants.tobytes())
        self.assertEqual(one.arrive_s.tobytes(), other.arrive_s.tobytes())

    def test_another_seed_is_another_run(self):
        self.assertNotEqual(
            run(3, 'stock-1', 1).result.lost.sum(), run(3, 'stock-1', 2).result.lost.sum()
        )


class ConservationTest(unittest.TestCase):
    def test_guests_placed_are_those_on_hosts_and_those_that_left(self):
        for number, policy in ((3, 'stock-1'), (11, 'pack'), (19, 'best-fit'), (24, 'stock-10')):
            with self.subTest(number):
                ran = run(number, policy)
                state = ran.fleet.state
                kept = np.isin(state, (fleets.UNDER_WAY, fleets.RUNS, fleets.GONE)).sum()
                self.assertEqual(ran.result.placed, kept)
                self.assertEqual(ran.result.refused, (state == fleets.REFUSED).sum())

    def test_promises_are_the_sum_of_the_guests_there(self):
        ran = run(19, 'stock-10')
        fleet, trace = ran.fleet, ran.trace
        there = np.isin(fleet.state, (fleets.UNDER_WAY, fleets.RUNS))
        on = np.bincount(fleet.host[there], trace.memory_mib[there], ran.hosts.count)
        np.testing.assert_array_equal(on, fleet.taken_mib)
        self.assertTrue((fleet.taken_mib <= ran.hosts.ram_mib).all())
        self.assertTrue((fleet.taken_dedicated <= ran.hosts.dedicated.sum(1)).all())

    def test_parts_of_running_guests_sum_to_one(self):
        for way in (inside.placed, inside.floating):
            with self.subTest(way.name):
                fleet = run(15, 'stock-1', way=way).fleet
                runs = fleet.state == fleets.RUNS
                for parts in (fleet.cpu_parts, fleet.memory_parts):
                    np.testing.assert_allclose(1.0, parts[runs].sum(1))

    def test_node_counts_are_those_of_the_guests(self):
        fleet = run(3, 'stock-10').fleet
        runs = (fleet.state == fleets.RUNS) & ~fleet.trace.dedicated
        vcpus = np.zeros_like(fleet.node_vcpus)
        np.add.at(
            vcpus, fleet.host[runs], fleet.cpu_parts[runs] * fleet.trace.vcpus[runs][:, None]
        )
        np.testing.assert_allclose(vcpus, fleet.node_vcpus, atol=1e-6)


class DelaysTest(unittest.TestCase):
    def test_claims_are_visible_later_where_that_is_swept(self):
        (late,) = (cell for cell in cells.cells() if cell.swept == 'late claims')
        shape = hosts.Hosts(late.shape, 16, np.random.default_rng(1))
        visible_s = loads.Trace(late.shortened(16, 1800, 1800), shape, 1).visible_s
        self.assertLess(p.VISIBLE_S[1], np.median(visible_s))
        self.assertGreater(4 * p.VISIBLE_S[1], visible_s.max())

    def test_loads_come_back_each_day_where_that_is_swept(self):
        (cell,) = (cell for cell in cells.cells() if cell.name.endswith('days'))
        _, trace = loads.drawn(cell.shortened(4, cell.fill_s, cell.judged_s), 1)
        day = 86400 // p.SLOT_S
        noon, night, next_noon = (trace.wants[:, at].sum() for at in (0, day // 2, day))
        less, more = sorted((noon, night))
        self.assertLess(abs(next_noon - noon), (more - less) / 2)

    def test_audits_run_in_phases_or_where_that_is_swept_at_once(self):
        for swept, seconds in (('', {15.0, 30.0, 45.0, 60.0}), ('audits at once', {60.0})):
            number = next(cell.number for cell in cells.cells() if cell.swept == swept)
            cell, shape, trace = prepared(number, seconds=60)
            ran = region.Region(cell, shape, trace, policies.POLICIES['stock-1'], 1)
            with mock.patch.object(ran.fleet, 'publish', return_value=(0, 0)) as publish:
                ran.run()
            calls = [call.args for call in publish.call_args_list if call.args[1] <= 60]
            self.assertEqual([*range(p.PHASES)], [phase for phase, _, _ in calls])
            self.assertEqual(seconds, {now_s for _, now_s, _ in calls})


class FaultsTest(unittest.TestCase):
    def test_a_share_of_the_hosts_has_no_agent_and_some_are_broken(self):
        hosts_ = hosts.Hosts('equal', 200, np.random.default_rng(1))
        self.assertEqual(10, (~hosts_.agent).sum())
        self.assertEqual(2, (hosts_.broken > 0).sum())
        self.assertTrue(hosts_.agent[hosts_.broken > 0].all())

    def test_at_most_a_tenth_of_the_few_hosts_with_an_agent_is_broken(self):
        for agents, expected in ((2, 0), (15, 1), (75, 2)):
            with self.subTest(agents):
                found = hosts.Hosts('equal', 150, np.random.default_rng(1), 1 - agents / 150)
                self.assertEqual((agents, expected), (found.agent.sum(), (found.broken > 0).sum()))

    def test_nova_counts_the_shared_cpus_and_other_monitors_all(self):
        shape = hosts.Hosts('pools', 4, np.random.default_rng(1))
        self.assertEqual(shape.threads.sum(1).tolist(), shape.vcpus.tolist())
        self.assertEqual((shape.threads + shape.dedicated).sum(1).tolist(), shape.cpus.tolist())
        self.assertTrue((shape.cpus > shape.vcpus).all())

    def test_a_demand_that_lasts_for_two_minutes_is_published_in_full(self):
        _, shape, trace = prepared(3)
        fleet = fleets.Fleet(shape, trace, inside.placed)
        fleet.started_s[:] = -p.DAY_S  # so that the day's mean hardly follows
        demands = []
        for want in (0.0, 4.0, 4.0):
            running = types.SimpleNamespace(
                guests=np.array([0]),
                hosts=np.array([0]),
                want=np.array([want]),
                vcpus=np.array([8]),
                waits=np.array([True]),
                cpus=np.array([[1.0, 0.0]]),
                on_nodes=lambda amounts, parts, count: np.pad(
                    amounts[:, None] * parts, ((0, count - 1), (0, 0))
                ),
            )
            fleet.measure(running, np.zeros((shape.count, 2)), 0.0)
            demands.append(float((fleet.node_demand + fleet.node_young)[0, 0]))
        self.assertEqual(0.0, demands[0])
        self.assertLess(demands[1], 1.0)
        self.assertEqual(4.0, demands[2])

    def test_broken_hosts_publish_old_future_zero_or_absurd_figures(self):
        _, shape, trace = prepared(3)
        shape.agent[:] = True
        shape.broken[:5] = range(5)
        shape.phase[:] = 0
        fleet = fleets.Fleet(shape, trace, inside.placed)
        fleet.node_demand[:] = 4.0
        for now_s in (60.0, 60.0 + p.HEARTBEAT_S):
            fleet.publish(0, now_s, np.random.default_rng(1))
        taken, demand = fleet.columns['taken_s'], fleet.columns['demand'][:, 0]
        self.assertEqual([now_s, now_s, 60.0, now_s, now_s + p.SKEW_S], taken[:5].tolist())
        self.assertGreater(demand[hosts.ABSURD], 3000)
        self.assertEqual(0.0, demand[hosts.ZERO])
        self.assertAlmostEqual(4.0, demand[hosts.SOUND], delta=0.5)

    def test_an_absurd_agent_of_ours_does_not_make_novas_own_figures_absurd(self):
        _, shape, trace = prepared(3)
        shape.phase[:], shape.broken[:2] = 0, (hosts.ABSURD, hosts.ZERO)
        fleet = fleets.Fleet(shape, trace, inside.placed)
        fleet.busy_mean[:] = 0.4
        fleet.publish(0, 60.0, np.random.default_rng(1))
        self.assertEqual([0.4, 0.0], fleet.columns['busy_ratio'][:2].tolist())

    def test_metrics_that_hardly_change_are_not_published(self):
        _, shape, trace = prepared(3)
        shape.agent[:], shape.broken[:], shape.phase[:] = True, hosts.SOUND, 0
        fleet = fleets.Fleet(shape, trace, inside.placed)
        fleet.node_demand[:] = 4.0
        for now_s, change, expected in (
            (60.0, 0.0, shape.count),
            (120.0, 0.0, 0),
            (180.0, 2 * p.DEADBAND * shape.cores[0, 0], 1),
            (240.0, 0.0, 0),
            (60.0 + p.HEARTBEAT_S, 0.0, shape.count - 1),
        ):
            with self.subTest(now_s):
                fleet.node_demand[0] += change
                sent = fleet.publish(0, now_s, np.random.default_rng(1))
                self.assertEqual((shape.count, expected), sent)

    def test_a_host_that_has_no_agent_stays_unknown_but_not_to_rivals(self):
        ran = run(3, 'stock-1')
        columns, blind = ran.fleet.columns, ~ran.hosts.agent
        self.assertFalse((columns['taken_s'][blind] > 0).any())
        self.assertTrue(columns['loads_taken'].all())
        self.assertTrue((columns['busy_ratio'][blind] > 0).all())


class SchedulerTest(unittest.TestCase):
    def test_a_claim_is_seen_late_and_runs_later(self):
        cell, shape, trace = prepared(3)
        ran = region.Region(cell, shape, trace, policies.POLICIES['stock-1'], 1)
        seen = []
        ran._policy = policies.Policy(
            'spy', lambda view, asked: seen.append(view) or view.at * 0.0
        )
        ran._request(0.0, np.array([0]))
        self.assertEqual(0, ran.fleet.columns['vcpus_used'].sum())
        ran._commit(1.0, ran._queue[0][3])
        self.assertEqual(trace.vcpus[0], ran.fleet.taken_vcpus.sum())
        self.assertEqual(0, ran.fleet.columns['vcpus_used'].sum())
        visible_s, start_s = (entry[0] for entry in sorted(ran._queue)[-2:])
        self.assertTrue(1 + p.VISIBLE_S[0] <= visible_s <= 1 + p.VISIBLE_S[1])
        self.assertTrue(p.BUILD_S[0] <= start_s - visible_s <= p.BUILD_S[1])

    def test_a_request_waits_while_all_workers_are_busy(self):
        cell, shape, trace = prepared(3)
        cell.workers = 1
        ran = region.Region(cell, shape, trace, policies.POLICIES['stock-1'], 1)
        ran._request(0.0, np.array([0]))
        ran._request(0.0, np.array([1]))
        kinds = [(entry[0], entry[1]) for entry in sorted(ran._queue)]
        busy_s = p.DECIDE_S + p.DECIDE_HOST_S * shape.count
        self.assertEqual([(busy_s, region.REQUEST), (busy_s, region.COMMIT)], kinds)

    def test_placement_offers_the_first_or_any_that_have_room(self):
        _, shape, trace = prepared(3)
        fleet = fleets.Fleet(shape, trace, inside.placed)
        fleet.taken_mib[1] = shape.ram_mib[1]
        self.assertEqual([0, 2, 3, 4], fleet.candidates(0, 4).tolist())
        self.assertEqual(15, len(fleet.candidates(0, 1000, np.random.default_rng(1))))
        rng = np.random.default_rng(1)
        drawn = [fleet.candidates(0, 4, rng).tolist() for _ in range(50)]
        self.assertEqual({*range(16)} - {1}, {at for candidates in drawn for at in candidates})
        self.assertTrue(
            all(
                candidates == sorted({*candidates}) and len(candidates) == 4
                for candidates in drawn
            )
        )

    def test_a_guest_is_refused_only_if_no_candidate_has_room_when_it_is_claimed(self):
        for left in (1, 0):
            with self.subTest(left):
                cell, shape, trace = prepared(3)
                ran = region.Region(cell, shape, trace, policies.POLICIES['stock-10'], 1)
                ran._request(0.0, np.array([0]))
                _, (order,) = payload = ran._queue[0][3]
                self.assertEqual([*range(shape.count)], sorted(order.tolist()))
                taken = order[: shape.count - left]
                ran.fleet.taken_mib[taken] = shape.ram_mib[taken]
                ran._commit(1.0, payload)
                counts = ran.result.placed, ran.result.refused, ran.result.conflicts
                self.assertEqual((left, 1 - left, left), counts)
                self.assertEqual(order[-1] if left else -1, ran.fleet.host[0])

    def test_a_request_is_refused_if_one_of_its_instances_is(self):
        cell, shape, trace = prepared(3)
        for column in (trace.vcpus, trace.memory_mib, trace.disk_gb):
            column[:3] = column[0]
        for room_for, expected in ((3, (3, 0)), (2, (0, 3))):
            with self.subTest(room_for):
                ran = region.Region(cell, shape, trace, policies.POLICIES['stock-1'], 1)
                ran._request(0.0, np.arange(3))
                fleet, usable_mib = ran.fleet, shape.ram_mib - p.RESERVED_MIB
                fleet.taken_mib[:] = usable_mib
                fleet.taken_mib[:room_for] -= trace.memory_mib[0]
                before = fleet.taken_mib.copy()
                ran._commit(1.0, ran._queue[0][3])
                self.assertEqual(expected, (ran.result.placed, ran.result.refused))
                self.assertEqual(room_for == 2, bool((fleet.taken_mib == before).all()))
                self.assertEqual(
                    {fleets.UNDER_WAY if room_for == 3 else fleets.REFUSED},
                    {*fleet.state[:3].tolist()},
                )

    def test_instances_of_a_request_have_the_same_candidates(self):
        cell, shape, trace = prepared(3)
        cell.randomized = True
        ran = region.Region(cell, shape, trace, policies.POLICIES['stock-1'], 1)
        with mock.patch.object(p, 'CANDIDATES', 4):
            ran._request(0.0, np.arange(5))
        _, orders = ran._queue[0][3]
        self.assertEqual(1, len({tuple(sorted(order.tolist())) for order in orders}))

    def test_candidates_are_sorted_and_equals_are_in_their_order_or_at_random(self):
        scores = np.random.default_rng(1).integers(0, 20, 100).astype(float)
        for name in ('stock-1', 'target-load-packing'):
            order = region.ordered(scores, policies.POLICIES[name], np.random.default_rng(2))
            self.assertEqual([*range(100)], sorted(order.tolist()))
            self.assertEqual(sorted(scores, reverse=True), scores[order].tolist())
            equals = order[scores[order] == 7].tolist()
            self.assertEqual(name == 'stock-1', equals == sorted(equals))

    def test_one_of_a_subset_is_put_first(self):
        scores, rng = np.arange(20.0), np.random.default_rng(1)
        chosen = set()
        for _ in range(300):
            order = region.ordered(scores, policies.POLICIES['stock-10'], rng).tolist()
            chosen.add(order[0])
            self.assertEqual([at for at in range(19, -1, -1) if at != order[0]], order[1:])
        self.assertEqual(set(range(10, 20)), chosen)
