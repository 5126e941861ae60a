# SPDX-License-Identifier: Apache-2.0
"""Hosts of one request compared: by one estimate of the guest, none better for knowing less."""

import math
import os
import random
import types
import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.scheduler import comparison, host_estimate, request
from tests.fixtures.metrics import GIB, listed, state

NOW_S = 1700000000
STEP = 0.05
#: `NUMA_PMC_CASES=20000` for the long run.
CASES = int(os.environ.get('NUMA_PMC_CASES', '1500'))
MB = 10**6
#: What rounding to 0.01 cores and MB/s makes of equal amounts of traffic per core.
ROUNDED = 1e-3
HIDDEN = {
    'cpu': {'demand_cores': None},
    'link': {'link_ratio': None},
    'bandwidth': {'bandwidth_max_bytes_per_sec': None},
}


def node(at, cpu=0.0, bandwidth=None, maximum=100, link=None, cores=10.0, rate=None, **fields):
    """Build a node by its utilisations.

    :param bandwidth: of ``maximum`` [1000 MB/s]
    :param rate: 1000 MB/s per core that is wanted, instead of ``bandwidth``
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
    """Build what looks like Nova's HostState."""
    return types.SimpleNamespace(
        metrics=listed(
            state(nodes=nodes, taken_s=NOW_S, history=history or model.DemandHistory())
        ),
        vcpus_total=0,
        vcpus_used=16,
        instances={},
        total_usable_ram_mb=131072,
        free_ram_mb=131072 - 16384,
    )


def guest_request(vcpus=2):
    return request.read(
        types.SimpleNamespace(
            instance_uuid=None,
            numa_topology=None,
            flavor=types.SimpleNamespace(vcpus=vcpus, memory_mb=2048, extra_specs={}),
        )
    )


def pressures(*hosts, vcpus=2):
    asked = guest_request(vcpus)
    found = comparison.pressures(
        [
            host_estimate.estimate(
                nova_host(*nodes), asked, host_estimate.EstimateOptions(), NOW_S
            )
            for nodes in hosts
        ],
        asked.guest,
    )
    return [None if one is None else round(one, 6) for one in found]


def steps(pressure):
    """Return a pressure in whole steps."""
    return int(pressure / STEP + 1e-9)


def best(found):
    """List the positions of the best."""
    return [at for at, one in enumerate(found) if one == min(found)]


class ComparingTest(unittest.TestCase):
    def test_a_host_without_uncore_counters_is_not_the_best_for_that(self):
        # All have their bandwidth at 0.95 on both nodes; one cannot measure it.
        known = [node(at, 0.3, 0.95) for at in range(2)]
        blind = [node(at, 0.3, None, None) for at in range(2)]
        busier = [node(at, 0.4, 0.95) for at in range(2)]
        found = pressures(known, blind, known, busier)
        self.assertEqual(steps(found[0]), steps(found[1]))
        self.assertEqual(steps(found[0]), steps(found[3]))

    def test_a_host_without_a_maximum_is_not_better_for_that(self):
        known = node(0, 0.3, 0.9)
        found = pressures([known], [known._replace(bandwidth_max_bytes_per_sec=None)])
        self.assertGreaterEqual(found[1], found[0])

    def test_a_host_whose_cpus_are_not_measured_is_not_the_best_for_that(self):
        found = pressures(
            [node(0, 0.7), node(1, 0.7)],
            [node(0, 0.6), node(1, 0.8)],
            [node(0, None), node(1, None)],
        )
        self.assertNotIn(2, best(found))

    def test_a_host_without_links_is_not_better_for_that(self):
        found = pressures(
            [node(0, 0.3, link=0.8), node(1, 0.3, link=0.8)], [node(0, 0.3), node(1, 0.3)]
        )
        self.assertEqual(found[0], found[1])

    def test_what_is_known_of_no_host_counts_for_none(self):
        self.assertEqual([0.4, 0.5], pressures([node(0, 0.3)], [node(0, 0.4)]))

    def test_a_host_without_a_usable_core_is_the_last(self):
        none = [node(at, 3.0, cores=10.0)._replace(cores=0.0, threads=0) for at in range(2)]
        found = pressures(none, [node(0, 0.9), node(1, 0.9)], [node(0, 4.0), node(1, 4.0)])
        self.assertEqual(math.inf, found[0])
        self.assertNotIn(math.inf, found[1:])

    def test_one_estimate_of_the_guest_for_all_hosts(self):
        # Bandwidth 0.5 on each; a core is worth 50, 10 and 2.5 GB/s on them.
        hosts = [[node(0, cpu, 0.5)] for cpu in (0.1, 0.5, 2.0)]
        own = [
            host_estimate.estimate(
                nova_host(*nodes), guest_request(), host_estimate.EstimateOptions(), NOW_S
            )
            for nodes in hosts
        ]
        self.assertEqual([1.0, 0.6], [round(one.outcome.used[0], 6) for one in own[:2]])
        # The guest wants one core: 10 GB/s of the maximum of 100 on each of them.
        self.assertEqual([0.6, 0.6, 2.1], pressures(*hosts))

    def test_one_estimate_of_its_demand_where_hosts_have_seen_different_guests(self):
        # Idle guests on the first host, busy ones on the second, none known on the third.
        histories = (model.DemandHistory(20, 0.0), model.DemandHistory(15, 15.0), None)
        own = [
            host_estimate.estimate(
                nova_host(node(0, 0.3, 0.1), history=history),
                guest_request(vcpus=8),
                host_estimate.EstimateOptions(),
                NOW_S,
            )
            for history in histories
        ]
        self.assertEqual(
            [0.375, 1.0, 0.7], [round(one.outcome.used[0], 6) for one in own]
        )  # 8 · 6/64, 8 · 56/64, 8 / 2 cores
        found = comparison.pressures(own, guest_request(vcpus=8).guest)
        # The median of 0, 1 and the assumed 0.5 per vCPU: 4 cores on each of them.
        self.assertEqual([0.7] * 3, [round(one, 6) for one in found])
        bare = [
            host_estimate.estimate(
                nova_host(node(0, 0.3), history=history),
                guest_request(vcpus=8),
                host_estimate.EstimateOptions(),
                NOW_S,
            )
            for history in histories
        ]
        self.assertEqual(
            [0.7] * 3,
            [round(one, 6) for one in comparison.pressures(bare, guest_request(vcpus=8).guest)],
        )

    def test_a_guest_that_spans_is_compared_likewise(self):
        hosts = [[node(0, cpu, 0.5), node(1, cpu, 0.5)] for cpu in (0.05, 0.25, 1.0)]
        asked = guest_request(vcpus=12)
        own = [
            host_estimate.estimate(
                nova_host(*nodes), asked, host_estimate.EstimateOptions(), NOW_S
            )
            for nodes in hosts
        ]
        self.assertEqual(['span'] * 3, [one.outcome.code for one in own])
        # 6 cores of 20 GB/s each, half on each node.
        self.assertEqual([1.1, 1.1], pressures(*hosts, vcpus=12)[:2])

    def test_a_host_counts_as_a_whole_and_a_fifth_the_nodes_used(self):
        for nodes, used, whole in (
            ([node(0, 0.4), node(1, 0.6)], 0.4, 0.5),
            ([node(0, 0.4, 0.7, link=0.2), node(1, 0.6, 0.3, link=0.1)], 0.6, 0.5),
            ([node(0, 0.4, 0.7, link=0.9), node(1, 0.6, 0.3, link=0.8)], 0.8, 0.8),
        ):
            own = host_estimate.estimate(
                nova_host(*nodes), guest_request(vcpus=0), host_estimate.EstimateOptions(), NOW_S
            )
            found = comparison.pressures([own], guest_request(vcpus=0).guest)
            self.assertAlmostEqual(0.2 * used + 0.8 * whole, found[0])

    def test_the_unknown_stay_unknown(self):
        asked = guest_request()
        estimates = [
            host_estimate.HostEstimate(None, 'old'),
            host_estimate.estimate(
                nova_host(node(0, 0.3, 0.5)), asked, host_estimate.EstimateOptions(), NOW_S
            ),
            host_estimate.estimate(
                nova_host(node(0, 0.3)), asked, host_estimate.EstimateOptions(), NOW_S
            ),
        ]
        self.assertIsNone(comparison.pressures(estimates, asked.guest)[0])

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
        """Draw a host that knows everything; each core is worth 4 GB/s on each host."""
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

    def test_hiding_a_part_never_lowers_a_hosts_pressure_below_the_quartile(self):
        rng, below, above = random.Random(16), 0, 0
        for _ in range(CASES):
            hosts = [self.drawn(rng) for _ in range(rng.randint(2, 6))]
            part, at = rng.choice(sorted(HIDDEN)), rng.randrange(len(hosts))
            blind = [
                *hosts[:at],
                [one._replace(**HIDDEN[part]) for one in hosts[at]],
                *hosts[at + 1 :],
            ]
            before, after = self.compared(hosts), self.compared(blind)
            least = missing.upper_quartile(
                [
                    self.part(part, nodes, *estimate.outcome.at)
                    for nodes, (estimate, _) in zip(hosts, before)
                    if nodes is not hosts[at]
                ]
            )
            theirs = max(self.part(part, hosts[at], used) for used in range(2))
            if theirs < least - ROUNDED:
                below += 1
                self.assertGreaterEqual(steps(after[at][1]), steps(before[at][1]))
            else:
                above += 1
                self.assertGreaterEqual(after[at][1], least - ROUNDED)
        self.assertGreater(min(below, above), CASES / 10)

    def compared(self, hosts):
        """Return (answer, pressure) of each."""
        asked = guest_request()
        estimates = [
            host_estimate.estimate(
                nova_host(*nodes), asked, host_estimate.EstimateOptions(), NOW_S
            )
            for nodes in hosts
        ]
        return list(zip(estimates, comparison.pressures(estimates, asked.guest)))

    def part(self, part, nodes, used):
        """Return a part of the pressure that a guest of one core on this node would leave."""
        if part == 'link':
            return round(1000 * nodes[used].link_ratio) / 1000
        if part == 'cpu':
            amounts = [round(100 * one.demand_cores) / 100 for one in nodes]
            most, added = [one.cores for one in nodes], 1
        else:
            amounts = [round(one.bandwidth_bytes_per_sec / MB) * MB for one in nodes]
            most, added = [one.bandwidth_max_bytes_per_sec for one in nodes], 4000 * MB
        whole = (sum(amounts) + added) / sum(most)
        return 0.2 * (amounts[used] + added) / most[used] + 0.8 * whole
