# SPDX-License-Identifier: Apache-2.0
"""The hook's script is installed, repaired and removed, and no other file is touched."""

import os
import stat
import subprocess
import sys
from unittest import mock

from nova_numa_pmc.host import files, hook_files
from tests.cases.root import RootCase
from tests.fixtures import sysfs

FORMER = b'#!/bin/sh\n# a hook of the operator\ncat\nexit 3\n\n'


def read(path):
    with open(path, 'rb') as stream:
        return stream.read()


class HookFilesTest(RootCase):
    def setUp(self):
        super().setUp()
        self.hooks = os.path.join(self.root, files.HOOKS)
        self.ours = os.path.join(self.hooks, files.OUR_HOOK)
        self.main = os.path.join(self.hooks, 'qemu')
        self.script = hook_files.render(3)

    def write_former(self, mode=0o750):
        os.makedirs(self.hooks, exist_ok=True)
        with open(self.main, 'wb') as stream:
            stream.write(FORMER)
        os.chmod(self.main, mode)

    def names(self):
        return sorted(
            os.path.relpath(os.path.join(where, name), self.hooks)
            for where, _, files in os.walk(self.hooks)
            for name in files
        )

    def test_install_writes_one_executable_file_into_the_directory(self):
        changes = hook_files.install(self.root, self.script)
        self.assertEqual(1, len(changes))
        self.assertEqual([files.OUR_HOOK], self.names())
        self.assertEqual(self.script, read(self.ours))
        self.assertEqual(0o755, stat.S_IMODE(os.stat(self.ours).st_mode))

    def test_install_twice_changes_nothing(self):
        hook_files.install(self.root, self.script)
        before = os.stat(self.ours)
        self.assertEqual([], hook_files.install(self.root, self.script))
        self.assertEqual(before.st_ino, os.stat(self.ours).st_ino)

    def test_install_repairs_mode_content_and_symlink(self):
        hook_files.install(self.root, self.script)
        os.chmod(self.ours, 0o644)
        self.assertTrue(hook_files.install(self.root, self.script))
        self.assertTrue(os.access(self.ours, os.X_OK))
        with open(self.ours, 'ab') as stream:
            stream.write(b'\r\n')
        hook_files.install(self.root, self.script)
        self.assertEqual(self.script, read(self.ours))
        os.rename(self.ours, self.ours + '.elsewhere')
        os.symlink(self.ours + '.elsewhere', self.ours)
        hook_files.install(self.root, self.script)
        self.assertFalse(os.path.islink(self.ours))

    def test_install_keeps_others_in_the_directory(self):
        os.makedirs(os.path.dirname(self.ours))
        other = os.path.join(os.path.dirname(self.ours), '10-other')
        with open(other, 'wb') as stream:
            stream.write(FORMER)
        hook_files.install(self.root, self.script)
        hook_files.remove(self.root)
        self.assertEqual(['qemu.d/10-other'], self.names())

    def test_a_hook_of_the_operator_stays_as_it_is(self):
        self.write_former()
        hook_files.install(self.root, self.script)
        self.assertEqual(FORMER, read(self.main))
        hook_files.remove(self.root)
        self.assertEqual(['qemu'], self.names())

    def test_render_quotes_the_directory_for_the_shell(self):
        site = '/srv/o\'dd $(touch x) "dir'
        text = hook_files.render(7, site)
        line = [part for part in text.splitlines() if part.startswith(b'site=')]
        answer = subprocess.run(
            ['/bin/sh', '-c', line[0].decode() + '; printf %s "$site"'],
            capture_output=True,
            check=True,
        ).stdout
        self.assertEqual(site, answer.decode())
        self.assertIn(b'\nlimit=7\n', text)
        self.assertNotIn(b'\r', text)
        self.assertLessEqual(len(text.splitlines()), 20)

    def exposed(self):
        """Return what others can change, below the root, of a package that is installed there."""
        found = hook_files.find_writable_by_others(self.root, os.geteuid())
        return found and os.path.relpath(found, self.root)

    def test_whatever_others_may_write_of_what_is_run_as_root_is_found(self):
        for path in ('nova_numa_pmc/host/files.py', 'oslo/config.py', 'json.py'):
            sysfs.write(self.root, path, '')
        os.chmod(self.root, 0o755)
        self.assertIsNone(self.exposed())
        for path in ('nova_numa_pmc', 'nova_numa_pmc/host/files.py', 'oslo', 'json.py', '.'):
            for mode in (0o777, 0o775):
                with self.subTest(path=path, mode=oct(mode)):
                    full = os.path.join(self.root, path)
                    before = os.stat(full).st_mode
                    os.chmod(full, mode)
                    self.assertEqual(path, self.exposed())
                    os.chmod(full, before)
        self.assertIsNone(self.exposed())
        if os.geteuid() == 0:  # who alone can give a file to another user
            os.chown(self.root + '/nova_numa_pmc/host/files.py', 4321, -1)
            self.assertEqual('nova_numa_pmc/host/files.py', self.exposed())

    def test_whatever_others_may_write_of_the_virtual_environment_is_found(self):
        os.chmod(self.root, 0o755)
        for path in ('venv/bin/nova-numa-agent', 'venv/pyvenv.cfg', 'elsewhere/rich/table.py'):
            sysfs.write(self.root, path, '')
        sysfs.write(self.root, 'venv/lib/site-packages/nova_numa_pmc/__init__.py', '')
        site = os.path.join(self.root, 'venv/lib/site-packages')
        os.symlink('../../../elsewhere/rich', site + '/rich')
        with mock.patch.object(sys, 'prefix', self.root + '/venv'):
            self.assertIsNone(hook_files.find_writable_by_others(site, os.geteuid()))
            for path in ('venv/bin/nova-numa-agent', 'venv/pyvenv.cfg', 'elsewhere/rich/table.py'):
                with self.subTest(path):
                    full = os.path.join(self.root, path)
                    os.chmod(full, 0o666)
                    found = hook_files.find_writable_by_others(site, os.geteuid())
                    self.assertEqual(full, found)
                    os.chmod(full, 0o644)

    def test_whatever_others_may_write_where_a_pth_file_leads_is_found(self):
        os.chmod(self.root, 0o755)
        for path in ('site/nova_numa_pmc/__init__.py', 'home/checkout/oslo/config.py'):
            sysfs.write(self.root, path, '')
        checkout = os.path.join(self.root, 'home/checkout')
        package_site = os.path.join(self.root, 'site')
        # Python adds what .pth files name to its path when it starts.
        with mock.patch.object(sys, 'path', ['', checkout]):
            self.assertIsNone(hook_files.find_writable_by_others(package_site, os.geteuid()))
            for path in ('home', 'home/checkout', 'home/checkout/oslo/config.py'):
                with self.subTest(path):
                    full = os.path.join(self.root, path)
                    before = os.stat(full).st_mode
                    os.chmod(full, 0o777)
                    found = hook_files.find_writable_by_others(package_site, os.geteuid())
                    self.assertEqual(full, found)
                    os.chmod(full, before)

    def test_a_package_that_links_lead_to_through_a_home_is_found(self):
        home, package = (os.path.join(self.root, name) for name in ('home', 'nova_numa_pmc'))
        os.chmod(self.root, 0o755)
        os.makedirs(os.path.join(home, 'package'))
        os.symlink('home/package', package)
        self.assertIsNone(self.exposed())
        os.chmod(home, 0o775)
        self.assertEqual('home', self.exposed())
        os.mkdir(os.path.join(self.root, 'elsewhere'))
        os.rmdir(os.path.join(home, 'package'))
        os.symlink(os.path.join(self.root, 'elsewhere'), os.path.join(home, 'package'))
        self.assertEqual('home', self.exposed())
        os.chmod(home, 0o755)
        self.assertIsNone(self.exposed())
