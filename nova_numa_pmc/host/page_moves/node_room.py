# SPDX-License-Identifier: Apache-2.0
"""Estimate how much more memory a node can take without harm to its guests.

The libvirt hook imports this module if it binds memory, so it imports only light modules.
"""

from __future__ import annotations

import os

from nova_numa_pmc.core import page_choice
from nova_numa_pmc.exceptions import PageMoveError, TopologyError
from nova_numa_pmc.host.files import NODES, read_meminfo_bytes

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc import model

_TOTAL, _FREE, _CACHES = 'MemTotal', 'MemFree', ('Active(file)', 'Inactive(file)')


def available_bytes(node: int, root: str = '/') -> int:
    """Return a node's free memory plus half of its page cache.

    The kernel counts at least half of the page cache in MemAvailable (si_mem_available() in
    mm/show_mem.c), which it does not report for each node.

    :raises PageMoveError: the node does not exist or has no memory, or its file cannot be parsed
    """
    path = '%s/node%d/meminfo' % (NODES, node)
    try:
        fields = read_meminfo_bytes(root, path, (_TOTAL, _FREE, *_CACHES))
    except TopologyError as error:
        raise PageMoveError(str(error)) from None
    path = os.path.join(root, path)
    if fields is None:
        raise PageMoveError('%s: no such file: there is no such node' % path)
    if fields.get(_TOTAL) == 0:
        raise PageMoveError('%s: node %d has no memory, so none can be moved there' % (path, node))
    if _FREE not in fields:
        raise PageMoveError('%s: no MemFree in it' % path)
    return fields[_FREE] + sum(fields.get(name, 0) for name in _CACHES) // 2


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
                self._room_bytes[node] = available_bytes(node, self._root) - self._reserve_bytes
            untouched_bytes = max(0, promised_bytes - present_bytes.get(node, 0))
            if untouched_bytes > self._room_bytes[node]:
                return (
                    'it has yet to touch %d MiB of its promise there, but only %d MiB is available'
                    % (untouched_bytes >> 20, max(0, self._room_bytes[node] >> 20))
                )
            self._room_bytes[node] -= untouched_bytes
        return ''
