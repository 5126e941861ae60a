# SPDX-License-Identifier: Apache-2.0
"""A guest's mappings are read from valid, odd, vanished and hostile files."""

import os
import shutil
import struct
import tempfile
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.exceptions import GuestGone, PageMoveError
from nova_numa_pmc.host.page_moves import process_pages
from nova_numa_pmc.host.page_moves.process_pages import PAGE_BYTES, Mapping

QEMU = r"""55d0c0000000-55d0c0400000 r--p 00000000 08:01 7    /usr/bin/qemu-system-x86_64
55d0c1000000-55d0c1010000 rw-p 00e00000 08:01 7          /usr/bin/qemu-system-x86_64
55d0c2000000-55d0c3000000 rw-p 00000000 00:00 0          [heap]
7f0000000000-7f0040000000 rw-p 00000000 00:00 0
7f0050000000-7f0060000000 rw-s 00000000 00:01 1030       /memfd:pc.ram (deleted)
7f0060000000-7f0060001000 rw-s 00000000 00:0f 1031       anon_inode:kvm-vcpu:0
7f0060010000-7f0060020000 rw-s 00000000 00:0f 1032       /dev/vfio/7
7f0070000000-7f0070400000 rw-s 00000000 00:1a 1033       /dev/shm/between guests\012x
7f0080000000-7f00c0000000 rw-s 00000000 00:1b 1034       /dev/hugepages/libvirt/qemu/1-g/ram
7f00d0000000-7f00d0001000 ---p 00000000 00:00 0
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]
"""


class MappingsTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.makedirs(self.root + '/proc/7')

    def put(self, name, text):
        with open(self.root + '/proc/7/' + name, 'wb') as file:
            file.write(text if isinstance(text, bytes) else text.encode())

    def test_mappings_are_those_qemu_may_write_and_no_device(self):
        self.put('maps', QEMU)
        found_mappings = process_pages.read(7, self.root)
        self.assertEqual(
            [
                Mapping(0x55D0C1000000, 0x55D0C1010000, False),
                Mapping(0x55D0C2000000, 0x55D0C3000000, False),
                Mapping(0x7F0000000000, 0x7F0040000000, False),
                Mapping(0x7F0050000000, 0x7F0060000000, True),
                Mapping(0x7F0070000000, 0x7F0070400000, False),
                Mapping(0x7F0080000000, 0x7F00C0000000, True),
                Mapping(0x7FFE00000000, 0x7FFE00021000, False),
            ],
            found_mappings,
        )

    def test_mappings_that_the_linker_made_read_only_are_included(self):
        """Relocated data lies before a file's writable data; other read-only data is shared."""
        lines = (
            '7f5ece600000-7f5ece8a7000 r--p 00200000 08:01 9  /usr/lib/libcapstone.so.4',
            '7f5ece8a7000-7f5ece9f0000 r--p 004a6000 08:01 9  /usr/lib/libcapstone.so.4',
            '7f5ece9f0000-7f5ece9f1000 rw-p 005ef000 08:01 9  /usr/lib/libcapstone.so.4',
            '7f5ece9f1000-7f5ece9f3000 r--p 00000000 08:01 10 /usr/lib/libz.so.1.2.13',
            '7f5ece9f3000-7f5ece9f4000 rw-p 00000000 00:00 0',
            '7f5ecea00000-7f5ecea01000 r--p 00000000 00:00 0',
            '7f5ecea01000-7f5ecea02000 rw-p 00000000 00:00 0',
        )
        self.put('maps', '\n'.join(lines) + '\n')
        self.assertEqual(
            [
                Mapping(0x7F5ECE8A7000, 0x7F5ECE9F0000, False),
                Mapping(0x7F5ECE9F0000, 0x7F5ECE9F1000, False),
                Mapping(0x7F5ECE9F3000, 0x7F5ECE9F4000, False),
                Mapping(0x7F5ECEA01000, 0x7F5ECEA02000, False),
            ],
            process_pages.read(7, self.root),
        )

    def test_a_process_that_has_gone_raises_guest_gone(self):
        for ask in (process_pages.read, process_pages.start_ticks):
            with self.subTest(ask.__name__), self.assertRaises(GuestGone):
                ask(8, self.root)

    def test_too_large_maps_are_an_error(self):
        self.put('maps', b'a' * ((16 << 20) + 1))
        with self.assertRaises(PageMoveError):
            process_pages.read(7, self.root)

    @given(st.binary(max_size=200))
    def test_any_bytes_give_mappings_or_an_error_with_their_path(self, data):
        self.put('maps', data)
        self.put('stat', data)
        for ask in (
            lambda: process_pages.read(7, self.root),
            lambda: process_pages.start_ticks(7, self.root),
        ):
            try:
                ask()
            except (PageMoveError, GuestGone) as e:
                self.assertIn(self.root, str(e))

    def test_the_start_of_a_process_is_read_and_a_zombie_is_gone(self):
        self.put('stat', '7 (qemu) (x) y) S ' + ' '.join(str(n) for n in range(4, 53)))
        self.assertEqual(22, process_pages.start_ticks(7, self.root))
        self.put('stat', '7 (qemu) Z ' + ' '.join(str(n) for n in range(4, 53)))
        with self.assertRaises(GuestGone):
            process_pages.start_ticks(7, self.root)

    def test_presence_of_pages_is_read_from_pagemap(self):
        page = PAGE_BYTES
        soft_dirty, swapped, present = 1 << 55, 1 << 62, 1 << 63
        self.put('pagemap', struct.pack('=8Q', 0, soft_dirty, swapped, present, 0, 0, 0, 0))
        there = process_pages.Pagemap(7, self.root)
        self.addCleanup(there.close)
        for start, end, expected in (
            (0, 2, False),
            (0, 3, False),
            (0, 4, True),
            (3, 4, True),
            (4, 8, False),
            (7, 9, True),
        ):
            with self.subTest((start, end)):
                self.assertEqual(expected, there.any_present(start * page, end * page))
        self.assertEqual(
            [False, False, True, False], there.are_present([page, 2 * page, 3 * page, 4 * page])
        )
        self.assertEqual(
            [False, False], there.are_present([7 * page, 8 * page]), 'the file ends there'
        )
        there.close()
        self.assertTrue(there.any_present(0, page), 'what is not known may be there')
        self.assertEqual(
            [False], there.are_present([3 * page]), 'what is not known is not touched'
        )

    def test_malformed_maps_are_an_error_with_their_path(self):
        for text in (
            'x\n',
            '1000-2000\n',
            '2000-1000 rw-p 0 0:0 0\n',
            '1-2 rw-p 0 0:0 0\n',
            '1000-2000-3000 rw-p 0 0:0 0\n',
            '1000-2000 rw-p 0 0:0 z\n',
            '-1000-2000 rw-p 0 0:0 0\n',
            '0-1%s000 rw-p 0 0:0 0\n' % ('0' * 16),
            b'\xff\xfe\0',
            '\n',
        ):
            self.put('maps', text)
            with self.subTest(text[:20]), self.assertRaisesRegex(PageMoveError, 'proc/7/maps'):
                process_pages.read(7, self.root)
