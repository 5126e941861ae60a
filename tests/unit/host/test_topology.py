# SPDX-License-Identifier: Apache-2.0
"""Nodes, CPUs and huge pages are read from sysfs, and a malformed file is named."""

import os
import shutil
import unittest

from hypothesis import HealthCheck, given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view
from nova_numa_pmc.cpulist import CPUS_MAX, format_cpulist, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, TopologyError
from nova_numa_pmc.host import topology
from tests.cases.root import RootCase
from tests.fixtures.sysfs import GIB, FakeNode, build_sysfs, equal_nodes, write

NODE = 'sys/devices/system/node'
CPU = 'sys/devices/system/cpu'


class CpuListTest(unittest.TestCase):
    def test_other_texts_than_lists_of_the_kernel_are_refused(self):
        for text in (
            '3-1',
            '1,',
            ',1',
            '1,,2',
            '-1',
            '1-',
            '1-2-3',
            '+1',
            '1_0',
            '0x1',
            '1 2',
            '1, 2',
            'a',
            '16384',
            '0-16384',
            '9' * 30,
            '²',
            '１',
            '2,1',
            '1,1',
            '0-3,2',
            '0-7:1/2',
            '(null)',
            '0\0-3',
            '0-3\0,5',
        ):
            with self.subTest(text=text):
                self.assertRaises(CpuListError, parse_cpulist, text)

    @given(st.frozensets(st.integers(0, CPUS_MAX - 1)))
    def test_format_and_parse_are_inverse(self, numbers):
        text = format_cpulist(numbers)
        self.assertEqual(numbers, parse_cpulist(text))

    @given(st.text('0123456789-,^ \n\t٣x', max_size=40))
    def test_parsing_any_text_raises_only_the_named_error(self, text):
        try:
            numbers = parse_cpulist(text)
        except CpuListError:
            return
        self.assertLess(max(numbers, default=0), CPUS_MAX)


class TreeTest(RootCase):
    def remove(self, path):
        path = os.path.join(self.root, path)
        (shutil.rmtree if os.path.isdir(path) else os.remove)(path)


class ReadTest(TreeTest):
    def test_offline_and_isolated_cpus_are_not_usable_but_those_of_nohz_full_are(self):
        build_sysfs(self.root, equal_nodes(2), offline='7', isolated='0', nohz_full='1-6')
        write(self.root, 'sys/fs/cgroup/cpuset.cpus.isolated', '1\n')
        host = topology.read(self.root)
        self.assertEqual([{2, 3}, {4, 5, 6}], [node.cpus for node in host.nodes])
        self.assertEqual([{0, 1, 2, 3}, {4, 5, 6}], [node.online_cpus for node in host.nodes])
        self.assertEqual(7, len(host.cores), 'isolated CPUs are still on their cores')

    def test_a_cpu_on_two_nodes_is_counted_once(self):
        build_sysfs(self.root, equal_nodes(3))
        write(self.root, f'{NODE}/node1/cpulist', '2-7\n')
        host = topology.read(self.root)
        self.assertEqual(
            [{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}], [node.online_cpus for node in host.nodes]
        )
        self.assertEqual([4, 4, 4], host_view.capacity_cores(host, model.PlacementOptions()))

    def test_cpus_on_no_node_are_not_counted(self):
        build_sysfs(self.root, equal_nodes(2))
        self.remove(f'{NODE}/node1/cpulist')
        host = topology.read(self.root)
        self.assertEqual([4, 0], host_view.capacity_cores(host, model.PlacementOptions()))

    def test_contradicting_siblings_count_every_cpu_once(self):
        build_sysfs(self.root, equal_nodes(1), threads=2)
        write(self.root, f'{CPU}/cpu1/topology/thread_siblings_list', '0-3\n')
        self.assertEqual([{0, 2}, {1, 3}], [set(core) for core in topology.read(self.root).cores])

    def test_huge_pages_are_no_more_than_fit_into_their_nodes_memory(self):
        pages = {1 << 30: (3, 2), 2 << 20: (600, 600)}
        build_sysfs(self.root, [FakeNode(0, '0', 4 << 30, huge_pages=pages), FakeNode(1, '1')])
        nodes = topology.read(self.root).nodes
        self.assertEqual(((2 << 20, 512, 512), (1 << 30, 3, 2)), nodes[0].huge_pages)
        self.assertEqual((), nodes[1].huge_pages)

    def test_memory_of_nodes_without_cpus_is_withheld_unless_there_is_no_other(self):
        for memory, far in (((GIB, GIB, GIB), {2}), ((GIB, 0, GIB), {2}), ((0, 0, GIB), set())):
            with self.subTest(memory):
                cpus = ('0-3', '4-7', '')
                nodes = [FakeNode(*each) for each in zip(range(3), cpus, memory)]
                build_sysfs(self.root, nodes)
                host = topology.read(self.root)
                self.assertEqual(far, {node.id for node in host.nodes if node.is_far})

    def test_memory_of_a_socket_whose_cpus_are_offline_is_not_a_devices(self):
        build_sysfs(self.root, [FakeNode(0, '0-3', GIB), FakeNode(1, '', GIB)])
        write(self.root, 'sys/devices/system/node/node1/cpu4/online', '0\n')
        self.assertEqual([False, False], [node.is_far for node in topology.read(self.root).nodes])

    def test_memory_of_guests_is_not_unreclaimable(self):
        # The fixture's Unevictable, Shmem and anonymous memory: guests' locked and shared pages.
        build_sysfs(self.root, [FakeNode(0, '0', unreclaimable_bytes=1 << 20)])
        write(
            self.root,
            f'{NODE}/node0/meminfo',
            'Node 0 MemTotal: 4096 kB\n'
            'Node 0 MemFree: 1024 kB\nNode 0 Unevictable: 500 kB\nNode 0 Shmem: 600 kB\n'
            'Node 0 SUnreclaim: 10 kB\nNode 0 KernelStack: 20 kB\nNode 0 PageTables: 30 kB\n'
            'Node 0 SecPageTables: 40 kB\nNode 0 SReclaimable: 700 kB\n',
        )
        self.assertEqual(100 << 10, topology.read(self.root).nodes[0].unreclaimable_bytes)


class MissingFilesTest(TreeTest):
    def test_a_kernel_without_numa_is_one_node(self):
        write(self.root, f'{CPU}/online', '0-3\n')
        write(
            self.root,
            'proc/meminfo',
            'MemTotal:  2048 kB\nMemFree:  1024 kB\n'
            'MemAvailable: 1 kB\nSUnreclaim:  3 kB\nHugepagesize:  2048 kB\n',
        )
        host = topology.read(self.root)
        cpus = frozenset(range(4))
        self.assertEqual(
            (model.Node(0, cpus, 2 << 20, 1 << 20, 3 << 10, online_cpus=cpus),), host.nodes
        )
        self.assertEqual(((10,),), host.distances)

    def test_each_optional_file_has_a_default(self):
        for path in (
            f'{CPU}/isolated',
            f'{CPU}/smt',
            f'{CPU}/cpu0',
            f'{CPU}/online',
            'sys/kernel',
            f'{NODE}/node0/hugepages',
        ):
            with self.subTest(path=path):
                build_sysfs(self.root, equal_nodes(2))
                expected = topology.read(self.root)
                self.remove(path)
                self.assertEqual(expected, topology.read(self.root))

    def test_distance_defaults_to_the_kernels(self):
        build_sysfs(self.root, equal_nodes(2))
        self.remove(f'{NODE}/node1/distance')
        self.assertEqual(((10, 21), (20, 10)), topology.read(self.root).distances)

    def test_a_node_that_vanishes_while_read_is_empty(self):
        build_sysfs(self.root, equal_nodes(2))
        for name in ('cpulist', 'meminfo', 'hugepages'):
            self.remove(f'{NODE}/node1/{name}')
        self.assertEqual(model.Node(1, frozenset()), topology.read(self.root).nodes[1])


class MalformedFilesTest(TreeTest):
    def test_a_malformed_file_is_named(self):
        for path, text in (
            (f'{CPU}/online', '0-x\n'),
            (f'{CPU}/online', '\n'),
            (f'{CPU}/isolated', '99999\n'),
            ('sys/fs/cgroup/cpuset.cpus.isolated', '3-1\n'),
            (f'{CPU}/cpu0/topology/thread_siblings_list', '?\n'),
            (f'{NODE}/node1/cpulist', b'\xff\xfe\n'),
            (f'{NODE}/node1/distance', '21\n'),
            (f'{NODE}/node1/distance', '21 10 10\n'),
            (f'{NODE}/node1/distance', '21 0\n'),
            (f'{NODE}/node1/distance', '21 256\n'),
            (f'{NODE}/node1/distance', '\n'),
            (f'{NODE}/node1/distance', '21 ten\n'),
            (f'{NODE}/node0/meminfo', ''),
            (f'{NODE}/node0/meminfo', 'Node 0 MemTotal: 1 kB'),
            (f'{NODE}/node0/meminfo', 'Node 0 MemTotal: 1 MB\nNode 0 MemFree: 1 kB\n'),
            (f'{NODE}/node0/meminfo', 'Node 0 MemTotal: -1 kB\nNode 0 MemFree: 1 kB\n'),
            (f'{NODE}/node0/meminfo', 'Node 0 MemTotal: ' + '9' * 40 + ' kB\n'),
            ('sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages', 'many\n'),
            (f'{NODE}/node1/hugepages/hugepages-1048576kB/nr_hugepages', '-1\n'),
        ):
            with self.subTest(path=path, text=text):
                build_sysfs(
                    self.root,
                    [FakeNode(0, '0-3', huge_pages={1 << 30: (1, 1)}), FakeNode(1, '4-7')],
                    threads=2,
                )
                write(self.root, path, text)
                with self.assertRaises(TopologyError) as caught:
                    topology.read(self.root)
                self.remove('sys')
                self.assertIn(path, str(caught.exception))
                self.assertTrue(str(caught.exception).isprintable())

    PATHS = (
        f'{CPU}/online',
        f'{CPU}/isolated',
        f'{CPU}/smt/active',
        f'{CPU}/cpu0/topology/thread_siblings_list',
        f'{NODE}/node1/cpulist',
        f'{NODE}/node1/meminfo',
        f'{NODE}/node1/distance',
        f'{NODE}/node0/hugepages/hugepages-1048576kB/free_hugepages',
    )

    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(PATHS), st.binary(max_size=40) | st.sampled_from((b'0-7', b'4\n', b'')))
    def test_any_content_of_a_file_gives_a_host_or_the_named_error(self, path, content):
        build_sysfs(
            self.root,
            [FakeNode(0, '0-3', huge_pages={1 << 30: (1, 1)}), FakeNode(1, '4-7')],
            threads=2,
        )
        write(self.root, path, content)
        try:
            host = topology.read(self.root)
        except TopologyError as error:
            self.assertTrue(str(error).startswith(self.root) and str(error).isprintable())
            return
        finally:
            self.remove('sys')
        cpus = [cpu for node in host.nodes for cpu in node.online_cpus]
        self.assertEqual(len(set(cpus)), len(cpus), 'a CPU on two nodes')
        self.assertLessEqual(set(cpus), frozenset().union(*host.cores))
