# SPDX-License-Identifier: Apache-2.0
"""Read the huge pages of each node.

A kernel without NUMA reports huge pages only in ``/sys/kernel/mm/hugepages``. Format: the kernel's
Documentation/ABI/testing/sysfs-kernel-mm-hugepages and sysfs-devices-node.

The libvirt hook imports this module if the host has huge pages, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.host.files import NODES, parse_integer, read_integer

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

_NODE = NODES + '/node%d/hugepages/%s'


def with_huge_pages(
    root: str, nodes: tuple[model.Node, ...], totals: Mapping[str, int]
) -> tuple[model.Node, ...]:
    """Return the nodes with their huge pages filled in.

    Pages of the host that no node reports are divided evenly among those nodes that do not report
    their pages and have the host's own memory, as the kernel divides pages when it allocates them.

    :param totals: {the host's directory for a page size: number of pages of that size}
    :raises TopologyError: a file is malformed
    """
    unreserved_bytes = {node.id: node.memory_bytes for node in nodes}
    own_nodes = {node.id for node in nodes if node.memory.kind == model.HOST_MEMORY}
    pages: dict[int, list[model.HugePages]] = {node.id: [] for node in nodes}
    for size, path, total in _largest_first(root, totals):
        for node_id, count, free in _pages_of_size(
            root, path, size, total, unreserved_bytes, own_nodes
        ):
            count = min(count, unreserved_bytes[node_id] // size)
            unreserved_bytes[node_id] -= count * size
            if count:
                pages[node_id].append(model.HugePages(size, count, min(free, count)))
    return tuple(
        node._replace(huge_pages=tuple(sorted(pages[node.id]))) if pages[node.id] else node
        for node in nodes
    )


def _largest_first(root: str, totals: Mapping[str, int]) -> list[tuple[int, str, int]]:
    """Return (bytes of a page, directory, pages) of each size, the largest size first.

    Smaller pages fit into the memory that larger ones leave.
    """
    sizes = []
    for path, total in totals.items():
        digits = path.rpartition('/')[2].removeprefix('hugepages-').removesuffix('kB')
        size = parse_integer(root, path, digits, 1 << 40) << 10
        if size:
            sizes.append((size, path, total))
    return sorted(sizes, reverse=True)


def _pages_of_size(
    root: str,
    path: str,
    size: int,
    host_total: int,
    unreserved_bytes: Mapping[int, int],
    own_nodes: Set[int],
) -> list[tuple[int, int, int]]:
    """Return (node id, pages, free pages) of each node for one page size.

    :param path: the host's directory for this size
    :param size: bytes of a page
    :param unreserved_bytes: {node id: bytes of its memory that are in no huge page yet}
    :param own_nodes: ids of the nodes that have the host's own memory
    """
    pages: list[tuple[int, int, int]] = []
    unreported_nodes: list[int] = []
    for node_id in unreserved_bytes:
        directory = _NODE % (node_id, path.rpartition('/')[2])
        total = read_integer(root, directory + '/nr_hugepages')
        if total is None:
            unreported_nodes += [node_id] if node_id in own_nodes else []
        elif total:
            pages.append((node_id, total, _read_free(root, directory)))
    unreported_total = host_total - sum(total for _, total, _ in pages)
    if unreported_nodes and unreported_total > 0:
        free = _read_free(root, path) - sum(free for _, _, free in pages)
        fitting = {node_id: unreserved_bytes[node_id] // size for node_id in unreported_nodes}
        pages += _divide(fitting, unreported_total, max(0, free))
    return pages


def _divide(fitting: Mapping[int, int], total: int, free: int) -> list[tuple[int, int, int]]:
    """Divide pages evenly among nodes, as far as each has memory for them.

    :param fitting: {node id: number of pages that it has memory for}
    :returns: (node id, pages, free pages); a node has no more free pages than pages
    """
    shares, free_each = [], free // len(fitting)
    for index, node_id in enumerate(sorted(fitting, key=fitting.__getitem__)):
        share = min(-(-total // (len(fitting) - index)), fitting[node_id])
        total -= share
        shares.append((node_id, share, min(free_each, share)))
    return shares


def _read_free(root: str, directory: str) -> int:
    return read_integer(root, directory + '/free_hugepages') or 0
