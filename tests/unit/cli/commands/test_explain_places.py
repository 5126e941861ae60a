# SPDX-License-Identifier: Apache-2.0
"""A preview of a start is what the hook then does, and changes nothing."""

import os

from nova_numa_pmc.cli import context
from nova_numa_pmc.cli.commands import explain
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.host import guests
from nova_numa_pmc.placing import decide
from tests.cases.root import RootCase
from tests.fixtures import fake_host


class DryRunCase(RootCase):
    def setUp(self):
        super().setUp()
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)
        self.options = host_options.read(self.host.path('absent'))

    def start(self, number, **domain):
        """Decide and record the decision, as the hook does."""
        return decide.decide_promise(
            guests.parse(fake_host.domain_xml(number, **domain)), self.options, self.root, 1
        )

    def record(self):
        path = self.host.path('run/nova-numa-pmc/promises')
        if not os.path.exists(path):
            return None
        with open(path, 'rb') as stream:
            return stream.read()


class PreviewTest(DryRunCase):
    def test_a_preview_is_what_the_start_then_does(self):
        for number in range(6):
            guest = guests.parse(fake_host.domain_xml(number))
            before = self.record()
            preview, recorded = explain.decide_unrecorded(guest, self.options, self.root)
            self.assertEqual(before, self.record())
            self.assertIsNone(recorded)
            done = self.start(number)
            self.assertEqual(
                (done.promise.cpu_nodes, done.cpus, done.why),
                (preview.promise.cpu_nodes, preview.cpus, preview.why),
            )

    def test_a_preview_takes_a_running_guest_off_first(self):
        self.host.launch(1)
        first = self.start(1)
        preview, recorded = explain.decide_unrecorded(
            context.find_guest(fake_host.name_of(1), *guests.read_running(self.root)),
            self.options,
            self.root,
        )
        self.assertEqual(first.promise.cpu_nodes, recorded.cpu_nodes)
        self.assertEqual(0, sum(node.guests for node in preview.view.nodes))

    def test_a_record_that_cannot_be_read_is_named(self):
        self.start(1)
        self.host.write('run/nova-numa-pmc/promises', 'x')
        preview, _ = explain.decide_unrecorded(
            guests.parse(fake_host.domain_xml(2)), self.options, self.root
        )
        self.assertIn('promises', preview.problems[0])
        self.assertEqual(b'x', self.record())
