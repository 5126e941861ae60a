# SPDX-License-Identifier: Apache-2.0
"""Each kind of host device in a domain's XML is found, with its node in sysfs."""

import os

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.host import guests
from nova_numa_pmc.host.host_devices import node_of
from tests.cases.root import RootCase
from tests.fixtures import domains
from tests.fixtures.sysfs import add_device

PCI_SOURCE = "<source type='pci'><address domain='0' bus='0x3b' slot='0' function='1'/></source>"
PCI = model.HostDevice(model.PCI, '0000:3b:00.1')
MDEV = model.HostDevice(model.MDEV, domains.UUID)
VDPA = model.HostDevice(model.VDPA, '/dev/vhost-vdpa-3')
VHOST_USER = model.HostDevice(model.VHOST_USER, '/run/vhu1')
BLOCK = model.HostDevice(model.BLOCK, '/dev/nvme0n1')
INTERFACE = model.HostDevice(model.INTERFACE, 'eth0')

VDPA_SOURCE = "<source dev='/dev/vhost-vdpa-3'/>"
SOCKET_SOURCE = "<source type='unix' path='/run/vhu1' mode='server'/>"
#: As libvirt writes them: (element, device).
ELEMENTS = (
    (f"<hostdev mode='subsystem' type='pci'>{PCI_SOURCE}</hostdev>", PCI),
    (f"<interface type='hostdev'>{PCI_SOURCE}</interface>", PCI),
    (f"<interface type='network'><actual type='hostdev'>{PCI_SOURCE}</actual></interface>", PCI),
    (
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>"
        f"<address uuid='{domains.UUID.upper()}'/></source></hostdev>",
        MDEV,
    ),
    (f"<interface type='vdpa'>{VDPA_SOURCE}</interface>", VDPA),
    (f"<interface type='vhostuser'>{SOCKET_SOURCE}</interface>", VHOST_USER),
    (f"<disk type='vhostvdpa'>{VDPA_SOURCE}</disk>", VDPA),
    (f"<disk type='file'><backingStore type='nvme'>{PCI_SOURCE}</backingStore></disk>", PCI),
    ("<interface type='direct'><source dev='eth0' mode='bridge'/></interface>", INTERFACE),
    (
        "<interface type='network'><source network='n'/><actual type='direct'>"
        "<source dev='eth0' mode='bridge'/></actual></interface>",
        INTERFACE,
    ),
)


def parse_devices(elements):
    return guests.parse(domains.domain(devices=elements))


class ListTest(RootCase):
    def test_each_kind_of_device_is_listed(self):
        for element, device in ELEMENTS:
            with self.subTest(element):
                self.assertEqual((device,), parse_devices(element).devices)

    def test_a_device_without_a_name_locks_memory_all_the_same(self):
        for element, kind in (
            ("<disk type='nvme'/>", model.PCI),
            ("<hostdev type='pci'><source/></hostdev>", model.PCI),
            ("<hostdev type='mdev'><source><address/></source></hostdev>", model.MDEV),
            ("<interface type='vdpa'><source dev='vhost'/></interface>", model.VDPA),
        ):
            with self.subTest(element):
                guest = parse_devices(element)
                self.assertEqual((model.HostDevice(kind, ''),), guest.devices)
                self.assertTrue(guest.locked)
                self.assertIsNone(node_of(guest.devices[0], self.root))

    @given(st.lists(st.sampled_from([element for element, _ in ELEMENTS]), max_size=4))
    def test_a_guest_is_locked_exactly_by_the_devices_whose_node_matters(self, elements):
        guest = parse_devices(''.join(elements))
        self.assertEqual(any(device.locks_memory for device in guest.devices), guest.locked)
        expected = {device for element, device in ELEMENTS if element in elements}
        self.assertEqual(expected, set(guest.devices))


class NodeTest(RootCase):
    """Trees as the kernel builds them: links on buses and in classes, nodes at the parents."""

    def setUp(self):
        super().setUp()
        pci = 'pci0000:3a/0000:3a:00.0/0000:3b:00.1'
        add_device(self.root, pci, 'bus/pci/devices/0000:3b:00.1', 1)
        add_device(self.root, f'{pci}/{domains.UUID}', f'bus/mdev/devices/{domains.UUID}')
        add_device(self.root, f'{pci}/vdpa5', 'bus/vdpa/devices/vdpa5')
        add_device(self.root, f'{pci}/vdpa5/vhost-vdpa-3', 'dev/char/511:3')
        add_device(self.root, f'{pci}/net/eth0', 'class/net/eth0')
        # NVMe reports a controller's node, too, and a partition is below its disk.
        add_device(self.root, f'{pci}/nvme/nvme0', 'class/nvme/nvme0', 1)
        add_device(self.root, f'{pci}/nvme/nvme0/nvme0n1', 'class/block/nvme0n1')
        add_device(self.root, f'{pci}/nvme/nvme0/nvme0n1/nvme0n1p2', 'class/block/nvme0n1p2')
        self.pci = f'sys/devices/{pci}/numa_node'

    def test_the_node_of_each_kind_is_that_of_its_parent(self):
        os.makedirs(os.path.join(self.root, 'dev/disk/by-id'))
        os.symlink('../../nvme0n1', os.path.join(self.root, 'dev/disk/by-id/nvme-x'))
        os.symlink('vhost-vdpa-3', os.path.join(self.root, 'dev/vdpa-of-port'))
        for device in (
            PCI,
            MDEV,
            VDPA,
            INTERFACE,
            BLOCK,
            model.HostDevice(model.BLOCK, '/dev/nvme0n1p2'),
            model.HostDevice(model.BLOCK, '/dev/disk/by-id/nvme-x'),
            model.HostDevice(model.VDPA, '/dev/vdpa-of-port'),
        ):
            with self.subTest(device):
                self.assertEqual(1, node_of(device, self.root))

    def test_a_device_that_is_nowhere_or_whose_firmware_names_no_node_is_not_known(self):
        add_device(self.root, 'virtual/net/br0', 'class/net/br0')
        add_device(self.root, 'virtual/block/dm-0', 'class/block/dm-0')
        add_device(self.root, 'pci0000:00/0000:00:1f.0', 'bus/pci/devices/0000:00:1f.0', -1)
        add_device(self.root, 'vdpasim/vdpa9/vhost-vdpa-9', 'dev/char/511:9')
        add_device(self.root, 'vdpasim/vdpa9', 'bus/vdpa/devices/vdpa9')
        for kind, name in (
            (model.PCI, '0000:00:1f.0'),
            (model.PCI, '0000:99:00.0'),
            (model.MDEV, domains.UUID[:-1] + '1'),
            (model.VDPA, '/dev/vhost-vdpa-9'),
            (model.VDPA, '/dev/vhost-vdpa-4'),
            (model.VDPA, '/dev/numa_node'),
            (model.INTERFACE, 'br0'),
            (model.INTERFACE, 'absent'),
            (model.INTERFACE, '../net/eth0'),
            (model.INTERFACE, '..'),
            (model.BLOCK, '/dev/dm-0'),
            (model.BLOCK, '/dev/'),
            (model.VHOST_USER, '/run/vhu1'),
            (model.VHOST_USER, 'eth0'),
        ):
            with self.subTest(name):
                self.assertIsNone(node_of(model.HostDevice(kind, name), self.root))

    def test_a_node_that_is_malformed_is_not_known(self):
        for text in ('x', '-2', '', '²', '1' * 30):
            self.write(self.pci, text)
            for device in (PCI, MDEV, VDPA, INTERFACE):
                with self.subTest(text=text, kind=device.kind):
                    self.assertIsNone(node_of(device, self.root))
