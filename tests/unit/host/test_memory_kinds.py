# SPDX-License-Identifier: Apache-2.0
"""Whose memory a node has follows from ACPI, DAX, tiers and drivers; the operator decides."""

import os
import shutil

from nova_numa_pmc.host import topology
from nova_numa_pmc.model import DEVICE_MEMORY, HOST_MEMORY, SLOW_MEMORY
from tests.cases.root import RootCase
from tests.fixtures import sysfs
from tests.fixtures.sysfs import GIB, FakeNode

NODE = 'sys/devices/system/node'
#: Two sockets, and two nodes without CPUs.
NODES = [FakeNode(0, '0-3'), FakeNode(1, '4-7'), FakeNode(2, '', 96 * GIB), FakeNode(3, '', GIB)]


class NodeMemoryTest(RootCase):
    def setUp(self):
        super().setUp()
        sysfs.build_sysfs(self.root, NODES)

    def kinds(self):
        return [node.memory.kind for node in topology.read(self.root).nodes]

    def sources(self):
        return [node.memory.source for node in topology.read(self.root).nodes]

    def test_memory_without_evidence_is_the_hosts_own(self):
        self.assertEqual([HOST_MEMORY] * 4, self.kinds())
        self.assertEqual(frozenset(), topology.withheld_nodes(self.root))

    def test_memory_of_a_gpu_is_recognised_by_its_driver(self):
        sysfs.mark_device_memory(self.root, [2, -1])
        self.assertEqual([HOST_MEMORY, HOST_MEMORY, DEVICE_MEMORY, HOST_MEMORY], self.kinds())
        self.assertEqual('GPU 0000:01:00.0', self.sources()[2])
        self.assertEqual({2}, topology.withheld_nodes(self.root))

    def test_memory_nearest_to_a_device_and_no_cpu_is_a_devices(self):
        for number, nearest, devices, kind in (
            (2, (2,), '2', DEVICE_MEMORY),
            (2, (4,), '4-7', DEVICE_MEMORY),
            (2, (), '2', DEVICE_MEMORY),
            (2, (0,), '2', HOST_MEMORY),
            (2, (1, 4), '4', HOST_MEMORY),
            (2, (0,), '', HOST_MEMORY),
        ):
            with self.subTest(nearest=nearest, devices=devices):
                shutil.rmtree(os.path.join(self.root, f'{NODE}/node2/access0'), ignore_errors=True)
                sysfs.write_initiators(self.root, number, nearest, devices)
                self.assertEqual([HOST_MEMORY, HOST_MEMORY, kind, HOST_MEMORY], self.kinds())

    def test_memory_behind_dax_is_slow(self):
        sysfs.add_kmem_device(self.root, 'dax0.0', 3)
        self.write('sys/bus/dax/devices/dax1.0/target_node', '2\n')  # not the kernel's
        self.assertEqual((SLOW_MEMORY, 'dax0.0'), topology.read(self.root).nodes[3].memory)
        self.assertEqual([HOST_MEMORY] * 3, self.kinds()[:3])

    def test_memory_in_a_slower_tier_than_that_of_cpus_is_slow(self):
        sysfs.write_memory_tier(self.root, 4, '0-1')
        sysfs.write_memory_tier(self.root, 22, '3')
        sysfs.write_memory_tier(self.root, 3, '2')  # HBM is faster
        self.assertEqual([HOST_MEMORY] * 3 + [SLOW_MEMORY], self.kinds())
        self.assertEqual('memory_tier22', self.sources()[3])

    def test_malformed_files_do_not_count_as_evidence(self):
        for path, text in (
            ('proc/driver/nvidia/gpus/a/numa_status', b'Node: \xff\n'),
            ('proc/driver/nvidia/gpus/b/numa_status', 'Node'),
            ('proc/driver/nvidia/gpus/c/numa_status/directory', ''),
            (f'{NODE}/has_generic_initiator', '3-1'),
            ('sys/bus/dax/devices/dax0.0/target_node', 'x'),
            ('sys/devices/virtual/memory_tiering/memory_tierX/nodelist', '2'),
            ('sys/devices/virtual/memory_tiering/memory_tier9/nodelist', '2-'),
        ):
            with self.subTest(path):
                self.write(path, text)
                self.assertEqual([HOST_MEMORY] * 4, self.kinds())

    def test_the_operator_has_the_last_word_on_memory(self):
        sysfs.mark_device_memory(self.root, [2])
        sysfs.write(
            self.root,
            'etc/nova-numa-pmc/nova-numa-pmc.conf',
            '[placement]\ndevice_memory_nodes = 0,3\nguest_memory_nodes = 2\n',
        )
        self.assertEqual({3}, topology.withheld_nodes(self.root))
