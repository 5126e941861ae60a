# SPDX-License-Identifier: Apache-2.0
"""Move those pages of an address range that are on the wrong node, and report why others stay.

Pages are located before they are moved: an attempt to move a page that is already in place, or
absent, takes four times as long as locating it, and splits the kernel's batch.
"""

from __future__ import annotations

import errno
from array import array
from typing import TYPE_CHECKING

from nova_numa_pmc.core import page_choice
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.host import files, topology
from nova_numa_pmc.host.page_moves import move_pages
from nova_numa_pmc.host.page_moves.mappings import PAGE_BYTES
from nova_numa_pmc.host.page_moves.move_pages import KERNEL_CALLS, KernelCalls
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.host.page_moves.mappings import Mapping, Pagemap

#: {errno's name in :class:`MovedPages`: the reason as text}
TEXTS = {
    'EAGAIN': 'in use',
    'EBUSY': 'busy',
    'EACCES': 'shared with another process',
    'ENOMEM': 'without room on the node',
    'EFAULT': 'not movable',
}
_ABSENT = frozenset((-errno.ENOENT, -errno.EFAULT))
_PROBE_EVERY = 16  # ranges before the next attempt, after a range without huge pages
_CAP_SYS_NICE = 23


class MovedPages(Record):
    """Result of moving a range.

    :param refused: pages that did not move, as (errno's name, number of pages), by the reason that
        move_pages(2) gives. EAGAIN: in use, or pinned for DMA (VFIO, vDPA). EBUSY: being moved or
        reclaimed by the kernel. EACCES: shared with another process (by KSM, or without
        CAP_SYS_NICE). ENOMEM: no free page of its size on the node. EFAULT: not movable memory
    """

    moved_bytes: int = 0
    refused: tuple[tuple[str, int], ...] = ()
    refused_bytes: int = 0


class PageMover:
    """Moves pages of one process, one address range at a time."""

    def __init__(
        self, pid: int, mems: frozenset[int], root: str = '/', kernel: KernelCalls = KERNEL_CALLS
    ) -> None:
        """Prepare to move pages; nothing is moved yet.

        :param mems: ids of the nodes whose pages stay where they are
        """
        self._pid = pid
        self._mems = mems
        self._kernel = kernel
        self._cpus = frozenset[int]().union(*(topology.cpus_of_node(n, root) for n in mems))
        self._pages_per_huge_page = _huge_page_bytes(root) // PAGE_BYTES
        self._may_move_shared = bool(files.has_capability(root, 'self', _CAP_SYS_NICE))
        self._since_probe = _PROBE_EVERY

    def move(
        self, mapping: Mapping, start: int, end: int, target: int, pagemap: Pagemap
    ) -> MovedPages:
        """Move the pages of a range that are on none of ``mems`` to ``target``.

        :param mapping: the mapping that contains the range
        :param pagemap: the process's pagemap
        :raises GuestGone, PageMoveError: as :func:`move_pages.move` does
        """
        addresses = array('Q', range(start, end, PAGE_BYTES))
        statuses = self._locate(addresses, pagemap)
        misplaced = page_choice.misplaced_pages(statuses, self._mems)
        if not misplaced:
            return MovedPages()
        shared = mapping.move_shared and self._may_move_shared
        huge_positions = self._move_huge(addresses, statuses, target, shared)
        refused = self._move(
            [addresses[position] for position in misplaced if position not in huge_positions],
            target,
            shared,
        )
        refused_pages = sum(refused.values())
        return MovedPages(
            (len(misplaced) - refused_pages) * PAGE_BYTES,
            tuple(sorted(refused.items())),
            refused_pages * PAGE_BYTES,
        )

    def _locate(self, addresses: array[int], pagemap: Pagemap) -> array[int]:
        """Return the node of each page, including pages that await a NUMA hinting fault.

        The kernel reports a huge page that awaits such a fault as if it were the zero page;
        touching one of its addresses is enough.
        """
        statuses = self._kernel.locate(self._pid, addresses)
        if not _ABSENT.isdisjoint(statuses):
            hidden = [
                address
                for position, (address, status, present) in enumerate(
                    zip(addresses, statuses, pagemap.are_present(addresses))
                )
                if present
                and (
                    status == -errno.ENOENT
                    or (
                        status == -errno.EFAULT
                        and (not position or not address // PAGE_BYTES % self._pages_per_huge_page)
                    )
                )
            ]
            if hidden:
                self._kernel.touch(self._pid, array('Q', hidden), self._cpus)
                statuses = self._kernel.locate(self._pid, addresses)
        return statuses

    def _move_huge(
        self, addresses: array[int], statuses: array[int], target: int, shared: bool
    ) -> frozenset[int]:
        """Move huge pages by their first addresses; return the positions of all of their pages.

        While a huge page is being moved, its other addresses count as busy and break the kernel's
        batch. Whether an aligned unit is a huge page is only known afterwards: its last page has
        then moved with the first.
        """
        if self._since_probe < _PROBE_EVERY:
            self._since_probe += 1
            return frozenset()
        first = -(addresses[0] // PAGE_BYTES) % self._pages_per_huge_page
        heads = page_choice.whole_units(statuses, self._mems, first, self._pages_per_huge_page)
        if not heads:
            return frozenset()
        reason, _ = self._kernel.move(
            self._pid, array('Q', [addresses[position] for position in heads]), target, shared
        )
        if reason:
            return frozenset()  # some may have been split, so each page is tried on its own
        ends = self._kernel.locate(
            self._pid,
            array(
                'Q',
                [
                    addresses[position + i]
                    for position in heads
                    for i in (0, self._pages_per_huge_page - 1)
                ],
            ),
        )
        whole = [
            position
            for i, position in enumerate(heads)
            if ends[2 * i] == ends[2 * i + 1] == target
        ]
        if not whole:
            self._since_probe = 0
        return frozenset(
            position + i for position in whole for i in range(self._pages_per_huge_page)
        )

    def _move(self, addresses: Sequence[int], target: int, shared: bool) -> dict[str, int]:
        """Move pages and return the number of those that did not move, by errno's name."""
        refused: dict[str, int] = {}
        while addresses:
            batch = array('Q', addresses)
            reason, statuses = self._kernel.move(self._pid, batch, target, shared)
            nodes = self._kernel.locate(self._pid, batch) if reason else statuses
            tried = self._count_tried(batch, statuses) if reason == errno.EAGAIN else len(batch)
            for node, status in zip(nodes[:tried], statuses):
                # A page that was freed or swapped out after it was located was not refused.
                if node in self._mems or node == -errno.ENOENT:
                    continue
                code = reason if status == move_pages.UNREPORTED or status >= 0 else -status
                name = errno.errorcode.get(code, str(code))
                refused[name] = refused.get(name, 0) + 1
            addresses = batch[tried:]
        return refused

    def _count_tried(self, addresses: array[int], statuses: array[int]) -> int:
        """Return the number of pages that the kernel has tried to move.

        When the kernel cannot add a page to its batch, it reports that page at once, moves the
        batch, and stops there if a page of the batch does not move (do_pages_move() in
        mm/migrate.c). A pinned huge page would therefore hold back all pages after it. The rest of
        that huge page counts as tried.
        """
        last_reported = max(
            (
                position
                for position, status in enumerate(statuses)
                if status != move_pages.UNREPORTED
            ),
            default=0,
        )
        if move_pages.UNREPORTED not in statuses[:last_reported]:
            return len(addresses)
        huge_page_number = addresses[last_reported] // PAGE_BYTES // self._pages_per_huge_page
        return next(
            (
                position
                for position in range(last_reported + 1, len(addresses))
                if addresses[position] // PAGE_BYTES // self._pages_per_huge_page
                != huge_page_number
            ),
            len(addresses),
        )


def _huge_page_bytes(root: str) -> int:
    """Return the size of a transparent huge page; 1 TiB, more than any, if it is not reported."""
    text = files.read_optional(root, 'sys/kernel/mm/transparent_hugepage/hpage_pmd_size')
    return max(2 * PAGE_BYTES, int(text)) if text and is_number(text) else 1 << 40
