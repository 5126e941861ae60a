# SPDX-License-Identifier: Apache-2.0
"""How libvirt is deployed is found, and a hook that its container lacks."""

import tempfile

from nova_numa_pmc.checks import deployment
from tests.cases.root import RootCase
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write


class DeploymentTest(RootCase):
    def codes(self):
        return [finding.code for finding in deployment.check_libvirt(self.root)]

    def test_without_a_libvirt_daemon_there_is_a_finding(self):
        self.assertEqual(['libvirt-not-running'], self.codes())

    def test_a_modular_daemon_beside_a_monolithic_one_is_found(self):
        add_process(self.root, 40, ('/usr/sbin/libvirtd',))
        self.assertEqual([], self.codes())
        add_process(self.root, 41, ('/usr/sbin/virtqemud', '--timeout', '120'))
        self.assertEqual(['libvirt-modular'], self.codes())

    def test_a_libvirt_in_a_container_without_the_hook_is_found(self):
        for cgroup, deployed_by in (
            ('0::/kubepods.slice/kubepods-burstable.slice/crio-%s.scope\n', 'openstack-helm'),
            ('12:cpuset:/docker/%s\n', 'kolla (docker)'),
            ('0::/machine.slice/libpod-%s.scope/container\n', 'kolla (podman)'),
            ('0::/system.slice/nerdctl-%s.scope\n', 'unknown deployment tool'),
        ):
            with self.subTest(deployed_by), tempfile.TemporaryDirectory() as root:
                cgroup %= '0123456789abcdef' * 4
                add_process(root, 40, ('/usr/sbin/libvirtd',), inside='image', cgroup=cgroup)
                (finding,) = deployment.check_libvirt(root)
                self.assertEqual('hook-not-in-container', finding.code)
                self.assertIn(deployed_by, finding.message)
                write(root, 'image/etc/libvirt/hooks/qemu.d/50-nova-numa-pmc', '#!/bin/sh\n')
                self.assertEqual([], list(deployment.check_libvirt(root)))
