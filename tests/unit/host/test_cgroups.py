# SPDX-License-Identifier: Apache-2.0
"""A guest's groups are found in the layouts that libvirt creates, and nowhere else."""

import errno
import os
import shutil
import tempfile
import unittest
from unittest import mock

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.exceptions import CpusetError, GuestGone
from nova_numa_pmc.host import cgroups, files
from tests.fixtures import services
from tests.fixtures.cgroups import FLAT, LAYOUTS, NESTED, WITHOUT_SYSTEMD, GuestCgroups

MACHINE = 'machine.slice/machine-qemu\\x2d7\\x2dinstance\\x2d0000002a.scope'


class GroupsTestCase(unittest.TestCase):
    def tree(self, *args, **kwargs):
        root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, root)
        return GuestCgroups(root, *args, **kwargs)

    def find(self, tree):
        return cgroups.find(tree.pid, tree.root)


class FindTest(GroupsTestCase):
    def test_groups_of_a_guest_are_found_in_every_shape(self):
        for version in (1, 2):
            for layout in (NESTED, FLAT, WITHOUT_SYSTEMD):
                with self.subTest(version=version, layout=layout):
                    tree = self.tree(version, layout, bytes_by_node={0: 4096})
                    groups = self.find(tree)
                    self.assertEqual(
                        (version, tree.scope, tree.parent, tree.emulator, tuple(tree.children)),
                        (
                            groups.version,
                            groups.scope,
                            groups.parent,
                            groups.main,
                            groups.thread_cgroups,
                        ),
                    )

    def test_the_unified_hierarchy_beside_v1_is_found(self):
        tree = self.tree(2)
        groups = os.path.join(tree.root, 'sys/fs/cgroup')
        os.rename(groups, groups + '.new')
        os.mkdir(groups)
        os.rename(groups + '.new', os.path.join(groups, 'unified'))
        self.assertEqual(os.path.join(groups, 'unified', MACHINE), self.find(tree).scope)

    def test_groups_outside_of_the_own_namespace_are_refused(self):
        tree = self.tree(2)
        tree.set_cgroup('0::/../../%s/libvirt/emulator\n' % MACHINE)
        with self.assertRaisesRegex(CpusetError, 'namespace'):
            self.find(tree)

    def test_without_a_mounted_hierarchy_it_is_an_error(self):
        for version in (1, 2):
            with self.subTest(version=version):
                tree = self.tree(version)
                groups = os.path.join(tree.root, 'sys/fs/cgroup')
                shutil.rmtree(groups)
                os.mkdir(groups)
                with self.assertRaisesRegex(CpusetError, 'mounted') as caught:
                    self.find(tree)
                self.assertNotIsInstance(caught.exception, GuestGone)

    def test_a_group_that_belongs_to_no_guest_is_never_written(self):
        for path in (
            '/',
            '/machine.slice',
            '/system.slice/libvirtd.service',
            '/user.slice/user-1000.slice/session-2.scope',
            '/docker/0123456789ab',
            '/machine.slice/machine-lxc\\x2d7\\x2da.scope',
            '/' + MACHINE,
            '/' + MACHINE + '/payload',
            '/' + MACHINE + '/libvirt/other',
            '/' + MACHINE + '/libvirt/emulator/deeper',
            '/libvirt/emulator',
            '/emulator',
        ):
            for version in (1, 2):
                with self.subTest(path=path, version=version):
                    tree = self.tree(version)
                    tree.set_cgroup('%s:%s\n' % ('4:cpuset' if version == 1 else '0:', path))
                    with self.assertRaises(CpusetError) as caught:
                        self.find(tree)
                    self.assertNotIsInstance(caught.exception, GuestGone)

    def test_a_path_that_climbs_out_of_the_mount_is_refused(self):
        tree = self.tree(2)
        tree.set_cgroup('0::/../x/qemu-1-a.libvirt-qemu/emulator\n')
        os.makedirs(os.path.join(tree.root, 'sys/fs/x/qemu-1-a.libvirt-qemu/emulator'))
        with self.assertRaises(CpusetError):
            self.find(tree)

    def test_a_guest_without_process_or_group_has_gone(self):
        tree = self.tree(2)
        with self.assertRaises(GuestGone):
            cgroups.find(tree.pid + 1, tree.root)
        tree.set_cgroup('0::/%s/libvirt/emulator (deleted)\n' % MACHINE)
        with self.assertRaises(GuestGone):
            self.find(tree)
        tree.set_cgroup('0::/%s/libvirt/emulator\n' % MACHINE)
        shutil.rmtree(tree.scope)
        with self.assertRaises(GuestGone):
            self.find(tree)

    def test_a_group_that_cannot_be_listed_may_still_exist(self):
        for code, error_class in (
            (errno.ENOENT, GuestGone),
            (errno.ENODEV, GuestGone),
            (errno.ENOTDIR, GuestGone),
            (errno.ESRCH, GuestGone),
            (errno.EMFILE, CpusetError),
            (errno.EACCES, CpusetError),
        ):
            failed = OSError(code, os.strerror(code))
            with self.subTest(failed), mock.patch.object(os, 'listdir', side_effect=failed):
                with self.assertRaises(CpusetError) as caught:
                    cgroups.find_thread_cgroups('group')
                self.assertIs(error_class, type(caught.exception))

    def test_without_a_cpuset_of_the_emulators_group_it_is_an_error(self):
        for version in (1, 2):
            with self.subTest(version=version):
                tree = self.tree(version)
                os.unlink(os.path.join(tree.emulator, 'cpuset.cpus'))
                with self.assertRaisesRegex(CpusetError, 'cgroup.controllers'):
                    self.find(tree)

    def test_without_a_cpuset_controller_it_is_an_error(self):
        tree = self.tree(2)
        tree.set_cgroup('3:memory:/x\n')
        with self.assertRaisesRegex(CpusetError, 'no cpuset controller'):
            self.find(tree)

    @given(st.text(max_size=200))
    def test_any_text_in_proc_is_a_named_error(self, cgroup):
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, 'proc/7/cgroup')
            os.makedirs(os.path.dirname(path))
            with open(path, 'w', encoding='utf-8', errors='surrogatepass', newline='') as f:
                f.write(cgroup)
            with self.assertRaises(CpusetError):
                cgroups.find(7, root)

    def test_without_a_process_a_guest_has_gone(self):
        tree = self.tree(2)
        with self.assertRaises(GuestGone):
            cgroups.find(None, tree.root)
        self.assertIsNone(cgroups.memory_by_node(None, tree.root))


class OfGuestTest(GroupsTestCase):
    def guest(self, tree, **fields):
        guest = model.Guest('u', 'instance-0000002a', 2, 1 << 29, pid=tree.pid, id=7)
        return guest._replace(**fields)

    def test_the_groups_of_another_guest_or_of_a_reused_pid_are_never_returned(self):
        for version, layout in LAYOUTS:
            tree = self.tree(version, layout)
            services.write_stat(tree.root, tree.pid, 500)
            start_ns = files.process_start_ns(tree.pid, tree.root)
            for fields, is_found in (
                ({}, True),
                ({'start_ns': start_ns}, True),
                ({'start_ns': start_ns + 1}, False),  # the process ended, and its pid was reused
                ({'name': 'instance-0000002b'}, False),
                ({'id': 8}, False),  # a later guest of the same name
                ({'id': None}, True),
                ({'id': None, 'name': 'instance-00000'}, False),
            ):
                with self.subTest(version=version, layout=layout, fields=fields):
                    guest = self.guest(tree, **fields)
                    if is_found:
                        self.assertEqual(
                            cgroups.find(tree.pid, tree.root), cgroups.of_guest(guest, tree.root)
                        )
                    else:
                        with self.assertRaises(GuestGone):
                            cgroups.of_guest(guest, tree.root)

    def test_a_guest_that_rewrites_its_command_line_stays_itself(self):
        """Its group and start time are not under its control, so neither gains it anything."""
        tree = self.tree(2)
        tree.write_file(
            'proc/%d/cmdline' % tree.pid, 'qemu\0-name\0instance-0000002b\0-uuid\0other\0'
        )
        self.assertEqual(tree.scope, cgroups.of_guest(self.guest(tree), tree.root).scope)
        with self.assertRaises(GuestGone):
            cgroups.of_guest(self.guest(tree, name='instance-0000002b', uuid='other'), tree.root)

    @given(
        st.text(st.characters(codec='utf-8', exclude_characters='/\0'), min_size=1, max_size=90),
        st.text('ab-._1é ', min_size=1, max_size=90),
        st.integers(1, 10**6),
    )
    def test_a_scope_is_recognised_by_the_name_that_libvirt_gives_it(self, name, other, guest_id):
        scopes = {each: scope_name(each, guest_id) for each in (name, other)}
        for each, scope in scopes.items():
            self.assertTrue(cgroups.is_scope_of(scope, each, guest_id), scope)
            self.assertFalse(cgroups.is_scope_of(scope, each, guest_id + 1))
        shown = [''.join(c for c in each if c.isascii() and c.isalnum())[:50] for each in scopes]
        if len(set(shown)) == 2:
            self.assertFalse(cgroups.is_scope_of(scopes[name], other, guest_id))


def scope_name(name, guest_id):
    """Return the scope of a guest as libvirt and systemd name it."""
    machine = 'qemu-%d-' % guest_id
    for char in name:
        if len(machine) < 64 and char.isascii() and (char.isalnum() or char in '-.'):
            machine += char
    return 'machine-%s.scope' % machine.replace('-', '\\x2d')


class MemoryTest(GroupsTestCase):
    def test_memory_of_a_guest_is_read_by_node(self):
        for version in (1, 2):
            with self.subTest(version=version):
                tree = self.tree(version, bytes_by_node={0: 8192, 1: 4096, 5: 0})
                self.assertEqual(
                    {0: 8192, 1: 4096, 5: 0}, cgroups.memory_by_node(tree.pid, tree.root)
                )

    def test_missing_or_malformed_memory_by_node_is_none(self):
        tree = self.tree(2)
        self.assertIsNone(cgroups.memory_by_node(tree.pid, tree.root))
        for text in ('', 'anon\n', 'anon N0=x\n', 'anon Nx=1\n', 'anon =\n', '\n\n'):
            with self.subTest(text=text):
                tree.write_file(os.path.join(tree.memory, 'memory.numa_stat'), text)
                self.assertIsNone(cgroups.memory_by_node(tree.pid, tree.root))
        shutil.rmtree(tree.scope)
        self.assertIsNone(cgroups.memory_by_node(tree.pid, tree.root))
