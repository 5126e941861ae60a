# SPDX-License-Identifier: Apache-2.0
"""A region's run is repeatable, loses no guest, and has the faults and delays that it is given."""

import unittest

import numpy as np

from nova_numa_pmc.compute import metrics_encoder
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
        self.assertEqual(
            (metrics_encoder.DEADBAND_RATIO, metrics_encoder.RESEND_S), (p.DEADBAND, p.HEARTBEAT_S)
        )


class ReliefTest(unittest.TestCase):
    def test_guests_move_to_other_hosts_once_and_claim_only_what_there_is(self):
        ran = run(3, 'stock-1-fleet', seed=2)
        fleet, moved = ran.fleet, ran._relief.moved
        self.assertGreater(ran.result.migrated, 0)
        self.assertEqual(ran.result.migrated, len(moved))
        self.assertTrue((fleet.taken_mib <= fleet.hosts.ram_mib).all())
        there = fleet.state == fleets.RUNS
        mib = np.bincount(fleet.host[there], ran.trace.memory_mib[there], fleet.hosts.count)
        self.assertTrue((fleet.taken_mib >= mib).all())


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


class FaultsTest(unittest.TestCase):
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
