# SPDX-License-Identifier: Apache-2.0
"""The hosts of a request are compared by one estimate, and none gains by reporting less."""

import math
import types
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.core.placement.loss import AddedLoss
from nova_numa_pmc.model import MB
from nova_numa_pmc.scheduler import comparison, host_estimate, request
from tests.fixtures.expected_losses import queueing_loss, waiting_cores
from tests.fixtures.metrics import GIB, build_publication, metric_list
from tests.fixtures.nova_stand_ins import host_state_of, request_spec

NOW_S = 1700000000
#: Tolerance for rounding errors of what is computed from figures that are published exactly.
ROUNDED = 1e-6
HIDDEN = {
    'link': {'link_ratio': None},
    'maximum': {'bandwidth_max_bytes_per_sec': None},
    'bandwidth': {'bandwidth_bytes_per_sec': None, 'bandwidth_max_bytes_per_sec': None},
}


def node(at, cpu=0.0, bandwidth=None, maximum=100, link=None, cores=10.0, rate=None, **fields):
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
        int(cores),
        64 * GIB,
        8 * GIB,
        4,
        8,
        None if cpu is None else cpu * cores,
        served,
        maximum and maximum * 1000 * MB,
        link,
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
    """Return (estimates, losses) for stand-ins for Nova's HostState."""
    requested = guest_request(vcpus, extra_specs)
    estimates = [
        host_estimate.estimate(one, requested, host_estimate.EstimateOptions(), NOW_S)
        for one in nova_hosts
    ]
    return estimates, comparison.compare(nova_hosts, estimates, requested.guest)


def losses(*hosts, vcpus=2):
    """Return the losses on hosts with these nodes, with figures free of rounding errors."""
    _, added = compared(*(nova_host(*nodes) for nodes in hosts), vcpus=vcpus)
    return [AddedLoss(*(round(figure, 9) for figure in one)) for one in added]


def best(added):
    """List the positions of the hosts with the least loss."""
    least = min(one.loss_ratio for one in added)
    return [at for at, one in enumerate(added) if one.loss_ratio == least]


class ComparingTest(unittest.TestCase):
    def test_a_host_without_uncore_counters_is_not_the_best_for_that(self):
        # Half of the bandwidth is used on both nodes of each host; one host cannot measure it.
        known = [node(at, 0.3, 0.5, 5) for at in range(2)]
        blind = [node(at, 0.3, None, None) for at in range(2)]
        busier = [node(at, 0.4, 0.5, 5) for at in range(2)]
        added = losses(known, blind, known, busier)
        self.assertEqual(added[0], added[1])
        self.assertLess(added[0].loss_ratio, added[3].loss_ratio)
        self.assertGreater(added[1].loss_ratio, losses(blind)[0].loss_ratio)

    def test_a_part_that_few_hosts_know_counts_for_none(self):
        known, blind = node(0, 0.3, 0.9, link=0.5), node(0, 0.3)
        for count, others in ((1, 1), (2, 1), (1, 7), (3, 7)):
            added = losses(*[[known]] * count, *[[blind]] * others)
            self.assertEqual(1, len(set(added)), (count, others))
            self.assertEqual((0.0, 0.0), added[0][1:3])
        # A third of them.
        added = losses(*[[known]] * 3, *[[blind]] * 6)
        self.assertEqual(1, len(set(added)))
        self.assertGreater(added[0].bandwidth_ratio, 0.9)

    def test_traffic_is_assumed_in_proportion_to_the_hosts_own_demand(self):
        known = [node(at, 0.5, rate=4) for at in range(2)]
        blind = [[node(at, cpu, None, None) for at in range(2)] for cpu in (0.0, 0.25, 0.5)]
        added = losses(known, known, known, *blind, vcpus=0)
        self.assertEqual(
            [0.0, 0.5, 1.0],
            [round(one.bandwidth_ratio / added[0].bandwidth_ratio, 6) for one in added[3:]],
        )

    def test_a_host_of_traffic_without_demand_is_not_believed_to_have_none(self):
        known, silent = node(0, 0.5, rate=4), node(0, 0.5, rate=0)
        added = losses([known], [known], [known], [silent])
        self.assertEqual(1, len(set(added)))

    def test_a_host_whose_cpus_are_not_measured_is_not_the_best_for_that(self):
        busy = [node(0, 0.7), node(1, 0.7)]
        blind = [node(0, None), node(1, None)]
        # 8 vCPUs on each node: at half a core each, less than the guests of other hosts want.
        added = losses(busy, [node(0, 0.6), node(1, 0.8)], busy, blind)
        self.assertGreaterEqual(added[3].loss_ratio, added[0].loss_ratio)
        # One busy host does not decide what is assumed.
        self.assertEqual(0.5, losses(busy, blind)[1].cpu_ratio)

    def test_a_host_without_links_is_not_better_for_that(self):
        linked = [node(at, 0.3, link=0.8) for at in range(2)]
        unlinked = [node(0, 0.3), node(1, 0.3)]
        for vcpus in (2, 12):  # for a guest on both nodes, lines cross the link
            added = losses(linked, linked, linked, unlinked, vcpus=vcpus)
            self.assertEqual(1, len(set(added)))
            self.assertEqual(0.8, added[3].link_ratio)

    def test_what_is_known_of_no_host_counts_for_none(self):
        added = losses([node(0, 0.3)], [node(0, 0.4)])
        self.assertEqual([(0.4, 0.0, 0.0), (0.5, 0.0, 0.0)], [one[:3] for one in added])
        self.assertEqual([0.4, 0.5], [one.pressure for one in added])
        for one, others in zip(added, (3.0, 4.0)):  # including the guest's one core, of ten
            self.assertAlmostEqual(
                waiting_cores(others + 1, 10) - waiting_cores(others, 10), one.loss_ratio
            )

    def test_a_host_without_a_usable_core_is_the_last(self):
        none = [node(at, 3.0, cores=10.0)._replace(cores=0.0, cpu_count=0) for at in range(2)]
        added = losses(none, [node(0, 0.9), node(1, 0.9)], [node(0, 4.0), node(1, 4.0)])
        self.assertEqual((math.inf, 1.0), (added[0].pressure, added[0].loss_ratio))
        for one in added[1:]:
            self.assertLess(one.pressure, math.inf)
            self.assertLess(one.loss_ratio, 1.0)

    def test_all_hosts_share_one_estimate_of_the_guests_traffic(self):
        # Each uses 0.5 of its bandwidth; a core corresponds to 50, 10 and 2.5 GB/s on them.
        hosts = [nova_host(node(0, cpu, 0.5)) for cpu in (0.1, 0.5, 2.0)]
        own, added = compared(*hosts)
        self.assertEqual([1.0, 0.6], [round(one.outcome.pressures[0], 6) for one in own[:2]])
        # The guest wants one core: 10 GB/s of the maximum of 100 on each of them.
        self.assertEqual([0.2, 0.6, 2.1], [round(one.cpu_ratio, 6) for one in added])
        self.assertEqual([0.6, 0.6, 0.6], [round(one.bandwidth_ratio, 6) for one in added])

    def test_hosts_that_have_seen_different_guests_share_one_estimate_of_its_demand(self):
        # The first host saw idle guests, the second busy ones; none are known on the third.
        histories = (model.DemandHistory(20, 0.0), model.DemandHistory(15, 15.0), None)
        for bandwidth in (0.1, None):
            own, added = compared(
                *(nova_host(node(0, 0.3, bandwidth), history=history) for history in histories),
                vcpus=8,
            )
            self.assertEqual(
                [0.375, 1.0, 0.7], [round(one.outcome.pressures[0], 6) for one in own]
            )  # 8 · 6/64, 8 · 56/64, 8 / 2 cores
            # The median of 0, 1 and the assumed 0.5 per vCPU: 4 cores on each of them.
            self.assertEqual([0.7] * 3, [round(one.cpu_ratio, 6) for one in added])
            self.assertEqual(1, len(set(added)))

    def test_a_guest_that_spans_is_compared_likewise(self):
        hosts = [nova_host(node(0, cpu, 0.5), node(1, cpu, 0.5)) for cpu in (0.1, 0.25, 1.0)]
        own, added = compared(*hosts, vcpus=12)
        self.assertEqual(['span'] * 3, [one.outcome.code for one in own])
        # 6 cores at 20 GB/s each, half of them on each node.
        self.assertEqual([1.1] * 3, [round(one.bandwidth_ratio, 6) for one in added])
        self.assertEqual([0.4, 0.55, 1.3], [round(one.cpu_ratio, 6) for one in added])

    def test_a_guest_rather_fits_on_one_node_than_spans_two(self):
        roomy, full = (
            [node(at, cpu, 0.3)._replace(promised_bytes=64 * GIB - free) for at in range(2)]
            for cpu, free in ((0.35, 8 * GIB), (0.3, GIB))
        )
        own, added = compared(nova_host(*roomy), nova_host(*full))
        self.assertEqual(['one_node', 'span'], [one.outcome.code for one in own])
        self.assertLess(added[0].loss_ratio, added[1].loss_ratio)
        # By CPU demand alone, it would wait less if spread over nodes.
        self.assertGreater(added[0].cpu_ratio, added[1].cpu_ratio)

    def test_others_count_by_the_whole_host_and_a_fifth_the_nodes_used(self):
        for nodes, *expected in (
            ([node(0, 0.4), node(1, 0.6)], 0.2 * 0.4 + 0.8 * 0.5, 0.0, 0.0),
            (
                [node(0, 0.4, 0.7, link=0.2), node(1, 0.6, 0.3, link=0.1)],
                0.2 * 0.6 + 0.8 * 0.5,
                0.2 * 0.3 + 0.8 * 0.5,
                0.1,  # there is no whole-host figure for a link
            ),
            (
                [node(0, 0.4, 0.7, link=0.9), node(1, 0.6, 0.3, link=0.8)],
                0.2 * 0.6 + 0.8 * 0.5,
                0.2 * 0.3 + 0.8 * 0.5,
                0.8,
            ),
        ):
            (added_loss,) = losses(nodes, vcpus=0)
            self.assertEqual([round(ratio, 9) for ratio in expected], list(added_loss[:3]))
            self.assertAlmostEqual(max(expected), added_loss.pressure)

    def test_the_guest_itself_counts_in_full_on_its_node(self):
        nodes = [node(0, 0.4), node(1, 0.6)]
        (without,), (with_guest,) = losses(nodes, vcpus=0), losses(nodes, vcpus=4)
        self.assertAlmostEqual(without.cpu_ratio + 0.2, with_guest.cpu_ratio)  # two of ten cores

    def test_hosts_without_traffic_show_nothing_of_a_guests_lines(self):
        # As if no host had measured any, not as if guests used no memory.
        idle = [nova_host(*(node(at, 0.3, rate=0) for at in range(2))) for _ in range(3)]
        busy = nova_host(*(node(at, 0.3, rate=4) for at in range(2)))
        spread = unknown_host(free_ram_mb=1024)
        (_, (unmeasured, *_)), (_, (among_idle, *_)), (_, (measured, *_)) = (
            compared(spread, *known) for known in ([], idle, [*idle, busy, busy])
        )
        self.assertAlmostEqual(unmeasured.loss_ratio, among_idle.loss_ratio, delta=0.01)
        self.assertGreater(measured.loss_ratio, 2 * among_idle.loss_ratio)

    def test_a_host_of_impossible_traffic_shows_nothing_of_a_guests_lines(self):
        spread = unknown_host(free_ram_mb=1024)
        (_, (expected, *_)), (_, (plausible, *_)), (_, (added_loss, *_)) = (
            compared(
                spread,
                *[nova_host(*(node(at, 0.3, rate=rate, maximum=10000) for at in range(2)))] * 2,
            )
            for rate in (0, 63, 65)
        )
        self.assertGreater(plausible.loss_ratio, 2 * expected.loss_ratio)
        self.assertAlmostEqual(expected.loss_ratio, added_loss.loss_ratio, delta=0.01)

    def test_the_only_known_host_does_not_make_up_what_a_guest_wants(self):
        histories = (None, model.DemandHistory(1, 1e9))
        (_, expected), (_, added) = (
            compared(unknown_host(), nova_host(node(0, 0.3), node(1, 0.3), history=history))
            for history in histories
        )
        self.assertEqual(expected, added)

    def test_an_unknown_host_counts_by_novas_counts_as_neither_the_best_nor_the_worst(self):
        # A core corresponds to 2 GB/s on all of them.
        idle, busy, busiest = (
            nova_host(*(node(at, cpu, rate=2) for at in range(2))) for cpu in (0.05, 0.9, 1.0)
        )
        estimates, added = compared(idle, unknown_host(), busy, busiest)
        self.assertIsNone(estimates[1].outcome)
        # 16 vCPUs at 0.3 cores each, with a core for each vCPU: 2.4 of 8 on each half.
        self.assertAlmostEqual((2.4 + 1) / 8, added[1].cpu_ratio)
        # The other hosts have 10 GB/s for each core; it has 8 of these on each half.
        self.assertAlmostEqual(2 * 3.4 / (10 * 8), added[1].bandwidth_ratio)
        expected = waiting_cores(3.4, 8) - waiting_cores(2.4, 8)
        expected += queueing_loss(6.8 / 80, 2000 * MB)
        self.assertAlmostEqual(expected, added[1].loss_ratio)
        self.assertLess(added[0].loss_ratio, added[1].loss_ratio)
        self.assertLess(added[1].loss_ratio, added[2].loss_ratio)

    def test_an_unknown_host_is_not_preferred_by_a_pinned_guest_where_memory_is_busy(self):
        # It uses no shared core, so only what is assumed of memory matters. The unknown host has
        # 16 vCPUs of its 16 CPUs, of which none or all are pinned.
        known = [
            nova_host(*(node(at, ratio, rate=1, maximum=10) for at in range(2)))
            for ratio in (0.2, 0.4, 0.5, 0.7)
        ]
        cells = [types.SimpleNamespace(pinned_cpus=set(range(16)), cpuset=set())]
        for topology in (None, types.SimpleNamespace(cells=cells)):
            unknown = unknown_host(vcpus_total=16, numa_topology=topology)
            estimates, added = compared(
                unknown, *known, extra_specs={'hw:cpu_policy': 'dedicated'}
            )
            self.assertIsNone(estimates[0].outcome)
            # 4.8 cores at 1 GB/s each; its 10 cores have 1 GB/s each.
            self.assertAlmostEqual(0.48, added[0].bandwidth_ratio)
            self.assertEqual([1], best(added))

    def test_an_unknown_host_has_the_links_of_the_known_ones(self):
        known = [nova_host(*(node(at, 0.3, link=0.8) for at in range(2))) for _ in range(3)]
        _, alone = compared(unknown_host(), vcpus=16)
        _, (added_loss, *_) = compared(unknown_host(), *known, vcpus=16)
        # It has the same demand of 0.3 of its cores.
        self.assertEqual((0.0, 0.8), (alone[0].link_ratio, round(added_loss.link_ratio, 9)))
        # Half of its lines cross a link, where they queue.
        free = 1 - 0.8
        longer_ns = 80 / 2 * 0.15 * (0.8 / free + 0.8 / free**2)
        self.assertAlmostEqual(
            alone[0].loss_ratio + 1e7 * longer_ns / 4 / 1e9, added_loss.loss_ratio
        )

    def test_no_host_of_odd_figures_decides_what_the_guest_is_expected_to_want(self):
        sound = [(20, 5.0)] * 4
        for odd in ((1023, 1e9), (1023, 0.0), (1, 7.0)):
            with self.subTest(odd):
                self.assertAlmostEqual(
                    comparison.expected_demand(sound),
                    comparison.expected_demand([*sound, odd]),
                    delta=0.03,
                )
        self.assertEqual(0.5, comparison.expected_demand([(0, 0.0)]))


TENTHS = st.integers(1, 12).map(lambda tenths: tenths / 10)
#: Figures of a host that does not report less or more on one node than on the other: utilisation
#: of CPUs, 1000 MB/s per core, maximum [1000 MB/s], link. Demand is published in steps of 0.01
#: cores, traffic of 1 MB/s and links of 0.001: these figures are not rounded, because 0.5 cores
#: would be by up to 1 percent, and so would be what is assumed of other hosts.
FIGURES = st.tuples(
    st.integers(5, 120).map(lambda percent: percent / 100),
    st.integers(5, 90).map(lambda tenths: tenths / 10),
    st.sampled_from((30, 50, 100)),
    st.integers(0, 1000).map(lambda thousandths: thousandths / 1000),
)


def even(cpu, rate, maximum, link):
    return [node(at, cpu, rate=rate, maximum=maximum, link=link) for at in range(2)]


def hidden(part, nodes):
    return [one._replace(**HIDDEN[part]) for one in nodes]


def agreed(part, others):
    """Return what the others' figures let one assume of a host that hides this part.

    :param others: their figures
    """
    figures = {
        'link': [link / cpu for cpu, _, _, link in others],
        'maximum': [-maximum for _, _, maximum, _ in others],
        'bandwidth': [rate for _, rate, _, _ in others],
    }
    return missing.agreed_upper(figures[part])


class HidingTest(unittest.TestCase):
    """What one host reports or hides."""

    @settings(deadline=None)
    @given(st.lists(FIGURES, min_size=4, max_size=8), st.sampled_from(sorted(HIDDEN)))
    def test_hiding_a_part_never_raises_the_rank_of_a_host_that_others_agree_to_be_worse(
        self, figures, part
    ):
        (cpu, rate, maximum, link), *others = figures
        # A host whose figure is above what is assumed gains by hiding it: then, nothing that the
        # others report shows that it is above.
        own = {'link': [link / cpu], 'maximum': [-maximum], 'bandwidth': [rate]}[part]
        if part == 'bandwidth' and -maximum > agreed('maximum', others) + ROUNDED:
            return
        if own[0] > agreed(part, others) + ROUNDED:
            return
        hosts = [even(*each) for each in figures]
        # Without vCPUs: a guest's own traffic is expected by the median of all hosts' figures.
        before = losses(*hosts, vcpus=0)
        after = losses(hidden(part, hosts[0]), *hosts[1:], vcpus=0)
        for name in ('bandwidth_ratio', 'link_ratio'):
            least = getattr(before[0], name) * (1 - ROUNDED) - ROUNDED
            self.assertGreaterEqual(getattr(after[0], name), least)
            for one, other in zip(before[1:], after[1:]):
                self.assertEqual(getattr(one, name), getattr(other, name))

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
        others = [even(cpu, 4, 50, 0.5 * cpu) for cpu in known]
        others += [hidden(part, even(cpu, 4, 50, 0.5 * cpu)) for cpu, part in blind]
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
