# SPDX-License-Identifier: Apache-2.0
"""Read how much more memory each node can take, and whether the kernel is short of memory.

The libvirt hook imports this module if it binds memory, so it imports only light modules.
"""

from __future__ import annotations

import os

from nova_numa_pmc.core import page_choice
from nova_numa_pmc.exceptions import PageMoveError
from nova_numa_pmc.host.files import read_optional
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc import model

_PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')
_ZONES, _EVENTS = 'proc/zoneinfo', 'proc/vmstat'
#: Fields of a zone that are needed; the first two are counted for the whole node, and printed with
#: its first zone.
_FIELDS = frozenset(('nr_active_file', 'nr_inactive_file', 'high', 'managed'))
#: Counters in /proc/vmstat of what happens when memory is short: pages are swapped out, and
#: processes wait until pages have been reclaimed or compacted.
COMPACTION = 'compact_stall'
_SHORTAGES = ('pswpout', 'allocstall_', COMPACTION)


class NodeMemory(Record):
    """What a node with memory can still give.

    :param room_bytes: free memory above the high watermarks of its zones, which can be taken
        without anything being reclaimed. It does not include the page cache: the kernel only
        reclaims that when free memory has fallen to the low watermark, and then also swaps out
        guests' memory
    :param cache_bytes: its page cache
    """

    room_bytes: int
    cache_bytes: int


def read(root: str = '/') -> dict[int, NodeMemory]:
    """Return {id of a node that has memory: what it can still give}.

    Format: zoneinfo_show_print() in mm/vmstat.c. Free pages that a zone reserves for allocations
    which cannot use a higher zone (``protection``) are no room.

    :raises PageMoveError: /proc/zoneinfo cannot be read or parsed
    """
    nodes: dict[int, NodeMemory] = {}
    node, free_pages = -1, 0
    values: dict[str, int] = {}
    try:
        for line in (read_optional(root, _ZONES) or '').splitlines():
            words = line.replace(',', ' ').split() or ['']
            if words[0] == 'Node':
                node, values = int(words[1]), {}
            elif words[:2] == ['pages', 'free']:
                free_pages = int(words[2])
            elif words[0] in _FIELDS:
                values[words[0]] = int(words[1])
            elif words[0] == 'protection:' and values['managed']:
                protected_pages = max(int(word.strip('()')) for word in words[1:])
                room_pages = max(0, free_pages - values['high'] - protected_pages)
                cache_pages = sum(values.get(name, 0) for name in _FIELDS if '_file' in name)
                before = nodes.get(node, NodeMemory(0, 0))
                nodes[node] = NodeMemory(
                    before.room_bytes + room_pages * _PAGE_BYTES,
                    before.cache_bytes + cache_pages * _PAGE_BYTES,
                )
    except (ValueError, LookupError):
        nodes = {}
    if not nodes:
        path = os.path.join(root, _ZONES)
        raise PageMoveError('%s: does not show the free memory of nodes' % path)
    return nodes


def read_shortages(root: str = '/', names: str | tuple[str, ...] = _SHORTAGES) -> int:
    """Return how often memory has been short since boot; only the growth has a meaning.

    :param names: what the names of the counters begin with
    """
    pairs = [line.split() for line in (read_optional(root, _EVENTS) or '').splitlines()]
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].startswith(names))


class BoundRoom:
    """The memory that the nodes have for the bound guests that are checked together.

    A bound guest can use no other node, so the kernel reclaims page cache for it, of which at
    least half counts as available (si_mem_available() in mm/show_mem.c). The reserve is excluded:
    below that, the kernel may kill guests that cannot use another node.

    :param reserve_bytes: memory of each node that is kept for the host
    """

    def __init__(self, reserve_bytes: int, root: str) -> None:
        self._reserve_bytes = reserve_bytes
        self._root = root
        self._left_bytes: dict[int, int] = {}  # by node id; empty until it is needed

    def take(self, promise: model.Promise, present_bytes: Mapping[int, int]) -> str:
        """Subtract a guest's untouched memory from the room of its nodes.

        :param present_bytes: {node id: bytes} that the guest has
        :returns: why the memory does not fit; empty if it does
        :raises PageMoveError: what the nodes can give cannot be read
        """
        if not self._left_bytes:
            self._left_bytes = {
                node: memory.room_bytes + memory.cache_bytes // 2 - self._reserve_bytes
                for node, memory in read(self._root).items()
            }
        wanted_bytes = page_choice.wanted_bytes_by_node(
            promise.mem_nodes, promise.mem_node_bytes, promise.memory_bytes
        )
        for node, promised_bytes in wanted_bytes.items():
            untouched_bytes = max(0, promised_bytes - present_bytes.get(node, 0))
            left_bytes = self._left_bytes.get(node, 0)
            if untouched_bytes > left_bytes:
                return (
                    'it has yet to touch %d MiB of its promise there, but only %d MiB is available'
                    % (untouched_bytes >> 20, max(0, left_bytes >> 20))
                )
            self._left_bytes[node] = left_bytes - untouched_bytes
        return ''
