# SPDX-License-Identifier: Apache-2.0
"""A base class for tests of the hook, on a host with two nodes."""

import tempfile

from nova_numa_pmc import hook
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.state import promises_file
from tests.cases.root import RootCase
from tests.fixtures import fake_host


class HookCase(RootCase):
    """A host with two nodes of four CPUs each, whose guests the hook places."""

    def setUp(self):
        super().setUp()
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)

    def call(self, operation, number=1, xml=None, name=None, **options):
        """Run one operation; return its exit status.

        :param number: the guest's number
        :param xml, name: None: those of the guest with this number
        """
        with tempfile.TemporaryFile() as stream:
            stream.write(fake_host.domain_xml(number) if xml is None else xml)
            stream.seek(0)
            name = name or fake_host.name_of(number)
            return hook.run(name, operation, stream.fileno(), self.root, **options)

    def promises(self):
        """Return {uuid: promise} of the host."""
        return promises_file.read(host_options.read_under_root(self.root), self.root).promises
