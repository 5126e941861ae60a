# SPDX-License-Identifier: Apache-2.0
"""A host is refused only for what the flavor or an option demands, and never for a guess."""

import types
import unittest

from hypothesis import given, strategies

from nova_numa_pmc import model
from nova_numa_pmc.scheduler import hosts, refusals as subject, request as requests
from tests.fixtures.nova_stand_ins import host_state, request_spec

NOW_S = 1700000000
#: Free memory of each of a host's nodes [MiB].
FREE_MIB = strategies.lists(strategies.integers(0, 9), min_size=2, max_size=3)


def host_after(free_mib, vcpus=0, memory_mb=0):
    """Build a host that had this memory free on each of its nodes, and then got more guests.

    :param vcpus, memory_mb: sums over these guests
    """
    return host_state(
        nodes=[
            model.NodeView(at, 10.0, 16, 1 << 36, (1 << 36) - (free << 20), 4, 8, 1.0)
            for at, free in enumerate(free_mib)
        ],
        vcpus=16 + vcpus,
        memory_mb=16384 + memory_mb,
    )


class RefusalTest(unittest.TestCase):
    def why_refused(self, host_state, request=None, **conf):
        conf = {'require_one_node': False, 'max_pressure': 1.0, **conf}
        guest_request = requests.read(request or request_spec())
        return subject.why_refused(
            hosts.read(host_state, guest_request, NOW_S),
            guest_request,
            subject.filter_options(guest_request, conf),
        )

    def test_max_pressure_is_for_the_nodes_that_the_guest_would_use(self):
        self.assertEqual('', self.why_refused(host_state(5.0, 0.85)))
        self.assertIn('above max_pressure 1', self.why_refused(host_state(5.0, 0.95)))
        self.assertEqual('', self.why_refused(host_state(5.0, 0.95), max_pressure=0.0))

    def test_a_flavor_has_its_own_max_pressure(self):
        self.assertIn(
            'above max_pressure 0.5',
            self.why_refused(host_state(0.45, 0.45), request_spec(numa_pmc__max_pressure='0.5')),
        )

    def test_max_pressure_does_not_apply_to_a_guest_that_leaves_its_host(self):
        for ignored, refused in (None, True), ([], True), (['home'], False):
            for request in (request_spec(), request_spec(numa_pmc__max_pressure='0.5')):
                request.ignore_hosts = ignored
                self.assertEqual(refused, bool(self.why_refused(host_state(0.95, 0.95), request)))

    def test_no_option_keeps_a_guest_on_a_host_that_it_has_to_leave(self):
        blank, small = host_state(0, 0), host_state(0, 0)
        blank.metrics = []
        for ignored, refused in ((None, True), (['home'], False)):
            for host, options in ((small, {'require_one_node': True}),):
                request = request_spec(vcpus=20)
                request.ignore_hosts = ignored
                why_refused = self.why_refused(host, request, **options, max_pressure=0)
                self.assertEqual(refused, bool(why_refused), options)

    def test_a_flavor_asks_for_one_node_wherever_its_guest_goes(self):
        request = request_spec(vcpus=20, numa_pmc__policy='one_node')
        request.ignore_hosts = ['home']
        self.assertIn('one node', self.why_refused(host_state(0, 0), request))

    def test_one_node_is_required_only_if_asked_for(self):
        large = request_spec(vcpus=20)
        self.assertEqual('', self.why_refused(host_state(0, 0), large, max_pressure=0))
        self.assertIn('one node', self.why_refused(host_state(0, 0), large, require_one_node=True))
        self.assertIn(
            'one node',
            self.why_refused(
                host_state(0, 0), request_spec(vcpus=20, numa_pmc__policy='one_node')
            ),
        )

    def test_a_guest_that_asks_for_all_nodes_is_not_required_to_be_on_one(self):
        request = request_spec(vcpus=20, numa_pmc__policy='spread')
        self.assertEqual(
            '', self.why_refused(host_state(0, 0), request, require_one_node=True, max_pressure=0)
        )

    def test_estimated_traffic_keeps_no_guest_off_a_node_with_room(self):
        nodes = [model.NodeView(at, 10.0, 16, 1 << 36, 0, 4, 8, 1.0, 8e8, 1e9) for at in range(2)]
        host, request = host_state(nodes=nodes), request_spec(8, numa_pmc__memory_intensity='high')
        self.assertEqual(
            '', self.why_refused(host, request, require_one_node=True, max_pressure=0)
        )

    def test_memory_that_was_freed_since_may_be_on_any_node(self):
        # 4 of 64 GiB are left on each node.
        nodes = [model.NodeView(at, 10.0, 16, 1 << 36, 60 << 30, 4, 8, 1.0) for at in range(2)]
        for request in (
            request_spec(memory_mb=16384, numa_pmc__policy='one_node'),
            request_spec(memory_mb=16384),
        ):
            for memory_mb, refused in ((16384, True), (6144, True), (4096, False), (0, False)):
                why_refused = self.why_refused(
                    host_state(nodes=nodes, memory_mb=memory_mb), request, require_one_node=True
                )
                self.assertEqual(refused, bool(why_refused), memory_mb)
        many_vcpus = request_spec(vcpus=20, numa_pmc__policy='one_node')
        self.assertIn(
            'one node', self.why_refused(host_state(nodes=nodes, memory_mb=0), many_vcpus)
        )

    def passes(self, host, vcpus, memory_mb):
        request = request_spec(vcpus, memory_mb, numa_pmc__policy='one_node')
        return not self.why_refused(host, request, max_pressure=0)

    def test_as_many_guests_of_one_size_pass_as_fit_on_the_nodes(self):
        for free_mib in ((8192, 8192), (65536, 23000), (15000,) * 4, (30000, 8000), (2000,)):
            for memory_mb, vcpus in ((1500, 1), (8192, 2), (6000, 4), (12000, 8)):
                count = sum(free // memory_mb for free in free_mib)
                passing = [
                    self.passes(host_after(free_mib, at * vcpus, at * memory_mb), vcpus, memory_mb)
                    for at in range(count + 2)
                ]
                self.assertEqual([True] * count + [False] * 2, passing, (free_mib, memory_mb))

    @given(
        FREE_MIB,
        strategies.lists(
            strategies.tuples(
                strategies.integers(0, 2), strategies.integers(1, 4), strategies.integers(1, 6)
            ),
            max_size=9,
        ),
        strategies.integers(5, 8),
        strategies.integers(1, 8),
    )
    def test_a_host_passes_if_a_node_has_room_wherever_its_guests_went(
        self, free_mib, arrivals, vcpus, memory_mb
    ):
        left_mib, arrived_vcpus, arrived_mib = list(free_mib), 0, 0
        for at, guest_vcpus, guest_mib in arrivals:
            at %= len(left_mib)
            if left_mib[at] >= guest_mib:
                left_mib[at] -= guest_mib
                arrived_vcpus += guest_vcpus
                arrived_mib += guest_mib
        has_room = max(left_mib) >= memory_mb
        # Together, they may look like guests of the requested size.
        if has_room and arrived_vcpus * memory_mb != arrived_mib * vcpus:
            host = host_after(free_mib, arrived_vcpus, arrived_mib)
            self.assertTrue(self.passes(host, vcpus, memory_mb))

    def test_a_host_is_refused_only_if_new_guests_leave_room_on_none_of_its_nodes(self):
        for free_mib, arrived, requested, passes in (
            # One guest on the other node.
            ((65536, 65536), (16, 65536), (2, 40960), True),
            # It may be on the only node that had room for the requested one.
            ((65536, 40000), (4, 30000), (2, 40960), True),
            # Without it, no node had room.
            ((40000, 40000), (4, 1000), (2, 40960), False),
            # With it, the nodes have less than that together.
            ((65536, 65536), (4, 98304), (2, 40960), False),
        ):
            with self.subTest(free_mib=free_mib, arrived=arrived):
                self.assertEqual(passes, self.passes(host_after(free_mib, *arrived), *requested))

    def test_the_memory_of_a_guest_that_is_resized_in_place_may_be_on_any_node(self):
        for free_mib, present_mib, memory_mb, passes in (
            ((4096, 4096), 40960, 45056, True),
            ((4096, 4096), 40960, 45057, False),
            ((4096, 0), 40960, 45057, False),
            ((4096, 4096), 0, 4097, False),  # it is stopped or has dedicated CPUs
        ):
            host = host_after(free_mib)
            flavor = types.SimpleNamespace(vcpus=4, memory_mb=present_mib, extra_specs={})
            if present_mib:
                host.instances['u'] = types.SimpleNamespace(flavor=flavor, vm_state='active')
            with self.subTest(free_mib=free_mib, present_mib=present_mib, memory_mb=memory_mb):
                self.assertEqual(passes, self.passes(host, 8, memory_mb))

    def test_an_unknown_host_passes(self):
        blank = host_state(0.5, 0.5)
        blank.metrics = []
        self.assertEqual('', self.why_refused(blank))

    def test_a_guessed_demand_is_not_a_reason_to_refuse_a_host(self):
        # 400 vCPUs are promised on 20 cores, but their demand was never measured.
        nodes = tuple(model.NodeView(at, 10.0, 16, 1 << 36, 0, 40, 200) for at in range(2))
        self.assertEqual('', self.why_refused(host_state(nodes=nodes)))
