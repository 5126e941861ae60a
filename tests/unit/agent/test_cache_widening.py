# SPDX-License-Identifier: Apache-2.0
"""Guests that wait on their L3 cache next to idle CPUs get all CPUs of their node."""

import logging
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.agent import cache_widening
from nova_numa_pmc.agent.agent import Tick
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import measurements
from nova_numa_pmc.placing import decide
from nova_numa_pmc.state import promises_file
from tests.cases.agent import AgentCase
from tests.fixtures import fake_host, sysfs

LOG = logging.getLogger('nova_numa_pmc.agent')
CACHE = (4, 5)


class CacheWideningTest(AgentCase):
    def setUp(self):
        super().setUp()
        sysfs.build_sysfs(self.root, sysfs.equal_nodes(2), l3s=['0-1', '2-3', '4-5', '6-7'])
        self.subject = cache_widening.CacheWidening(host_options.read('/dev/null'), self.root, LOG)
        for number, cpus in ((1, CACHE), (2, CACHE), (3, ())):
            self.promise(number, 1, l3_cpus=cpus)

    def look(self, waits, demand=2.0, elapsed_s=5.0, vcpus=2, first=None, meanwhile=None):
        """Let guests 1 to 3 wait for these cores; return which are then held to their cache.

        :param first: fields of guest 1
        :param meanwhile: fields of the promise of guest 1 that change after it was read
        """
        guests = tuple(
            model.Guest(
                fake_host.uuid_of(at),
                fake_host.name_of(at),
                vcpus,
                1 << 29,
                **(first or {} if at == 1 else {}),
            )
            for at in (1, 2, 3)
        )
        tick = Tick(
            None,
            measurements.Sample(
                0.0,
                elapsed_s,
                'cpus',
                tuple(measurements.NodeSample(node, 4.0, demand) for node in (0, 1)),
                tuple(
                    measurements.GuestSample(
                        fake_host.uuid_of(at), fake_host.name_of(at), '', '', 1.0, wait
                    )
                    for at, wait in enumerate(waits, 1)
                ),
            ),
            decide.host_with_pool_cpus(self.root),
            host_promises=promises_file.read(host_options.read('/dev/null'), self.root),
            guests=guests,
        )
        if meanwhile:
            self.promise(1, 1, l3_cpus=CACHE, **meanwhile)
        self.subject.widen(tick)
        self.assertEqual(self.promises(), tick.host_promises.promises)
        return {at for at in (1, 2, 3) if self.promises()[fake_host.uuid_of(at)].l3_cpus}

    def test_the_guest_that_waits_most_is_widened_once_that_has_gone_on_for_a_while(self):
        self.assertEqual([{1, 2}, {1, 2}, {1}], [self.look((0.6, 1.0, 0.0)) for _ in range(3)])
        self.assertEqual([{1}, {1}], [self.look((0.0, 0.5, 0.0)) for _ in range(2)])

    def test_no_guest_is_widened_on_a_node_without_anything_to_spare(self):
        for demand in (None, 5.0, 9.0):
            with self.subTest(demand=demand):
                for _ in range(9):
                    self.assertEqual({1, 2}, self.look((0.5, 0.5, 0.0), demand))

    def test_noise_and_unknown_waiting_never_widen_a_guest(self):
        for waits in ((0.05, 0.05, 0.0), (None, None, None), (0.0, 0.0, 3.0)):
            for _ in range(99):
                self.assertEqual({1, 2}, self.look(waits))

    def test_a_guest_that_has_all_of_its_node_does_not_wait_on_a_cache(self):
        for _ in range(9):  # a vCPU was plugged, and the cache has too few CPUs for it
            self.assertEqual({1, 2}, self.look((9.0, 9.0, 0.0), vcpus=3))
        self.assertEqual({1}, self.look((2.0, 9.0, 0.0)))

    def test_a_guest_that_is_ignored_or_whose_vcpus_others_pin_is_not_widened(self):
        for first in (
            {'override': model.IGNORE},
            {'pinned_cpus': frozenset({4})},
            {'job': 'migration out'},
        ):
            with self.subTest(first):
                self.setUp()
                for _ in range(9):
                    held = self.look((9.0, 1.0, 0.0), first=first)
                self.assertEqual({1}, held)  # the other guest is widened instead

    def test_a_late_sample_does_not_speak_for_the_time_before(self):
        self.assertEqual({1, 2}, self.look((0.1, 0.1, 0.0), elapsed_s=3600.0))
        self.assertEqual({1, 2}, self.look((0.0, 0.0, 0.0), elapsed_s=None))

    def test_a_start_that_goes_on_is_left_alone(self):
        self.promise(1, 1, started=False, l3_cpus=CACHE)
        for _ in range(9):
            self.look((9.0, 0.0, 0.0))
        self.assertEqual(CACHE, self.promises()[fake_host.uuid_of(1)].l3_cpus)

    def test_a_guest_that_was_bound_since_the_tick_began_stays_bound(self):
        self.assertEqual({2}, self.look((9.0, 0.0, 0.0), meanwhile={'bound': True}))
        self.assertTrue(self.promises()[fake_host.uuid_of(1)].bound)

    def test_a_guest_that_was_started_again_since_the_tick_began_is_not_widened(self):
        with mock.patch.object(promises_file, 'update_running', return_value=None):
            self.assertEqual({1, 2}, self.look((9.0, 0.0, 0.0)))
