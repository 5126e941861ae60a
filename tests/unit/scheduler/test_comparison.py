# SPDX-License-Identifier: Apache-2.0
"""The hosts of a request are compared by one estimate, and none gains by reporting less."""

import math
import os
import random
import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.core.scheduling.added_loss import AddedLoss
from nova_numa_pmc.model import MB
from nova_numa_pmc.scheduler import comparison, host_estimate, request
from tests.fixtures.expected_losses import queueing_loss, waiting_cores
from tests.fixtures.metrics import GIB, build_publication, metric_list
from tests.fixtures.nova_stand_ins import host_state_of, request_spec

NOW_S = 1700000000
#: `NUMA_PMC_CASES=20000` for the long run.
CASES = int(os.environ.get('NUMA_PMC_CASES', '1500'))
#: Tolerance for equal amounts of traffic per core, rounded to 0.01 cores and MB/s.
ROUNDED = 1e-3
HIDDEN = {
    'cpu': {'demand_cores': None},
    'link': {'link_ratio': None},
    'bandwidth': {'bandwidth_max_bytes_per_sec': None},
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

    def test_a_host_without_a_maximum_is_not_better_for_that(self):
        known = node(0, 0.3, 0.9)
        added = losses([known], [known._replace(bandwidth_max_bytes_per_sec=None)])
        self.assertGreaterEqual(added[1].bandwidth_ratio, added[0].bandwidth_ratio)
        self.assertGreaterEqual(added[1].loss_ratio, added[0].loss_ratio)

    def test_a_host_whose_cpus_are_not_measured_is_not_the_best_for_that(self):
        added = losses(
            [node(0, 0.7), node(1, 0.7)],
            [node(0, 0.6), node(1, 0.8)],
            [node(0, None), node(1, None)],
        )
        self.assertEqual([1], best(added))
        self.assertEqual(0.8, added[2].cpu_ratio)

    def test_a_host_without_links_is_not_better_for_that(self):
        linked = [node(at, 0.3, link=0.8) for at in range(2)]
        added = losses(linked, [node(0, 0.3), node(1, 0.3)])
        self.assertEqual(added[0], added[1])
        self.assertEqual(0.8, added[1].link_ratio)
        # For a guest on both nodes, lines cross the link.
        added = losses(linked, [node(0, 0.3), node(1, 0.3)], vcpus=12)
        self.assertEqual(added[0], added[1])
        calm = losses([node(at, 0.3, link=0.2) for at in range(2)], vcpus=12)
        self.assertGreater(added[1].loss_ratio, calm[0].loss_ratio)

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
            compared(spread, *known) for known in ([], idle, [*idle, busy])
        )
        self.assertAlmostEqual(unmeasured.loss_ratio, among_idle.loss_ratio, delta=0.01)
        self.assertGreater(measured.loss_ratio, 2 * among_idle.loss_ratio)

    def test_a_host_of_impossible_traffic_shows_nothing_of_a_guests_lines(self):
        spread = unknown_host(free_ram_mb=1024)
        (_, (expected, *_)), (_, (plausible, *_)), (_, (added_loss, *_)) = (
            compared(
                spread, nova_host(*(node(at, 0.3, rate=rate, maximum=10000) for at in range(2)))
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
        # A core corresponds to 2 GB/s on both.
        idle, busy = (
            nova_host(*(node(at, cpu, rate=2) for at in range(2))) for cpu in (0.05, 0.9)
        )
        estimates, added = compared(idle, unknown_host(), busy)
        self.assertIsNone(estimates[1].outcome)
        # 16 vCPUs at 0.3 cores each, with a core for each vCPU: 2.4 of 8 on each half.
        self.assertAlmostEqual((2.4 + 1) / 8, added[1].cpu_ratio)
        # Memory is used as much as on the busy host: by 9 cores and the guest's own.
        self.assertAlmostEqual(0.2, added[1].bandwidth_ratio)
        expected = waiting_cores(3.4, 8) - waiting_cores(2.4, 8) + queueing_loss(0.2, 2000 * MB)
        self.assertAlmostEqual(expected, added[1].loss_ratio)
        self.assertLess(added[0].loss_ratio, added[1].loss_ratio)
        self.assertLess(added[1].loss_ratio, added[2].loss_ratio)

    def test_an_unknown_host_counts_for_no_quartile(self):
        known, blind, unknown = (
            nova_host(node(0, 0.3, 0.9)),
            nova_host(node(0, 0.3)),
            unknown_host(),
        )
        _, expected = compared(known, blind)
        for at in range(3):
            hosts = [known, blind]
            hosts.insert(at, unknown)
            _, added = compared(*hosts)
            self.assertEqual(expected, added[:at] + added[at + 1 :])

    def test_one_busy_host_of_few_known_ones_does_not_decide_for_all_unknown_ones(self):
        calm = [nova_host(node(0, 0.3, 0.1), node(1, 0.3, 0.1)) for _ in range(2)]
        unknown_hosts = [unknown_host() for _ in range(97)]
        _, expected = compared(*unknown_hosts, *calm)
        for ratio in (0.97, 9.0):
            with self.subTest(ratio):
                busy = nova_host(node(0, 0.3, ratio), node(1, 0.3, ratio))
                _, added = compared(*unknown_hosts, *calm, busy)
                self.assertEqual(expected[:97], added[:97])

    def test_a_host_that_serves_more_than_it_can_decides_for_no_other(self):
        for part in ('bandwidth', 'link'):
            with self.subTest(part):
                # Each of these guests is on both nodes, and its lines cross the link.
                *calm, odd = (
                    nova_host(*(node(at, 0.3, **{part: ratio}) for at in range(2)))
                    for ratio in (0.1, 0.1, 2.1)
                )
                unknown_hosts = [unknown_host() for _ in range(5)]
                _, expected = compared(*unknown_hosts, *calm, vcpus=12)
                _, added = compared(*unknown_hosts, *calm, odd, vcpus=12)
                self.assertEqual(expected[:5], added[:5])
                self.assertGreater(getattr(added[-1], part + '_ratio'), 2.0)

    def test_an_unknown_host_is_not_preferred_by_a_pinned_guest_where_memory_is_busy(self):
        # It uses no shared core, so only what is assumed of memory matters.
        pinned = {'hw:cpu_policy': 'dedicated'}
        ratios = (0.3, 0.4, 0.5, 0.7)
        known = [
            nova_host(*(node(at, ratio, rate=1, maximum=10) for at in range(2)))
            for ratio in ratios
        ]
        for unknown in (unknown_host(), unknown_host(vcpus_used=0), unknown_host(vcpus_used=900)):
            estimates, added = compared(unknown, *known, extra_specs=pinned)
            self.assertIsNone(estimates[0].outcome)
            for one, ratio in zip(added, (0.5, *ratios)):  # the upper quartile of the four
                self.assertAlmostEqual(ratio, one.bandwidth_ratio)
                self.assertAlmostEqual(queueing_loss(ratio, 1000 * MB), one.loss_ratio)
            self.assertEqual([1], best(added))

    def test_an_unknown_host_has_the_links_of_the_known_ones(self):
        known = [nova_host(*(node(at, 0.3, link=0.8) for at in range(2))) for _ in range(2)]
        _, alone = compared(unknown_host(), vcpus=16)
        _, (added_loss, *_) = compared(unknown_host(), *known, vcpus=16)
        self.assertEqual((0.0, 0.8), (alone[0].link_ratio, added_loss.link_ratio))
        # Half of its lines cross a link, where they queue.
        free = 1 - 0.8
        longer_ns = 80 / 2 * 0.15 * (0.8 / free + 0.8 / free**2)
        self.assertAlmostEqual(
            alone[0].loss_ratio + 1e7 * longer_ns / 4 / 1e9, added_loss.loss_ratio
        )

    def test_what_is_assumed_of_a_host_never_makes_it_better(self):
        # No node of this host has enough memory for the guest, so its lines go to all nodes.
        full = [
            node(at, 0.3, rate=4)._replace(promised_bytes=64 * GIB - (GIB >> 1)) for at in range(2)
        ]
        linked = nova_host(*(node(at, 0.3, rate=4, link=0.3) for at in range(2)))
        for blind in (nova_host(*full), unknown_host(free_ram_mb=1024)):
            estimates, (alone,) = compared(blind)
            outcome = estimates[0].outcome
            self.assertEqual('cpus_only', outcome.code if outcome else 'cpus_only')
            _, (added_loss, _) = compared(blind, linked)
            self.assertGreaterEqual(added_loss.link_ratio, 0.3)
            self.assertGreaterEqual(added_loss.loss_ratio, alone.loss_ratio)

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


class HidingTest(unittest.TestCase):
    def drawn(self, rng):
        """Draw a host on which everything is known; a core corresponds to 4 GB/s on each host."""
        return [
            node(
                at,
                rng.uniform(0.05, 1.2),
                rate=4,
                maximum=rng.choice((30, 50, 100)),
                link=rng.uniform(0, 1),
            )
            for at in range(2)
        ]

    def test_hiding_a_part_never_makes_a_host_better_than_the_quartile(self):
        rng, below, above = random.Random(16), 0, 0
        for _ in range(CASES):
            hosts = [self.drawn(rng) for _ in range(rng.randint(2, 6))]
            part, at = rng.choice(sorted(HIDDEN)), rng.randrange(len(hosts))
            blind = [
                *hosts[:at],
                [one._replace(**HIDDEN[part]) for one in hosts[at]],
                *hosts[at + 1 :],
            ]
            (own, before), (_, after) = (
                compared(*(nova_host(*nodes) for nodes in visible)) for visible in (hosts, blind)
            )
            least = missing.upper_quartile(
                [
                    self.part(part, nodes, *estimate.outcome.positions)
                    for nodes, estimate in zip(hosts, own)
                    if nodes is not hosts[at]
                ]
            )
            theirs = max(self.part(part, hosts[at], used) for used in range(2))
            self.assertGreaterEqual(getattr(after[at], part + '_ratio'), least - ROUNDED)
            if theirs < least - ROUNDED:
                below += 1
                self.assertGreaterEqual(after[at].loss_ratio, before[at].loss_ratio - ROUNDED)
            else:
                above += 1
                self.assertGreaterEqual(
                    after[at].loss_ratio, self.least_loss(part, least) - ROUNDED
                )
        self.assertGreater(min(below, above), CASES / 10)

    def part(self, part, nodes, used):
        """Return the part of the pressure that a guest of one core would leave on this node."""
        if part == 'link':
            return round(1000 * nodes[used].link_ratio) / 1000
        if part == 'cpu':
            amounts = [round(100 * one.demand_cores) / 100 for one in nodes]
            most, added = [one.cores for one in nodes], 1
        else:
            amounts = [round(one.bandwidth_bytes_per_sec / MB) * MB for one in nodes]
            most, added = [one.bandwidth_max_bytes_per_sec for one in nodes], 4000 * MB
        whole = sum(amounts) / sum(most)
        return 0.2 * amounts[used] / most[used] + 0.8 * whole + added / most[used]

    def least_loss(self, part, ratio):
        """Return the minimum loss if a part is this high with a guest of one core."""
        if part == 'cpu':
            return waiting_cores(10 * ratio, 10) - waiting_cores(10 * ratio - 1, 10)
        if part == 'link':  # a guest on one node sends no lines over it
            return 0.0
        return min(1.0, queueing_loss(min(0.95, ratio), 4000 * MB))
