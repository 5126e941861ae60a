# SPDX-License-Identifier: Apache-2.0
"""What guests wanted is remembered over stops, pauses and restarts, within bounds."""

import json
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core.demand import flavors, histories as subject, history_format
from tests.fixtures import samples

GUEST = samples.guest_sample().uuid


def uuid(number):
    return samples.guest_sample(number).uuid


def running(number=1, vcpus=4, flavor='m1', **fields):
    return {
        uuid(number): model.Guest(
            uuid(number), 'g%d' % number, vcpus, 1 << 30, flavor=flavor, **fields
        )
    }


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

    def test_demand_is_what_ran_and_what_waited(self):
        history = self.add(one(2.0, waiting_cores=0.5))
        self.assertEqual((2.5, 2.5), (history.demand.minutes.mean, history.demand.day.mean))

    def test_an_interval_of_a_stopped_agent_counts_for_ten_minutes_at_most(self):
        self.add(one(1.0), elapsed_s=600.0)
        self.add(one(3.0), elapsed_s=9e9)
        self.assertEqual(1200.0, self.histories.clock_s)
        self.assertAlmostEqual(2.0, self.histories.guests[GUEST].demand.day.mean, places=2)

    def test_a_guest_that_does_not_run_keeps_what_is_known_of_it(self):
        self.add(one(2.0))
        for state in ('paused', 'pmsuspended', 'crashed', 'shutdown'):
            for _ in range(100):
                history = self.add(one(0.0), known=running(state=state), elapsed_s=600.0)
            with self.subTest(state=state):
                self.assertEqual(
                    (2.0, 2.0), (history.demand.minutes.mean, history.demand.day.mean)
                )
                self.assertEqual(self.histories.clock_s, history.seen_s)

    def test_a_running_guest_that_is_idle_counts_as_idle(self):
        self.add(one(2.0))
        for state in (None, 'running'):
            history = self.add(one(0.0), known=running(state=state), elapsed_s=600.0)
            with self.subTest(state=state):
                self.assertLess(history.demand.minutes.mean, 0.1)

    def test_unknown_is_not_idle(self):
        self.add(one(2.0))
        history = self.add(one(None))
        self.assertEqual(2.0, history.demand.minutes.mean)

    def test_a_first_sample_has_no_rates(self):
        self.add(one(None), elapsed_s=0.0)
        self.assertEqual({}, self.histories.guests)

    def test_traffic_is_computed_from_counted_accesses_or_bytes(self):
        # Both nodes together serve 16e9 bytes/s for 2e7 accesses; a fifth of them are the guest's.
        self.assertAlmostEqual(3.2e9, self.add(one(2.0)).bandwidth.day.mean)
        history = self.add(one(2.0, bandwidth_bytes_per_sec=1e9), elapsed_s=600.0)
        self.assertAlmostEqual(1e9, history.bandwidth.minutes.mean, delta=0.3e9)

    def test_where_a_guest_ran_is_forgotten_when_its_place_changes(self):
        self.add(one(2.0), promises=promised())
        self.add(one(2.0, node=1), promises=promised())
        self.assertEqual({0, 1}, set(self.histories.guests[GUEST].run_weights))
        moved = promised(cpu_nodes=(1,))
        self.assertEqual({}, self.add(one(2.0), promises=moved).run_weights)  # part of it is there
        self.assertEqual([1], list(self.add(one(2.0, node=1), promises=moved).run_weights))

    def test_demand_of_others_is_what_guests_leave_of_the_nodes(self):
        self.add(
            one(2.0, waiting_cores=0.5, bandwidth_bytes_per_sec=1e9),
            one(1.0, 2, bandwidth_bytes_per_sec=2e9),
        )
        self.assertEqual(
            {0: 2.5, 1: 1.0},
            {node: history.demand.day.mean for node, history in self.histories.non_guest.items()},
        )
        self.assertEqual(
            {0: 5e9, 1: 8e9},
            {
                node: history.bandwidth.day.mean
                for node, history in self.histories.non_guest.items()
            },
        )

    def test_demand_on_cpus_of_a_guests_own_is_not_taken_off_that_of_others(self):
        self.add(one(2.0), promises=promised(vcpus=0))
        self.assertEqual(6.0, self.histories.non_guest[0].demand.day.mean)

    def test_demand_of_others_is_unknown_until_it_is_known_where_guests_ran(self):
        self.add(samples.guest_sample(cores=2.0, cores_by_node=()))
        self.assertIsNone(self.histories.non_guest[0].demand.day.mean)
        self.add(one(None))  # as for a guest that has just started
        self.assertEqual(6.0, self.histories.non_guest[0].demand.day.mean)

    def test_years_of_intervals_keep_mean_and_variance(self):
        for at in range(3000):
            history = self.add(one(1.0 + at % 2), elapsed_s=600.0)
        self.assertLess(self.histories.minutes.scale, 1e200)
        self.assertAlmostEqual(1.5, history.demand.day.mean, places=2)
        self.assertAlmostEqual(0.25, history.demand.day.variance, places=2)


class ForgetTest(unittest.TestCase):
    def add(self, histories, number, cores, elapsed_s=600.0, **known):
        histories.clock_s -= known.pop('back_s', 0.0)
        histories.add_sample(
            interval(one(cores, number), elapsed_s=elapsed_s), running(number, **known), {}
        )

    def test_a_guest_that_is_gone_is_remembered_for_a_day(self):
        histories = subject.Histories()
        self.add(histories, 1, 2.0)
        for _ in range(144):
            self.add(histories, 2, 0.5)
        self.assertIn(uuid(1), histories.guests)
        self.add(histories, 2, 0.5)
        self.assertNotIn(uuid(1), histories.guests)
        self.assertEqual((1, 0.5), histories.flavors['m1'])

    def test_guests_beyond_the_bound_are_kept_in_their_flavors(self):
        histories = subject.Histories()
        for number in range(1, subject.GUESTS_MAX + 201):
            self.add(histories, number, 2.0, flavor='f%d' % (number % 2), back_s=599.0)
        self.assertEqual(subject.GUESTS_MAX, len(histories.guests))
        self.assertEqual({'f0', 'f1', None}, histories.flavors.keys())
        for count, total in histories.flavors.values():
            self.assertLessEqual(count, subject.FLAVOR_GUESTS_MAX)
            self.assertAlmostEqual(0.5, total / count)

    def test_a_guest_never_measured_teaches_its_flavor_nothing(self):
        histories = subject.Histories()
        self.add(histories, 1, None, flavor='unmeasured')
        self.assertIn(uuid(1), histories.guests)
        for _ in range(146):
            self.add(histories, 2, 0.5)
        self.assertNotIn(uuid(1), histories.guests)
        self.assertEqual({}, histories.flavors)

    def test_the_number_of_flavors_is_bounded(self):
        histories = subject.Histories()
        for number in range(1, subject.GUESTS_MAX + subject.FLAVORS_MAX + 101):
            self.add(histories, number, 2.0, flavor='f%d' % number, back_s=599.0)
        self.assertEqual(subject.FLAVORS_MAX, len(histories.flavors))
        self.assertIn(None, histories.flavors)


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
        data = json.loads(json.dumps(history_format.to_data(histories), allow_nan=False))
        again = history_format.from_data(data)
        self.assertEqual(list(data['guests']), list(again.guests))
        for uuid, history in again.guests.items():
            before = histories.guests[uuid]
            self.assertEqual((before.flavor, before.vcpus), (history.flavor, history.vcpus))
            for old, new in zip(before.streams(), history.streams()):
                if old.mean is None:
                    self.assertIsNone(new.mean)
                    continue
                self.assertAlmostEqual(old.mean, new.mean, delta=1e-4 * old.mean)
                self.assertAlmostEqual(old.variance, new.variance, delta=1e-4 * old.variance)
                self.assertEqual(old.quantile(0.95, 1.0), new.quantile(0.95, 1.0))
            self.assertAlmostEqual(before.measured_s, history.measured_s, delta=0.1)
            self.assertAlmostEqual(
                before.demand.day.weight / histories.day.scale,
                history.demand.day.weight,
                delta=0.1,
            )

    def whole(self):
        histories = subject.Histories()
        histories.add_sample(interval(one(2.0), elapsed_s=600.0), running(), {})
        histories.flavors['m9'] = (3, 1.5)
        return history_format.to_data(histories)

    def test_histories_of_a_flavor_with_any_name_that_nova_takes_are_read(self):
        for name in ('\u3000', 'm1\xa0large', '\U0001fae8', 'x' * 255):
            histories = subject.Histories()
            histories.flavors[name] = (3, 1.5)
            data = json.loads(json.dumps(history_format.to_data(histories)))
            with self.subTest(name):
                self.assertEqual({name: (3, 1.5)}, history_format.from_data(data).flavors)

    def test_members_of_a_newer_writer_are_ignored(self):
        data = dict(self.whole(), schema='1.7', new=1)
        data['guests'][GUEST]['new'] = [1]
        self.assertEqual(0.5, flavors.sums_by_flavor(history_format.from_data(data))['m1'][1])

    def test_a_guest_that_is_paused_for_weeks_is_written_and_read(self):
        for days in (7, 8, 10, 20):
            histories = subject.Histories()
            histories.add_sample(interval(one(2.0), elapsed_s=600.0), running(), {})
            for _ in range(days * 144):
                histories.add_sample(
                    interval(one(0.0), elapsed_s=600.0), running(state='paused'), {}
                )
            again = history_format.from_data(history_format.to_data(histories)).guests[GUEST]
            with self.subTest(days=days):
                self.assertAlmostEqual(2.0, again.demand.day.mean)
                self.assertEqual(0.5, again.cores_per_vcpu)

    def test_a_guest_without_any_measurement_in_the_file_shows_nothing(self):
        data = self.whole()
        data['guests'][GUEST]['demand'] = [[], []]
        histories_ = history_format.from_data(data)
        self.assertIsNone(histories_.guests[GUEST].cores_per_vcpu)
        self.assertEqual({'m9': (3, 1.5)}, flavors.sums_by_flavor(histories_))

    def test_a_flavor_that_no_guest_has_shown_is_left_out(self):
        data = self.whole()
        data['flavors'] = [['m8', 0, 1.5], ['m9', 3, 1.5]]
        self.assertEqual({'m9': (3, 1.5)}, history_format.from_data(data).flavors)

    def test_a_damaged_file_of_histories_is_refused(self):
        def guest(**members):
            return {'guests': {GUEST: dict(self.whole()['guests'][GUEST], **members)}}

        for name, changes in {
            'another major version': {'schema': '2.0'},
            'no text': {'schema': 1},
            'guests of text': {'guests': 'ab'},
            'a guest of text': {'guests': {'a': 'b'}},
            'a line break': {'guests': {'a\nb': self.whole()['guests'][GUEST]}},
            'a surrogate': guest(flavor='\ud800'),
            'a long name': guest(flavor='x' * 256),
            'one horizon': guest(demand=[[1.0, 1.0, 0.0]]),
            'a negative mean': guest(demand=[[1.0, -1.0, 0.0], []]),
            'no weight': guest(demand=[[0, 1.0, 0.0], []]),
            'NaN': guest(demand=[[1.0, float('nan'), 0.0], []]),
            'a bin too far': guest(demand=[[1.0, 1.0, 0.0, 64, 1.0], []]),
            'half a bin': guest(demand=[[1.0, 1.0, 0.0, 1], []]),
            'vCPUs of text': guest(vcpus='4'),
            'a boolean': guest(vcpus=True),
            'a node of text': {'others': {'x': self.whole()['others']['0']}},
            'too many flavors': {'flavors': [['a', 1, 1.0]] * 300},
            'flavors of text': {'flavors': 'ab'},
            'no clock': {'clock_s': None},
            'too many guests': {'guests': dict.fromkeys(map(str, range(2000)), {})},
        }.items():
            with self.subTest(name), self.assertRaises(ValueError):
                history_format.from_data({**self.whole(), **changes})
        for data in (None, [], 'a', {}):
            with self.assertRaises(ValueError):
                history_format.from_data(data)

    def test_a_full_host_stays_within_the_file(self):
        histories = subject.Histories()
        for at in range(64):
            # Fill all bins of each guest on a host.
            histories.add_sample(
                interval(
                    *(one(0.01 * 1.2222**at, number) for number in range(1, 201)), elapsed_s=600.0
                ),
                {},
                {},
            )
        size = len(json.dumps(history_format.to_data(histories)))
        self.assertLess(size * subject.GUESTS_MAX / 200, 8 << 20)
