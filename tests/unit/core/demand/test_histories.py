# SPDX-License-Identifier: Apache-2.0
"""What guests wanted is remembered over stops, pauses and restarts, within bounds."""

import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.agent import demand_file
from nova_numa_pmc.core.demand import histories as subject
from tests.fixtures import samples

GUEST = samples.guest_sample().uuid


def uuid(number):
    return samples.guest_sample(number).uuid


def running(number=1, vcpus=4, **fields):
    return {uuid(number): model.Guest(uuid(number), 'g%d' % number, vcpus, 1 << 30, **fields)}


def promised(number=1, cpu_nodes=(0,), vcpus=4, **fields):
    return {
        uuid(number): model.Promise(
            uuid(number),
            'g%d' % number,
            cpu_nodes,
            cpu_nodes,
            vcpus,
            1 << 30,
            started=True,
            **fields,
        )
    }


def one(cores, number=1, waiting_cores=0.0, node=0, **fields):
    """Return the sample of a guest that ran on one node, with its memory there."""
    return samples.guest_sample(
        number,
        cores=cores,
        waiting_cores=waiting_cores,
        cores_by_node=((node, cores),) if cores else (),
        bytes_by_node=((node, 1 << 30),),
        **fields,
    )


def interval(*guests, elapsed_s=5.0, nodes=None):
    return samples.sample(
        elapsed_s=elapsed_s,
        guests=guests,
        nodes=nodes
        or (samples.node_sample(0, demand_cores=6.0), samples.node_sample(1, demand_cores=1.0)),
    )


class AddSampleTest(unittest.TestCase):
    def setUp(self):
        self.histories = subject.Histories()

    def add(self, *guests, known=None, promises=None, **fields):
        self.histories.add_sample(interval(*guests, **fields), known or running(), promises or {})
        return self.histories.guests.get(GUEST)

    def test_an_interval_of_a_stopped_agent_counts_for_ten_minutes_at_most(self):
        self.add(one(1.0), elapsed_s=600.0)
        self.add(one(3.0), elapsed_s=9e9)
        self.assertEqual(1200.0, self.histories.clock_s)
        self.assertAlmostEqual(2.0, self.histories.guests[GUEST].demand.day, places=2)

    def test_a_guest_that_does_not_run_keeps_what_is_known_of_it(self):
        self.add(one(2.0))
        for state in ('paused', 'pmsuspended', 'crashed', 'shutdown'):
            for _ in range(100):
                history = self.add(one(0.0), known=running(state=state), elapsed_s=600.0)
            with self.subTest(state=state):
                self.assertEqual((2.0, 2.0), (history.demand.minutes, history.demand.day))
                self.assertEqual(self.histories.clock_s, history.seen_s)

    def test_unknown_is_not_idle(self):
        self.add(one(2.0))
        history = self.add(one(None))
        self.assertEqual(2.0, history.demand.minutes)

    def test_traffic_is_computed_from_counted_accesses_or_bytes(self):
        # Both nodes together serve 16e9 bytes/s for 2e7 accesses; a fifth of them are the guest's.
        self.assertAlmostEqual(3.2e9, self.add(one(2.0)).bandwidth.day)
        history = self.add(one(2.0, bandwidth_bytes_per_sec=1e9), elapsed_s=600.0)
        self.assertAlmostEqual(1e9, history.bandwidth.minutes, delta=0.3e9)

    def test_demand_of_others_is_what_guests_leave_of_the_nodes(self):
        self.add(
            one(2.0, waiting_cores=0.5, bandwidth_bytes_per_sec=1e9),
            one(1.0, 2, bandwidth_bytes_per_sec=2e9),
        )
        self.assertEqual(
            {0: 2.5, 1: 1.0},
            {node: history.demand.day for node, history in self.histories.non_guest.items()},
        )
        self.assertEqual(
            {0: 5e9, 1: 8e9},
            {node: history.bandwidth.day for node, history in self.histories.non_guest.items()},
        )

    def test_demand_on_cpus_of_a_guests_own_is_not_taken_off_that_of_others(self):
        self.add(one(2.0), promises=promised(vcpus=0))
        self.assertEqual(6.0, self.histories.non_guest[0].demand.day)

    def test_demand_of_others_is_unknown_until_it_is_known_where_guests_ran(self):
        self.add(samples.guest_sample(cores=2.0, cores_by_node=()))
        self.assertIsNone(self.histories.non_guest[0].demand.day)
        self.add(one(None))  # as for a guest that has just started
        self.assertEqual(6.0, self.histories.non_guest[0].demand.day)

    def test_a_mean_is_plain_until_it_was_measured_for_its_horizon(self):
        for cores in (1.0, 2.0, 6.0):
            history = self.add(one(cores), elapsed_s=60.0)
        self.assertAlmostEqual(3.0, history.demand.minutes)
        self.assertAlmostEqual(3.0, history.demand.day)


class ForgetTest(unittest.TestCase):
    def add(self, histories, number, cores, elapsed_s=600.0):
        histories.add_sample(
            interval(one(cores, number), elapsed_s=elapsed_s), running(number), {}
        )

    def test_a_guest_that_is_gone_is_remembered_for_a_day(self):
        histories = subject.Histories()
        self.add(histories, 1, 2.0)
        for _ in range(144):
            self.add(histories, 2, 0.5)
        self.assertIn(uuid(1), histories.guests)
        self.add(histories, 2, 0.5)
        self.assertNotIn(uuid(1), histories.guests)

    def test_of_more_guests_than_fit_the_last_ones_are_kept(self):
        histories = subject.Histories()
        for number in range(1, subject.GUESTS_MAX + 11):
            self.add(histories, number, 2.0, elapsed_s=1.0)
        self.assertEqual(subject.GUESTS_MAX, len(histories.guests))
        self.assertNotIn(uuid(10), histories.guests)
        self.assertIn(uuid(11), histories.guests)


class ExpectationTest(unittest.TestCase):
    def expectation(self, *guests, promises=None):
        """Return what is expected after guests wanted (cores, for seconds) in turn."""
        histories = subject.Histories()
        for number, (cores, elapsed_s) in enumerate(guests, 1):
            histories.add_sample(
                interval(one(cores, number), elapsed_s=elapsed_s), running(number), promises or {}
            )
        return histories.expectation()

    def test_demand_is_expected_by_the_mean_of_all_guests(self):
        self.assertEqual(
            model.DemandHistory(3, 2.25),
            self.expectation((2.0, 600.0), (4.0, 600.0), (3.0, 600.0)),
        )

    def test_a_booting_guest_says_nothing_of_others(self):
        self.assertEqual(model.DemandHistory(), self.expectation((4.0, 299.0)))

    def test_a_guest_on_cpus_of_its_own_says_nothing_of_those_that_share(self):
        self.assertEqual(
            model.DemandHistory(), self.expectation((4.0, 600.0), promises=promised(vcpus=0))
        )

    def test_one_host_reports_a_bounded_number_of_guests(self):
        self.assertEqual(model.DemandHistory(50, 25.0), self.expectation(*((2.0, 600.0),) * 60))


AMOUNT = st.floats(0, 500)
INTERVALS = st.lists(
    st.tuples(
        st.floats(0.5, 700),
        st.lists(st.tuples(st.integers(1, 5), st.none() | AMOUNT, st.integers(0, 1)), max_size=4),
    ),
    max_size=8,
)


class FormatTest(unittest.TestCase):
    @settings(max_examples=50, deadline=None)
    @given(INTERVALS)
    def test_histories_are_read_as_they_were_written(self, intervals):
        histories = subject.Histories()
        for elapsed_s, guests in intervals:
            histories.add_sample(
                interval(
                    *(one(cores, number, node=node) for number, cores, node in guests),
                    elapsed_s=elapsed_s,
                ),
                running(1),
                {},
            )
        histories.recent = []
        self.assertEqual(histories, subject.decode(subject.encode(histories)))

    def whole(self):
        histories = subject.Histories()
        histories.add_sample(interval(one(2.0), elapsed_s=600.0), running(), {})
        return subject.encode(histories)

    def test_a_full_host_stays_within_the_file(self):
        size = len(self.whole())
        self.assertLess(size * subject.GUESTS_MAX, demand_file.SIZE_MAX_BYTES)
