# SPDX-License-Identifier: Apache-2.0
"""Shared L3 caches and sockets are read from sysfs as several kernels present it."""

from nova_numa_pmc.host import topology
from tests.cases.root import RootCase
from tests.fixtures import sysfs


class HierarchyCase(RootCase):
    def read(self, nodes, **shape):
        sysfs.build_sysfs(self.root, nodes, **shape)
        return self.again()

    def again(self):
        return topology.with_caches(topology.read(self.root), self.root)


class ReadTest(HierarchyCase):
    def test_two_sockets_of_one_cache_each_are_read(self):
        shape = dict(l3s=['0-3', '4-7'], sockets=(0, 1), vendor='AuthenticAMD')
        host = self.read(sysfs.equal_nodes(2), **shape)
        self.assertEqual((({0, 1, 2, 3},), ({4, 5, 6, 7},)), host.l3s)
        # The vendor does not matter, and reading it may take long.
        self.assertEqual(((0, 1), ''), (host.sockets, host.vendor))

    def test_a_cache_of_several_nodes_is_read(self):
        host = self.read(sysfs.equal_nodes(4, 2), l3s=['0-3', '4-7'], sockets=(0, 0, 1, 1))
        self.assertEqual((({0, 1, 2, 3},),) * 2 + (({4, 5, 6, 7},),) * 2, host.l3s)
        self.assertEqual((0, 0, 1, 1), host.sockets)

    def test_malformed_files_of_a_cpu_are_not_known(self):
        cpu4 = 'sys/devices/system/cpu/cpu4/'
        for path, text in (
            ('cache/index3/shared_cpu_list', 'x'),
            ('cache/index3/shared_cpu_list', ''),
            ('cache/index3/shared_cpu_list', '5-7'),
            ('cache/index3/shared_cpu_list', '\0'),
            ('cache/index3/shared_cpu_list', b'\xff\xfe'),
        ):
            with self.subTest(text=text):
                self.read(sysfs.equal_nodes(2), l3s=['0-3', '4-7'])
                self.write(cpu4 + path, text)
                self.assertEqual((({0, 1, 2, 3},), ()), self.again().l3s)
        for text in ('-1', '', '1' * 20, 'x', '²'):
            with self.subTest(text=text):
                self.read(sysfs.equal_nodes(3), sockets=(0, 1, 2))
                self.write(cpu4 + 'topology/physical_package_id', text)
                self.assertEqual((0, None, 2), self.again().sockets)
