# SPDX-License-Identifier: Apache-2.0
"""A hook that is missing, outdated, or stopped by its confinement is found."""

import os
import unittest

from nova_numa_pmc.checks import hook
from nova_numa_pmc.core import finding
from nova_numa_pmc.host import files, hook_files, services
from tests.cases.root import RootCase
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write


class StatusTest(RootCase):
    def setUp(self):
        super().setUp()
        self.write('proc/sys/kernel/random/boot_id', 'x\n')
        self.script = os.path.join(self.root, files.HOOKS, files.OUR_HOOK)

    def assert_found(self, *expected):
        """Compare the status with (code, severity) of each finding."""
        status = hook.read_status(self.root)
        self.assertEqual(
            expected, tuple((result.code, result.severity) for result in status.findings)
        )
        self.assertEqual({self.script} if expected else set(), {f.file for f in status.findings})
        return status

    def test_a_missing_outdated_or_unexecutable_hook_script_is_found(self):
        self.assert_found(('hook-not-installed', finding.ERROR))
        hook_files.install(self.root, hook.expected_script(self.root))
        status = self.assert_found()
        self.assertEqual((None, None), (status.daemon, status.trial))
        with open(self.script, 'ab') as stream:
            stream.write(b'\n')
        self.assert_found(('hook-outdated', finding.WARNING))
        os.chmod(self.script, 0o644)
        self.assert_found(('hook-not-executable', finding.ERROR))


class TrialTest(unittest.TestCase):
    def test_a_failed_or_untried_hook_under_its_label_is_found(self):
        for ok, expected in (
            (True, []),
            (False, [('hook-confined', finding.ERROR, 'does not let')]),
            (None, [('hook-not-tried', finding.NOTE, 'could not')]),
        ):
            with self.subTest(ok=ok):
                findings = list(hook.check_trial(services.LabelTrial(ok, 'libvirtd', 'said')))
                self.assertEqual(len(expected), len(findings))
                for (code, severity, words), result in zip(expected, findings):
                    self.assertEqual((code, severity), (result.code, result.severity))
                    self.assertIn(words, result.message)

    def test_a_hook_that_fails_by_itself_is_not_blamed_on_confinement(self):
        for label, message in (
            (services.UNCONFINED, 'no answer within 60 s'),
            ('libvirtd', 'selftest: failed: /sys/devices/system/node: No such file or directory'),
        ):
            with self.subTest(label=label):
                trial = services.LabelTrial(False, label, message)
                (found,) = hook.check_trial(trial)
                self.assertEqual(('hook-fails', finding.ERROR), (found.code, found.severity))
                self.assertIn(message, found.message)

    def test_a_hook_that_may_not_read_a_file_is_blamed_on_confinement(self):
        message = 'selftest: failed: /sys/devices/system/node/online: Permission denied'
        (found,) = hook.check_trial(services.LabelTrial(False, 'libvirtd', message))
        self.assertEqual('hook-confined', found.code)


class DeploymentTest(RootCase):
    def codes(self):
        return [finding.code for finding in hook.check_libvirt(self.root)]

    def test_without_a_libvirt_daemon_there_is_a_finding(self):
        self.assertEqual(['libvirt-not-running'], self.codes())

    def test_a_libvirt_in_a_container_without_the_hook_is_found(self):
        add_process(self.root, 40, ('/usr/sbin/libvirtd',), inside='image')
        self.assertEqual(['hook-not-in-container'], self.codes())
        codes = [finding.code for finding in hook.check_hook(self.root)]
        self.assertEqual([], codes)  # the package is elsewhere there
        write(self.root, 'image/etc/libvirt/hooks/qemu.d/50-nova-numa-pmc', '#!/bin/sh\n')
        self.assertEqual([], self.codes())
