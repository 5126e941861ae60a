# SPDX-License-Identifier: Apache-2.0
"""Test the stack's fake compute host (tests/stack/inside/fakehost.py) in Nova's own services."""

import importlib.util
import json
import os
import pathlib
import sys

import fixtures
from nova import context, objects
from nova.tests.functional import integrated_helpers

from nova_numa_pmc.compute import metrics_decoder
from nova_numa_pmc.conf import host_options

PATH = pathlib.Path(__file__).resolve().parent.parent / 'stack/inside/fakehost.py'


def _loaded():
    """Return the module as part of Nova, where it is when nova-compute loads it."""
    name = 'nova.virt.fakehost'
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, PATH)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


fakehost = _loaded()


class FakeHostTest(integrated_helpers.ProviderUsageBaseTestCase):
    compute_driver = 'fakehost.Driver'

    def setUp(self):
        self.flags(
            api_paste_config=os.path.join(sys.prefix, 'etc/nova/api-paste.ini'), group='wsgi'
        )
        super().setUp()
        self.flags(
            state_path=self.useFixture(fixtures.TempDir()).path, compute_monitors=['numa_pmc']
        )
        self.flags(build_least=0.0, build_most=0.001, pressure=0.25, group='fakehost')
        # The driver sets it for its own process, which is a separate host.
        self.useFixture(
            fixtures.MonkeyPatch('nova_numa_pmc.conf.host_options.PATH', host_options.PATH)
        )
        # A thread that outlives the test.
        self.useFixture(
            fixtures.MockPatchObject(fakehost.Driver, '_publish_on', lambda driver: None)
        )
        self._start_compute('herd-01')

    def sent(self):
        """Let nova-compute report; return what reaches the scheduler."""
        self._run_periodics()
        compute_node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            context.get_admin_context(), 'herd-01'
        )
        return compute_node, metrics_decoder.decode(json.loads(compute_node.metrics))

    def test_a_fake_host_sends_its_base_load_and_its_guests(self):
        node, decoded = self.sent()
        self.assertEqual((64, 262144), (node.vcpus, node.memory_mb))
        self.assertEqual([5.0, 5.0], [node_view.demand_cores for node_view in decoded.view.nodes])
        flavor = self._create_flavor(vcpu=4, memory_mb=8192, disk=0)
        servers = [
            self._create_server(flavor_id=flavor, networks='none', expected_state='ACTIVE')
            for _ in range(2)
        ]
        node, decoded = self.sent()
        self.assertEqual((8, 8), (node.vcpus_used, decoded.vcpus_used))
        self.assertEqual(
            [(1, 4, 7.0, 8192 << 20)] * 2,
            [
                (
                    node_view.guests,
                    node_view.vcpus,
                    node_view.demand_cores,
                    node_view.promised_bytes,
                )
                for node_view in decoded.view.nodes
            ],
        )
        for server in servers:
            self._delete_server(server)
        node, decoded = self.sent()
        self.assertEqual((0, 0), (node.vcpus_used, decoded.vcpus_used))
        self.assertEqual([5.0, 5.0], [node_view.demand_cores for node_view in decoded.view.nodes])

    def test_the_time_of_a_build_depends_on_the_name_of_the_guest(self):
        self.flags(build_least=5.0, build_most=180.0, group='fakehost')
        drawn = [fakehost.build_s(f'herd-{at}') for at in range(100)]
        self.assertEqual(drawn, [fakehost.build_s(f'herd-{at}') for at in range(100)])
        self.assertTrue(5 <= min(drawn) < 20 and 165 < max(drawn) <= 180)
