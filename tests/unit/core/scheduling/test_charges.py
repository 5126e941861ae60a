# SPDX-License-Identifier: Apache-2.0
"""Guests are charged where they would have gone, and those that left are taken off."""

import unittest

from hypothesis import given, strategies

from nova_numa_pmc.core.placement.loss import LINES_PER_CORE_SEC
from nova_numa_pmc.core.scheduling import charges, outcome
from nova_numa_pmc.core.scheduling.host_columns import to_columns
from tests.fixtures.model_records import GIB, MIB, PLACEMENT_OPTIONS, node_view, view_of_nodes

SMALL = outcome.expected_guest(2, 1024)


def two(promised=(0, 0), vcpus=(4, 4), demand=(1.0, 1.0), **fields):
    """Build a host of two nodes of four cores."""
    return to_columns(
        view_of_nodes(
            *(
                node_view(
                    at,
                    4,
                    cpu_count=8,
                    capacity=16 * GIB,
                    promised=promised[at] * MIB,
                    vcpus=vcpus[at],
                    guests=2,
                    demand_cores=demand and demand[at],
                    **fields,
                )
                for at in range(2)
            )
        )
    )


class ChargeTest(unittest.TestCase):
    def test_each_new_guest_is_charged_where_it_would_have_gone(self):
        before = two(demand=(1.0, 2.0))
        after = charges.add_arrivals(before, 6, 3072, SMALL, PLACEMENT_OPTIONS)
        # Node 0, then node 1, which has fewer vCPUs at the same pressure, then node 0 again.
        self.assertEqual(6, sum(after.vcpus) - sum(before.vcpus))
        self.assertEqual(3072, sum(after.promised_mib))
        self.assertEqual([3.0, 3.0], after.demand_cores)
        self.assertEqual([1.0, 2.0], before.demand_cores)

    def test_without_new_guests_the_columns_are_unchanged(self):
        before = two()
        self.assertIs(before, charges.add_arrivals(before, 0, 0, SMALL, PLACEMENT_OPTIONS))
        self.assertIs(before, charges.add_arrivals(before, -4, -4096, SMALL, PLACEMENT_OPTIONS))

    def test_memory_without_vcpus_is_charged_alone(self):
        after = charges.add_arrivals(two(), 0, 2048, SMALL, PLACEMENT_OPTIONS)
        self.assertEqual((2048, [1.0, 1.0]), (sum(after.promised_mib), after.demand_cores))

    def test_a_guest_that_fits_on_no_node_is_charged_over_all(self):
        after = charges.add_arrivals(
            two(), 12, 24 * 1024, outcome.expected_guest(12, 24 * 1024), PLACEMENT_OPTIONS
        )
        self.assertEqual([12 * 1024] * 2, after.promised_mib)

    def test_many_new_guests_are_charged_in_few_parts(self):
        after = charges.add_arrivals(two(), 2000, 1000, SMALL, PLACEMENT_OPTIONS)
        self.assertAlmostEqual(2000, sum(after.vcpus) - 8)
        self.assertAlmostEqual(charges.GUESTS_MAX, sum(after.guests) - 4)

    def test_an_unmeasured_host_is_charged_by_promises(self):
        after = charges.add_arrivals(two(demand=None), 2, 1024, SMALL, PLACEMENT_OPTIONS)
        self.assertIsNone(after.demand_cores)
        self.assertEqual([4, 6], sorted(after.vcpus))

    def test_traffic_grows_with_the_guests(self):
        before = two(bandwidth_bytes_per_sec=1e9, bandwidth_max_bytes_per_sec=1e10)
        after = charges.add_arrivals(before, 2, 1024, SMALL, PLACEMENT_OPTIONS)
        # 1 core is wanted, with the other guests' 1e9 bytes per core-second.
        self.assertAlmostEqual(3e9, sum(after.bandwidth_bytes_per_sec))


class HerdTest(unittest.TestCase):
    @given(
        node_count=strategies.sampled_from((2, 4)),
        cores=strategies.sampled_from((2.5, 5.0, 10.0, 20.0, 40.0)),
        vcpus=strategies.sampled_from((1, 2, 4, 8, 16)),
        cores_per_vcpu=strategies.sampled_from((0.1, 0.2, 0.3, 0.5)),
        pressure=strategies.sampled_from((0.0, 0.1, 0.3)),
    )
    def test_a_host_looks_no_better_once_more_guests_have_arrived(
        self, node_count, cores, vcpus, cores_per_vcpu, pressure
    ):
        host = to_columns(
            view_of_nodes(
                *(
                    node_view(at, cores, cpu_count=int(1.6 * cores), demand_cores=pressure * cores)
                    for at in range(node_count)
                )
            )
        )
        guest = outcome.expected_guest(vcpus, 64, cores_per_vcpu=cores_per_vcpu)
        losses = []
        for arrived in range(charges.GUESTS_MAX + 1):
            charged = charges.add_arrivals(
                host, arrived * vcpus, arrived * 64, guest, PLACEMENT_OPTIONS, cores_per_vcpu
            )
            place = outcome.outcome(charged, guest, PLACEMENT_OPTIONS)
            losses.append(outcome.added_loss(charged, place, guest, LINES_PER_CORE_SEC).loss_ratio)
        for earlier, later in zip(losses, losses[1:]):
            self.assertGreater(later, earlier - 0.001)


class RelieveTest(unittest.TestCase):
    def test_a_guest_that_left_is_taken_off_in_proportion(self):
        after = charges.subtract_guest(
            two(promised=(3072, 1024), vcpus=(6, 2), demand=(3.0, 1.0)), SMALL
        )
        self.assertEqual([4.5, 1.5], after.vcpus)
        self.assertEqual([2.25, 0.75], after.demand_cores)

    def test_taking_a_guest_off_leaves_nothing_below_zero(self):
        after = charges.subtract_guest(two(demand=(0.1, 0.1)), outcome.expected_guest(64, 1 << 20))
        self.assertEqual(([0, 0],) * 3, (after.vcpus, after.demand_cores, after.promised_mib))
