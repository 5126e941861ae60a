# SPDX-License-Identifier: Apache-2.0
"""Test the value of remote memory: above 0 without counters, at most the time the guest runs."""

from __future__ import annotations

import unittest
from typing import Any

from hypothesis import given, settings, strategies as st

from nova_numa_pmc.core.rebalance import plan_records, planner
from nova_numa_pmc.core.rebalance.host_model import HostModel, Place
from nova_numa_pmc.core.rebalance.plan_records import explain_move
from tests.sim.constant import GIB, ConstantHost, guest_load

OPTIONS = plan_records.RebalanceOptions(measured_min_s=0.0, moved_ratio_per_day=9.0)
TICK_S, FOUR_HOURS_S = 60.0, 4 * 3600.0
FAR = ((10, 21), (21, 10))


def remote(lines_per_sec: float | None, cores: float = 2.0, **fields) -> ConstantHost:
    """Build a host whose only guest, of 64 GiB, runs on node 0 with all its memory on node 1."""
    guest = guest_load(
        'g',
        4,
        0,
        cores,
        64 * GIB,
        memory_at=((1, 64 * GIB),),
        mem_nodes=(0,),
        lines_per_sec=lines_per_sec,
        bandwidth_bytes_per_sec=None,
        remote_ratio=1.0,
        **fields,
    )
    return ConstantHost((8, 8), (128 * GIB,) * 2, [guest], distances=FAR)


def moved(host: ConstantHost) -> list[plan_records.Move]:
    plans, _ = host.run(OPTIONS, int(FOUR_HOURS_S / TICK_S), TICK_S)
    return [move for plan in plans for move in plan.moves]


class WithoutRatesTest(unittest.TestCase):
    def test_memory_comes_home_within_four_hours(self):
        host = remote(None, allowed_cpu_counts=((0, 8),))
        moves = moved(host)
        self.assertEqual(['fetch'], [move.kind for move in moves])
        self.assertEqual(((0, 64 * GIB),), host.guests[0].bytes_by_node)

    def test_the_move_says_that_its_rate_is_assumed(self):
        (fetched,) = moved(remote(None, allowed_cpu_counts=((0, 8),)))
        self.assertIn('distance to memory, at an assumed rate of accesses,', explain_move(fetched))
        (fetched,) = moved(remote(4e6, allowed_cpu_counts=((0, 8),)))
        self.assertIn('distance to memory 0.35', explain_move(fetched))

    def test_a_counted_rate_is_not_replaced_by_an_assumed_one(self):
        self.assertEqual([], moved(remote(0.0)))

    def test_a_guest_that_hardly_runs_stays(self):
        self.assertEqual([], moved(remote(None, cores=0.1)))

    def test_an_assumed_rate_queues_nowhere(self):
        host = remote(None)
        host.bandwidth_max = 1e9
        guest = HostModel(host.situation(), OPTIONS).guests['g']
        _, distance, queueing, bandwidth, accessing_cores = map(
            sum, zip(*guest.effect.memory_terms)
        )
        self.assertLess(0.0, distance)
        self.assertEqual((0.0, 0.0, 0.0), (queueing, bandwidth, accessing_cores))


class SmallRemainderTest(unittest.TestCase):
    """Memory elsewhere that cannot be moved, such as QEMU's read-only pages."""

    @staticmethod
    def host(elsewhere_bytes, **fields):
        memory_at = ((0, 60 * GIB), (1, elsewhere_bytes))
        guest = guest_load('g', 4, 0, 2.0, 64 * GIB, lines=1e8, memory_at=memory_at, **fields)
        return ConstantHost((8, 8), (128 * GIB,) * 2, [guest], distances=FAR)

    def test_a_small_remainder_is_not_fetched(self):
        for elsewhere_bytes in (8 << 10, GIB // 2):
            with self.subTest(elsewhere_bytes):
                self.assertEqual([], moved(self.host(elsewhere_bytes, remote_ratio=0.03)))
        self.assertEqual(
            ['fetch'], [move.kind for move in moved(self.host(GIB, remote_ratio=0.03))]
        )

    def test_a_remainder_that_has_become_small_is_not_fetched(self):
        _, state = self.host(20 * GIB, remote_ratio=0.5).run(
            OPTIONS._replace(bytes_per_sec=1.0), 2, TICK_S
        )
        self.assertTrue(state.regrets)
        plans, _ = self.host(8 << 10, remote_ratio=0.03).run(OPTIONS, 2, TICK_S, state=state)
        self.assertEqual([], [move for plan in plans for move in plan.moves])

    def test_remote_accesses_are_not_put_down_to_a_small_remainder(self):
        host_model = HostModel(self.host(8 << 10, remote_ratio=0.03).situation(), OPTIONS)
        self.assertLess(dict(host_model.guests['g'].mem_shares)[1], 1e-6)


class NoMoreThanItRunsTest(unittest.TestCase):
    def test_a_guest_of_one_core_gains_at_most_one_core(self):
        plan = planner.propose(remote(6e7, cores=1.0).situation(), OPTIONS)
        gains: list[Any] = [
            dict(reason.values)['cores']
            for move in plan.moves
            for reason in move.reasons
            if reason.code == 'distance'
        ]
        self.assertLess(0.9, gains[0])
        for gain in gains:
            self.assertLessEqual(gain, 1.0)

    def test_less_distance_loses_less_at_any_rate_of_accesses(self):
        latencies = ((80.0, 100.0, 300.0),) * 3
        memory_at = [
            guest_load('g', 4, 0, 1.0, 4 * GIB, lines=1e8, memory_at=((node, 4 * GIB),))
            for node in (1, 2)
        ]
        near, far = (
            HostModel(
                ConstantHost(
                    (4,) * 3, (64 * GIB,) * 3, [guest_load], latencies_ns=latencies
                ).situation(),
                OPTIONS,
            ).host_loss.loss()
            for guest_load in memory_at
        )
        self.assertLess(near, far)

    @settings(max_examples=200, deadline=None)
    @given(
        st.floats(0.05, 4.0),
        st.floats(1.0, 8.0),
        st.none() | st.floats(0, 1e9),
        st.floats(0, 1),
        st.sampled_from((13, 21, 31, 200)),
    )
    def test_the_distance_of_a_move_is_within_what_the_guest_runs(
        self, served, wanted_ratio, lines, part, distance
    ):
        guest = guest_load(
            'g',
            4,
            0,
            served * wanted_ratio,
            8 * GIB,
            memory_at=((0, int(part * 8 * GIB)), (1, int((1 - part) * 8 * GIB))),
            lines_per_sec=lines,
            served_cores=served,
        )
        host = ConstantHost(
            (4, 4), (64 * GIB,) * 2, [guest], distances=((10, distance), (distance, 10))
        )
        host_model = HostModel(host.situation(), OPTIONS)
        guest = host_model.guests['g']
        for place in (Place((0,), 0), Place((1,), 1), Place((1,), None)):
            saved = host_model.host_loss.saved(guest.effect, host_model.effect(guest, place))
            self.assertLessEqual(saved.distance, served + 1e-9)
