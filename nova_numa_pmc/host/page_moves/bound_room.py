# SPDX-License-Identifier: Apache-2.0
"""Check whether the nodes of bound guests have room for the memory that these have yet to touch.

The libvirt hook imports this module if it binds memory, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.core import page_choice
from nova_numa_pmc.host.page_moves import node_room

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc import model


class BoundRoom:
    """The available memory that the nodes have for the bound guests that are checked together.

    It excludes the reserve: below that, the kernel may kill guests that cannot use another node.

    :param reserve_bytes: memory of each node that is kept for the host
    """

    def __init__(self, reserve_bytes: int, root: str) -> None:
        self._reserve_bytes = reserve_bytes
        self._root = root
        self._room_bytes: dict[int, int] = {}  # by node id

    def take(self, promise: model.Promise, present_bytes: Mapping[int, int]) -> str:
        """Subtract a guest's untouched memory from the room of its nodes.

        :param present_bytes: {node id: bytes} that the guest has
        :returns: why the memory does not fit; empty if it does
        :raises PageMoveError: the available memory of a node cannot be read
        """
        wanted_bytes = page_choice.wanted_bytes_by_node(
            promise.mem_nodes, promise.mem_node_bytes, promise.memory_bytes
        )
        for node, promised_bytes in wanted_bytes.items():
            if node not in self._room_bytes:
                self._room_bytes[node] = (
                    node_room.available_bytes(node, self._root) - self._reserve_bytes
                )
            untouched_bytes = max(0, promised_bytes - present_bytes.get(node, 0))
            if untouched_bytes > self._room_bytes[node]:
                return (
                    'it has yet to touch %d MiB of its promise there, but only %d MiB is available'
                    % (untouched_bytes >> 20, max(0, self._room_bytes[node] >> 20))
                )
            self._room_bytes[node] -= untouched_bytes
        return ''
