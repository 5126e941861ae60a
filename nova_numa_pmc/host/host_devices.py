# SPDX-License-Identifier: Apache-2.0
"""List the devices of the host that a guest uses, and read to which nodes they are attached.

Devices that access a guest's memory by themselves (VFIO, vDPA) make the kernel pin all of it, so
it stays where it is first touched: for these, both questions have one answer, the same list.

The elements are described in https://libvirt.org/formatdomain.html; sysfs has a ``numa_node`` for
each device on a bus that knows it (Documentation/ABI/testing/sysfs-bus-pci), and directories of
devices are below those of their parents.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.host import domain_xml
from nova_numa_pmc.host.domain_xml import IMAGES
from nova_numa_pmc.host.files import list_names, read_optional
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from nova_numa_pmc.host.domain_xml import Element, Elements

_INTERFACE = {
    'hostdev': model.PCI,
    'vdpa': model.VDPA,
    'direct': model.INTERFACE,
    'vhostuser': model.VHOST_USER,
}
_IMAGE = {
    # QEMU's own NVMe driver uses VFIO as well.
    'nvme': model.PCI,
    'vhostvdpa': model.VDPA,
    'block': model.BLOCK,
    'vhostuser': model.VHOST_USER,
}
#: {path of an element: {its type: kind of device}}.
_KINDS = {
    'devices/hostdev': {'pci': model.PCI, 'mdev': model.MDEV},
    'devices/interface': _INTERFACE,
    'devices/interface/actual': _INTERFACE,
    'devices/disk': _IMAGE,
    IMAGES: _IMAGE,
}
#: {kind of device: attribute of <source> with its name}.
_NAME_ATTRIBUTES = {model.VHOST_USER: 'path'}
#: Of a node's id.
_DIGITS_MAX = 5
_VDPA = 'sys/bus/vdpa/devices'
_DIRECTORIES = {
    model.PCI: 'sys/bus/pci/devices',
    model.MDEV: 'sys/bus/mdev/devices',
    model.INTERFACE: 'sys/class/net',
    model.BLOCK: 'sys/class/block',
}


def list_devices(elements: Elements) -> tuple[model.HostDevice, ...]:
    """List the host's devices that a domain uses, those that pin its memory first.

    A device that pins memory is listed even if the XML does not name it.

    :raises DomainError: an address is malformed
    """
    devices = {
        model.HostDevice(kinds[element.attributes['type']], _name(kinds, element))
        for path, kinds in _KINDS.items()
        for element in elements.get(path, ())
        if element.attributes.get('type') in kinds
    }
    return tuple(
        sorted(
            (device for device in devices if device.name or device.locks_memory),
            key=lambda device: (not device.locks_memory, device),
        )
    )


def _name(kinds: dict[str, str], element: Element) -> str:
    """Return the name of an element's device; empty if it has none, or an odd one."""
    kind, source = kinds[element.attributes['type']], element.children.get('source')
    if source is None:
        return ''
    if kind in (model.PCI, model.MDEV):
        address = source.children.get('address')
        attributes = address.attributes if address else {}
        if kind == model.MDEV:
            return domain_xml.parse_uuid(attributes['uuid']) if 'uuid' in attributes else ''
        return domain_xml.parse_pci_address(attributes) if 'slot' in attributes else ''
    name = source.attributes.get(_NAME_ATTRIBUTES.get(kind, 'dev'), '')
    is_path = name.startswith('/dev/' if kind in (model.BLOCK, model.VDPA) else '/')
    # libvirt accepts more than this; without its name, a device's node is not known.
    if not (len(name) < 256 and name.isprintable()) or is_path == (kind == model.INTERFACE):
        return ''
    return name


def node_of(device: model.HostDevice, root: str = '/') -> int | None:
    """Return the node that a device is attached to, or None if it is not known.

    The kernel reports -1 if the firmware does not report a node. The node is not known either of
    a device that is gone, that is not on a bus (a bridge, a volume on several disks), or that is
    another process at a socket (vhost-user). That process follows the guest: DPDK's library moves
    a device's memory to the node of the guest's queues (``numa_realloc`` in its
    lib/vhost/vhost_user.c), and Open vSwitch polls the port there.
    """
    name = device.name
    if name.startswith('/dev/'):
        # A link, such as one in /dev/disk/by-id, is followed.
        name = os.path.basename(os.path.realpath(os.path.join(root, name[1:])))
    if not name or '/' in name or name in ('.', '..'):
        return None
    if device.kind == model.VDPA:
        # vhost_vdpa_probe() in the kernel's drivers/vhost/vdpa.c: a child without class or bus.
        for vdpa_device in list_names(os.path.join(root, _VDPA)):
            path = '%s/%s' % (_VDPA, vdpa_device)
            if name[:11] == 'vhost-vdpa-' and os.path.exists(os.path.join(root, path, name)):
                return _nearest_node(root, path)
        return None
    if device.kind not in _DIRECTORIES:
        return None
    return _nearest_node(root, '%s/%s' % (_DIRECTORIES[device.kind], name))


def _nearest_node(root: str, path: str) -> int | None:
    """Return the node of a device or of the nearest of its parents that reports one."""
    directory, top = os.path.realpath(os.path.join(root, path)), os.path.realpath(root)
    while directory not in (top, '/'):
        text = read_optional(directory, 'numa_node')
        if text is not None:
            return int(text) if is_number(text, _DIGITS_MAX) else None
        directory = os.path.dirname(directory)
    return None
