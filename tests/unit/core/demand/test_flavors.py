# SPDX-License-Identifier: Apache-2.0
"""A new guest's demand is expected from the guests of its flavor, or else from all."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core.demand import flavors as subject
from nova_numa_pmc.core.demand.histories import GuestHistory, Histories
from tests.fixtures import samples


def running(number, vcpus=4, flavor='m1'):
    uuid = samples.guest_sample(number).uuid
    return {uuid: model.Guest(uuid, 'g%d' % number, vcpus, 1 << 30, flavor=flavor)}


class FlavorTest(unittest.TestCase):
    def histories_of(self, *guests, promises=None):
        histories = Histories()
        for number, (cores, elapsed_s, fields) in enumerate(guests, 1):
            histories.add_sample(
                samples.sample(
                    elapsed_s=elapsed_s,
                    nodes=(samples.node_sample(0, demand_cores=6.0),),
                    guests=(
                        samples.guest_sample(
                            number, cores=cores, waiting_cores=0.0, cores_by_node=((0, cores),)
                        ),
                    ),
                ),
                running(number, **fields),
                promises or {},
            )
        return histories

    def test_demand_is_expected_by_guests_of_the_flavor_or_of_all(self):
        histories = self.histories_of(
            (2.0, 600.0, {}), (4.0, 600.0, {'flavor': 'm2'}), (3.0, 600.0, {'flavor': None})
        )
        self.assertEqual((1, 0.5), subject.of_flavor(histories, 'm1')[:2])
        for flavor in ('m3', None):
            self.assertEqual((3, 2.25), subject.of_flavor(histories, flavor)[:2])
        self.assertEqual(model.DemandHistory(3, 2.25), subject.of_all_guests(histories))

    def test_a_booting_guest_shows_nothing_of_its_flavor(self):
        histories = self.histories_of((4.0, 299.0, {}))
        self.assertEqual(
            model.DemandHistory(),
            subject.of_flavor(histories, 'm1')._replace(bytes_per_core_sec=None),
        )
        self.assertEqual(model.DemandHistory(), subject.of_all_guests(histories))

    def test_a_guest_on_cpus_of_its_own_shows_nothing_of_those_that_share(self):
        uuid = samples.guest_sample(1).uuid
        apart = {uuid: model.Promise(uuid, 'g1', (0,), (0,), 0, 1 << 30, started=True)}
        self.assertEqual(
            model.DemandHistory(),
            subject.of_all_guests(self.histories_of((4.0, 600.0, {}), promises=apart)),
        )

    def test_traffic_expected_of_guests_is_that_per_core_of_the_host(self):
        def rate(cores):  # on a node that serves 8 GB/s, two fifths of it for the guest
            return subject.of_flavor(
                self.histories_of((cores, 600.0, {})), None
            ).bytes_per_core_sec

        self.assertAlmostEqual(1.6e9, rate(2.0))
        self.assertIsNone(rate(0.4))

    def test_forgotten_guests_count_for_their_flavor(self):
        histories = self.histories_of((2.0, 600.0, {}))
        histories.flavors.update({'m1': (2.5, 1.0), None: (2.5, 1.0)})
        self.assertEqual((3.5, 1.5), subject.of_flavor(histories, 'm1')[:2])

    def test_one_host_reports_a_bounded_number_of_guests(self):
        histories = Histories()
        histories.flavors[None] = (50, 20.0)
        for number in range(1, 31):
            histories.guests['%d' % number] = history = GuestHistory(None, 4, 0.0, 600.0)
            history.demand.add(0.8, (1.0, 1.0))
        self.assertEqual(model.DemandHistory(50, 16.25), subject.of_all_guests(histories))
