# SPDX-License-Identifier: Apache-2.0
"""What guests wanted is remembered over stops, pauses and restarts, within bounds.

The longer horizon is compared with the true demand of constant, changing and moving loads.
"""

import random
import unittest

from hypothesis import assume, given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.agent import demand_file
from nova_numa_pmc.core import demand as subject, host_view
from nova_numa_pmc.core.measurements import GuestSample, NodeSample, PoolSample, Sample
from nova_numa_pmc.core.placement import placement
from nova_numa_pmc.core.rebalance import plan_records, planner
from tests.fixtures import samples
from tests.fixtures.model_records import GIB, PLACEMENT_OPTIONS, guest, topology
from tests.sim.constant import ConstantHost, guest_load

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


OLD_NS, NOW_NS = 0, 10**15
HALF_HOUR = (60.0,) * 30


class Here:
    """A host whose guests' demand is set by a test.

    :ivar guests: {name: [cores wanted, {node: share of its CPUs and memory}, bytes/s or None]}
    """

    def __init__(self, cores=(16, 16), others=(0.0, 0.0)):
        self.host = topology(cores, (256 * GIB,) * len(cores))
        self.guests, self.promises, self.others = {}, {}, list(others)
        self.histories, self.sample, self.known = subject.Histories(), None, {}

    def add(self, name, cores, node=0, vcpus=4, bytes_per_sec=None, since_ns=OLD_NS, **promise):
        self.guests[name] = [cores, {node: 1.0}, bytes_per_sec]
        self.known[name] = guest(name, vcpus)
        fields = dict(cpu_nodes=(node,), mem_nodes=(node,), started=True)
        self.promises[name] = model.Promise(
            name, name, vcpus=vcpus, memory_bytes=GIB, since_ns=since_ns, **{**fields, **promise}
        )

    def move(self, name, node):
        self.guests[name][1] = {node: 1.0}
        self.promises[name] = self.promises[name]._replace(cpu_nodes=(node,), mem_nodes=(node,))

    def run(self, *intervals_s):
        for elapsed_s in intervals_s:
            demand, bandwidths, guest_samples = list(self.others), [0.0] * len(self.others), []
            for name, (cores, shares, bytes_per_sec) in self.guests.items():
                for node, share in shares.items():
                    if cores is not None:
                        demand[node] += cores * share
                    bandwidths[node] += (bytes_per_sec or 0.0) * share
                guest_samples.append(
                    GuestSample(
                        name,
                        name,
                        '',
                        '',
                        cores=cores,
                        waiting_cores=None if cores is None else 0.0,
                        cores_by_node=tuple(
                            (node, (cores or 0.0) * share) for node, share in shares.items()
                        )
                        if cores
                        else (),
                        bytes_by_node=tuple(
                            (node, int(GIB * share)) for node, share in shares.items()
                        ),
                        bandwidth_bytes_per_sec=bytes_per_sec,
                    )
                )
            self.sample = Sample(
                0.0,
                elapsed_s,
                '',
                tuple(
                    NodeSample(
                        at,
                        demand_cores=demand[at],
                        bandwidth_bytes_per_sec=bandwidths[at],
                        bandwidth_max_bytes_per_sec=1e11,
                    )
                    for at in range(len(demand))
                ),
                tuple(guest_samples),
            )
            self.histories.add_sample(self.sample, self.known, self.promises)

    def loads(self):
        return self.lasting_demand().node_loads()

    def lasting_demand(self):
        return subject.LastingDemand(
            self.histories,
            self.sample,
            self.host,
            self.known,
            self.promises,
            PLACEMENT_OPTIONS,
            NOW_NS,
        )

    def demand(self):
        return [load.demand_cores for load in self.loads().values()]


class TestCase(unittest.TestCase):
    def assert_demand(self, wanted, here, places=6):
        for expected, demand in zip(wanted, here.demand()):
            self.assertAlmostEqual(expected, demand, places=places)


class ComposeTest(TestCase):
    def test_a_guest_that_moves_takes_its_past_with_it(self):
        here = Here(others=(1.0, 0.5))
        here.add('a', 4.0)
        here.add('b', 2.0)
        here.run(*HALF_HOUR)
        here.guests['a'][0] = 1.0  # calm at the moment
        here.run(5.0)
        before = here.demand()
        here.move('a', 1)
        here.run(5.0)
        after = here.demand()
        self.assertGreater(before[0], 6.9)
        self.assertAlmostEqual(before[0] - after[0], after[1] - before[1], places=1)
        self.assertAlmostEqual(3.0, after[0], places=6)

    def test_cpu_time_stolen_now_comes_off_the_capacity(self):
        here = Here()
        here.run(*HALF_HOUR)
        here.sample = here.sample._replace(
            nodes=tuple(node._replace(stolen_cores=1.0) for node in here.sample.nodes)
        )
        seen = host_view.view(here.host, (), PLACEMENT_OPTIONS, here.loads())
        self.assertEqual([15.0, 15.0], [node.cores for node in seen.nodes])

    def test_a_widened_guest_counts_where_it_runs(self):
        here = Here()
        here.add('a', 4.0, widened_nodes=(0, 1))
        here.guests['a'][1] = {0: 0.5, 1: 0.5}
        here.run(*HALF_HOUR)
        self.assert_demand((2.0, 2.0), here)

    def test_a_guest_that_ends_leaves_nothing(self):
        here = Here(others=(1.0, 0.0))
        here.add('a', 4.0)
        here.run(*HALF_HOUR)
        del here.guests['a'], here.promises['a']
        here.run(5.0)
        self.assert_demand((1.0, 0.0), here)

    def test_a_guest_that_comes_back_brings_its_past(self):
        here = Here()
        here.add('a', 3.0)
        here.run(*HALF_HOUR)
        del here.guests['a']
        gone = here.promises.pop('a')
        here.run(60.0)
        here.promises['a'] = gone._replace(cpu_nodes=(1,), started=False, since_ns=NOW_NS)
        here.run(5.0)
        self.assert_demand((0.0, 3.0), here)

    def test_a_floating_guest_counts_where_it_has_run(self):
        here = Here()
        here.add('a', 4.0, cpu_nodes=(), mem_nodes=())
        for share in (0.9, 0.1) * 30:
            here.guests['a'][1] = {0: share, 1: 1 - share}
            here.run(60.0)
        self.assert_demand((2.0, 2.0), here, places=0)

    def test_a_paused_guest_is_expected_back(self):
        here = Here()
        here.add('a', 4.0)
        here.run(*HALF_HOUR)
        here.known['a'] = here.known['a']._replace(state='paused')
        here.guests['a'][0] = 0.0
        here.run(*HALF_HOUR)
        self.assert_demand((4.0, 0.0), here)

    def test_traffic_follows_the_memory(self):
        here = Here()
        here.add('a', 2.0, bytes_per_sec=8e9)
        here.add('b', 2.0, bytes_per_sec=1e9)
        here.run(*HALF_HOUR)
        here.guests['a'][1] = {0: 0.5, 1: 0.5}
        here.run(5.0)
        for wanted, load_ in zip((5e9, 4e9), here.loads().values()):
            self.assertAlmostEqual(wanted, load_.bandwidth_bytes_per_sec, delta=1e7)

    def test_demand_unknown_in_the_interval_stays_unknown(self):
        here = Here()
        here.run(5.0)
        nodes = tuple(node._replace(demand_cores=None) for node in here.sample.nodes)
        here.sample = here.sample._replace(nodes=nodes)
        self.assertEqual([None, None], here.demand())

    def test_a_guest_on_cpus_of_its_own_counts_nowhere(self):
        here = Here(others=(1.0, 0.0))
        here.add('a', 4.0, vcpus=0)
        here.run(*HALF_HOUR)
        self.assert_demand((5.0, 0.0), here)  # what the node's CPUs ran, and nothing else


class PoolTest(TestCase):
    def pools(self, here, *demand_by_node):
        """Return (node, cores) over the longer horizon for a pool of CPUs 0 and 16."""
        here.sample = here.sample._replace(
            pools=(PoolSample((0, 16), demand_by_node, ((0, 0.0), (1, 0.0))),)
        )
        (pool,) = here.lasting_demand().pool_demands()
        self.assertEqual((0, 16), pool.cpus)
        return pool.demand_by_node

    def of_pool(self, here, name):
        here.known[name] = here.known[name]._replace(allowed_cpus=frozenset({0, 16, 999}))

    def test_a_pools_demand_is_of_its_guests_histories(self):
        here = Here()
        here.add('a', 4.0, vcpus=0)
        here.add('b', 2.0)
        self.of_pool(here, 'a')
        here.run(*(60.0,) * 600)
        here.guests['a'][0] = 1.0
        here.run(5.0)
        (_, near), (_, far) = self.pools(here, (0, 1.5), (1, 0.25))
        self.assertAlmostEqual(4.5, near, places=1)
        self.assertEqual(0.25, far)

    def test_demand_of_a_pool_stays_unknown_and_is_never_below_zero(self):
        here = Here()
        here.add('a', 0.0, vcpus=0)
        self.of_pool(here, 'a')
        here.run(*(60.0,) * 60)
        here.guests['a'][0] = 4.0
        here.run(5.0)
        self.assertEqual(((0, 0.0), (1, None)), self.pools(here, (0, 1.0), (1, None)))


class YoungTest(TestCase):
    def test_a_young_guest_counts_by_the_larger_of_measured_and_expected(self):
        here = Here()
        here.add('calm', 0.5, vcpus=4, since_ns=NOW_NS - 119 * 10**9)
        here.add('busy', 4.0, node=1, vcpus=4, since_ns=NOW_NS - 119 * 10**9)
        here.run(5.0)
        self.assert_demand((2.0, 4.0), here)

    def test_a_young_guest_is_expected_to_want_what_others_do(self):
        here = Here()
        for at in range(5):
            here.add('f%d' % at, 4.0, vcpus=4)
            here.add('o%d' % at, 0.0, vcpus=4)
        here.run(*HALF_HOUR)
        here.add('young', None, node=1, vcpus=4, since_ns=NOW_NS)
        here.run(5.0)
        expected = host_view.expected_cores(4, model.DemandHistory(10, 5.0))
        self.assertAlmostEqual(expected, here.demand()[1], places=6)

    def test_a_start_under_way_counts_as_expected(self):
        here = Here()
        here.add('a', None, vcpus=4, started=False)
        del here.guests['a'], here.known['a']
        here.run(5.0)
        self.assert_demand((2.0, 0.0), here)

    def test_a_young_guest_counts_beside_the_interval_without_a_history(self):
        here = Here()
        here.add('odd', 2.0)
        here.guests['odd'][1] = {}  # where it ran is unknown, and so is what others want
        here.add('young', None, vcpus=4, since_ns=NOW_NS)
        here.others = [3.0, 0.0]
        here.run(5.0)
        self.assert_demand((5.0, 0.0), here)


class HorizonTest(TestCase):
    def test_a_load_that_has_come_counts_within_minutes(self):
        here = Here()
        here.add('a', 0.5)
        here.run(*(60.0,) * 1440)
        here.guests['a'][0] = 4.0
        here.run(*(60.0,) * 15)
        self.assertGreater(here.demand()[0], 0.5 + 0.5 * 3.5)
        here.run(*(60.0,) * 30)
        self.assertGreater(here.demand()[0], 0.5 + 0.8 * 3.5)

    def test_a_load_that_stays_for_two_minutes_counts_in_full(self):
        here = Here()
        here.add('a', 0.5)
        here.run(*(5.0,) * 120)
        here.others = [6.0, 0.0]
        here.run(*(5.0,) * 23)
        self.assertLess(here.demand()[0], 4.0)
        here.run(5.0)
        self.assert_demand((6.5, 0.0), here)
        here.others = [0.0, 0.0]
        here.run(5.0)
        self.assertLess(here.demand()[0], 4.0)

    def test_demand_of_other_processes_is_gone_within_minutes(self):
        here = Here(others=(8.0, 0.0))  # as during the setup of the host
        here.add('a', 1.0)
        here.run(*(60.0,) * 600)
        here.others = [0.0, 0.0]
        here.run(*(60.0,) * 45)
        self.assertLess(here.demand()[0], 1.5)

    def test_a_load_that_has_gone_counts_for_hours(self):
        here = Here()
        here.add('a', 4.0)
        here.run(*(60.0,) * 1440)
        here.guests['a'][0] = 0.0
        here.run(*(60.0,) * 60)
        self.assertGreater(here.demand()[0], 0.9 * 4)

    def test_bursts_alone_do_not_raise_the_demand(self):
        here, rng, highest = Here(), random.Random(1), 0.0
        for at in range(8):
            here.add('g%d' % at, 0.0)
        for at in range(3000):
            for guest_state in here.guests.values():
                guest_state[0] = 4.0 * (rng.random() < 0.125)
            here.run(15.0)
            if at >= 2000:
                highest = max(highest, here.demand()[0])
        self.assertLess(highest, 4.0 + 0.8)  # a step of 16 cores


LOADS_OF_GUEST = st.tuples(
    st.integers(0, 3), st.integers(1, 8), st.floats(0, 1), st.floats(0, 4e9)
)
HOST = st.tuples(
    st.lists(st.sampled_from((8, 16)), min_size=2, max_size=4),
    st.lists(LOADS_OF_GUEST, max_size=10),
    st.floats(0, 2),
)


class PropertyTest(unittest.TestCase):
    @settings(max_examples=50, deadline=None)
    @given(HOST)
    def test_lasting_demand_of_a_constant_load_is_that_of_the_interval(self, drawn):
        here = self.built(drawn)
        for node, lasting in zip(here.sample.nodes, here.loads().values()):
            self.assertAlmostEqual(node.demand_cores, lasting.demand_cores, places=6)
            self.assertAlmostEqual(
                node.bandwidth_bytes_per_sec / 1e9, lasting.bandwidth_bytes_per_sec / 1e9, places=6
            )

    @settings(max_examples=50, deadline=None)
    @given(HOST, st.integers(1, 8))
    def test_a_guest_just_placed_is_not_moved_on_unchanged_load(self, drawn, vcpus):
        """The longer horizon chose it, and intervals judge it; the nodes are of one size."""
        sizes, wanted, others = drawn
        here = self.built((sizes[:1] * len(sizes), wanted, others))
        seen = host_view.view(here.host, here.promises.values(), PLACEMENT_OPTIONS, here.loads())
        request = host_view.request(guest('new', vcpus), PLACEMENT_OPTIONS)
        placed = placement.place(seen, request, PLACEMENT_OPTIONS)
        assume(len(placed.cpu_nodes) == 1)
        here.add('new', request.demand_cores, placed.cpu_nodes[0], vcpus)
        host = ConstantHost(
            [node.cores for node in seen.nodes],
            [node.capacity_bytes for node in seen.nodes],
            [
                guest_load(
                    name,
                    here.promises[name].vcpus,
                    next(iter(shares)),
                    cores,
                    GIB,
                    why_fixed='' if name == 'new' else 'pinned_by_operator',
                )
                for name, (cores, shares, _) in here.guests.items()
            ]
            + [
                guest_load('others-%d' % at, 1, at, cores, GIB, why_fixed='pinned_by_operator')
                for at, cores in enumerate(here.others)
            ],
        )
        options = plan_records.RebalanceOptions(widen=False)
        plans, _ = host.run(options, 60, 60.0)
        self.assertEqual([], [move for plan in plans for move in plan.moves])
        # Nor later: no move would pay within a day.
        self.assertEqual((), planner.propose(host.situation(), options, 86400.0).moves)

    @staticmethod
    def built(drawn):
        cores, wanted, others = drawn
        here = Here(cores, (others,) * len(cores))
        for at, (node, vcpus, busy, traffic) in enumerate(wanted):
            here.add('g%d' % at, vcpus * busy, node % len(cores), vcpus, vcpus * busy * traffic)
        here.run(*(60.0,) * 5)
        return here
