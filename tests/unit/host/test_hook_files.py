# SPDX-License-Identifier: Apache-2.0
import os
import stat
import subprocess
import tempfile
import unittest

from nova_numa_pmc.host import files, hook_files

FORMER = b'#!/bin/sh\n# a hook of the operator\ncat\nexit 3\n\n'


def read(path):
    with open(path, 'rb') as stream:
        return stream.read()


class HooksCase(unittest.TestCase):
    """Create an empty root, and the paths in it."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        self.hooks = os.path.join(self.root, files.HOOKS)
        self.ours = os.path.join(self.hooks, files.OUR_HOOK)
        self.main = os.path.join(self.hooks, 'qemu')
        self.chained = os.path.join(self.hooks, hook_files.CHAINED)


class HookFilesTest(HooksCase):
    def setUp(self):
        super().setUp()
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
        changes = hook_files.install(self.root, self.script, libvirt_runs_directory=True)
        self.assertEqual(1, len(changes))
        self.assertEqual([files.OUR_HOOK], self.names())
        self.assertEqual(self.script, read(self.ours))
        self.assertEqual(0o755, stat.S_IMODE(os.stat(self.ours).st_mode))

    def test_install_twice_changes_nothing(self):
        for libvirt_runs_directory in (True, False):
            with self.subTest(libvirt_runs_directory=libvirt_runs_directory):
                hook_files.install(self.root, self.script, libvirt_runs_directory)
                before = os.stat(self.ours)
                self.assertEqual(
                    [], hook_files.install(self.root, self.script, libvirt_runs_directory)
                )
                self.assertEqual(before.st_ino, os.stat(self.ours).st_ino)

    def test_install_repairs_mode_content_and_symlink(self):
        hook_files.install(self.root, self.script, True)
        os.chmod(self.ours, 0o644)
        self.assertTrue(hook_files.install(self.root, self.script, True))
        self.assertTrue(os.access(self.ours, os.X_OK))
        with open(self.ours, 'ab') as stream:
            stream.write(b'\r\n')
        hook_files.install(self.root, self.script, True)
        self.assertEqual(self.script, read(self.ours))
        os.rename(self.ours, self.ours + '.elsewhere')
        os.symlink(self.ours + '.elsewhere', self.ours)
        hook_files.install(self.root, self.script, True)
        self.assertFalse(os.path.islink(self.ours))

    def test_install_keeps_others_in_the_directory(self):
        os.makedirs(os.path.dirname(self.ours))
        other = os.path.join(os.path.dirname(self.ours), '10-other')
        with open(other, 'wb') as stream:
            stream.write(FORMER)
        hook_files.install(self.root, self.script, True)
        hook_files.remove(self.root)
        self.assertEqual(['qemu.d/10-other'], self.names())

    def test_chain_and_remove_restores_byte_for_byte(self):
        self.write_former()
        before = os.stat(self.main)
        hook_files.install(self.root, self.script, libvirt_runs_directory=False)
        self.assertEqual(FORMER, read(self.chained))
        self.assertIn(b'nova-numa-pmc', read(self.main))
        hook_files.remove(self.root)
        after = os.stat(self.main)
        self.assertEqual(FORMER, read(self.main))
        self.assertEqual(
            (before.st_ino, before.st_mode, before.st_mtime_ns),
            (after.st_ino, after.st_mode, after.st_mtime_ns),
        )
        self.assertEqual(['qemu'], self.names())

    def test_chain_keeps_a_symlink_as_one(self):
        os.makedirs(self.hooks)
        os.symlink('/opt/site/qemu-hook', self.main)
        hook_files.install(self.root, self.script, libvirt_runs_directory=False)
        self.assertEqual('/opt/site/qemu-hook', os.readlink(self.chained))
        hook_files.remove(self.root)
        self.assertEqual('/opt/site/qemu-hook', os.readlink(self.main))

    def test_chain_after_a_crash_between_link_and_rename(self):
        self.write_former()
        os.link(self.main, self.chained)
        hook_files.install(self.root, self.script, libvirt_runs_directory=False)
        self.assertEqual(FORMER, read(self.chained))
        self.assertTrue(hook_files.inspect(self.root, self.script).dispatcher)

    def test_chain_refuses_to_lose_a_newer_hook(self):
        self.write_former()
        hook_files.install(self.root, self.script, libvirt_runs_directory=False)
        os.unlink(self.main)
        with open(self.main, 'wb') as stream:
            stream.write(b'#!/bin/sh\n# a newer one\n')
        with self.assertRaisesRegex(hook_files.HookError, 'merge the two'):
            hook_files.install(self.root, self.script, libvirt_runs_directory=False)
        self.assertIn(b'a newer one', read(self.main))
        self.assertEqual(FORMER, read(self.chained))

    def test_an_install_after_a_libvirt_upgrade_unchains_the_hook(self):
        self.write_former()
        hook_files.install(self.root, self.script, libvirt_runs_directory=False)
        hook_files.install(self.root, self.script, libvirt_runs_directory=True)
        self.assertEqual(FORMER, read(self.main))
        self.assertEqual(['qemu', files.OUR_HOOK], self.names())

    def test_remove_without_an_install_changes_nothing(self):
        self.assertEqual([], hook_files.remove(self.root))
        self.write_former()
        self.assertEqual([], hook_files.remove(self.root))
        self.assertEqual(FORMER, read(self.main))

    def test_inspect_tells_whether_our_hook_is_there_and_current(self):
        found = hook_files.inspect(self.root, self.script)
        self.assertFalse(found.present or found.executable or found.current)
        hook_files.install(self.root, self.script, True)
        found = hook_files.inspect(self.root, self.script)
        self.assertTrue(found.present and found.executable and found.current)
        self.assertFalse(hook_files.inspect(self.root, hook_files.render(9)).current)

    def test_render_quotes_the_directory_for_the_shell(self):
        site = '/srv/o\'dd $(touch x) "dir'
        text = hook_files.render(7, site)
        line = [part for part in text.splitlines() if part.startswith(b'site=')]
        said = subprocess.run(
            ['/bin/sh', '-c', line[0].decode() + '; printf %s "$site"'],
            capture_output=True,
            check=True,
        ).stdout
        self.assertEqual(site, said.decode())
        self.assertIn(b'\nlimit=7\n', text)
        self.assertNotIn(b'\r', text)
        self.assertLessEqual(len(text.splitlines()), 20)

    def test_a_package_that_others_may_write_is_told(self):
        package = os.path.join(self.root, 'nova_numa_pmc')
        os.mkdir(package)
        if os.geteuid() == 0:
            os.chmod(self.root, 0o755)
            self.assertIsNone(hook_files.find_writable_by_others(self.root))
        os.chmod(package, 0o777)
        self.assertEqual(package, hook_files.find_writable_by_others(self.root))


class DispatcherTest(HooksCase):
    """Run the real chained script through the shell."""

    def install(self, former, ours):
        os.makedirs(os.path.join(self.hooks, 'qemu.d'))
        for path, text in ((self.main, former), (self.ours, ours)):
            if text is not None:
                with open(path, 'w') as stream:
                    stream.write('#!/bin/sh\n' + text)
                os.chmod(path, 0o755)
        with open(self.ours, 'rb') as stream:
            script = stream.read()
        hook_files.install(self.root, script, libvirt_runs_directory=False)

    def call(self, *arguments, xml=b'<domain/>\n\n'):
        return subprocess.run([self.main, *arguments], input=xml, capture_output=True)

    def test_former_hook_gets_stdin_and_gives_stdout(self):
        log = os.path.join(self.root, 'ours')
        self.install('cat; echo "$*" >&2\n', 'cat > %s; echo noise\n' % log)
        xml = b'<domain>\n \xff&amp;\\n%s</domain>\n\n' + b'x' * 300000
        done = self.call('guest one', 'migrate', 'begin', '-', xml=xml)
        self.assertEqual(
            (0, xml, b'guest one migrate begin -\n'), (done.returncode, done.stdout, done.stderr)
        )
        self.assertEqual(xml, read(log))

    def test_former_hook_keeps_its_exit_status_and_stops_ours(self):
        log = os.path.join(self.root, 'ours')
        self.install('exit 4\n', 'echo called > %s\n' % log)
        self.assertEqual(4, self.call('g', 'start', 'begin', '-').returncode)
        self.assertFalse(os.path.exists(log))

    def test_only_a_refused_start_of_ours_reaches_libvirt(self):
        for op, ours, expected in (
            ('started', 'exit 1', 0),
            ('reconnect', 'exit 1', 0),
            ('start', 'exit 5', 0),
            ('start', 'kill -9 $$', 0),
            ('start', 'exit 1', 1),
        ):
            with self.subTest(op=op, ours=ours):
                self.setUp()
                self.install('exit 0\n', ours + '\n')
                self.assertEqual(expected, self.call('g', op, 'begin', '-').returncode)

    def test_the_dispatcher_works_without_a_former_hook(self):
        self.install(None, 'cat > /dev/null\n')
        done = self.call('g', 'migrate', 'begin', '-')
        self.assertEqual((0, b''), (done.returncode, done.stdout))

    def test_the_dispatcher_works_when_our_script_is_gone(self):
        self.install('cat\n', 'exit 0\n')
        os.unlink(self.ours)
        done = self.call('g', 'restore', 'begin', '-')
        self.assertEqual((0, b'<domain/>\n\n'), (done.returncode, done.stdout))
