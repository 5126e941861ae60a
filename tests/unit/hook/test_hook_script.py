# SPDX-License-Identifier: Apache-2.0
"""Whatever fails in hooks/qemu, the guest lives and libvirt is not kept waiting."""

import fcntl
import os
import select
import shlex
import shutil
import tempfile
import unittest

from nova_numa_pmc.host import hook_files
from tests.fixtures import fake_host, hook_script

OPERATIONS = (
    'prepare',
    'start',
    'started',
    'stopped',
    'release',
    'migrate',
    'restore',
    'reconnect',
    'attach',
    'an-operation-of-tomorrow',
)
XML = fake_host.domain_xml(1)
TIMEOUT_S = 20


class HookScriptTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix='hook-')
        self.addCleanup(shutil.rmtree, self.root)
        self.left_behind, self.open = os.pipe()
        self.addCleanup(self.wait_for_children)
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)
        self.tree = self.host.launch(1)

    def wait_for_children(self):
        """Wait for child processes that were left behind, and still write to the host.

        They have inherited a pipe. The process that ``start`` leaves behind has closed it; here,
        that process writes nothing, because QEMU runs before ``start``.
        """
        os.close(self.open)
        ended = select.select([self.left_behind], (), (), TIMEOUT_S)[0]
        os.close(self.left_behind)
        self.assertTrue(ended, 'a child process still runs')

    def script(self, *replace, **options):
        return hook_script.write_script(
            os.path.join(self.root, 'qemu'), self.root, replace=replace, **options
        )

    def assert_lives(self, path, xml=XML, operations=OPERATIONS, environment=None):
        """Assert that every operation exits with status 0 and prints nothing."""
        for operation in operations:
            with self.subTest(operation=operation):
                done = hook_script.run_script(
                    path, fake_host.name_of(1), operation, xml, environment, [self.open]
                )
                self.assertEqual((0, b''), (done.returncode, done.stdout), done.stderr)

    def package(self, text):
        """Create a package whose hook is ``text``; return the directory that contains it."""
        site = os.path.join(self.root, 'site')
        os.makedirs(os.path.join(site, 'nova_numa_pmc'))
        for name, content in (('__init__.py', ''), ('hook.py', text)):
            with open(os.path.join(site, 'nova_numa_pmc', name), 'w') as stream:
                stream.write(content)
        return site

    def cpus(self):
        return self.tree.held()

    def wake(self, control):
        """Let the process continue that sleeps in opening the FIFO, and find a file next time."""
        waker = os.open(control, os.O_RDWR | os.O_NONBLOCK)
        with open(control + '.new', 'w') as stream:
            stream.write('\n')
        os.rename(control + '.new', control)
        os.close(waker)

    def test_a_guest_goes_from_start_to_end_and_is_held(self):
        path = self.script()
        self.assert_lives(path, operations=('prepare', 'start'))
        self.assertEqual('', self.cpus())
        self.assert_lives(path, operations=('started',))
        self.assertEqual('0-3', self.cpus())
        self.assert_lives(path, operations=('reconnect', 'attach', 'stopped', 'release'))
        lines = self.host.logged()
        self.assertEqual(['start', 'started'], [line.split(': ')[2] for line in lines])

    def test_all_operations_succeed(self):
        self.assert_lives(self.script())
        self.assertFalse([line for line in self.host.logged() if 'left as it is' in line])

    def test_reconnect_starts_no_interpreter(self):
        site = self.package('raise SystemExit(9)')
        self.assert_lives(
            self.script((b'exit 0 ;; esac', b'exit 0 ;; esac; exit 5'), site=site),
            operations=('reconnect', 'attach', 'prepare'),
        )

    def test_operations_succeed_without_the_interpreter(self):
        self.assert_lives(self.script((b'/usr/bin/python3', b'/nonexistent/python3')))

    def test_operations_succeed_without_the_package(self):
        self.assert_lives(self.script(site='/nonexistent/site'))

    def test_operations_succeed_with_a_broken_package(self):
        self.assert_lives(self.script(site=self.package('def main(:\n')))

    def test_operations_succeed_when_the_interpreter_is_killed(self):
        site = self.package('import os\nos.kill(os.getpid(), 9)\n')
        self.assert_lives(self.script(site=site))

    def test_operations_succeed_when_the_interpreter_hangs(self):
        site = self.package('import select\nselect.select((), (), ())\n')
        self.assert_lives(self.script((b'\nlimit=3\n', b'\nlimit=0.2\n'), site=site))

    def test_operations_succeed_without_another_process_or_pipe(self):
        fault = b'def fail(): raise OSError(11, "Resource temporarily unavailable")'
        for name in (b'fork', b'pipe'):
            path = self.script(
                (b'\nmain(', b'\n%s\nimport os; os.%s = fail\nmain(' % (fault, name))
            )
            self.assert_lives(path)
            self.assertIn(
                'hook %s started: [Errno 11] Resource temporarily unavailable; the guest is left'
                % fake_host.name_of(1),
                ' '.join(self.host.logged()),
            )
            self.assertEqual('', self.cpus())

    def test_operations_succeed_without_an_environment(self):
        self.assert_lives(self.script(), environment={'A': ''})

    def test_operations_succeed_with_garbage_for_xml(self):
        path = self.script()
        for xml in (
            b'',
            b'\0\xff',
            b'<domain>' * 4000,
            b'<a/>',
            b'x' * (11 << 20),
            b'<!DOCTYPE a [<!ENTITY b "c">]><domain>&b;</domain>',
        ):
            with self.subTest(xml=xml[:10]):
                self.assert_lives(path, xml, operations=('start', 'started', 'stopped'))
                self.assertEqual('', self.cpus())

    def test_operations_succeed_with_a_state_directory_open_to_all(self):
        os.mkdir(self.host.path('run/nova-numa-pmc'))
        os.chmod(self.host.path('run/nova-numa-pmc'), 0o777)
        self.assert_lives(self.script())

    def test_operations_succeed_with_the_lock_held_by_another(self):
        self.host.configure('[hook]\ntimeout_s = 0.3\n')
        path = self.script()
        self.assert_lives(path, operations=('start',))
        with open(self.host.path('run/nova-numa-pmc/lock')) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assert_lives(path)

    def test_operations_succeed_with_unreadable_settings(self):
        self.host.configure('\0[[[\nhook = \xff')
        self.assert_lives(self.script())

    def test_operations_succeed_without_nodes_and_cgroups(self):
        shutil.rmtree(self.host.path('sys'))
        self.assert_lives(self.script())

    def test_operations_succeed_when_the_log_daemon_does_not_read(self):
        path = self.script()
        self.host.fill_log()
        self.assert_lives(path)
        self.assertEqual({'full'}, set(self.host.logged()))

    def test_the_hook_ends_by_itself_with_many_lines_nobody_reads(self):
        """The hook ends by itself, with its own message, long before the alarm."""
        self.host.write('var/lib/nova-numa-pmc/guests', 'no override\n' * 20)
        self.host.configure('[hook]\nstrict = true\n')
        self.host.fill_log()
        done = hook_script.run_script(
            self.script(), fake_host.name_of(1), 'start', fake_host.domain_xml(1, vcpus=99)
        )
        self.assertEqual(1, done.returncode)
        self.assertIn(b'because of [hook] strict', done.stderr)

    def test_libvirt_goes_on_while_a_write_sleeps_in_the_kernel(self):
        """libvirt continues; the child process finishes when the kernel lets it."""
        path = self.script()
        self.assert_lives(path, operations=('start',))
        self.host.configure('[hook]\ntimeout_s = 2\n')
        control = os.path.join(self.tree.emulator, 'cpuset.cpus')
        os.unlink(control)
        os.mkfifo(control)  # opening it sleeps until another process opens the other end
        self.assert_lives(path, operations=('started',))
        self.assertIn('libvirt continues, and a child', self.host.logged()[-1])
        self.wake(control)
        self.host.log.settimeout(TIMEOUT_S)
        self.assertIn('started: node 0', self.host.log.recv(65536).decode())
        self.assertEqual('0-3', self.cpus())

    def test_the_hook_logs_its_timeout_though_the_alarm_is_close(self):
        """Even if the alarm comes before timeout_s, the hook reports the timeout itself."""
        path = self.script()
        self.assert_lives(path, operations=('start',))
        self.host.configure('[hook]\ntimeout_s = 60\n')
        control = os.path.join(self.tree.emulator, 'cpuset.cpus')
        os.unlink(control)
        os.mkfifo(control)
        self.assert_lives(path, operations=('started',))
        self.assertIn('libvirt continues, and a child', self.host.logged()[-1])
        self.wake(control)

    def test_strict_stops_a_start_and_no_other_operation(self):
        self.host.configure('[hook]\nstrict = true\n')
        path = self.script()
        self.assert_lives(path)
        done = hook_script.run_script(path, fake_host.name_of(1), 'start', b'<domain/>')
        self.assertEqual((1, b''), (done.returncode, done.stdout))
        self.assertIn(b'because of [hook] strict', done.stderr)
        self.assert_lives(path, b'<domain/>', [op for op in OPERATIONS if op != 'start'])

    def test_strict_without_an_answer_of_the_hook_lets_a_guest_start(self):
        """A missing interpreter reports nothing, so the guest starts."""
        self.host.configure('[hook]\nstrict = true\n')
        self.assert_lives(self.script((b'/usr/bin/python3', b'/nonexistent/python3')))

    def test_the_selftest_reports_nodes_and_guests_and_writes_nothing(self):
        path = self.script()
        done = hook_script.run_script(path, '-', 'selftest', b'')
        self.assertEqual(0, done.returncode)
        self.assertIn(b' nodes 0,1, 1 guests', done.stderr)
        self.assertFalse(os.path.exists(self.host.path('run/nova-numa-pmc')))

    def test_the_script_works_from_a_checkout(self):
        site = hook_files.package_site()
        os.makedirs(self.host.path('checkout/hooks'))
        os.symlink(site + '/nova_numa_pmc', self.host.path('checkout/nova_numa_pmc'))
        path = hook_script.write_script(
            self.host.path('checkout/hooks/qemu'),
            self.root,
            replace=[(b'\nsite=%s\n' % os.fsencode(shlex.quote(site)), b'\nsite=\n')],
        )
        done = hook_script.run_script(path, '-', 'selftest', b'')
        self.assertIn(b'selftest: ok, ', done.stderr)

    def test_names_that_look_like_options_are_names(self):
        path = self.script()
        for name in ('-c', '--help', '', 'a b', '$(exit 3)', '"', "'"):
            with self.subTest(name=name):
                done = hook_script.run_script(path, name, 'start', b'<domain/>')
                self.assertEqual((0, b''), (done.returncode, done.stdout))
