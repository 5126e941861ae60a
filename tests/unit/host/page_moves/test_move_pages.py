# SPDX-License-Identifier: Apache-2.0
"""Test move_pages(2) on this kernel: what it reports and what it refuses."""

import ctypes
import errno
import os
import sys
import types
import unittest
from array import array
from unittest import mock

from nova_numa_pmc.exceptions import GuestGone, PageMoveError, PageMoveRefused
from nova_numa_pmc.host.page_moves import move_pages, process_pages
from nova_numa_pmc.host.page_moves.process_pages import PAGE_BYTES, PageMover
from tests.fixtures.paged_child import PAGES, PagedChild, can_locate_pages

ABSENT_NODE = 1021


@unittest.skipUnless(can_locate_pages(), 'move_pages(2) is not available here')
class KernelTest(unittest.TestCase):
    def setUp(self):
        self.child = PagedChild()
        self.addCleanup(self.child.end)
        self.start = self.child.start
        self.pages = array('Q', range(self.start, self.start + PAGES * PAGE_BYTES, PAGE_BYTES))
        self.beyond = array('Q', (page + PAGES * PAGE_BYTES for page in self.pages))

    def nodes(self):
        return move_pages.locate(self.child.pid, self.pages)

    def test_pages_are_located_or_have_an_error_number(self):
        self.assertGreaterEqual(min(self.nodes()), 0)
        self.assertEqual({-errno.ENOENT}, set(move_pages.locate(self.child.pid, self.beyond)))
        self.assertEqual(
            [-errno.EFAULT], list(move_pages.locate(self.child.pid, array('Q', [PAGE_BYTES])))
        )

    def test_a_move_of_pages_to_their_own_node_succeeds(self):
        node = self.nodes()[0]
        why, status = move_pages.move(self.child.pid, self.pages, node)
        self.assertEqual((0, {node}), (why, set(status)))

    def test_a_move_to_an_absent_node_is_an_error(self):
        for node in (ABSENT_NODE, -1, (1 << 31) - 1):
            with self.subTest(node), self.assertRaisesRegex(PageMoveRefused, 'no such node'):
                move_pages.move(self.child.pid, self.pages, node)
        self.assertGreaterEqual(min(self.nodes()), 0)

    def test_a_process_that_has_ended_raises_guest_gone(self):
        self.assertEqual(0, self.child.end())
        with self.assertRaises(GuestGone):
            move_pages.move(self.child.pid, self.pages, 0)
        with self.assertRaises(GuestGone):
            move_pages.locate(self.child.pid, self.pages)

    def test_each_way_to_the_system_call_reports_the_same(self):
        expected = list(self.nodes())
        handle = types.SimpleNamespace()
        try:
            handle.LIBNUMA = ctypes.CDLL('libnuma.so.1')
        except OSError:
            handle.LIBNUMA = ctypes.CDLL(None)
        for name, module in (('py-libnuma', handle), ('without', None)):
            with (
                self.subTest(name),
                mock.patch.object(move_pages, '_bind', move_pages._bind.__wrapped__),
                mock.patch.dict(sys.modules, {'numa': module}),
            ):
                self.assertEqual(expected, list(self.nodes()))
                with self.assertRaises(PageMoveRefused):
                    move_pages.move(self.child.pid, self.pages, ABSENT_NODE)

    def test_the_page_mover_leaves_a_range_that_is_at_home(self):
        """No page lies elsewhere, and the child's bytes are unchanged."""
        node = self.nodes()[0]
        mapping = next(
            m for m in process_pages.read(self.child.pid) if m.start <= self.start < m.end
        )
        there = process_pages.Pagemap(self.child.pid)
        self.addCleanup(there.close)
        moved = PageMover(self.child.pid, frozenset({node})).move(
            mapping, self.start, self.start + 2 * PAGES * PAGE_BYTES, node, there
        )
        self.assertEqual((0, (), 0), tuple(moved))
        self.assertEqual(0, self.child.end(), 'its memory changed')

    def test_a_touch_is_made_on_cpus_that_this_process_may_use(self):
        usable, seen = os.sched_getaffinity(0), []

        def read(*_):
            seen.append(os.sched_getaffinity(0))

        with mock.patch.object(move_pages, '_process_vm_readv', lambda: read):
            for cpus in ({min(usable)}, {min(usable), 4095}, {4095}, frozenset()):
                move_pages.touch(self.child.pid, self.pages, frozenset(cpus))
                self.assertEqual(usable, os.sched_getaffinity(0))
        self.assertEqual([{min(usable)}] * 2 + [usable] * 2, seen)

    def test_touched_pages_keep_their_contents(self):
        before = self.nodes()
        move_pages.touch(self.child.pid, self.pages)
        self.assertEqual(before, self.nodes())
        move_pages.touch(self.child.pid, array('Q', [PAGE_BYTES]))  # not mapped
        self.assertEqual(0, self.child.end(), 'its memory changed')
        move_pages.touch(self.child.pid, self.pages)  # no longer there

    @unittest.skipUnless(os.path.exists('/sys/devices/system/node/node1/meminfo'), 'one node only')
    def test_pages_move_there_and_back(self):
        nodes = [
            int(name[4:])
            for name in os.listdir('/sys/devices/system/node')
            if name[:4] == 'node' and name[4:].isdigit()
        ]
        for node in sorted(nodes)[:2] * 2:
            why, _ = move_pages.move(self.child.pid, self.pages, node)
            self.assertEqual((0, {node}), (why, set(self.nodes())))


class RefusalTest(unittest.TestCase):
    def test_errors_of_the_call_name_what_to_do(self):
        def failing(code):
            def call(*_args):
                raise OSError(code, os.strerror(code))

            return call

        pages = array('Q', [PAGE_BYTES])
        for code, kind, message in (
            (errno.EPERM, PageMoveRefused, 'CAP_SYS_NICE'),
            (errno.EACCES, PageMoveRefused, 'cpuset.mems'),
            (errno.ENOSYS, PageMoveRefused, 'seccomp'),
            (errno.ESRCH, GuestGone, 'process 5'),
            (errno.EINVAL, GuestGone, 'process 5'),
            (errno.E2BIG, PageMoveError, 'node 3'),
        ):
            with (
                self.subTest(message),
                mock.patch.object(move_pages, '_bind', return_value=failing(code)),
                self.assertRaisesRegex(kind, message),
            ):
                move_pages.move(5, pages, 3)
        with mock.patch.object(move_pages, '_bind', return_value=failing(errno.ENOMEM)):
            why, status = move_pages.move(5, pages, 3)
            self.assertEqual((errno.ENOMEM, [move_pages.UNREPORTED]), (why, list(status)))

    def test_a_machine_whose_call_number_is_unknown_is_refused(self):
        with (
            mock.patch.object(move_pages, '_bind', move_pages._bind.__wrapped__),
            mock.patch.object(move_pages, '_py_libnuma', side_effect=AttributeError),
            mock.patch('platform.machine', return_value='vax'),
            self.assertRaisesRegex(PageMoveRefused, 'vax'),
        ):
            move_pages.locate(5, array('Q', [PAGE_BYTES]))
