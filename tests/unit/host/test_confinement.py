# SPDX-License-Identifier: Apache-2.0
"""The daemon that runs the hook is found, and a script is tried under its label."""

import os
import shutil
import tempfile
import unittest

from nova_numa_pmc.host import services
from tests.cases.root import RootCase
from tests.fixtures.services import add_process, write_stat
from tests.fixtures.sysfs import write


class FindDaemonTest(RootCase):
    def setUp(self):
        super().setUp()
        write(self.root, 'proc/stat', 'btime 1000\n')

    def process(self, pid, name, label=None):
        shutil.rmtree(self.root + '/proc/%d' % pid, ignore_errors=True)
        add_process(self.root, pid, ('/usr/sbin/' + name,))
        if label is not None:
            write(self.root, 'proc/%d/attr/current' % pid, label)

    def test_no_daemon_is_found_where_none_runs(self):
        self.assertIsNone(services.find_daemon(self.root))
        self.process(7, 'virtlogd')
        self.assertIsNone(services.find_daemon(self.root))

    def test_the_modular_daemon_comes_first(self):
        self.process(7, 'libvirtd')
        self.process(8, 'virtqemud')
        self.assertEqual(('virtqemud', 8), services.find_daemon(self.root)[:2])

    def test_the_label_of_the_daemon_is_read_from_either_lsm(self):
        for text, label in (
            ('libvirtd (enforce)\n', 'libvirtd'),
            ('/usr/sbin/libvirtd (complain)\n', '/usr/sbin/libvirtd'),
            ('unconfined\n', 'unconfined'),
            (None, 'unconfined'),
            (
                'system_u:system_r:virtd_t:s0-s0:c0.c1023\0',
                'system_u:system_r:virtd_t:s0-s0:c0.c1023',
            ),
        ):
            with self.subTest(text=text):
                self.process(7, 'libvirtd', text)
                self.assertEqual(label, services.find_daemon(self.root).label)

    def test_the_start_time_of_the_daemon_is_read(self):
        self.process(7, 'libvirtd')
        write_stat(self.root, 7, 50 * os.sysconf('SC_CLK_TCK'), 'lib) virtd')
        self.assertEqual(50 * 10**9, services.find_daemon(self.root).start_ns)

    def test_the_label_is_known_from_apparmor_without_a_daemon(self):
        self.assertEqual('unconfined', services.label_of_daemon(self.root))
        write(
            self.root,
            'sys/kernel/security/apparmor/profiles',
            'libvirtd//qemu_bridge_helper (enforce)\nlibvirtd (enforce)\n',
        )
        self.assertEqual('libvirtd', services.label_of_daemon(self.root))
        write(self.root, 'sys/fs/selinux/enforce', '1')
        self.assertIsNone(services.label_of_daemon(self.root))


class TrialTest(unittest.TestCase):
    def trial(self, text, label=services.UNCONFINED, mode=0o755, **options):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, 'script')
            with open(path, 'w') as stream:
                stream.write(text)
            os.chmod(path, mode)
            return services.try_script(path, label, **options)

    def test_a_trial_that_says_ok_passes(self):
        trial = self.trial('#!/bin/sh\necho noise >&2\necho "selftest: ok, $2" >&2\n')
        self.assertEqual((True, 'selftest: ok, selftest'), (trial.ok, trial.message))

    def test_a_trial_that_fails_or_says_nothing_fails(self):
        for text, mode in (
            ('#!/bin/sh\necho selftest: failed >&2\n', 0o755),
            ('#!/bin/sh\nexit 0\n', 0o755),
            ('#!/bin/sh\r\nexit 0\n', 0o755),
            ('#!/nonexistent\n', 0o755),
            ('#!/bin/sh\n', 0o644),
            ('#!/bin/sh\necho selftest: ok >&2; exit 1\n', 0o755),
        ):
            with self.subTest(text=text, mode=mode):
                self.assertIs(False, self.trial(text, mode=mode).ok)

    def test_a_trial_that_hangs_fails(self):
        trial = self.trial('#!/bin/sh\nexec sleep 99\n', timeout_s=0.1)
        self.assertIs(False, trial.ok)

    @unittest.skipIf(
        os.path.exists('/sys/kernel/security/apparmor/profiles')
        or os.path.exists('/sys/fs/selinux/enforce'),
        'a label can be entered here',
    )
    def test_a_label_that_cannot_be_entered_proves_nothing(self):
        self.assertIsNone(self.trial('#!/bin/sh\n', label='libvirtd').ok)
