# SPDX-License-Identifier: Apache-2.0
"""Choose which pages of a guest to move, by the node that the kernel reports for each, if any.

A status is what move_pages(2) returns for a page: a node id, or a negative errno (-ENOENT if the
page is not present). A position is the index of a page in its window.
"""

from __future__ import annotations

from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence

#: Memory that one step of a move examines, and the most that it moves [bytes].
BATCH_BYTES = 16 << 20
#: Memory that may be on other nodes without a move being made. QEMU's read-only pages take less;
#: they stay behind when a guest is moved, and a second move would not fetch them.
NEGLIGIBLE_BYTES = 16 << 20
#: Share of a guest's memory that can be on other nodes without a move being worthwhile.
_NEGLIGIBLE_RATIO = 0.01


def notable_bytes_elsewhere(
    bytes_by_node: Mapping[int, int],
    nodes: Container[int],
    negligible_bytes: int = NEGLIGIBLE_BYTES,
) -> int:
    """Return the bytes on all nodes except ``nodes``, or 0 if they are negligible.

    :param bytes_by_node: {node id: bytes}; with positions in place of node ids, ``nodes`` are
        positions, too
    :param negligible_bytes: this amount is negligible, or 1 % of the total if that is more
    """
    elsewhere_bytes = sum(size for node, size in bytes_by_node.items() if node not in nodes)
    limit_bytes = max(negligible_bytes, _NEGLIGIBLE_RATIO * sum(bytes_by_node.values()))
    return elsewhere_bytes if elsewhere_bytes > limit_bytes else 0


def misplaced_pages(statuses: Sequence[int], mems: Collection[int]) -> list[int]:
    """Return the positions of the pages that are on nodes other than ``mems``.

    :param mems: node ids
    """
    if not any(node >= 0 and node not in mems for node in set(statuses)):
        return []
    return [position for position, node in enumerate(statuses) if node >= 0 and node not in mems]


def whole_units(
    statuses: Sequence[int], mems: Collection[int], first: int, unit: int
) -> list[int]:
    """Return the first position of each aligned unit whose pages are all on the same wrong node.

    Only such a unit can be a transparent huge page.

    :param first: position of the first aligned page
    :param unit: number of pages in a unit, at least 2
    """
    return [
        position
        for position in range(first, len(statuses) - unit + 1, unit)
        if statuses[position] >= 0
        and statuses[position] not in mems
        and statuses[position : position + unit].count(statuses[position]) == unit
    ]


def next_target(
    wanted_bytes: Mapping[int, int], present_bytes: Mapping[int, int], usable: Iterable[int]
) -> int | None:
    """Return the id of the usable node that lacks most of its share; None if none is usable.

    :param wanted_bytes: {node id: its share of the memory}
    :param present_bytes: {node id: bytes that are there already}
    :param usable: ids of the nodes that have room
    """
    return max(
        sorted(usable),
        default=None,
        key=lambda node: wanted_bytes.get(node, 0) - present_bytes.get(node, 0),
    )


def wanted_bytes_by_node(
    mems: Sequence[int], mem_node_bytes: Sequence[int], total_bytes: int
) -> dict[int, int]:
    """Return {node id: bytes wanted there}, divided as promised or else in equal parts.

    :param mems: node ids, ascending
    :param mem_node_bytes: bytes promised on each of ``mems``; empty if that is unknown
    """
    promised_bytes = sum(mem_node_bytes)
    weights = mem_node_bytes if promised_bytes else (1,) * len(mems)
    return {
        node: total_bytes * weight // (promised_bytes or len(mems))
        for node, weight in zip(mems, weights)
    }
