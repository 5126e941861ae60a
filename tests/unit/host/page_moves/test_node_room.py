# SPDX-License-Identifier: Apache-2.0
"""Test how much memory the nodes can take."""

import os
import shutil
import tempfile
import unittest

from nova_numa_pmc.exceptions import PageMoveError
from nova_numa_pmc.host.page_moves import node_room
from tests.fixtures import sysfs


class NodeRoomTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def test_room_is_what_is_free_above_the_watermarks_and_never_the_page_cache(self):
        sysfs.write_zones(self.root, {0: 300 << 20, 3: 0}, cache_bytes=40 << 30)
        self.assertEqual(
            {0: node_room.NodeMemory(300 << 20, 40 << 30), 3: node_room.NodeMemory(0, 40 << 30)},
            node_room.read(self.root),
        )

    def test_this_kernels_file_is_understood(self):
        if not os.path.exists('/proc/zoneinfo'):
            self.skipTest('no /proc/zoneinfo')
        self.assertTrue(all(memory.room_bytes >= 0 for memory in node_room.read().values()))

    def test_a_file_that_is_missing_or_malformed_is_an_error(self):
        with self.assertRaisesRegex(PageMoveError, 'zoneinfo'):
            node_room.read(self.root)
        whole = 'Node 0, zone Normal\n pages free 9\n high 1\n managed 9\n protection: (0, 0)\n'
        for old, new in (('free 9', 'free x'), (' high 1\n', ''), ('(0, 0)', ''), ('e 0,', 'e')):
            sysfs.write(self.root, 'proc/zoneinfo', whole.replace(old, new))
            with self.subTest(old=old), self.assertRaisesRegex(PageMoveError, 'zoneinfo'):
                node_room.read(self.root)

    def test_shortages_of_memory_are_counted_where_the_kernel_counts_them(self):
        self.assertEqual(0, node_room.read_shortages(self.root))
        sysfs.write(
            self.root,
            'proc/vmstat',
            'pswpin 9\npswpout 1\nallocstall_normal 2\nallocstall_dma 4\ncompact_stall 8\n',
        )
        self.assertEqual(15, node_room.read_shortages(self.root))
