# SPDX-License-Identifier: Apache-2.0
"""A service is what its control group and executable say, whatever its command line says."""

import os
import shutil
import tempfile

from hypothesis import example, given, strategies

from nova_numa_pmc.host import nova_conf, services
from tests.cases.root import RootCase
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write

SCRIPT = '/usr/bin/nova-compute'
COMPUTE = ('/usr/bin/python3', SCRIPT)
UNIT = '0::/system.slice/nova-compute.service\n'
GUEST = r'machine.slice/machine-qemu\x2d7\x2dinstance\x2d0000002a.scope/libvirt/emulator'
CONTAINER_ID = '0123456789abcdef' * 4
#: Groups that nothing but systemd or a container's runtime can put a process into.
UNITS = (
    'system.slice/nova-compute.service',
    'system.slice/openstack-nova-compute.service',
    'system.slice/system-devstack.slice/devstack@n-cpu.service',
    'system.slice/nova-compute.service/worker',
    '../../system.slice/nova-compute.service',
)
CONTAINERS = (
    'machine.slice/libpod-%s.scope/container',
    'system.slice/docker-%s.scope',
    'docker/%s',
    'kubepods.slice/kubepods-podab_c.slice/cri-containerd-%s.scope',
    'system.slice/containerd.service/kubepods-besteffort-pod1.slice:cri-containerd:%s',
)
#: Groups of processes that others start, or that they can name.
OTHERS = (
    'user.slice/user-1000.slice/session-2.scope',
    '../../user.slice/user-1000.slice/user@1000.service/nova-compute.service',
    'user.slice/user-1000.slice/user@1000.service/user.slice/libpod-%s.scope' % CONTAINER_ID,
    'system.slice/cron.service',
    'system.slice/ssh.service/nova-compute.service',
    'system.slice/sshd@nova-compute.service',
    'machine.slice/machine-other.scope/system.slice/nova-compute.service',
    'machine.slice/nova-compute.service',
    'lxc.payload.eve/system.slice/nova-compute.service',
    GUEST,
    'system.slice/virtlogd.service',
)


class ServicesTest(RootCase):
    def find(self, name='nova-compute', root=None):
        process = services.find(root or self.root, name)
        return process and process.pid

    def test_a_service_is_found_by_its_unit_and_its_program_or_script(self):
        add_process(self.root, 20, ('/usr/bin/numad', '-i', '15'))
        add_process(self.root, 30, (*COMPUTE, '--config-file=/etc/nova/nova.conf'))
        self.assertEqual(20, self.find('numad'))
        process = services.find(self.root, 'nova-compute')
        self.assertEqual(
            (30, 2_001, True, self.root),
            (process.pid, process.started_s, process.same_root, process.root),
        )
        self.assertIsNone(self.find('nova-scheduler'))

    def test_a_service_is_found_in_each_unit_and_container_that_deployers_use(self):
        groups = [*UNITS, *(path % CONTAINER_ID for path in CONTAINERS)]
        for path in groups:
            for text in ('0::/%s\n' % path, '4:cpuset:/\n1:name=systemd:/%s\n0::/\n' % path):
                with self.subTest(text), tempfile.TemporaryDirectory() as root:
                    inside = None if path in UNITS else 'image'
                    add_process(root, 30, COMPUTE, cgroup=text, inside=inside)
                    process = services.find(root, 'nova-compute')
                    self.assertEqual((30, not inside), (process.pid, process.same_root))
                    self.assertEqual(root + ('/proc/30/root' if inside else ''), process.root)

    def test_a_process_in_a_group_of_others_is_never_the_service(self):
        for path in OTHERS:
            with self.subTest(path), tempfile.TemporaryDirectory() as root:
                add_process(root, 20, COMPUTE, cgroup='0::/%s\n' % path)
                self.assertIsNone(self.find(root=root))
        # QEMU on v1 without systemd is in the daemon's group of systemd's hierarchy.
        add_process(
            self.root,
            20,
            ('/usr/sbin/libvirtd',),
            cgroup='4:cpuset:/machine/qemu-7-x.libvirt-qemu/emulator\n'
            '1:name=systemd:/system.slice/libvirtd.service\n',
        )
        self.assertIsNone(self.find('libvirtd'))

    @given(
        command=strategies.lists(
            strategies.one_of(
                strategies.text(
                    strategies.characters(codec='utf-8', exclude_characters='/\0'), max_size=20
                ),
                strategies.sampled_from([*COMPUTE, '/usr/sbin/libvirtd', '--config-file=/x']),
            ),
            min_size=1,
            max_size=4,
        ),
        fault=strategies.sampled_from(['group', 'executable', 'root', 'set-uid', 'namespace']),
        path=strategies.sampled_from(OTHERS),
        name=strategies.sampled_from(['nova-compute', 'libvirtd', 'nova-numa-agent']),
    )
    @example(['/dir/nova-compute'], 'set-uid', OTHERS[0], 'nova-compute')  # exec -a … su
    @example([*COMPUTE, '--config-file=/x'], 'group', GUEST, 'nova-compute')  # a guest's QEMU
    def test_no_command_line_makes_a_process_the_service(self, command, fault, path, name):
        good_exe = '/usr/sbin/libvirtd' if name == 'libvirtd' else '/usr/bin/python3.11'
        unit = '0::/system.slice/%s.service\n' % name
        uid = os.geteuid()
        with tempfile.TemporaryDirectory() as root:
            write(root, 'proc/self/uid_map', '0 0 4294967295\n')
            write(root, 'proc/20/uid_map', '%d 0 1\n' % (fault == 'namespace'))
            if fault != 'namespace':
                shutil.copy(root + '/proc/self/uid_map', root + '/proc/20/uid_map')
            write(root, 'home/eve/python3', '')
            os.chmod(root + '/home/eve', 0o777)
            exe = {'executable': '/usr/bin/su', 'root': '/home/eve/python3'}.get(fault, good_exe)
            uids = (uid + 1, uid, uid, uid) if fault == 'set-uid' else None
            cgroup = '0::/%s\n' % path if fault == 'group' else unit
            add_process(root, 20, command, cgroup=cgroup, exe=exe, uid=uids)
            self.assertIsNone(self.find(name, root))

    def test_what_others_can_change_is_not_the_service_and_the_reason_is_given(self):
        add_process(self.root, 30, COMPUTE)
        self.assertEqual(30, self.find())
        for path in ('usr/bin/python3', 'usr/bin/nova-compute', 'usr/bin', 'usr'):
            with self.subTest(path):
                mode = os.stat(os.path.join(self.root, path)).st_mode
                os.chmod(os.path.join(self.root, path), 0o777)
                process, why = services.search(self.root, 'nova-compute')
                self.assertIsNone(process)
                self.assertIn(os.path.join(self.root, path), why)
                os.chmod(os.path.join(self.root, path), mode)

    def test_an_interpreter_behind_a_link_of_others_is_not_the_services(self):
        os.makedirs(self.root + '/opt/eve')
        os.symlink('/usr/bin/python3.11', self.root + '/opt/eve/python3')
        add_process(self.root, 30, ('/opt/eve/python3', SCRIPT))
        self.assertEqual(30, self.find())
        os.chmod(self.root + '/opt/eve', 0o777)
        self.assertIsNone(self.find())

    def test_a_container_that_is_not_the_hosts_root_is_not_believed(self):
        add_process(self.root, 30, COMPUTE, inside='image', capabilities='00000000a80425fb')
        self.assertIsNone(self.find())
        add_process(
            self.root,
            40,
            ('/usr/bin/python3', '/usr/bin/nova-scheduler'),
            inside='image',
            capabilities='00000000a80425fb',
        )
        self.assertEqual(40, self.find('nova-scheduler'))

    def test_an_account_in_a_delegated_group_named_like_a_container_is_not_believed(self):
        group = '0::/system.slice/runner.service/%s\n' % CONTAINER_ID
        for name in ('nova-compute', 'nova-scheduler'):
            command = ('/usr/bin/' + name, '--config-file=/proc/21/cmdline')
            add_process(self.root, len(name), command, cgroup=group, uid=os.geteuid() + 7)
            self.assertIsNone(self.find(name))

    def test_a_service_of_root_has_no_other_uid(self):
        add_process(self.root, 20, ('/usr/sbin/libvirtd',), uid=os.geteuid() + 1)
        self.assertIsNone(self.find('libvirtd'))

    def test_the_main_process_is_systemds_child_and_the_oldest(self):
        add_process(self.root, 20, COMPUTE, parent=30, started_s=1_500)
        add_process(self.root, 25, COMPUTE, started_s=2_500)
        add_process(self.root, 30, COMPUTE, started_s=2_000)
        self.assertEqual(30, self.find())

    def test_a_process_without_a_unit_is_not_the_service(self):
        for group in ('0::/', '0::/openrc.nova-compute', '1:name=elogind:/3\n4:cpuset:/'):
            with self.subTest(group), tempfile.TemporaryDirectory() as root:
                add_process(root, 20, COMPUTE, cgroup=group + '\n')
                self.assertIsNone(self.find(root=root))

    def test_a_guest_that_looks_like_nova_does_not_choose_the_pool(self):
        write(self.root, 'var/log/console.log', '[compute]\ncpu_shared_set = 4\n')
        write(self.root, 'etc/nova/nova.conf', '[compute]\ncpu_shared_set = 4-7\n')
        evil = (*COMPUTE, '--config-file=/var/log/console.log')
        add_process(self.root, 20, evil, cgroup='0::/%s\n' % GUEST)
        sets, problems = nova_conf.NovaCpuSetsReader(self.root).read(0)
        self.assertEqual(({4, 5, 6, 7}, ()), (sets.shared, problems))

    def test_a_pipe_in_a_container_is_not_waited_for(self):
        add_process(self.root, 30, COMPUTE, inside='image')
        os.makedirs(self.root + '/image/etc')
        os.mkfifo(self.root + '/image/etc/passwd')
        process = services.find(self.root, 'nova-compute')
        self.assertEqual({os.geteuid()}, nova_conf.trust_in(process, self.root).owners)

    def test_kernel_threads_and_what_ended_are_passed_over(self):
        write(self.root, 'proc/2/cmdline', '')
        write(self.root, 'proc/2/cgroup', UNIT)
        write(self.root, 'proc/3/comm', 'ended\n')
        self.assertIsNone(self.find())
        self.assertIsNone(services.find(self.root + '/nowhere', 'numad'))
