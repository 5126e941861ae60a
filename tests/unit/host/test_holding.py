# SPDX-License-Identifier: Apache-2.0
"""Guests are held in control groups of every layout, by a kernel that may refuse a write."""

import errno
import os
import shutil
import tempfile
import unittest

from nova_numa_pmc.exceptions import CpusetError, GuestGone, PinnedByOthers
from nova_numa_pmc.host import cgroups, holding
from nova_numa_pmc.host.cpusets import read_sets, thread_sets
from nova_numa_pmc.model import MIB
from tests.fixtures.cgroups import FLAT, LAYOUTS, NESTED, GuestCgroups

NODE0, NODE1 = frozenset({0, 1}), frozenset({2, 3})
TO_NODE1 = frozenset({1})
#: Many small trees are created, on a tmpfs if there is one.
MEMORY = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None


class TreeTestCase(unittest.TestCase):
    def tree(self, *args, **kwargs):
        """Return a new :class:`GuestCgroups`, which is removed after the test, and its groups."""
        root = tempfile.mkdtemp(dir=MEMORY)
        self.addCleanup(shutil.rmtree, root)
        tree = GuestCgroups(root, *args, **kwargs)
        self.log = []
        return tree, cgroups.find(tree.pid, root)

    def logged(self, tree):
        """Return a stand-in for the kernel that logs writes with paths relative to the scope."""

        def write(path, text):
            tree.write(path, text)
            self.log.append((os.path.relpath(path, tree.scope), text))

        return write


class HoldTest(TreeTestCase):
    def test_cpus_are_narrow_and_memory_wide_at_rest_on_every_shape(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout, bytes_by_node={0: MIB, 1: 3 * MIB})
                holding.hold(groups, NODE1, write=tree.write)
                self.assertEqual({'0-1'}, set(self.mems(tree).values()))
                if version == 2:
                    for child in tree.children:
                        self.assertEqual('2-3', tree.read(child, 'cpuset.cpus.effective'))
                else:
                    self.assertEqual({NODE1}, {tree.own_set(c, 'cpus') for c in tree.children})

    def test_v2_holds_where_libvirt_does_and_leaves_the_group_above_wide(self):
        tree, groups = self.tree(2, NESTED)
        holding.hold(groups, NODE1, write=self.logged(tree))
        self.assertEqual(
            [('libvirt/%s/cpuset.cpus' % name, '2-3') for name in ('emulator', 'vcpu0', 'vcpu1')],
            self.log,
        )
        self.assertEqual('', tree.read(tree.parent, 'cpuset.cpus'))

    def test_v2_a_common_group_narrowed_earlier_is_handed_to_its_children(self):
        for before, ours, after in (
            ('2-3', frozenset(), '0-3'),
            ('0-1', NODE0, '0-3'),
            ('0-1', frozenset(), '0-1'),
            ('1-3', frozenset(), '1-3'),
        ):
            with self.subTest(before=before, ours=ours):
                tree, groups = self.tree(2, NESTED)
                tree.write(os.path.join(tree.parent, 'cpuset.cpus'), before)
                holding.hold(groups, NODE1, write=self.logged(tree), written_cpus=ours)
                self.assertEqual(
                    ('2-3', after), (tree.held(), tree.read(tree.parent, 'cpuset.cpus'))
                )
                # The threads are narrowed before the group above them is widened.
                self.assertEqual('libvirt/emulator/cpuset.cpus', self.log[0][0])

    def test_v2_a_set_without_effect_is_of_a_command_that_failed(self):
        tree, groups = self.tree(2, NESTED)
        tree.write(os.path.join(tree.parent, 'cpuset.cpus'), '2-3')
        vcpu = os.path.join(tree.vcpus[0], 'cpuset.cpus')
        tree.write(vcpu, '1')  # outside the group above: sched_setaffinity(2) was refused
        holding.hold(groups, NODE1, write=tree.write)
        self.assertEqual(('2-3', '0-3'), (tree.held(), tree.read(tree.parent, 'cpuset.cpus')))
        tree.write(vcpu, '1')
        with self.assertRaises(PinnedByOthers):
            holding.hold(groups, NODE1, write=tree.write)

    def test_groups_that_others_have_set_are_kept(self):
        for version in (1, 2):
            with self.subTest(version=version):
                tree, groups = self.tree(version)
                tree.write(os.path.join(tree.vcpus[0], 'cpuset.cpus'), '1')
                holding.hold(groups, NODE1, set_by_others={'vcpu0'}, write=tree.write)
                self.assertEqual('2-3 1 2-3', tree.held())

    def test_narrowing_early_needs_no_vcpus_and_an_empty_set(self):
        for version, vcpus, before, written in (
            (2, 0, '', True),
            (2, 1, '', False),
            (2, 0, '0-1', False),
        ):
            with self.subTest(version=version, vcpus=vcpus, before=before):
                tree, groups = self.tree(version, vcpus=vcpus)
                if before:
                    tree.write(os.path.join(tree.parent, 'cpuset.cpus'), before)
                holding.narrow_early(groups, NODE1, self.logged(tree))
                self.assertEqual([('libvirt/cpuset.cpus', '2-3')] * written, self.log)

    def test_v1_migrates_only_while_it_binds(self):
        tree, groups = self.tree(1, NESTED, vcpus=0, bytes_by_node={0: MIB, 1: 0})
        holding.bind_memory(groups, TO_NODE1, write=self.logged(tree))
        emulator = 'libvirt/emulator/cpuset.'
        self.assertEqual(
            [
                (emulator + 'memory_migrate', '1'),
                (emulator + 'mems', '1'),
                (emulator + 'memory_migrate', '0'),
            ],
            self.log,
        )

    def test_holding_a_second_time_writes_nothing(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout, bytes_by_node={0: 0, 1: MIB})
                for write in (tree.write, self.logged(tree)):
                    held = holding.hold(groups, NODE1, write=write)
                    bound = holding.bind_memory(groups, TO_NODE1, write=write)
                self.assertEqual(((), ('', ()), []), (held, bound, self.log))

    def test_undo_restores_the_tree_unless_another_process_wrote(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout, bytes_by_node={0: MIB, 1: 0})
                before = tree.contents()
                changes = holding.hold(groups, NODE1, write=tree.write)
                changes += holding.bind_memory(groups, TO_NODE1, write=tree.write)[1]
                self.assertNotEqual(before, tree.contents())
                holding.undo(groups, changes, write=tree.write)
                self.assertEqual(before, tree.contents())
                changes = holding.hold(groups, NODE1, write=tree.write)
                tree.write_file(changes[-1].path, '3\n')
                holding.undo(groups, changes, write=tree.write)
                with open(changes[-1].path, encoding='ascii') as f:
                    self.assertEqual('3', f.read().strip())

    def test_a_guest_that_we_placed_moves_and_comes_back(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout, bytes_by_node={0: MIB, 1: MIB})
                for cpus, node in ((NODE0, 0), (NODE1, 1), (NODE0, 0)):
                    mems, written_cpus = frozenset({node}), frozenset(range(4)) - cpus
                    holding.unbind_memory(groups, frozenset({1 - node}), write=tree.write)
                    holding.hold(groups, cpus, written_cpus=written_cpus, write=tree.write)
                    why_not, _ = holding.bind_memory(groups, mems, write=tree.write)
                    self.assertEqual('', why_not)
                    self.assertEqual({cpus}, set(thread_sets(groups, 'cpus').values()))
                    self.assertEqual({mems}, set(thread_sets(groups, 'mems').values()))

    def mems(self, tree):
        """Return the nodes from which each group of a tree may allocate: {directory: text}."""
        name = 'cpuset.mems' if tree.version == 1 else 'cpuset.mems.effective'
        return {
            directory: tree.read(directory, name) for directory in [tree.parent, *tree.children]
        }

    def test_a_bind_lapses(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout, bytes_by_node={0: MIB, 1: MIB})
                wide = self.mems(tree)
                self.assertEqual('', holding.bind_memory(groups, TO_NODE1, write=tree.write)[0])
                holding.unbind_memory(groups, TO_NODE1, write=tree.write)
                self.assertEqual(wide, self.mems(tree))

    def test_nodes_without_memory_are_in_no_set(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout, bytes_by_node={0: MIB, 1: MIB})
                tree.write_file('sys/devices/system/node/has_memory', '0\n')
                both, _ = holding.bind_memory(groups, frozenset({0, 1}), write=self.logged(tree))
                self.assertEqual({'0'}, {text for path, text in self.log if path.endswith('mems')})
                without, _ = holding.bind_memory(groups, TO_NODE1, write=self.logged(tree))
                self.assertEqual(('', 'none of them has memory'), (both, without))

    def test_no_group_is_widened_beyond_what_the_guest_may_use_or_its_pin(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout)
                holding.hold(groups, NODE1, write=tree.write)
                allowed_cpus = frozenset({1, 2, 3})
                holding.release_cpus(groups, NODE1, allowed_cpus, {'vcpu1'}, tree.write)
                self.assertEqual('1-3 1-3 2-3', tree.held())

    def test_cpus_are_released_and_a_pin_stays(self):
        for version, layout in LAYOUTS:
            for pinned in (False, True):
                with self.subTest(version=version, layout=layout, pinned=pinned):
                    tree, groups = self.tree(version, layout, vcpus=3)
                    self.assertEqual((), holding.release_cpus(groups, NODE1, write=tree.write))
                    self.assertTrue(holding.hold(groups, NODE1, write=tree.write))
                    if pinned:
                        tree.write(os.path.join(tree.vcpus[0], 'cpuset.cpus'), '3')
                    before = tree.contents()
                    changes = holding.release_cpus(groups, NODE1, write=tree.write)
                    for directory in tree.children[pinned * 2 :]:
                        self.assertIn(tree.read(directory, 'cpuset.cpus'), ('', '0-3'))
                    if pinned:
                        self.assertEqual('3', tree.read(tree.vcpus[0], 'cpuset.cpus'))
                    holding.undo(groups, changes, write=tree.write)
                    self.assertEqual(before, tree.contents())

    def test_v1_widens_upper_levels_of_the_guest_first(self):
        tree, groups = self.tree(1, NESTED)
        for directory in [*tree.children, tree.parent, tree.scope]:
            # CPUs 2-3 were offline once.
            tree.write_file(os.path.join(directory, 'cpuset.cpus'), '0-1\n')
        holding.hold(groups, NODE1, written_cpus=NODE0, write=self.logged(tree))
        self.assertEqual([('cpuset.cpus', '0-3'), ('libvirt/cpuset.cpus', '0-3')], self.log[:2])
        self.assertEqual('0-3', tree.read(tree.parent, 'cpuset.cpus'))
        self.assertEqual('2-3', tree.read(tree.emulator, 'cpuset.cpus'))

    def test_nothing_asked_for_is_an_error(self):
        _, groups = self.tree()
        with self.assertRaisesRegex(CpusetError, 'empty set'):
            holding.hold(groups, frozenset())


class LeftAloneTest(TreeTestCase):
    def test_a_pin_that_contradicts_leaves_the_whole_guest_alone(self):
        for version, layout in LAYOUTS:
            for pin in ('0', '1-2'):
                with self.subTest(version=version, layout=layout, pin=pin):
                    tree, groups = self.tree(version, layout)
                    tree.write_file(os.path.join(tree.vcpus[1], 'cpuset.cpus'), pin + '\n')
                    before = tree.contents()
                    with self.assertRaisesRegex(PinnedByOthers, 'vcpu1'):
                        holding.hold(groups, NODE1, write=tree.write)
                    self.assertEqual(before, tree.contents())

    def test_a_pin_inside_stays_and_a_wider_set_is_not_a_pin(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout)
                tree.write_file(os.path.join(tree.vcpus[0], 'cpuset.cpus'), '3\n')
                tree.write_file(os.path.join(tree.vcpus[1], 'cpuset.cpus'), '1-3\n')
                holding.hold(groups, NODE1, write=tree.write)
                self.assertEqual('3', tree.read(tree.vcpus[0], 'cpuset.cpus'))
                if version == 2:
                    self.assertEqual('2-3', tree.read(tree.vcpus[1], 'cpuset.cpus.effective'))
                else:
                    self.assertEqual('2-3', tree.read(tree.vcpus[1], 'cpuset.cpus'))

    def test_memory_bound_by_others_stays(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout, bytes_by_node={0: MIB, 1: 0})
                tree.write_file(os.path.join(tree.vcpus[0], 'cpuset.mems'), '0\n')
                self.assertEqual(
                    ('its nodes are set by others', ()),
                    holding.bind_memory(groups, TO_NODE1, write=tree.write),
                )

    def test_no_more_memory_moves_than_one_write_may(self):
        for version in (1, 2):
            for off, expected in ((64 * MIB, ''), (64 * MIB + 4096, 'too much to move at once')):
                with self.subTest(version=version, off=off):
                    tree, groups = self.tree(version, bytes_by_node={0: off, 1: 1 << 30})
                    why_not, _ = holding.bind_memory(groups, TO_NODE1, write=tree.write)
                    self.assertEqual(expected, why_not)

    def test_a_guest_whose_nodes_are_unknown_is_not_bound(self):
        tree, groups = self.tree(2)
        self.assertEqual(
            ('its nodes are unknown', ()), holding.bind_memory(groups, TO_NODE1, write=tree.write)
        )


class FaultTest(TreeTestCase):
    ERRNOS = (errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.ENODEV, errno.EINVAL, errno.ENOENT)

    def hold(self, groups, write):
        """Hold the guest or bind its memory; return the changes."""
        if self.bound:
            return holding.bind_memory(groups, TO_NODE1, write=write)[1]
        return holding.hold(groups, NODE1, write=write)

    def each_fault(self, fresh=False):
        """Yield (tree, groups, index) for each layout and each of its writes.

        :param fresh: use a new tree each time, because the test modifies it
        """
        for version, layout in LAYOUTS:
            for self.bound in (False, True):
                tree, groups = self.tree(version, layout, bytes_by_node={0: MIB, 1: 0})
                changes = self.hold(groups, self.logged(tree))
                holding.undo(groups, changes, write=tree.write)
                for index in range(len(self.log)):
                    if fresh:
                        tree, groups = self.tree(version, layout, bytes_by_node={0: MIB, 1: 0})
                    yield tree, groups, index

    def failing(self, tree, index, code, forever=False):
        """Return a write that fails with ``code`` at the index-th call (and at all later ones)."""
        self.calls = 0

        def write(path, text):
            self.calls += 1
            if self.calls == index + 1 or (forever and self.calls > index):
                self.path = path
                raise OSError(code, os.strerror(code))
            tree.write(path, text)

        return write

    def test_a_refused_write_leaves_the_tree_as_it_was(self):
        for tree, groups, index in self.each_fault():
            before = tree.contents()
            for code in self.ERRNOS:
                with self.subTest(
                    version=tree.version, path=tree.path, index=index, errno=errno.errorcode[code]
                ):
                    with self.assertRaises(CpusetError) as caught:
                        self.hold(groups, self.failing(tree, index, code))
                    self.assertNotIsInstance(caught.exception, GuestGone)
                    self.assertEqual(before, tree.contents())
                    self.assertIn(errno.errorcode[code], str(caught.exception))
                    self.assertIn(self.path, str(caught.exception))
                    self.assertNotIn('NOT undone', str(caught.exception))

    def test_writes_that_cannot_be_undone_are_listed(self):
        for tree, groups, index in self.each_fault(fresh=True):
            with self.subTest(version=tree.version, path=tree.path, index=index):
                before = tree.contents()
                with self.assertRaises(CpusetError) as caught:
                    self.hold(groups, self.failing(tree, index, errno.EBUSY, forever=True))
                left = [
                    path
                    for path, text in tree.contents().items()
                    if before[path] != text and not path.endswith('effective')
                ]
                listed = str(caught.exception).partition('NOT undone: ')[2]
                self.assertEqual(bool(left), bool(listed))
                for path in left:
                    self.assertIn('%s (was %r' % (path, before[path]), listed)

    def test_a_write_without_effect_is_noticed_and_undone(self):
        for tree, groups, index in self.each_fault():
            with self.subTest(version=tree.version, path=tree.path, index=index):
                before, count = tree.contents(), 0

                def write(path, text, tree=tree, index=index):
                    nonlocal count
                    count += 1
                    if count != index + 1:
                        tree.write(path, text)

                with self.assertRaisesRegex(CpusetError, 'reads back as'):
                    self.hold(groups, write)
                self.assertEqual(before, tree.contents())

    def test_an_interruption_undoes_and_passes(self):
        class OutOfTime(BaseException):
            pass

        for tree, groups, index in self.each_fault():
            with self.subTest(version=tree.version, path=tree.path, index=index):
                before, count = tree.contents(), 0

                def write(path, text, tree=tree, index=index):
                    nonlocal count
                    count += 1
                    tree.write(path, text)
                    if count == index + 1:
                        raise OutOfTime

                with self.assertRaises(OutOfTime):
                    self.hold(groups, write)
                self.assertEqual(before, tree.contents())

    def test_a_guest_that_ends_half_way_raises_guest_gone(self):
        for tree, groups, index in self.each_fault(fresh=True):
            with self.subTest(version=tree.version, path=tree.path, index=index):
                failing = self.failing(tree, index, (errno.ENOENT, errno.ENODEV)[index % 2])

                def write(path, text, tree=tree, index=index, failing=failing):
                    if self.calls == index:
                        shutil.rmtree(tree.scope)
                    failing(path, text)

                with self.assertRaises(GuestGone):
                    self.hold(groups, write)

    def test_a_vcpu_that_is_unplugged_half_way_is_passed_over(self):
        for version in (1, 2):
            with self.subTest(version=version):
                tree, groups = self.tree(version, FLAT)

                def write(path, text, tree=tree):
                    if os.path.isdir(tree.vcpus[0]):
                        shutil.rmtree(tree.vcpus[0])
                    tree.write(path, text)

                holding.hold(groups, NODE1, write=write)
                self.assertEqual('2-3', tree.read(tree.vcpus[1], 'cpuset.cpus'))
                holding.hold(groups, NODE1, write=tree.write)  # and if it was gone before

    def test_a_guest_with_its_main_group_gone_has_ended(self):
        tree, groups = self.tree(2, NESTED, bytes_by_node={0: MIB, 1: 0})
        shutil.rmtree(tree.emulator)
        with self.assertRaises(GuestGone):
            holding.bind_memory(groups, TO_NODE1, write=tree.write)

    def test_a_guest_gone_before_a_call_begins_raises_guest_gone(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                tree, groups = self.tree(version, layout)
                changes = holding.hold(groups, NODE1, write=tree.write)
                shutil.rmtree(tree.scope)
                for call, *arguments in (
                    (holding.hold, NODE0),
                    (read_sets, 'cpus'),
                    (holding.undo, changes),
                ):
                    with self.assertRaises(GuestGone):
                        call(groups, *arguments)

    def test_malformed_sets_are_an_error_not_a_crash(self):
        for name, write in (('cpus', holding.hold), ('mems', holding.bind_memory)):
            for text in ('x', '3-1', '0-', '1e9', '99999999999', '٣'):
                with self.subTest(name=name, text=text):
                    tree, groups = self.tree(bytes_by_node={0: MIB})
                    tree.write_file(os.path.join(tree.parent, 'cpuset.' + name), text)
                    with self.assertRaises(CpusetError):
                        write(groups, frozenset({1}))

    def test_the_real_writer_follows_no_symlink_and_makes_no_file(self):
        tree, groups = self.tree()
        path = os.path.join(tree.emulator, 'cpuset.cpus')
        os.rename(path, path + '.elsewhere')
        os.symlink(path + '.elsewhere', path)
        with self.assertRaisesRegex(CpusetError, 'ELOOP'):
            holding.hold(groups, NODE1)
