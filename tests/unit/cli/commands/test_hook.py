# SPDX-License-Identifier: Apache-2.0
"""The hook is installed, inspected and removed, and its state is shown with the remedy."""

import contextlib
import io
import json
import os
import shlex
import shutil
import tempfile
import time
import unittest
from unittest import mock

from nova_numa_pmc.checks import hook as hook_checks
from nova_numa_pmc.cli.commands import hook
from nova_numa_pmc.cmd import rebalance
from nova_numa_pmc.host import files, services
from tests.fixtures import fake_host
from tests.fixtures.services import add_process, write_stat


class HookCommandTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix='hook-')
        self.addCleanup(shutil.rmtree, self.root)
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)
        self.ours = self.host.path(os.path.join(files.HOOKS, files.OUR_HOOK))

    def call(self, *arguments):
        """Run the command with --json; return (exit code, report)."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = rebalance.main(['hook', *arguments, '--root', self.root, '--json'])
        return code, json.loads(out.getvalue())

    def problems(self):
        """Return the exit code and the joined problems of ``hook status``."""
        code, report = self.call('status')
        return code, '\n'.join(finding['message'] for finding in report['findings'])

    def daemon(self, pid=900, ago_s=60, name='libvirtd', label='libvirtd (enforce)\n'):
        ticks = (files.boottime_ns() // 10**9 - ago_s) * os.sysconf('SC_CLK_TCK')
        add_process(self.root, pid, ('/usr/sbin/' + name,))
        self.host.write('proc/%d/attr/current' % pid, label)
        write_stat(self.root, pid, ticks, name='a) b')

    def test_install_status_and_remove_of_the_hook_work(self):
        code, report = self.call('install')
        self.assertEqual((0, []), (code, report['findings']))
        self.assertTrue(os.access(self.ours, os.X_OK))
        self.assertEqual((0, ''), self.problems())
        self.assertEqual(0, self.call('remove')[0])
        self.assertFalse(os.path.exists(self.ours))
        code, problems = self.problems()
        self.assertEqual(1, code)
        self.assertIn('not installed', problems)

    def test_a_second_install_and_a_second_removal_change_nothing(self):
        for action in ('install', 'remove'):
            first, second = (self.call(action)[1] for _ in range(2))
            self.assertEqual((True, False), (first['changed'], second['changed']))
            self.assertEqual([], second['changes'])

    def test_a_reload_without_an_install_is_wrong_usage(self):
        with (
            contextlib.redirect_stderr(io.StringIO()) as error,
            self.assertRaises(SystemExit) as ended,
        ):
            rebalance.main(['hook', 'status', '--reload', '--root', self.root])
        self.assertEqual(64, ended.exception.code)
        self.assertIn('--reload and --force need install', error.getvalue())

    def test_status_as_text_names_the_daemon(self):
        self.daemon()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            rebalance.main(['hook', 'status', '--root', self.root])
        self.assertIn('daemon: libvirtd, pid 900', out.getvalue())

    def test_status_reports_a_daemon_older_than_the_hook(self):
        self.daemon()
        self.call('install')
        code, problems = self.problems()
        self.assertEqual(1, code)
        self.assertIn('libvirtd (pid 900) has been running since before', problems)

    def test_status_is_content_with_a_daemon_younger_than_the_hook(self):
        self.call('install')
        self.daemon(ago_s=-1)
        self.assertEqual((0, ''), self.problems())

    def systemctl(self, changed_us, entered_us=1_000_000, result='success', error=''):
        """Put a systemctl in the path that shows these times of the daemon's unit."""
        path = self.host.path('bin/systemctl')
        lines = (
            'StateChangeTimestampMonotonic=%d' % changed_us,
            'ActiveEnterTimestampMonotonic=%d' % entered_us,
            'ReloadResult=%s' % result,
        )
        script = (
            '#!/bin/sh',
            'echo "$@" >>%s' % shlex.quote(self.host.path('called')),
            *("echo '%s'" % line for line in lines),
            "[ $1 = show ] || [ -z '%s' ] || { echo '%s' >&2; exit 1; }" % (error, error),
        )
        self.host.write('bin/systemctl', '\n'.join(script) + '\n')
        os.chmod(path, 0o755)
        search_path = os.pathsep.join((os.path.dirname(path), os.environ['PATH']))
        patch = mock.patch.dict(os.environ, PATH=search_path)
        patch.start()
        self.addCleanup(patch.stop)

    def test_a_reload_by_hand_is_known_from_systemd(self):
        self.call('install')
        self.daemon()
        now_us = time.monotonic_ns() // 1000 + 10**6
        for shown, is_known in (
            ((now_us,), True),
            ((1_000_000,), False),  # not reloaded since it was started
            ((1_000_001,), False),  # reloaded, but before the hook was installed
            ((now_us, now_us), False),
            ((now_us, 1_000_000, 'exit-code'), False),
        ):
            with self.subTest(shown):
                self.systemctl(*shown)
                code, problems = self.problems()
                self.assertEqual(not is_known, bool(code))
                self.assertEqual(not is_known, 'has been running since before' in problems)
                self.assertNotIn('not known', problems)

    def test_without_an_answer_of_systemd_a_reload_is_not_known(self):
        self.call('install')
        self.daemon()
        with mock.patch.dict(os.environ, PATH='/nonexistent'):
            [finding] = self.call('status')[1]['findings']
        self.assertEqual(('hook-not-seen', 'warning'), (finding['code'], finding['severity']))
        self.assertIn('whether it was reloaded since is not known', finding['message'])

    def test_a_reload_in_a_container_is_not_known(self):
        self.call('install')
        self.daemon()
        for process in ('900', 'self'):
            self.host.write('proc/%s/cgroup' % process, '0::/libpod-%064x.scope\n' % 1)
        [finding] = self.call('status')[1]['findings']
        self.assertEqual(('hook-not-seen', 'warning'), (finding['code'], finding['severity']))
        self.assertIn('restart its container', finding['remedy'])
        note = hook.reload_daemon(self.root, services.find_daemon(self.root), wanted=True)
        self.assertIn('restart it to make it look', note)

    def test_a_reload_is_left_to_systemd_and_said(self):
        self.daemon()
        daemon = services.find_daemon(self.root)
        self.systemctl(0)
        self.assertIn(
            'hook install --reload" makes it look',
            hook.reload_daemon(self.root, daemon, wanted=False),
        )
        self.assertFalse(os.path.exists(self.host.path('called')))
        note = hook.reload_daemon(self.root, daemon, wanted=True)
        self.assertIn('reloaded libvirtd.service (pid 900)', note)
        with open(self.host.path('called')) as stream:
            self.assertEqual('reload -- libvirtd.service\n', stream.read())
        self.systemctl(0, error='libvirtd.service is not active, cannot reload.')
        note = hook.reload_daemon(self.root, daemon, wanted=True)
        self.assertIn('was not reloaded: libvirtd.service is not active', note)

    def test_a_reload_without_a_daemon_is_said_to_have_none(self):
        note = hook.reload_daemon(self.root, None, wanted=True)
        self.assertIn('no libvirt daemon was found running', note)

    def test_a_daemon_that_is_not_believed_is_said_with_the_reason(self):
        self.daemon()
        os.chmod(self.host.path('usr/sbin/libvirtd'), 0o777)
        self.call('install')
        note = hook.reload_daemon(self.root, None, wanted=True)
        self.assertIn('not believed, because users other than root can change', note)
        self.assertIn('let root own', note)
        [finding] = self.call('status')[1]['findings']
        self.assertEqual('libvirt-not-believed', finding['code'])
        findings = [finding.code for finding in hook_checks.check_libvirt(self.root)]
        self.assertEqual([], findings)  # not a daemon that is not running

    def test_a_daemon_in_a_container_is_reported_with_or_without_a_hook_on_the_host(self):
        self.daemon()
        os.unlink(self.host.path('proc/900/root'))
        self.host.write('image/usr/sbin/libvirtd', '')
        os.symlink(self.host.path('image'), self.host.path('proc/900/root'))
        codes = [finding['code'] for finding in self.call('status')[1]['findings']]
        self.assertEqual(['hook-in-container'], codes)
        code, report = self.call('install')
        self.assertEqual(1, code)
        self.assertIn('container', report['findings'][0]['message'])
        self.assertFalse(os.path.exists(self.ours))
        self.assertEqual(0, self.call('install', '--force')[0])
        self.assertTrue(os.path.exists(self.ours))
        codes = [finding['code'] for finding in self.call('status')[1]['findings']]
        self.assertEqual(['hook-in-container'], codes)

    def test_status_as_text_cannot_control_the_terminal(self):
        self.daemon(label='\x1b[2J (enforce)\n')
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            rebalance.main(['hook', 'status', '--root', self.root])
        self.assertIn('label ?[2J', out.getvalue())
        self.assertNotIn('\x1b', out.getvalue())
