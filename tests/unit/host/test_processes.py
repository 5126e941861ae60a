# SPDX-License-Identifier: Apache-2.0
"""Services are found by program, script or title, in containers too, and nothing else is."""

import tempfile

from nova_numa_pmc.host import processes
from tests.cases.root import RootCase
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write


class ProcessesTest(RootCase):
    def test_a_process_is_found_by_its_program_or_script(self):
        add_process(self.root, 20, ('/usr/bin/numad', '-i', '15'))
        add_process(
            self.root,
            30,
            (
                '/opt/stack/venv/bin/python3',
                '/opt/stack/bin/nova-compute',
                '--config-file=/etc/nova/nova.conf',
            ),
        )
        self.assertEqual(20, processes.find(self.root, 'numad').pid)
        process = processes.find(self.root, 'nova-compute')
        self.assertEqual((30, 2_001, True), (process.pid, process.started_s, process.same_root))
        self.assertEqual(self.root, process.root)
        self.assertIsNone(processes.find(self.root, 'nova-scheduler'))

    def test_a_process_is_found_by_its_title(self):
        add_process(
            self.root,
            20,
            (
                'nova-scheduler: master process [/opt/nova/bin/nova-scheduler --config-file '
                '/etc/nova/nova.conf]   ',
                '',
                '',
            ),
        )
        add_process(self.root, 21, ('nova-scheduler: ServiceWrapper worker(0)  ', ''))
        process = processes.find(self.root, 'nova-scheduler')
        self.assertEqual(
            (20, ('/opt/nova/bin/nova-scheduler', '--config-file', '/etc/nova/nova.conf')),
            (process.pid, process.command),
        )

    def test_an_editor_of_its_log_is_not_taken_for_the_service(self):
        add_process(self.root, 20, ('/usr/bin/less', '/var/log/nova/nova-compute'))
        add_process(self.root, 21, ('/usr/bin/python3', '-m', 'x', '/usr/bin/nova-compute.log'))
        self.assertIsNone(processes.find(self.root, 'nova-compute'))

    def test_a_process_in_the_session_of_a_user_is_not_taken_for_the_service(self):
        for cgroup in (
            '0::/user.slice/user-1000.slice/session-2.scope\n',
            '0::/../../user.slice/user-1000.slice/user@1000.service/app.slice\n',
            '4:cpuset:/\n1:name=systemd:/user.slice/user-1000.slice/session-2.scope\n0::/\n',
            '0::/system.slice/cron.service\n',
        ):
            with self.subTest(cgroup), tempfile.TemporaryDirectory() as root:
                add_process(root, 20, ('/home/eve/nova-compute',), cgroup=cgroup)
                add_process(root, 30, ('/usr/bin/nova-compute',))
                self.assertEqual(30, processes.find(root, 'nova-compute').pid)

    def test_kernel_threads_and_what_ended_are_passed_over(self):
        write(self.root, 'proc/2/cmdline', '')
        write(self.root, 'proc/3/comm', 'ended\n')
        write(self.root, 'proc/stat', 'cpu  1 2 3\n')
        self.assertIsNone(processes.find(self.root, 'numad'))

    def test_without_proc_no_process_is_found(self):
        self.assertIsNone(processes.find(self.root + '/nowhere', 'numad'))

    def test_a_process_in_a_container_is_found_with_its_root(self):
        add_process(
            self.root,
            30,
            ('/usr/bin/python3', '/usr/bin/nova-compute'),
            inside='image',
            cgroup='0::/machine.slice/libpod-123.scope/container\n',
        )
        process = processes.find(self.root, 'nova-compute')
        self.assertFalse(process.same_root)
        self.assertEqual(self.root + '/proc/30/root', process.root)
