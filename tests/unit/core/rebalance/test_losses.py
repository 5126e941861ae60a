# SPDX-License-Identifier: Apache-2.0
"""Compare the planner's sums with the definitions in core/pressure.py."""

import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc.core import pressure, rates
from nova_numa_pmc.core.rebalance import losses

LATENCIES = ((80.0, 130.0, 140.0), (130.0, 80.0, 120.0), (140.0, 120.0, 90.0))
CORES, MAXIMA = (4.0, 8.0, 2.0), (10e9, 20e9, 5e9)
NODE = st.integers(0, 2)
#: Node of its CPUs, node of most of its memory, that part, cores, lines/s, bytes per line.
GUESTS = st.lists(
    st.tuples(
        NODE, NODE, st.floats(0, 1), st.floats(0, 6), st.floats(0, 1e8), st.sampled_from((64, 100))
    ),
    max_size=6,
)


def effect(guest, node=None):
    cpus, memory, part, demand, lines, latency_ns = guest
    shares = {memory: part}
    shares[cpus] = shares.get(cpus, 0.0) + 1 - part
    if node is not None:
        cpus, shares = node, {node: 1.0}
    return losses.effect_at(
        (cpus,),
        demand,
        ((cpus, 1.0),),
        tuple(shares.items()),
        lines * 1e-9,
        lines * latency_ns,
        LATENCIES,
    )


def laid_out(places):
    """Sum (guest, node that it moved to or None) into D, x, W, S and the distance."""
    demand, lines, distance = [0.0] * 3, [[0.0] * 3 for _ in range(3)], 0.0
    served, accessing_cores = [0.0] * 3, [0.0] * 3
    for (cpus, memory, part, wants, reached, latency_ns), node in places:
        shares = {memory: part}
        shares[cpus] = shares.get(cpus, 0.0) + 1 - part
        if node is not None:
            cpus, shares = node, {node: 1.0}
        demand[cpus] += wants
        distance += losses.limit_loss(
            sum(
                share * reached * 1e-9 * (LATENCIES[cpus][m] - LATENCIES[cpus][cpus])
                for m, share in shares.items()
            ),
            wants,
        )
        for m, share in shares.items():
            lines[cpus][m] += share * reached
            served[m] += share * reached * latency_ns
            accessing_cores[m] += share * wants
    used = [rates.ratio(amount, most) for amount, most in zip(served, MAXIMA)]
    return demand, lines, used, accessing_cores, distance


def lost(places):
    """Sum the losses as core/pressure.py defines them, stalls limited to what is stalled."""
    demand, lines, used, accessing_cores, distance = laid_out(places)
    result = distance + sum(max(0.0, wants - has) for wants, has in zip(demand, CORES))
    for m in range(3):
        local = LATENCIES[m][m]
        queued = (
            sum(lines[n][m] for n in range(3))
            * 1e-9
            * pressure.QUEUEING_FACTOR
            * local
            * pressure.queueing_at(max(0.0, used[m] or 0.0))
        )
        if queued > accessing_cores[m] / 2:
            queued = accessing_cores[m] * (1 - accessing_cores[m] / (4 * queued))
        result += queued
    return result


def burden(places):
    return lost(places) + sum(map(losses.crowding, laid_out(places)[0], CORES))


class BalanceTest(unittest.TestCase):
    def host(self, guests):
        host = losses.HostLoss(CORES, MAXIMA, [0.0] * 3, [0.0] * 3, [0.0] * 3)
        for guest in guests:
            host.add_effect(effect(guest))
        return host

    @settings(max_examples=150)
    @given(GUESTS)
    def test_the_loss_of_a_host_is_that_of_its_definition(self, guests):
        places = [(guest, None) for guest in guests]
        expected = lost(places)
        self.assertAlmostEqual(expected, self.host(guests).loss(), delta=1e-6 * (1 + expected))

    @settings(max_examples=150)
    @given(GUESTS.filter(bool), NODE)
    def test_gain_is_the_difference_of_two_burdens(self, guests, node):
        host, first = self.host(guests), guests[0]
        now = burden([(guest, None) for guest in guests])
        after = burden([(first, node)] + [(guest, None) for guest in guests[1:]])
        gain = host.gain(effect(first), effect(first, node))
        self.assertAlmostEqual(now - after, gain, delta=1e-6 * (1 + now + after))

    def test_no_guest_loses_more_than_it_wants_by_queueing(self):
        host = self.host([(0, 0, 1.0, 2.0, 5e8, 64)] * 2)
        self.assertGreater(host.bandwidth_bytes_per_sec[0], 5 * MAXIMA[0])
        self.assertTrue(3.0 < host.by_cause()[2] < 4.0, host.by_cause())

    def test_taking_a_guest_away_undoes_putting_it(self):
        host = losses.HostLoss(CORES, MAXIMA, [1.0] * 3, [1e9] * 3, [0.0] * 3)
        before = host.loss()
        for burden in (
            effect((0, 1, 0.5, 9.0, 1e8, 64)),
            losses.effect_at((0, 1), 5.0, ((0, 0.5), (1, 0.5)), ((0, 1.0),), 0.1, 1e9, LATENCIES),
        ):
            host.add_effect(burden)
            host.add_effect(burden, -1)
        self.assertAlmostEqual(before, host.loss())

    def test_wide_guests_fill_idle_cores(self):
        host = losses.HostLoss((4.0, 4.0), None, [6.0, 1.0], [0.0] * 2, [0.0] * 2)
        host.add_effect(losses.Effect((0, 1), 2.0, ()))
        self.assertEqual([6.0, 3.0], host.levelled_demand())
        self.assertAlmostEqual(2.0, host.loss())
        host.add_effect(losses.Effect((0, 1), 2.0, ()))
        self.assertEqual([6.0, 5.0], host.levelled_demand())

    def test_demand_of_a_wide_guest_levels_three_nodes(self):
        demand = [1.0, 4.0, 0.0]
        losses.level_out(demand, (2.0, 4.0, 4.0), (0, 1, 2), 2.0)
        self.assertAlmostEqual(7.0, sum(demand))
        self.assertEqual(4.0, demand[1])
        self.assertAlmostEqual(demand[0] / 2, demand[2] / 4)

    @settings(max_examples=100)
    @given(st.floats(0, 20), st.floats(0.5, 16), st.floats(0, 5))
    def test_measured_waiting_is_predicted_for_what_was_measured(self, demand, cores, more):
        waited = max(0.0, demand - cores) + more
        v = losses.burst(demand, cores, waited)
        self.assertAlmostEqual(waited, losses.waiting(demand, cores, v), places=5)

    def test_four_that_share_two_cores_are_worse_off_than_three(self):
        self.assertEqual(2.0, sum(losses.waiting(demand, 2.0, 0.0) for demand in (4.0, 2.0)))
        self.assertEqual(2.0, sum(losses.waiting(demand, 2.0, 0.0) for demand in (3.0, 3.0)))
        self.assertLess(2 * losses.crowding(3.0, 2.0), losses.crowding(4.0, 2.0))
        self.assertEqual(0.0, losses.crowding(2.0, 2.0))
        self.assertEqual(0.0, losses.crowding(1.0, 0.0))

    def test_without_bursts_waiting_is_what_exceeds_the_cores(self):
        self.assertEqual(0.0, losses.burst(6.0, 4.0, 2.0))
        self.assertEqual(0.0, losses.burst(3.0, 4.0, 0.0))
        self.assertEqual(2.0, losses.waiting(6.0, 4.0, 0.0))
        self.assertEqual(0.0, losses.waiting(3.0, 4.0, 0.0))
