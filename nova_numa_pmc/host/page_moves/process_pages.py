# SPDX-License-Identifier: Apache-2.0
"""Find the pages of a guest's process, and move those that are on the wrong node.

``/proc/PID/maps`` lists mappings without looking at page tables. ``smaps`` and ``numa_maps`` walk
the page tables of each whole mapping in one go, with the address space's lock held. Pages are
located before they are moved: an attempt to move a page that is already in place, or absent, takes
four times as long as locating it, and splits the kernel's batch.

Formats: Documentation/filesystems/proc.rst and Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

import errno
import os
from array import array
from typing import TYPE_CHECKING

from nova_numa_pmc.core import page_choice
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import GuestGone, PageMoveError
from nova_numa_pmc.host import files, topology
from nova_numa_pmc.host.page_moves import move_pages
from nova_numa_pmc.host.page_moves.move_pages import KERNEL_CALLS, KernelCalls
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')
#: More than 65,530 mappings (vm.max_map_count) of about a hundred bytes each.
_READ_MAX_BYTES = 16 << 20
_PRESENT = 0x80  # in the last byte of a pagemap entry


class Mapping(Record):
    """A range of addresses that may hold pages of the process's own.

    :param move_shared: whether to move pages that other processes map as well: true for a memfd or
        a file of the guest's own (vhost-user), false for /dev/shm, where guests share memory
        (ivshmem)
    """

    start: int
    end: int
    move_shared: bool


def read(pid: int, root: str = '/') -> list[Mapping]:
    """Return the mappings that hold pages of the process's own, in ascending order.

    These are the writable mappings, and the mappings just before them that the dynamic linker has
    made read-only after relocation (RELRO), which amount to 3 MiB in QEMU with its libraries.

    :raises GuestGone: the process no longer exists
    :raises PageMoveError: the file cannot be read or understood
    """
    path = os.path.join(root, 'proc/%d/maps' % pid)
    mappings: list[Mapping] = []
    read_only: tuple[int, int, str] | None = None  # the previous mapping, if it may be RELRO
    for line in _lines(path):
        fields = line.rstrip('\n').split(None, 5)
        try:
            start, end = (int(word, 16) for word in fields[0].split('-'))
            mode, inode = fields[1], int(fields[4])
            if not 0 <= start < end < 1 << 64 or (start | end) % PAGE_BYTES or len(mode) != 4:
                raise ValueError
        except (ValueError, IndexError):
            raise PageMoveError('%s: not a mapping: %.80r' % (path, line)) from None
        name = fields[5] if len(fields) > 5 else ''
        if mode.startswith('rw') and not _is_device(name):
            if read_only and read_only[1:] == (start, name):
                mappings.append(Mapping(read_only[0], start, False))
            move_shared = mode[3] == 's' and inode and not name.startswith('/dev/shm/')
            mappings.append(Mapping(start, end, bool(move_shared)))
        read_only = (start, end, name) if mode == 'r--p' and inode else None
    return mappings


def start_ticks(pid: int, root: str = '/') -> int:
    """Return the start time of a process [ticks since boot], which tells whether a pid was reused.

    :raises GuestGone: the process has ended, or is a zombie, which has no memory any more
    :raises PageMoveError: the file cannot be read or understood
    """
    path = os.path.join(root, 'proc/%d/stat' % pid)
    text = ''.join(_lines(path))
    try:
        ticks = files.start_ticks(text)
    except (ValueError, IndexError):
        raise PageMoveError('%s: contains no start time: %.80r' % (path, text)) from None
    if text.rpartition(')')[2].split(None, 1)[0] in 'ZX':
        raise GuestGone('%s: the process has ended' % path)
    return ticks


class Pagemap:
    """A process's pagemap, which says which of its pages are present.

    Looking up a range takes a hundredth of the time of locating its pages.
    """

    def __init__(self, pid: int, root: str = '/') -> None:
        """Open a process's pagemap; if that fails, :meth:`any_present` is always true."""
        try:
            self._fd: int | None = os.open(
                os.path.join(root, 'proc/%d/pagemap' % pid), os.O_RDONLY | os.O_CLOEXEC
            )
        except OSError:
            self._fd = None

    def any_present(self, start: int, end: int) -> bool:
        """Return whether any page of the range may be present."""
        pages = (end - start) // PAGE_BYTES
        flags = self._flags(start, pages)
        return len(flags) < pages or (flags.count(0) < pages and max(flags) >= _PRESENT)

    def are_present(self, addresses: Sequence[int]) -> list[bool]:
        """Return for each page of a range whether it is present; False where this is unknown.

        :param addresses: addresses of consecutive pages
        """
        flags = self._flags(addresses[0], len(addresses))
        return [flag >= _PRESENT for flag in flags] + [False] * (len(addresses) - len(flags))

    def _flags(self, start: int, pages: int) -> bytes:
        """Return the last byte of the entries of consecutive pages, as far as they can be read."""
        if self._fd is None:
            return b''
        try:
            return os.pread(self._fd, 8 * pages, start // PAGE_BYTES * 8)[7::8]
        except OSError:
            return b''

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_device(name: str) -> bool:
    return name.startswith('anon_inode:') or (
        name.startswith('/dev/') and not name.startswith(('/dev/shm/', '/dev/hugepages'))
    )


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a kernel file, up to a size that no such file reaches."""
    remaining = _READ_MAX_BYTES
    try:
        with open(path, encoding='utf-8', errors='surrogateescape') as file:
            for line in iter(lambda: file.readline(65536), ''):
                remaining -= len(line)
                if remaining < 0:
                    raise PageMoveError('%s: larger than 16 MiB' % path)
                yield line
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            raise GuestGone('%s: the process has ended' % path) from None
        raise PageMoveError(
            "%s: %s: reading another user's process needs CAP_SYS_PTRACE"
            % (path, error.strerror or error)
        ) from None


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
