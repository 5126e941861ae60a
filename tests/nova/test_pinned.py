# SPDX-License-Identifier: Apache-2.0
"""Test guests that Nova pins, among guests that it does not pin, under both filters.

Nova's NUMATopologyFilter decides where pinned guests fit; the package's filter passes them, and
its weigher does not affect them.
"""

from nova import objects
from nova.virt import hardware

from nova_numa_pmc.scheduler import request
from tests.bench import nova_hosts
from tests.nova import base

TWO_NODES = {'hw:numa_nodes': '2'}
CALM, BUSY, SATURATED = (0.2, 0.2), (0.9, 0.9), (1.5, 1.5)


class PinnedTest(base.NovaTest):
    def setUp(self):
        # On each node, two CPUs are for pinned guests and two are shared.
        self.flags(cpu_dedicated_set='0-1,4-5', cpu_shared_set='2-3,6-7', group='compute')
        super().setUp()
        self.start_hosts('one', 'two')
        self.plain = self.flavor()
        self.pinned = self.flavor(vcpus=2, hw__cpu_policy='dedicated')

    def test_pinned_guests_fill_novas_dedicated_cpus_and_no_more(self):
        self.send(one=CALM, two=SATURATED)
        servers = [self.boot(self.pinned) for _ in range(4)]
        self.assertEqual({'one': 2, 'two': 2}, self.spread(servers))
        self.boot(self.pinned, expected_state='ERROR')

    def test_plain_guests_follow_the_pressure_among_pinned_ones(self):
        for host in ('one', 'two'):
            self.boot(self.pinned, host=host)
        for calm, pressures in (
            ('two', {'one': BUSY, 'two': CALM}),
            ('one', {'one': CALM, 'two': BUSY}),
        ):
            self.send(**pressures)
            self.assertEqual(calm, self.host_of(self.boot(self.plain)))

    def test_a_guest_of_two_nodes_is_left_to_nova(self):
        self.flags(max_pressure=1.0, group='numa_pmc')
        self.send(one=SATURATED, two=SATURATED)
        self.boot(self.flavor(vcpus=2, hw__numa_nodes='2'))
        self.boot(self.plain, expected_state='ERROR')

    def test_a_pinned_guest_moves_wherever_nova_has_cpus_for_it(self):
        self.send(one=CALM, two=SATURATED)
        server = self.boot(self.pinned, host='one')
        self._live_migrate(server)
        self.assertEqual('two', self.host_of(server))

    def test_many_pinned_and_many_plain_guests_are_spread_evenly(self):
        self.send(one=CALM, two=CALM)
        self.assertEqual({'one': 2, 'two': 2}, self.spread(self.boot_many(self.pinned, 4)))
        self._run_periodics()
        self.assertEqual({'one': 3, 'two': 3}, self.spread(self.boot_many(self.plain, 6)))

    def test_only_vcpus_without_a_cpu_of_their_own_are_charged_to_shared_cpus(self):
        for image_properties, extra_specs, vcpus in (
            ({}, {'hw:cpu_policy': 'dedicated'}, 0),
            ({}, {'resources:PCPU': '4'}, 0),
            ({'hw_cpu_policy': 'dedicated'}, {}, 0),
            ({}, {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0'}, 3),
            ({}, {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '1-3', **TWO_NODES}, 1),
            ({'hw_numa_nodes': 2}, {}, 4),
        ):
            with self.subTest(image_properties=image_properties, extra_specs=extra_specs):
                spec = nova_hosts.request_spec(4, 512, **extra_specs)
                image = objects.ImageMeta(properties=objects.ImageMetaProps(**image_properties))
                spec.numa_topology = hardware.numa_get_constraints(spec.flavor, image)
                guest_request = request.read(spec)
                self.assertEqual(vcpus, guest_request.guest.vcpus)
                self.assertTrue(guest_request.why_pinned)  # so the filter passes all hosts

    def test_guests_with_resources_of_class_pcpu_fill_novas_dedicated_cpus(self):
        self.send(one=CALM, two=SATURATED)
        flavor = self.flavor(vcpus=2, resources__PCPU='2')
        self.assertEqual({'one': 2, 'two': 2}, self.spread([self.boot(flavor) for _ in range(4)]))
