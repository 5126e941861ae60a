# SPDX-License-Identifier: Apache-2.0
"""Move the pages of one address range that lie elsewhere; report why others stay.

Pages are located before they are moved: trying to move a page that is in place already, or absent,
takes four times as long as locating it, and splits the kernel's batch.
"""

from __future__ import annotations

import errno
import os
from array import array
from typing import TYPE_CHECKING

from nova_numa_pmc.core import page_choice
from nova_numa_pmc.host import files, topology
from nova_numa_pmc.host.paging import move_pages
from nova_numa_pmc.host.paging.kernel_port import KERNEL, KernelPort
from nova_numa_pmc.host.paging.mappings import PAGE_BYTES
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.host.paging.mappings import Mapping, Presence

_ABSENT = frozenset((-errno.ENOENT, -errno.EFAULT))
_PROBE_EVERY = 16  # ranges, after one without huge pages
_CAP_SYS_NICE = 23


class MovedPages(Record):
    """Result for a range.

    :param refused: (errno's name, pages) that did not move, by what move_pages(2) says of them:
        EAGAIN in use, or pinned for DMA (VFIO, vDPA); EBUSY being moved or reclaimed by the
        kernel; EACCES shared with another process (KSM, or no CAP_SYS_NICE); ENOMEM no free page
        of its size on the node; EFAULT not memory that can move
    """

    moved_bytes: int = 0
    refused: tuple[tuple[str, int], ...] = ()
    refused_bytes: int = 0


class PageMover:
    """Moves ranges of one process."""

    def __init__(
        self, pid: int, homes: frozenset[int], root: str = '/', port: KernelPort = KERNEL
    ) -> None:
        """Prepare; nothing is moved yet.

        :param homes: node ids; what is on one of them stays
        """
        self._pid, self._homes, self._port = pid, homes, port
        self._cpus = frozenset[int]().union(*(topology.cpus_of_node(n, root) for n in homes))
        self._unit = _huge_page_bytes(root) // PAGE_BYTES
        self._may_share = bool(files.has_capability(root, 'self', _CAP_SYS_NICE))
        self._since_probe = _PROBE_EVERY

    def move(
        self, mapping: Mapping, start: int, end: int, target: int, presence: Presence
    ) -> MovedPages:
        """Move the pages of a range that lie elsewhere to a node.

        :param mapping: that holds the range
        :param presence: of the process
        :raises GuestGone, PageMoveError: as :func:`move_pages.move`
        """
        addresses = array('Q', range(start, end, PAGE_BYTES))
        statuses = self._locate(addresses, presence)
        away = page_choice.away(statuses, self._homes)
        if not away:
            return MovedPages()
        shared = mapping.shared and self._may_share
        taken = self._move_huge(addresses, statuses, target, shared)
        refused = self._move(
            [addresses[position] for position in away if position not in taken], target, shared
        )
        refused_pages = sum(refused.values())
        return MovedPages(
            (len(away) - refused_pages) * PAGE_BYTES,
            tuple(sorted(refused.items())),
            refused_pages * PAGE_BYTES,
        )

    def _locate(self, addresses: array[int], presence: Presence) -> array[int]:
        """Return the node of each page, also of those that wait for a NUMA hinting fault.

        A huge page that waits is reported as the zero page is; one touch covers all of it.
        """
        statuses = self._port.locate(self._pid, addresses)
        if not _ABSENT.isdisjoint(statuses):
            hidden = [
                address
                for position, (address, status, present) in enumerate(
                    zip(addresses, statuses, presence.are_present(addresses))
                )
                if present
                and (
                    status == -errno.ENOENT
                    or (
                        status == -errno.EFAULT
                        and (not position or not address // PAGE_BYTES % self._unit)
                    )
                )
            ]
            if hidden:
                self._port.touch(self._pid, array('Q', hidden), self._cpus)
                statuses = self._port.locate(self._pid, addresses)
        return statuses

    def _move_huge(
        self, addresses: array[int], statuses: array[int], target: int, shared: bool
    ) -> frozenset[int]:
        """Move huge pages by their first addresses; return the positions that went with them.

        The other addresses of one that is on its way count as busy and break the kernel's
        batch. What may be a huge page is found by trying: its last page comes along.
        """
        if self._since_probe < _PROBE_EVERY:
            self._since_probe += 1
            return frozenset()
        first = -(addresses[0] // PAGE_BYTES) % self._unit
        heads = page_choice.whole_units(statuses, self._homes, first, self._unit)
        if not heads:
            return frozenset()
        why, _ = self._port.move(
            self._pid, array('Q', [addresses[position] for position in heads]), target, shared
        )
        if why:
            return frozenset()  # some may have been split: each page is tried by itself
        ends = self._port.locate(
            self._pid,
            array(
                'Q', [addresses[position + i] for position in heads for i in (0, self._unit - 1)]
            ),
        )
        whole = [
            position
            for i, position in enumerate(heads)
            if ends[2 * i] == ends[2 * i + 1] == target
        ]
        if not whole:
            self._since_probe = 0
        return frozenset(position + i for position in whole for i in range(self._unit))

    def _move(self, addresses: Sequence[int], target: int, shared: bool) -> dict[str, int]:
        """Move pages; return {errno's name: pages} of those that did not."""
        refused: dict[str, int] = {}
        while addresses:
            wanted = array('Q', addresses)
            why, statuses = self._port.move(self._pid, wanted, target, shared)
            now = self._port.locate(self._pid, wanted) if why else statuses
            tried = self._count_tried(wanted, statuses) if why == errno.EAGAIN else len(wanted)
            for node, status in zip(now[:tried], statuses):
                # A page that has vanished or was swapped out since it was located was not refused.
                if node in self._homes or node == -errno.ENOENT:
                    continue
                code = why if status == move_pages.UNREPORTED or status >= 0 else -status
                name = errno.errorcode.get(code, str(code))
                refused[name] = refused.get(name, 0) + 1
            addresses = wanted[tried:]
        return refused

    def _count_tried(self, addresses: array[int], statuses: array[int]) -> int:
        """Return the number of pages that the kernel has tried.

        It reports at once a page that cannot be added to those it has collected, then moves these,
        and stops there if one of them stays (do_pages_move() in mm/migrate.c): a pinned huge page
        would hold back all pages behind it. The rest of that huge page counts as tried.
        """
        stopped = max(
            (
                position
                for position, status in enumerate(statuses)
                if status != move_pages.UNREPORTED
            ),
            default=0,
        )
        if move_pages.UNREPORTED not in statuses[:stopped]:
            return len(addresses)
        unit = addresses[stopped] // PAGE_BYTES // self._unit
        return next(
            (
                position
                for position in range(stopped + 1, len(addresses))
                if addresses[position] // PAGE_BYTES // self._unit != unit
            ),
            len(addresses),
        )


def _huge_page_bytes(root: str) -> int:
    """Return the size of a transparent huge page, the largest there is where not reported."""
    try:
        return max(
            2 * PAGE_BYTES,
            int(
                files.read_kernel_file(
                    os.path.join(root, 'sys/kernel/mm/transparent_hugepage/hpage_pmd_size')
                )
            ),
        )
    except (OSError, ValueError):
        return 1 << 40
