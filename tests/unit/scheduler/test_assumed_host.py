# SPDX-License-Identifier: Apache-2.0
"""Hosts known only from Nova's counts are assumed to be loaded according to Nova's promises."""

import types
import unittest

from nova_numa_pmc.core.placement.loss import LINES_PER_CORE_SEC
from nova_numa_pmc.core.scheduling.outcome import added_loss, expected_guest, outcome
from nova_numa_pmc.model import PlacementOptions
from nova_numa_pmc.scheduler import assumed_host as subject
from tests.fixtures.nova_stand_ins import host_state_of


def host_state(vcpus_used=0, used_mb=0, vcpus=64, memory_mb=262144, pinned_cpus=(), cpuset=()):
    cells = [
        types.SimpleNamespace(pinned_cpus=set(cpus), cpuset=set(cpuset)) for cpus in pinned_cpus
    ]
    return host_state_of(
        None,
        vcpus_total=vcpus,
        vcpus_used=vcpus_used,
        total_usable_ram_mb=memory_mb,
        free_ram_mb=memory_mb - used_mb,
        numa_topology=types.SimpleNamespace(cells=cells) if cells else None,
    )


def loss(state, vcpus=4, memory_mb=8192):
    host, guest = subject.columns(state), expected_guest(vcpus, memory_mb)
    return added_loss(host, outcome(host, guest, PlacementOptions()), guest, LINES_PER_CORE_SEC)


class AssumedHostTest(unittest.TestCase):
    def test_a_host_without_guests_costs_nothing(self):
        self.assertLess(loss(host_state()).loss_ratio, 0.001)

    def test_a_host_costs_more_the_more_is_promised_there(self):
        ratios = [loss(host_state(vcpus)).loss_ratio for vcpus in (0, 40, 80, 160, 2000)]
        self.assertEqual(sorted(ratios), ratios)
        self.assertGreater(ratios[-1], 0.99)

    def test_memory_may_be_promised_as_often_as_nova_lets_it(self):
        state = host_state(used_mb=300_000)
        self.assertGreater(loss(state).loss_ratio, 0.05)
        state.ram_allocation_ratio = 2.0
        self.assertLess(loss(state).loss_ratio, 0.001)

    def test_three_tenths_of_a_core_are_wanted_for_each_vcpu(self):
        host = subject.columns(host_state(40))
        self.assertEqual([0.3 * 20] * 2, host.demand_cores)
        self.assertEqual([0.625 * 32] * 2, host.cores)

    def test_guests_with_dedicated_cpus_want_none_of_the_shared_ones(self):
        # Nova counts the shared CPUs in vcpus, but the vCPUs of all guests in vcpus_used.
        mixed = host_state(40 + 48, vcpus=32, pinned_cpus=(range(32, 56), range(96, 120)))
        self.assertEqual(loss(host_state(40, vcpus=32)), loss(mixed))

    def test_pinned_cpus_are_subtracted_if_nova_counts_them_as_shared(self):
        # Without cpu_dedicated_set, as by default, vcpus counts them.
        pinned_cpus = range(28), range(32, 60)
        host = subject.columns(host_state(16 + 56, pinned_cpus=pinned_cpus, cpuset=range(64)))
        self.assertEqual([0.3 * 8] * 2, host.demand_cores)
        self.assertEqual(([0.625 * 4] * 2, [4, 4]), (host.cores, host.cpu_counts))

    def test_a_host_whose_cpus_are_all_pinned_is_the_worst(self):
        for plain_vcpus in (0, 16):
            full = host_state(
                64 + plain_vcpus, pinned_cpus=(range(32), range(32, 64)), cpuset=range(64)
            )
            self.assertGreater(loss(full).loss_ratio, loss(host_state(120)).loss_ratio)

    def test_a_guest_that_fits_on_no_half_loses_to_distance(self):
        large = loss(host_state(used_mb=131072), memory_mb=100_000)
        self.assertGreater(large.loss_ratio, 0.05)
        self.assertLess(loss(host_state(used_mb=131072), memory_mb=60_000).loss_ratio, 0.001)

    def test_missing_or_odd_counts_are_not_an_error(self):
        for state in (
            host_state(vcpus=0, memory_mb=0),
            host_state(8, vcpus=0, memory_mb=0),
            host_state(-3, -1),
            host_state(8, 2**40, 1, 1),
        ):
            self.assertTrue(0.0 <= loss(state).loss_ratio <= 1.0)
