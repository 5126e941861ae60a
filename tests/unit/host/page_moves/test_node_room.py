# SPDX-License-Identifier: Apache-2.0
"""Test how much memory a node can take."""

import os
import shutil
import tempfile
import unittest

from nova_numa_pmc.exceptions import PageMoveError
from nova_numa_pmc.host.page_moves import node_room


class NodeRoomTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def put(self, text):
        directory = os.path.join(self.root, 'sys/devices/system/node/node1')
        os.makedirs(directory, exist_ok=True)
        with open(directory + '/meminfo', 'w', encoding='utf-8') as file:
            file.write(text)

    def test_room_is_free_memory_and_half_of_the_page_cache(self):
        self.put(
            'Node 1 MemTotal:       1000 kB\nNode 1 MemFree:         100 kB\n'
            'Node 1 Active(anon):     7 kB\nNode 1 Active(file):     30 kB\n'
            'Node 1 Inactive(file):   10 kB\nNode 1 HugePages_Free:  4\n'
        )
        self.assertEqual(120 << 10, node_room.available_bytes(1, self.root))

    def test_a_node_without_memory_is_an_error(self):
        self.put('Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB\n')
        with self.assertRaisesRegex(PageMoveError, 'node 1 has no memory'):
            node_room.available_bytes(1, self.root)

    def test_an_absent_node_or_malformed_meminfo_is_an_error(self):
        with self.assertRaisesRegex(PageMoveError, 'node7'):
            node_room.available_bytes(7, self.root)
        for text in ('', 'Node 1 MemFree:\n', 'Node 1 MemFree: x kB\n', 'Node 1 MemTotal: 1 kB\n'):
            self.put(text)
            with self.subTest(text=text), self.assertRaisesRegex(PageMoveError, 'node1/meminfo'):
                node_room.available_bytes(1, self.root)
