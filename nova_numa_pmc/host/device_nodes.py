# SPDX-License-Identifier: Apache-2.0
"""Read the nodes of the devices that running guests use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host import topology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nova_numa_pmc.model import Guest


class DeviceNodeReader:
    """Reads the nodes of guests' devices.

    It caches a known node for as long as a running guest uses the device, because the name may be
    that of another device afterwards.
    """

    def __init__(self, root: str = '/') -> None:
        self._root = root
        self._nodes: dict[str, int | None] = {}

    def read(self, guests: Iterable[Guest]) -> tuple[dict[str, int | None], list[str]]:
        """Return ({PCI address or name: node id}, problems) of all devices of these guests.

        A node id is None if it is not known.
        """
        nodes: dict[str, int | None] = {}
        problems: list[str] = []
        for guest in guests:
            for read, names in (
                (topology.pci_device_node, guest.pci_devices),
                (topology.host_device_node, guest.host_devices),
            ):
                for name in names:
                    nodes[name] = self._nodes.get(name)
                    if nodes[name] is None:
                        try:
                            nodes[name] = read(name, self._root)
                        except TopologyError as error:
                            problems.append(str(error))
        self._nodes = nodes
        return nodes, problems
