# SPDX-License-Identifier: Apache-2.0
"""A process's huge pages from pools are counted by node."""

import tempfile
import unittest

from nova_numa_pmc.host import cgroups
from tests.fixtures import sysfs

MAPS = """\
55d0a0000000 default file=/usr/bin/qemu-system-x86_64 mapped=120 N0=100 N1=20 kernelpagesize_kB=4
7f1240000000 bind:0 file=/dev/hugepages/libvirt/qemu/7/ram huge dirty=6 N0=2 N1=4 kernelpagesize_kB=2048
7f1300000000 default file=/dev/hugepages-1G/a\\040huge\\040name huge anon=1 N1=1 kernelpagesize_kB=1048576
7ffd00000000 default stack anon=7 dirty=7 N0=7 kernelpagesize_kB=4
"""  # noqa: E501 -- as the kernel prints it


class HugePagesTest(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as root:
            if text is not None:
                sysfs.write(root, 'proc/7/numa_maps', text)
            return cgroups.read_huge_pages_by_node(7, root)

    def test_bytes_of_pool_pages_are_counted_by_node(self):
        self.assertEqual({0: 4 << 20, 1: (8 << 20) + (1 << 30)}, self.read(MAPS))

    def test_without_huge_pages_there_are_no_bytes(self):
        self.assertEqual({}, self.read(MAPS.splitlines()[0]))
        self.assertEqual({}, self.read(None))
        self.assertEqual({}, cgroups.read_huge_pages_by_node(None))

    def test_a_mapping_without_pages_does_not_hide_the_others(self):
        unused = '7f1100000000 default file=/memfd:unused\\040(deleted) huge\n'
        self.assertEqual(self.read(MAPS), self.read(unused + MAPS))

    def test_malformed_lines_are_left_out(self):
        self.assertEqual({}, self.read('7f00 default huge N0=2'))
        self.assertEqual({}, self.read('7f00 default huge N0=x kernelpagesize_kB=2048'))
