# SPDX-License-Identifier: Apache-2.0
"""Choose which pages of a guest to move, by the node that the kernel reports for each.

A status is what move_pages(2) returns for a page: a node id, or a negative errno (-ENOENT: the
page is not there). Positions are those of the pages in their window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

#: Memory that one step of a move looks at, and moves at most [bytes].
BATCH_BYTES = 16 << 20


def windows(start: int, end: int, step_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the parts of a range, cut at multiples of ``step_bytes``."""
    while start < end:
        cut = min(end, (start // step_bytes + 1) * step_bytes)
        yield start, cut
        start = cut


def away(statuses: Sequence[int], homes: Collection[int]) -> list[int]:
    """Return the positions of pages that are on another node than ``homes``.

    :param homes: set of node ids
    """
    if not any(node >= 0 and node not in homes for node in set(statuses)):
        return []
    return [at for at, node in enumerate(statuses) if node >= 0 and node not in homes]


def whole_units(
    statuses: Sequence[int], homes: Collection[int], first: int, unit: int
) -> list[int]:
    """Return the first positions of aligned units whose pages are all on the same wrong node.

    Only such a unit can be one transparent huge page.

    :param first: position of the first aligned page
    :param unit: pages in a unit, at least 2
    """
    return [
        at
        for at in range(first, len(statuses) - unit + 1, unit)
        if statuses[at] >= 0
        and statuses[at] not in homes
        and statuses[at : at + unit].count(statuses[at]) == unit
    ]


def next_target(
    wanted_bytes: Mapping[int, int], present_bytes: Mapping[int, int], usable: Iterable[int]
) -> int | None:
    """Return the node that lacks most of its share; None: no node is usable.

    :param wanted_bytes: {node id: its share of the memory}
    :param present_bytes: {node id: bytes that are there}
    :param usable: node ids that have room
    """
    return max(
        sorted(usable),
        default=None,
        key=lambda node: wanted_bytes.get(node, 0) - present_bytes.get(node, 0),
    )


def shares(mems: Sequence[int], mem_bytes: Sequence[int], total_bytes: int) -> dict[int, int]:
    """Return {node id: bytes wanted there}: as promised where that is known, else in equal parts.

    :param mems: node ids, ascending
    :param mem_bytes: parallel to ``mems``, or empty
    """
    promised = sum(mem_bytes)
    parts = mem_bytes if promised else (1,) * len(mems)
    return {node: total_bytes * part // (promised or len(mems)) for node, part in zip(mems, parts)}
