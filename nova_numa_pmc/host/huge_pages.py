# SPDX-License-Identifier: Apache-2.0
"""Read the huge pages of each node.

A kernel without NUMA has them in ``/sys/kernel/mm/hugepages`` only. Format: the kernel's
Documentation/ABI/testing/sysfs-kernel-mm-hugepages and sysfs-devices-node.

Imported by the libvirt hook where the host has huge pages: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.host.files import AMOUNT_MAX, NODES, read_whole_number, whole_number

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

_NODE = NODES + '/node%d/hugepages/%s'


def nodes_with_huge_pages(
    root: str, nodes: tuple[model.Node, ...], totals: Mapping[str, int]
) -> tuple[model.Node, ...]:
    """Return nodes with their huge pages.

    Pages of the host that no node reports are divided evenly over the nodes that report none and
    have memory of the host's own, just as the kernel divides them when it allocates them.

    :param totals: {the host's directory of a page size: its pages}
    :raises TopologyError: a file is malformed
    """
    left_bytes = {node.id: node.memory_bytes for node in nodes}
    own = {node.id for node in nodes if node.memory.kind == model.HOST}
    pages: dict[int, list[model.HugePages]] = {node.id: [] for node in nodes}
    for size, path, total in _largest_first(root, totals):
        for node_id, count, free in _of_size(root, path, size, total, left_bytes, own):
            count = min(count, left_bytes[node_id] // size)
            left_bytes[node_id] -= count * size
            if count:
                pages[node_id].append(model.HugePages(size, count, min(free, count)))
    return tuple(
        node._replace(huge_pages=tuple(sorted(pages[node.id]))) if pages[node.id] else node
        for node in nodes
    )


def _largest_first(root: str, totals: Mapping[str, int]) -> list[tuple[int, str, int]]:
    """List (bytes of a page, directory, pages); smaller pages fit beside larger ones."""
    sizes = []
    for path, total in totals.items():
        digits = path.rpartition('/')[2].removeprefix('hugepages-').removesuffix('kB')
        size = whole_number(root, path, digits, 1 << 40) << 10
        if size:
            sizes.append((size, path, total))
    return sorted(sizes, reverse=True)


def _of_size(
    root: str, path: str, size: int, host_total: int, left_bytes: Mapping[int, int], own: Set[int]
) -> list[tuple[int, int, int]]:
    """List (node id, pages, free pages) of one page size.

    :param path: the host's directory of this size
    :param left_bytes: {node id: its memory that is in no huge page yet}
    :param own: ids of the nodes with the host's own memory
    """
    reported: list[tuple[int, int, int]] = []
    silent: list[int] = []
    for node_id in left_bytes:
        directory = _NODE % (node_id, path.rpartition('/')[2])
        total = read_whole_number(root, directory + '/nr_hugepages', AMOUNT_MAX)
        if total is None:
            silent += [node_id] if node_id in own else []
        elif total:
            reported.append((node_id, total, _free(root, directory)))
    rest = host_total - sum(total for _, total, _ in reported)
    if silent and rest > 0:
        free = _free(root, path) - sum(free for _, _, free in reported)
        fitting = {node_id: left_bytes[node_id] // size for node_id in silent}
        reported += _divide(fitting, rest, max(0, free))
    return reported


def _divide(fitting: Mapping[int, int], total: int, free: int) -> list[tuple[int, int, int]]:
    """Divide pages evenly over nodes, as far as each has memory for them.

    :param fitting: {node id: pages that it has memory for}
    :returns: (node id, pages, free pages), of the latter no more than there are
    """
    shares, free_each = [], free // len(fitting)
    for index, node_id in enumerate(sorted(fitting, key=fitting.__getitem__)):
        share = min(-(-total // (len(fitting) - index)), fitting[node_id])
        total -= share
        shares.append((node_id, share, min(free_each, share)))
    return shares


def _free(root: str, directory: str) -> int:
    return read_whole_number(root, directory + '/free_hugepages', AMOUNT_MAX) or 0
