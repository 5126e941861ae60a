# SPDX-License-Identifier: Apache-2.0
"""The hosts of a request are compared by one estimate, and none gains by reporting less."""

import copy
import math
import os
import random
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.model import MB
from nova_numa_pmc.scheduler import hosts as known_hosts, losses as subject, refusals, request
from tests.fixtures.expected_losses import cpu_loss, queueing_loss, waiting_cores
from tests.fixtures.metrics import GIB, build_publication, metric_list, mutate
from tests.fixtures.nova_stand_ins import host_state, host_state_of, request_spec
from tests.fixtures.scheduler_options import DEFAULTS

NOW_S = 1700000000
#: Tolerance for rounding errors of what is computed from figures that are published exactly.
ROUNDED = 1e-6
#: The most that the guests' bandwidth of 0.01 adds to a loss, whatever traffic hosts report.
BANDWIDTH_LOSS = 0.0012
#: `NUMA_PMC_FUZZ=100000` for the long run.
MUTATIONS = int(os.environ.get('NUMA_PMC_FUZZ', '2000'))
HIDDEN = {
    'maximum': {'bandwidth_max_bytes_per_sec': None},
    'bandwidth': {'bandwidth_bytes_per_sec': None, 'bandwidth_max_bytes_per_sec': None},
}


def node(at, cpu=0.0, bandwidth=None, maximum=100, cores=10.0, rate=None, **fields):
    """Build a node with these utilisations.

    :param bandwidth: traffic, as a share of ``maximum`` [1000 MB/s]
    :param rate: 1000 MB/s per core wanted, instead of ``bandwidth``
    """
    served = None if bandwidth is None else bandwidth * maximum * 1000 * MB
    if rate is not None:
        served = rate * 1000 * MB * cpu * cores
    return model.NodeView(
        at,
        cores,
        math.ceil(cores),
        64 * GIB,
        8 * GIB,
        4,
        8,
        None if cpu is None else cpu * cores,
        served,
        maximum and maximum * 1000 * MB,
        **fields,
    )


def nova_host(*nodes, history=None):
    """Build a stand-in for Nova's HostState."""
    published = build_publication(
        nodes=nodes, taken_s=NOW_S, history=history or model.DemandHistory()
    )
    return host_state_of(metric_list(published))


def unknown_host(**fields):
    """Build a host without metrics that, according to Nova, has 16 vCPUs and as many cores."""
    return host_state_of([], **fields)


def guest_request(vcpus=2, extra_specs=None):
    return request.read(request_spec(vcpus, **extra_specs or {}))


def compared(*nova_hosts, vcpus=2, extra_specs=None):
    """Return the losses on stand-ins for Nova's HostState."""
    requested = guest_request(vcpus, extra_specs)
    known = [known_hosts.read(one, requested, NOW_S) for one in nova_hosts]
    return subject.compare(known, requested.guest)


def losses(*hosts, vcpus=2):
    """Return the losses on hosts with these nodes, with figures free of rounding errors."""
    added = compared(*(nova_host(*nodes) for nodes in hosts), vcpus=vcpus)
    return [subject.Loss(one.nodes, round(one.pressure, 9), round(one.ratio, 9)) for one in added]


class ComparingTest(unittest.TestCase):
    def test_a_host_without_uncore_counters_is_not_the_best_for_that(self):
        # Half of the bandwidth is used on both nodes of each host; one host cannot measure it.
        known = [node(at, 0.3, 0.5, 5) for at in range(2)]
        blind = [node(at, 0.3, None, None) for at in range(2)]
        busier = [node(at, 0.4, 0.5, 5) for at in range(2)]
        added = losses(known, blind, known, busier)
        self.assertEqual(added[0], added[1])
        self.assertLess(added[0].ratio, added[3].ratio)
        self.assertGreater(added[1].ratio, losses(blind)[0].ratio)

    def test_a_part_that_few_hosts_know_counts_for_none(self):
        known, blind = node(0, 0.3, 0.9), node(0, 0.3)
        for count, others in ((1, 1), (2, 1), (1, 7), (3, 7)):
            added = losses(*[[known]] * count, *[[blind]] * others)
            self.assertEqual(1, len(set(added)), (count, others))
            self.assertEqual(0.4, added[0].pressure)
        # A third of them.
        added = losses(*[[known]] * 3, *[[blind]] * 6)
        self.assertEqual(1, len(set(added)))
        self.assertGreater(added[0].pressure, 0.9)

    def test_a_host_of_traffic_without_demand_is_not_believed_to_have_none(self):
        known, silent = node(0, 0.5, rate=4), node(0, 0.5, rate=0)
        added = losses([known], [known], [known], [silent])
        self.assertEqual(1, len(set(added)))

    def test_a_host_whose_cpus_are_not_measured_is_not_the_best_for_that(self):
        busy = [node(0, 0.7), node(1, 0.7)]
        blind = [node(0, None), node(1, None)]
        # 8 vCPUs on each node: at half a core each, less than the guests of other hosts want.
        added = losses(busy, [node(0, 0.6), node(1, 0.8)], busy, blind)
        self.assertGreaterEqual(added[3].ratio, added[0].ratio)
        # One busy host does not decide what is assumed.
        self.assertEqual(0.5, losses(busy, blind)[1].pressure)

    def test_what_waits_is_lost(self):
        added = losses([node(0, 0.3)], [node(0, 0.4)])
        self.assertEqual([0.4, 0.5], [one.pressure for one in added])
        for one, others in zip(added, (3.0, 4.0)):  # including the guest's one core, of ten
            expected = waiting_cores(others + 1, 10) - waiting_cores(others, 10)
            self.assertAlmostEqual(expected, one.ratio)

    def test_a_host_without_a_usable_core_is_the_last(self):
        none = [node(at, 3.0, cores=10.0)._replace(cores=0.0, cpu_count=0) for at in range(2)]
        added = losses(none, [node(0, 0.9), node(1, 0.9)], [node(0, 4.0), node(1, 4.0)])
        self.assertEqual((0, math.inf, 1.0), added[0])
        for one in added[1:]:
            self.assertLess(one.pressure, math.inf)
            self.assertLess(one.ratio, 1.0)

    def test_all_hosts_share_one_estimate_of_the_guests_traffic(self):
        # Each uses 0.5 of its bandwidth; a core corresponds to 50, 10 and 2.5 GB/s on them.
        added = compared(*(nova_host(node(0, cpu, 0.5)) for cpu in (0.1, 0.5, 2.0)))
        # The guest wants one core: 10 GB/s of the maximum of 100 on each of them.
        self.assertEqual([0.6, 0.6, 2.1], [round(one.pressure, 6) for one in added])

    def test_hosts_that_have_seen_different_guests_share_one_estimate_of_its_demand(self):
        # The first host saw idle guests, the second busy ones; none are known on the third.
        histories = (model.DemandHistory(20, 0.0), model.DemandHistory(15, 15.0), None)
        for bandwidth in (0.1, None):
            added = compared(
                *(nova_host(node(0, 0.3, bandwidth), history=history) for history in histories),
                vcpus=8,
            )
            # The median of 0, 1 and the assumed 0.5 per vCPU: 4 cores on each of them.
            self.assertEqual([0.7] * 3, [round(one.pressure, 6) for one in added])
            self.assertEqual(1, len(set(added)))

    def test_a_guest_rather_fits_on_one_node_than_spans_two(self):
        roomy, full = (
            [node(at, cpu, 0.3)._replace(promised_bytes=64 * GIB - free) for at in range(2)]
            for cpu, free in ((0.35, 8 * GIB), (0.3, GIB))
        )
        added = compared(nova_host(*roomy), nova_host(*full))
        self.assertEqual([1, 2], [one.nodes for one in added])
        self.assertLess(added[0].ratio, added[1].ratio)
        # By CPU demand alone, it would wait less if spread over nodes.
        self.assertGreater(added[0].pressure, added[1].pressure)

    def test_memory_that_came_since_is_taken_from_what_is_free(self):
        # 56 GiB were left on each node; the guest needs 49.
        for came_mib, nodes in ((0, 1), (8192, 1), (40960, 2)):
            host = host_state(0.25, 0.25, memory_mb=16384 + came_mib)
            requested = request.read(request_spec(memory_mb=50000))
            known = known_hosts.read(host, requested, NOW_S)
            self.assertEqual(nodes, subject.compare([known], requested.guest)[0].nodes, came_mib)

    def test_a_guest_spans_as_few_of_many_nodes_as_hold_it(self):
        hosts = [node(at, 0.1) for at in range(4)]
        # Ten cores each; half a core is expected of a vCPU, and twice that at most.
        self.assertEqual([1, 2, 3, 4], [losses(hosts, vcpus=n)[0].nodes for n in (9, 19, 29, 64)])

    def test_others_count_by_the_guests_node_and_by_the_mean_of_all(self):
        (added,) = losses([node(0, 0.4), node(1, 0.6)], vcpus=4)
        self.assertAlmostEqual(0.8 * 0.5 + 0.2 * 0.4 + 0.2, added.pressure)  # two of ten cores

    def test_a_host_with_a_nearly_free_node_is_better_than_one_that_is_half_full(self):
        even, uneven = losses([node(0, 0.5), node(1, 0.5)], [node(0, 0.2), node(1, 0.9)], vcpus=4)
        self.assertLess(uneven.ratio, even.ratio)
        # Not if the free node has no room for it.
        full = node(0, 0.2)._replace(promised_bytes=64 * GIB)
        even, uneven = losses([node(0, 0.5), node(1, 0.5)], [full, node(1, 0.9)], vcpus=4)
        self.assertGreater(uneven.ratio, even.ratio)

    def test_hosts_without_traffic_show_nothing_of_a_guests_lines(self):
        # As if no host had measured any, not as if guests used no memory.
        idle = [nova_host(*(node(at, 0.3, rate=0) for at in range(2))) for _ in range(3)]
        busy = nova_host(*(node(at, 0.3, rate=4) for at in range(2)))
        spread = unknown_host(free_ram_mb=1024)
        unmeasured, among_idle, measured = (
            compared(spread, *known)[0].ratio for known in ([], idle, [*idle, busy, busy])
        )
        self.assertAlmostEqual(unmeasured, among_idle, delta=0.01)
        self.assertGreater(measured, 2 * among_idle)

    def test_a_host_of_impossible_traffic_shows_nothing_of_a_guests_lines(self):
        spread = unknown_host(free_ram_mb=1024)
        expected, plausible, added = (
            compared(
                spread,
                *[nova_host(*(node(at, 0.3, rate=rate, maximum=10000) for at in range(2)))] * 2,
            )[0].ratio
            for rate in (0, 63, 65)
        )
        self.assertGreater(plausible, 2 * expected)
        self.assertAlmostEqual(expected, added, delta=0.01)

    def test_the_only_known_host_does_not_make_up_what_a_guest_wants(self):
        expected, added = (
            compared(unknown_host(), nova_host(node(0, 0.3), node(1, 0.3), history=history))
            for history in (None, model.DemandHistory(1, 1e9))
        )
        self.assertEqual(expected, added)

    def test_an_unknown_host_counts_by_novas_counts_as_neither_the_best_nor_the_worst(self):
        # A core corresponds to 2 GB/s on all of them.
        idle, busy, busiest = (
            nova_host(*(node(at, cpu, rate=2) for at in range(2))) for cpu in (0.05, 0.9, 1.0)
        )
        added = compared(idle, unknown_host(), busy, busiest)
        # 16 vCPUs at 0.3 cores each, with a core for each vCPU: 2.4 of 8 on each half.
        self.assertAlmostEqual((2.4 + 1) / 8, added[1].pressure)
        # The other hosts have 10 GB/s for each core; it has 8 of these on each half.
        expected = waiting_cores(3.4, 8) - waiting_cores(2.4, 8)
        expected += queueing_loss(6.8 / 80, 2000 * MB)
        self.assertAlmostEqual(expected, added[1].ratio)
        self.assertLess(added[0].ratio, added[1].ratio)
        self.assertLess(added[1].ratio, added[2].ratio)

    def test_an_unknown_host_is_not_preferred_by_a_pinned_guest_where_memory_is_busy(self):
        # It uses no shared core, so only what is assumed of memory matters.
        known = [
            nova_host(*(node(at, ratio, rate=1, maximum=10) for at in range(2)))
            for ratio in (0.2, 0.4, 0.5, 0.7)
        ]
        unknown = unknown_host(vcpus_total=16)
        added = compared(unknown, *known, extra_specs={'hw:cpu_policy': 'dedicated'})
        # 4.8 cores at 1 GB/s each; its 10 cores have 1 GB/s each.
        self.assertAlmostEqual(0.48, added[0].pressure)
        self.assertEqual(1, min(range(5), key=lambda at: added[at].ratio))

    def test_no_host_of_odd_figures_decides_what_the_guest_is_expected_to_want(self):
        sound = [(20, 5.0)] * 4
        for odd in ((1023, 1e9), (1023, 0.0), (1, 7.0)):
            with self.subTest(odd):
                self.assertAlmostEqual(
                    subject.expected_demand(sound),
                    subject.expected_demand([*sound, odd]),
                    delta=0.03,
                )
        self.assertEqual(0.5, subject.expected_demand([(0, 0.0)]))

    @given(
        st.sampled_from((2, 4)),
        st.sampled_from((2.5, 5.0, 10.0, 20.0, 40.0)),
        st.sampled_from((1, 2, 4, 8, 16)),
        st.sampled_from((0.0, 0.1, 0.3)),
    )
    def test_a_host_looks_no_better_once_more_guests_have_arrived(self, count, cores, vcpus, cpu):
        host = nova_host(*(node(at, cpu, cores=cores) for at in range(count)))
        ratios = []
        for _ in range(9):
            ratios.append(compared(host, vcpus=vcpus)[0].ratio)
            host.vcpus_used += vcpus
            host.free_ram_mb -= 64
        for earlier, later in zip(ratios, ratios[1:]):
            self.assertGreater(later, earlier - 0.001)


TENTHS = st.integers(1, 12).map(lambda tenths: tenths / 10)
#: Figures of a host that does not report less or more on one node than on the other: utilisation
#: of CPUs, 1000 MB/s per core, maximum [1000 MB/s]. Demand is published in steps of 0.01 cores and
#: traffic of 1 MB/s: these figures are not rounded.
FIGURES = st.tuples(
    st.integers(5, 120).map(lambda percent: percent / 100),
    st.integers(5, 90).map(lambda tenths: tenths / 10),
    st.sampled_from((30, 50, 100)),
)


def even(cpu, rate, maximum):
    return [node(at, cpu, rate=rate, maximum=maximum) for at in range(2)]


def hidden(part, nodes):
    return [one._replace(**HIDDEN[part]) for one in nodes]


def agreed(part, others):
    """Return what the others' figures let one assume of a host that hides this part.

    :param others: their figures
    """
    figures = {
        'maximum': [-maximum for _, _, maximum in others],
        'bandwidth': [rate for _, rate, _ in others],
    }
    return missing.agreed_upper(figures[part])


class HidingTest(unittest.TestCase):
    """What one host reports or hides."""

    @settings(deadline=None)
    @given(st.lists(FIGURES, min_size=4, max_size=8), st.sampled_from(sorted(HIDDEN)))
    def test_hiding_a_part_never_raises_the_rank_of_a_host_that_others_agree_to_be_worse(
        self, figures, part
    ):
        (_, rate, maximum), *others = figures
        # A host whose figure is above what is assumed gains by hiding it: then, nothing that the
        # others report shows that it is above.
        own = {'maximum': [-maximum], 'bandwidth': [rate]}[part]
        if part == 'bandwidth' and -maximum > agreed('maximum', others) + ROUNDED:
            return
        if own[0] > agreed(part, others) + ROUNDED:
            return
        hosts = [even(*each) for each in figures]
        # Without vCPUs: a guest's own traffic is expected by the median of all hosts' figures.
        before = losses(*hosts, vcpus=0)
        after = losses(hidden(part, hosts[0]), *hosts[1:], vcpus=0)
        self.assertGreaterEqual(after[0].pressure, before[0].pressure * (1 - ROUNDED) - ROUNDED)
        # How much a loss is depends on the guest's lines, which are a median over all hosts.
        self.assertEqual([one.pressure for one in before[1:]], [one.pressure for one in after[1:]])

    @settings(deadline=None)
    @given(
        st.lists(TENTHS, min_size=3, max_size=6),
        st.lists(st.tuples(TENTHS, st.sampled_from(sorted(HIDDEN))), max_size=2),
        FIGURES,
        st.none() | st.sampled_from(sorted(HIDDEN)),
        st.sampled_from((2, 12)),
    )
    def test_no_single_host_changes_the_order_of_others_that_agree(
        self, known, blind, odd_figures, odd_hides, vcpus
    ):
        others = [even(cpu, 4, 50) for cpu in known]
        others += [hidden(part, even(cpu, 4, 50)) for cpu, part in blind]
        odd = even(*odd_figures)
        _, *expected = losses(others[0], *others, vcpus=vcpus)
        _, *added = losses(hidden(odd_hides, odd) if odd_hides else odd, *others, vcpus=vcpus)
        for one, other in zip(expected, added):
            for before, after in zip(one, other):
                self.assertAlmostEqual(before, after, delta=ROUNDED)

    @given(st.lists(st.floats(0, 100), min_size=2), st.floats(0, 1e9))
    def test_a_single_figure_moves_what_is_agreed_between_two_neighbours_only(self, others, odd):
        values = sorted(others)
        least, most = (
            missing.agreed_upper([*others, extreme]) for extreme in (-math.inf, math.inf)
        )
        self.assertTrue(least <= missing.agreed_upper([*others, odd]) <= most)
        self.assertLessEqual(values.index(most) - values.index(least), 1 + values.count(least))


def why_unknown(host_state):
    return known_hosts.read(host_state, guest_request(), NOW_S).why_unknown


class WeighingTest(unittest.TestCase):
    """Hosts as the weigher compares them."""

    def penalties(self, *hosts, spec=None):
        guest_request = request.read(spec or request_spec())
        known = [known_hosts.read(one, guest_request, NOW_S) for one in hosts]
        return [round(loss.ratio, 6) for loss in subject.compare(known, guest_request.guest)]

    def test_a_node_as_much_wanted_as_it_has_cores_costs_half_and_an_idle_one_nothing(self):
        for vcpus in (1, 2, 8, 16):
            idle, saturated = self.penalties(
                host_state(0.0, 0.0, cores=40.0),
                host_state(1.0, 1.0),
                spec=request_spec(vcpus=vcpus),
            )
            self.assertLess(idle, 0.005)
            self.assertGreater(saturated, 0.5)

    def test_penalties_rise_with_pressure_and_without_steps(self):
        penalties = self.penalties(*(host_state(at / 100, at / 100) for at in range(150)))
        rises = [later - earlier for earlier, later in zip(penalties, penalties[1:])]
        self.assertGreaterEqual(min(rises), 0.0)
        # Demand rises by a tenth of a core each time, of ten.
        self.assertLess(max(rises), 0.02)
        self.assertGreater(penalties[-1], 0.5)

    def test_other_hosts_change_nothing(self):
        rng, mine = random.Random(20), host_state(0.45, 0.8)
        expected, *_ = self.penalties(*[mine] * 5)
        self.assertAlmostEqual(cpu_loss((4.5, 8.0), 1.0, 10), expected, delta=BANDWIDTH_LOSS)
        for _ in range(200):
            others = [
                host_state(rng.choice((0, 0.2, 3, 900)), rng.random(), vcpus=rng.randrange(200))
                for _ in range(rng.randrange(5))
            ]
            # At least as many hosts are sound, which determines the medians.
            self.assertEqual([expected] * 5, self.penalties(*others, *[mine] * 5)[-5:])

    def test_dedicated_guests_take_no_shared_core(self):
        for vcpus in (2, 64):
            spec = request_spec(vcpus, hw__cpu_policy='dedicated')
            calm, busy = self.penalties(host_state(0.5, 0.3), host_state(2.0, 2.0), spec=spec)
            # None of their demand waits, and none waits because of them.
            self.assertEqual(calm, busy)
            self.assertLess(busy, BANDWIDTH_LOSS)

    def test_dedicated_guests_are_weighed_by_the_memory_of_all_nodes(self):
        calm, uneven, busy = (
            host_state(
                nodes=tuple(
                    model.NodeView(at, 10.0, 16, 1 << 36, 0, 4, 8, 5.0, ratio * 1e10, 1e10)
                    for at, ratio in enumerate(ratios)
                )
            )
            for ratios in ((0.3, 0.3), (0.0, 0.8), (0.8, 0.8))
        )
        spec = request_spec(hw__cpu_policy='dedicated')
        calm, uneven, busy = self.penalties(calm, uneven, busy, spec=spec)
        self.assertLess(calm, uneven)
        self.assertLess(uneven, busy)

    def test_demand_that_cannot_be_is_saturation(self):
        for pressure in (1.5, 5.0, 900.0, 2e6, 1e16, 1e30):
            odd = host_state(pressure, pressure, vcpus=32)
            odd.vcpus_total = 32
            busy, absurd = self.penalties(host_state(0.9, 0.9), odd)
            self.assertGreater(absurd, busy)

    def test_a_host_of_many_guests_that_want_nothing_is_weighed_by_its_promises(self):
        for vcpus, stats, expected in (
            (500, {}, False),
            (500, {'num_instances': '100', 'num_vm_stopped': '99'}, True),
            (500, {'num_instances': '100', 'num_vm_stopped': '50'}, False),
            (500, {'num_instances': '100', 'num_vm_active': '100'}, False),
            (16, {}, True),
        ):
            with self.subTest(vcpus=vcpus, stats=stats):
                silent = host_state_of(
                    metric_list(build_publication(0.0, 0.0), vcpus_used=vcpus),
                    vcpus_used=vcpus,
                    vcpus_total=32,
                    stats=stats,
                )
                blank = host_state_of([], vcpus_used=vcpus, vcpus_total=32)
                self.assertEqual(expected, why_unknown(silent) is None)
                if not expected:
                    self.assertIn('less CPU demand', why_unknown(silent))
                    one, other = self.penalties(silent, blank)
                    self.assertEqual(one, other)
                    self.assertGreater(one, 0.5)
        # A tenth of a percent of a core for each vCPU is little, but possible.
        idle = metric_list(build_publication(0.025, 0.025), vcpus_used=500)
        self.assertIsNone(why_unknown(host_state_of(idle, vcpus_used=500, vcpus_total=32)))


#: States of a host's evidence: what is done with its column and with the demand of its nodes.
FAULTS = (
    'no metrics',
    'stale',
    'from the future',
    'damaged',
    'of another schema',
    'absurd demand',
    'no demand',
    'demand unknown',
    'more cores',
    'more memory',
    'hidden bandwidth',
)


class EvidenceTest(unittest.TestCase):
    """No state of its evidence makes a host better than it is, or than if it were unknown."""

    def state(self, fault, cpu, vcpus, rate=1e9):
        """Return a host of equal nodes with these figures, and a fault."""
        demand_cores = {'absurd demand': 1e5 * cpu, 'no demand': 0.0, 'demand unknown': None}.get(
            fault, 10 * cpu
        )
        cores = 1000.0 if fault == 'more cores' else 10.0
        memory = 1 << (46 if fault == 'more memory' else 36)
        bandwidth = None if fault == 'hidden bandwidth' else 10 * cpu * rate
        nodes = tuple(
            model.NodeView(
                at, cores, int(1.6 * cores), memory, 0, 4, vcpus // 2,
                demand_cores, bandwidth, bandwidth and 2e10,
            )
            for at in range(2)
        )  # fmt: skip
        age_s = {'stale': 301, 'from the future': -301}.get(fault, 0)
        metrics = metric_list(
            build_publication(nodes=nodes, taken_s=NOW_S - age_s), vcpus_used=vcpus
        )
        values = metrics[-2]['numa_membw_values']
        if fault == 'no metrics':
            metrics = []
        elif fault == 'damaged':
            values['pmc.d0'] = -7
        elif fault == 'of another schema':
            values['pmc'] = 107
        return host_state_of(metrics, vcpus_used=vcpus, vcpus_total=32, total_usable_ram_mb=131072)

    @given(
        st.sampled_from(FAULTS),
        st.integers(1, 20),
        st.integers(12, 60),
        st.lists(st.integers(1, 20), min_size=3, max_size=6),
        st.sampled_from((2, 14)),
    )
    def test_no_fault_makes_a_host_better_than_it_is_or_unknown(
        self, fault, tenths, dozens, others, vcpus
    ):
        neighbours = [self.state('', other / 10, 64) for other in others]

        def loss(state):
            hosts = [self.state(state, tenths / 10, 2 * dozens), *neighbours]
            return compared(*hosts, vcpus=vcpus)[0].ratio

        least = min(loss(''), loss('no metrics'))
        self.assertGreaterEqual(loss(fault), least - 0.001, fault)

    def test_a_saturated_host_does_not_become_attractive_once_its_figures_are_too_old(self):
        calm = [self.state('', 0.5, 64)] * 3
        for fault, vcpus, is_avoided in (
            ('stale', 24, True),
            ('from the future', 24, True),
            ('stale', 4, False),  # its guests have left
        ):
            hosts = [self.state(fault, 0.95, vcpus), *calm]
            old, current, *_ = compared(*hosts)
            self.assertEqual(is_avoided, old.ratio > current.ratio, (fault, vcpus))


class FuzzTest(unittest.TestCase):
    def test_mutated_metrics_cannot_hurt(self):
        rng, asked = random.Random(4), guest_request()
        neighbours = [host_state(0.2, 0.3), host_state(0.9, 0.8)] * 5
        options = refusals.FilterOptions(False, 1.0)
        originals = [metric_list(build_publication(*nodes)) for nodes in ((0.5, 0.25), (0.5,))]
        coreless = copy.deepcopy(originals[1])
        coreless[-1]['numa_membw_values'].update({'pmc.c0': 0, '0': 0})
        odd, unknown = host_state(0.5, 0.5), 0
        calm = [cpu_loss((2.0, 3.0), 1.0, 10), cpu_loss((9.0, 8.0), 1.0, 10)] * 5
        for at in range(MUTATIONS):
            odd.metrics = mutate(rng, originals[at % 2]) if at else coreless
            known = [known_hosts.read(one, asked, NOW_S) for one in [odd, *neighbours]]
            penalties = [loss.ratio for loss in subject.compare(known, asked.guest)]
            self.assertTrue(all(0 <= one <= 1 for one in penalties), at)
            for expected, one in zip(calm, penalties[1:]):
                self.assertAlmostEqual(expected, one, delta=BANDWIDTH_LOSS, msg=at)
            why_refused = refusals.why_refused(known[0], asked, options)
            if known[0].why_unknown is not None:
                unknown += 1
                self.assertEqual('', why_refused)
        self.assertGreater(unknown, MUTATIONS / 3)


class PenaltyTest(unittest.TestCase):
    def penalty(self, ratio, floor=0.0, host='a', instance_uuid=None):
        return subject.penalty(subject.Loss(1, 0.9, ratio), floor, host, instance_uuid)

    @given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1))
    def test_more_loss_never_costs_less_but_by_jitter_of_the_floor(self, one, other, floor):
        low, high = (self.penalty(ratio, floor) for ratio in sorted((one, other)))
        self.assertTrue(0.0 <= low <= high + 1e-12 <= 1.0 + 2e-12)

    def test_a_penalty_is_a_number_whatever_is_not(self):
        for ratio, floor, least in ((math.nan, 0.0, 0.98), (math.inf, 0.0, 0.98)):
            self.assertTrue(least <= self.penalty(ratio, floor) <= 1.0)
        self.assertEqual(0.0, self.penalty(0.4, math.nan))

    def test_an_order_of_hosts_below_the_floor_stays(self):
        for ratio, varied in ((0.0499, False), (0.05, True), (0.0, False), (1.0, True)):
            penalties = {self.penalty(ratio, 0.05, f'cmp{at}') for at in range(9)}
            self.assertEqual(9 if varied else 1, len(penalties), ratio)

    def test_requests_are_spread_over_saturated_hosts_as_well(self):
        for ratio in (0.0, 1.0, 7.0, math.inf, math.nan):
            counts = dict.fromkeys(range(5), 0)
            for number in range(500):
                penalties = [
                    self.penalty(ratio, DEFAULTS['penalty_floor'], f'cmp{at}', f'i-{number}')
                    for at in counts
                ]
                counts[penalties.index(min(penalties))] += 1
            # Binomial with p = 1/5: mean 100, deviation 9.
            self.assertTrue(all(60 <= count <= 140 for count in counts.values()), counts)
        # None goes to the host without a CPU as long as there is another.
        self.assertLess(max(penalties), subject.penalty(subject.Loss(0, math.inf, 1.0), 0.0, 'a'))

    def test_jitter_outweighs_no_loss_of_more_than_itself(self):
        for at in range(50):
            for ratio in (0.0, 0.1, 0.5):
                lighter = self.penalty(ratio, host=f'one{at}')
                heavier = self.penalty(ratio + 1.1 * subject.JITTER, host=f'other{at}')
                self.assertLess(lighter, heavier)
