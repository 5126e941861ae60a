# SPDX-License-Identifier: Apache-2.0
"""Read the pools of huge pages of each node.

A kernel without NUMA has them in ``/sys/kernel/mm/hugepages`` only. Format: the kernel's
Documentation/ABI/testing/sysfs-kernel-mm-hugepages and sysfs-devices-node.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.host.files import path_of, read_text, whole_number

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

_HOST = 'sys/kernel/mm/hugepages'
_NODE = 'sys/devices/system/node/node%d/hugepages'


def with_pools(root: str, nodes: tuple[model.Node, ...]) -> tuple[model.Node, ...]:
    """Return nodes with their pools of huge pages.

    Pages that the host has and no node reports are divided evenly over the nodes that report
    none, as far as these have memory of the host's own, as the kernel does when it makes them.

    :raises TopologyError: a file is malformed
    """
    room = {node.id: node.memory_bytes for node in nodes}
    own = {node.id for node in nodes if node.memory.kind == model.HOST}
    pools: dict[int, list[model.HugePages]] = {node.id: [] for node in nodes}
    for size, name, host_total in _sizes(root):
        for number, total, free in _of_size(root, name, size, host_total, room, own):
            total = min(total, room[number] // size)
            room[number] -= total * size
            if total:
                pools[number].append(model.HugePages(size, total, min(free, total)))
    return tuple(
        node._replace(huge_pages=tuple(sorted(pools[node.id]))) if pools[node.id] else node
        for node in nodes
    )


def _sizes(root: str) -> list[tuple[int, str, int]]:
    """List (bytes of a page, directory's name, pages) of the sizes of which the host has any.

    The largest come first: smaller ones fit beside them.
    """
    try:
        names = os.listdir(path_of(root, _HOST))
    except OSError:
        return []
    found = []
    for name in names:
        total = _read_pages(root, f'{_HOST}/{name}/nr_hugepages')
        if total:
            digits = name.removeprefix('hugepages-').removesuffix('kB')
            size = whole_number(root, f'{_HOST}/{name}', digits, 1 << 40) << 10
            if size:
                found.append((size, name, total))
    return sorted(found, reverse=True)


def _of_size(
    root: str, name: str, size: int, host_total: int, room: Mapping[int, int], own: Set[int]
) -> list[tuple[int, int, int]]:
    """List (node id, pages, free pages) of one page size.

    :param room: {node id: bytes of its memory that are in no pool yet}
    :param own: ids of the nodes with the host's own memory
    """
    found: list[tuple[int, int, int]] = []
    silent: list[int] = []
    for number in room:
        path = _NODE % number + '/' + name
        total = _read_pages(root, path + '/nr_hugepages')
        if total is None:
            silent += [number] if number in own else []
        elif total:
            found.append((number, total, _read_pages(root, path + '/free_hugepages') or 0))
    rest = host_total - sum(total for _, total, _ in found)
    if silent and rest > 0:
        free = (_read_pages(root, f'{_HOST}/{name}/free_hugepages') or 0) - sum(
            free for _, _, free in found
        )
        found += _divided({number: room[number] // size for number in silent}, rest, max(0, free))
    return found


def _divided(most: Mapping[int, int], total: int, free: int) -> list[tuple[int, int, int]]:
    """Divide pages evenly over nodes, as far as each has memory for them.

    :param most: {node id: pages that it has memory for}
    :returns: (node id, pages, free pages), of the latter no more than there are
    """
    found, free_each = [], free // len(most)
    for at, number in enumerate(sorted(most, key=most.__getitem__)):
        part = min(-(-total // (len(most) - at)), most[number])
        total -= part
        found.append((number, part, min(free_each, part)))
    return found


def _read_pages(root: str, path: str) -> int | None:
    text = read_text(root, path)
    return None if text is None else whole_number(root, path, text, 1 << 50)
