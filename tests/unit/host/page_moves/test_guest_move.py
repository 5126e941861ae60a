# SPDX-License-Identifier: Apache-2.0
"""Test the steps of a guest's move on an emulation of the kernel's pages and control groups."""

import errno
import os
import random
import shutil
import tempfile
import unittest
from array import array

from hypothesis import example, given, settings, strategies as st

from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import (
    CpusetError,
    GuestGone,
    PageMoveError,
    PageMoveRefused,
    PinnedByOthers,
)
from nova_numa_pmc.host import cgroups, holding
from nova_numa_pmc.host.cpusets import read_sets, thread_sets
from nova_numa_pmc.host.page_moves import guest_move, move_pages
from nova_numa_pmc.host.page_moves.process_pages import PAGE_BYTES
from tests.fixtures import sysfs
from tests.fixtures.cgroups import GuestCgroups
from tests.fixtures.clock import Clock
from tests.fixtures.guest_memory import START_TICKS, GuestMemory
from tests.fixtures.paged_child import PagedChild, can_locate_pages

LIMITS = guest_move.PageMoveLimits(
    bytes_per_sec=100 * PAGE_BYTES, batch_bytes=16 * PAGE_BYTES, reserve_bytes=1 << 20
)
HOME, AWAY = 0, 1
CPUS = frozenset({0, 1})


class GuestMoveTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()

    def guest(self, nodes, version=2, **memory):
        root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, root)
        self.tree = GuestCgroups(root, version=version)
        self.memory = GuestMemory(self.tree, nodes, **memory)
        self.groups = cgroups.find(self.tree.pid, root)
        return self.memory

    def mover(self, mems=(HOME,), written_cpus=frozenset(), **more):
        memory, groups = self.memory, self.groups
        more = {
            'write_cpus': lambda: holding.hold(
                groups, CPUS, written_cpus=written_cpus, write=memory.write
            ),
            'limits': LIMITS,
            'root': self.tree.root,
            'clock': self.clock,
            'kernel': self.memory,
            **more,
        }
        return guest_move.GuestMove(self.groups, mems, **more)

    def run_to_end(self, mover):
        while mover.progress.state == guest_move.MOVING:
            wait_s = mover.step().wait_s
            if wait_s:
                self.clock.wait(wait_s)
        return mover.progress

    def test_a_move_takes_cpus_first_and_then_all_memory(self):
        self.guest([AWAY] * 100 + [HOME] * 20 + [None] * 30)
        mover = self.mover()
        first = mover.step()
        self.assertEqual(
            (guest_move.MOVING, 0, 100 * PAGE_BYTES),
            (first.state, first.moved_bytes, first.left_bytes),
        )
        self.assertEqual(format_cpulist(CPUS), self.tree.held())
        end = self.run_to_end(mover)
        self.assertEqual(
            (guest_move.DONE, 100 * PAGE_BYTES, 0, ()),
            (end.state, end.moved_bytes, end.left_bytes, end.refused),
        )
        self.assertEqual({HOME, None}, set(self.memory.nodes))
        for directory in [self.tree.parent, *self.tree.children]:
            self.assertFalse(self.tree.read(directory, 'cpuset.mems'), 'memory stays unbound')
        self.assertEqual(end, mover.step(), 'a finished move does nothing more')

    def test_a_move_holds_its_rate_by_waiting(self):
        self.guest([AWAY] * 400)
        began_s = self.clock()
        end = self.run_to_end(self.mover())
        # 100 pages a second, after one batch of 16 in advance
        self.assertAlmostEqual((400 - 16) / 100, self.clock() - began_s, delta=0.2)
        self.assertEqual(400 * PAGE_BYTES, end.moved_bytes)
        self.assertLessEqual(max(pages for pages, _, _ in self.memory.calls), 16)

    def test_pages_that_numa_balancing_brings_meanwhile_count_as_brought(self):
        memory = self.guest([AWAY] * 64, pinned=range(48, 64))
        mover = self.mover()
        mover.step()

        def other():
            memory.nodes[:40] = [HOME] * 40

        memory.before_move = other
        end = self.run_to_end(mover)
        self.assertEqual((guest_move.PARTLY, 16 * PAGE_BYTES), (end.state, end.left_bytes))
        self.assertLess(end.moved_bytes, 40 * PAGE_BYTES)
        self.assertEqual(48 * PAGE_BYTES, end.arrived_bytes)

    def test_a_move_with_unseen_pages_is_not_called_done(self):
        memory = self.guest([1] * 3000, hinted=range(2000))
        memory.touch = lambda pid, addresses, cpus: None
        ended = self.run_to_end(self.mover())
        self.assertEqual((guest_move.PARTLY, 2000 * PAGE_BYTES), (ended.state, ended.left_bytes))

    def test_a_guest_whose_pages_are_all_pinned_is_given_up(self):
        pages = 3 * guest_move._REFUSED_RUN_MAX_BYTES // PAGE_BYTES
        self.guest([AWAY] * pages, pinned=range(pages))
        limits = LIMITS._replace(batch_bytes=16 << 20, bytes_per_sec=1 << 40)
        end = self.run_to_end(self.mover(limits=limits))
        self.assertEqual((guest_move.PARTLY, 0), (end.state, end.moved_bytes))
        self.assertEqual(
            (('EAGAIN', guest_move._REFUSED_RUN_MAX_BYTES // PAGE_BYTES),), end.refused
        )

    def test_pages_of_other_processes_move_only_in_files_of_its_own(self):
        for mode, name, expected in (
            ('rw-s', '/memfd:pc.ram (deleted)', guest_move.DONE),
            ('rw-s', '/dev/shm/between-guests', guest_move.PARTLY),
            ('rw-p', '', guest_move.PARTLY),
        ):
            with self.subTest(name):
                self.guest([AWAY] * 8, shared=(5,), mode=mode, name=name)
                end = self.run_to_end(self.mover())
                self.assertEqual(expected, end.state)
        self.guest([AWAY] * 8, shared=(5,), mode='rw-s', name='/memfd:pc.ram (deleted)')
        self.tree.write_file('proc/self/status', 'CapEff:\t0000000000000000\n')
        self.assertEqual((('EACCES', 1),), self.run_to_end(self.mover()).refused)

    def test_huge_pages_move_by_their_first_address(self):
        self.guest([AWAY] * 64, huge=8)
        end = self.run_to_end(self.mover())
        self.assertEqual((guest_move.DONE, 64 * PAGE_BYTES), (end.state, end.moved_bytes))
        self.assertEqual({2}, {pages for pages, _, _ in self.memory.calls})

    def test_a_node_full_of_page_cache_has_no_room(self):
        self.guest([AWAY] * 100)
        self.tree.write_file('proc/zoneinfo', '')
        sysfs.write_zones(self.tree.root, {HOME: 1 << 20}, cache_bytes=40 << 30)
        end = self.run_to_end(self.mover())
        self.assertEqual((guest_move.FULL, 0), (end.state, end.moved_bytes))

    def test_a_full_node_is_waited_for_for_a_limited_time(self):
        for room_comes, state, moved_pages in (
            (True, guest_move.DONE, 100),
            (False, guest_move.FULL, 32),
        ):
            with self.subTest(room_comes=room_comes):
                self.guest([AWAY] * 100, room={HOME: 40})
                mover = self.mover()
                while mover.progress.moved_bytes < 32 * PAGE_BYTES:
                    self.clock.wait(mover.step().wait_s)
                full_s = self.clock()
                while self.clock() < full_s + 5.0:
                    self.clock.wait(mover.step().wait_s)
                if room_comes:
                    self.memory.room[HOME] = 200
                    self.memory.write_files()
                end = self.run_to_end(mover)
                self.assertEqual((state, moved_pages * PAGE_BYTES), (end.state, end.moved_bytes))

    def test_a_move_rests_while_the_kernel_is_short_of_memory_and_then_goes_on(self):
        for name in ('pswpout', 'allocstall_movable', 'compact_stall'):
            with self.subTest(name):
                self.guest([AWAY] * 64)
                self.tree.write_file('proc/vmstat', 'nr_free_pages 9\n%s 5\n' % name)
                mover = self.mover(limits=LIMITS._replace(bytes_per_sec=1 << 40))
                while not mover.progress.moved_bytes:
                    mover.step()
                self.tree.write_file('proc/vmstat', 'nr_free_pages 9\n%s 6\n' % name)
                began_s, moved = self.clock(), mover.progress.moved_bytes
                while self.clock() < began_s + guest_move._REST_S - 0.01:
                    self.clock.wait(mover.step().wait_s)
                    self.assertEqual(moved, mover.progress.moved_bytes)
                self.assertEqual(guest_move.DONE, self.run_to_end(mover).state)

    def test_compaction_for_huge_pages_of_a_move_itself_is_no_shortage(self):
        self.guest([AWAY] * 64)
        stalls, move = [0], self.memory.move

        def move_with_compaction(*arguments):
            stalls[0] += 1
            self.tree.write_file('proc/vmstat', 'compact_stall %d\n' % stalls[0])
            return move(*arguments)

        self.tree.write_file('proc/vmstat', 'compact_stall 0\n')
        self.memory.move = move_with_compaction
        began_s = self.clock()
        end = self.run_to_end(self.mover(limits=LIMITS._replace(bytes_per_sec=1 << 40)))
        self.assertEqual(guest_move.DONE, end.state)
        self.assertGreater(stalls[0], 1)
        self.assertLess(self.clock() - began_s, guest_move._REST_S)

    def test_a_batch_takes_no_longer_than_a_guest_may_stall(self):
        """Whatever a page costs, almost all batches stay below the target once it is measured."""
        for s_per_page in (1e-6, 5e-6, 20e-6, 39e-6):
            with self.subTest(s_per_page=s_per_page):
                pages = 200 << 8
                self.guest([AWAY] * pages)
                taken_s, move = [], self.memory.move

                def slow_move(pid, addresses, *rest, cost=s_per_page, taken=taken_s, move=move):
                    taken.append(cost * len(addresses))
                    self.clock.wait(taken[-1])
                    return move(pid, addresses, *rest)

                self.memory.move = slow_move
                limits = LIMITS._replace(bytes_per_sec=1 << 40, batch_bytes=16 << 20)
                end = self.run_to_end(self.mover(limits=limits))
                self.assertEqual(guest_move.DONE, end.state)
                over = sum(seconds > guest_move.STALL_MAX_S for seconds in taken_s)
                self.assertLessEqual(over, max(1, len(taken_s) // 100))

    def test_a_guest_that_may_not_be_moved_any_more_is_left_before_the_next_batch(self):
        self.guest([AWAY] * 100)
        reasons = []
        mover = self.mover(why_not=lambda: ''.join(reasons))
        while not mover.progress.moved_bytes:
            mover.step()
        moved = mover.progress.moved_bytes
        reasons.append('pinned')
        end = self.run_to_end(mover)
        self.assertEqual((guest_move.CANCELLED, moved), (end.state, end.moved_bytes))
        self.assertIn('cancelled (pinned), ', str(end))

    def test_a_move_that_waits_for_room_may_be_cancelled(self):
        self.guest([AWAY] * 100, room={HOME: 0})
        mover = self.mover()
        while not mover.step().wait_s:
            pass
        mover.cancel()
        self.assertEqual(guest_move.CANCELLED, mover.step().state)

    def test_pages_that_a_filling_node_refuses_are_left(self):
        self.guest([AWAY] * 100, room={HOME: 16})
        self.memory.reserve = 1 << 30
        self.memory.write_files()
        end = self.run_to_end(self.mover())
        self.assertEqual((guest_move.PARTLY, 16 * PAGE_BYTES), (end.state, end.moved_bytes))
        self.assertEqual((('ENOMEM', 84),), end.refused)

    def test_a_full_node_of_two_target_nodes_is_passed_by(self):
        self.guest([2] * 64, room={0: 0})
        end = self.run_to_end(self.mover(mems=(0, 1)))
        self.assertEqual((guest_move.DONE, 64), (end.state, self.memory.nodes.count(1)))

    def test_a_move_cancelled_anywhere_leaves_cpusets_whole(self):
        for version in (1, 2):
            for steps in range(12):
                with self.subTest(version=version, steps=steps):
                    self.guest([AWAY] * 100, version)
                    mover = self.mover()
                    for _ in range(steps):
                        self.clock.wait(mover.step().wait_s)
                    mover.cancel()
                    ended = mover.step()
                    self.assertEqual(guest_move.CANCELLED, ended.state)
                    self.assertEqual(ended.moved_bytes, self.memory.nodes.count(HOME) * PAGE_BYTES)
                    held = set(thread_sets(self.groups, 'cpus').values())
                    self.assertLessEqual(
                        held - {frozenset()}, {CPUS} if steps else {frozenset(range(4))}
                    )
                    mover.undo_cpus()
                    wide = set(read_sets(self.groups, 'cpus').values())
                    self.assertLessEqual(wide, {frozenset(range(4)), frozenset()})

    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.sampled_from([None, 0, 1, 2]), min_size=1, max_size=120),
        st.sampled_from([1, 4]),
        st.integers(0, 12),
        st.integers(0, 99),
    )
    @example([1] * 5, 4, 0, 39)  # a pinned huge page in front of a page of the guest's own
    def test_a_killed_move_is_resumed_where_the_pages_are(self, nodes, huge, killed_after, seed):
        """However often a move is killed, a restarted one ends like one that was never killed."""
        rng = random.Random(seed)
        pinned = {at for at in range(len(nodes)) if not rng.randrange(20)}
        self.guest(nodes, huge=huge, pinned=pinned)
        mover = self.mover()
        for _ in range(killed_after):
            if mover.progress.state == guest_move.MOVING:
                self.clock.wait(mover.step().wait_s)
        del mover
        end = self.run_to_end(self.mover(written_cpus=CPUS))
        left = [at for at, node in enumerate(self.memory.nodes) if node not in (HOME, None)]
        # A pinned page may hold back its huge page, but nothing else.
        self.assertLessEqual(
            set(left),
            {at for page in pinned for at in range(page - page % huge, page - page % huge + huge)},
        )
        self.assertEqual(len(left) * PAGE_BYTES, end.left_bytes)
        self.assertEqual(guest_move.PARTLY if left else guest_move.DONE, end.state)
        self.assertEqual(
            [node is None for node in nodes], [node is None for node in self.memory.nodes]
        )
        self.assertEqual(format_cpulist(CPUS), self.tree.held())

    def test_without_the_call_no_memory_moves(self):
        self.guest([AWAY] * 40)

        def denied(*_args):
            raise PageMoveRefused('denied')

        self.memory.locate = denied
        mover = self.mover()
        with self.assertRaisesRegex(PageMoveRefused, 'denied'):
            self.run_to_end(mover)
        self.assertFalse(self.tree.read(self.tree.parent, 'cpuset.mems'))

    def test_a_guest_that_ends_while_it_moves_is_reported_as_gone(self):
        def reused():
            self.memory.set_start_time(START_TICKS + 1)

        def zombie():
            self.memory.set_start_time(START_TICKS, 'Z')

        def gone():
            shutil.rmtree(self.tree.root + '/proc/%d' % self.tree.pid)

        for end in (reused, zombie, gone):
            with self.subTest(end.__name__):
                self.guest([AWAY] * 100)
                mover = self.mover()
                for _ in range(3):
                    self.clock.wait(mover.step().wait_s)
                end()
                with self.assertRaises(GuestGone):
                    self.run_to_end(mover)

    def test_a_move_to_an_absent_node_is_refused(self):
        self.guest([AWAY] * 10)
        with self.assertRaisesRegex(PageMoveError, 'no node 9 with memory'):
            self.mover(mems=(9,))

    def test_pins_of_others_stop_a_move_before_any_page(self):
        self.guest([AWAY] * 10)
        self.tree.write(self.tree.vcpus[0] + '/cpuset.cpus', '2')
        mover = self.mover()
        with self.assertRaises(PinnedByOthers):
            self.run_to_end(mover)
        self.assertEqual([], self.memory.calls)

    def test_a_write_that_fails_moves_no_page(self):
        self.guest([AWAY] * 10)

        def write(path, text):
            raise OSError(errno.EACCES, 'no')

        self.memory.write = write
        with self.assertRaises(CpusetError):
            self.run_to_end(self.mover())
        self.assertEqual([], self.memory.calls)

    def test_memory_may_be_moved_without_the_cpus(self):
        self.guest([AWAY] * 10)
        end = self.run_to_end(self.mover(write_cpus=lambda: ()))
        self.assertEqual((guest_move.DONE, 10 * PAGE_BYTES), (end.state, end.moved_bytes))
        self.assertFalse(self.tree.held())

    def test_unknown_bytes_per_node_are_reported_as_unknown(self):
        self.guest([AWAY] * 10)
        self.tree.write_file(self.tree.memory + '/memory.numa_stat', 'garbage\n')
        self.memory.write_files = lambda: None
        end = self.run_to_end(self.mover())
        self.assertEqual((guest_move.DONE, None), (end.state, end.left_bytes))
        self.assertEqual(10 * PAGE_BYTES, end.moved_bytes)

    @unittest.skipUnless(can_locate_pages(), 'move_pages(2) is not available here')
    def test_a_real_process_is_read_with_the_kernels_own_answers(self):
        """Read with the kernel's own answers, all memory is where it belongs."""
        root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, root)
        child = PagedChild()
        self.addCleanup(child.end)
        node = move_pages.locate(child.pid, array('Q', [child.start]))[0]
        tree = GuestCgroups(root, pid=child.pid, bytes_by_node={node + 1: 1 << 20})
        for path in ['proc/%d/%s' % (child.pid, name) for name in ('maps', 'stat', 'pagemap')]:
            os.symlink('/' + path, os.path.join(root, path))
        sysfs.write_zones(root, {node: 8 << 30})
        kernel = move_pages.KernelCalls()
        kernel.write = tree.write
        mover = guest_move.GuestMove(
            cgroups.find(child.pid, root), (node,), root=root, clock=self.clock, kernel=kernel
        )
        end = self.run_to_end(mover)
        # The control group's page counts come from a fixture, which still says: elsewhere.
        self.assertEqual((guest_move.PARTLY, 0, ()), (end.state, end.moved_bytes, end.refused))
        self.assertEqual(0, child.end(), 'its memory changed')


class ProgressTest(unittest.TestCase):
    def followed(self, **known):
        return guest_move.Progress(guest_move.PARTLY, **known).has_followed

    def test_half_of_the_memory_brought_by_whomever_is_enough_to_have_followed(self):
        for moved, left, followed in ((5, 5, True), (4, 6, False), (1, 4, True)):
            known = {'moved_bytes': moved, 'left_bytes': left, 'left_at_first_bytes': 10}
            self.assertEqual(followed, self.followed(**known))

    def test_memory_of_which_the_rest_is_unknown_has_not_followed(self):
        self.assertFalse(self.followed(moved_bytes=8))
