# SPDX-License-Identifier: Apache-2.0
"""Read the mappings of a process that may hold guest memory, and which of their pages exist.

``/proc/PID/maps`` lists mappings without looking at page tables. ``smaps`` and ``numa_maps`` walk
the page tables of each whole mapping in one go, with the address space's lock held.

Formats: Documentation/filesystems/proc.rst and Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import GuestGone, PageMoveError
from nova_numa_pmc.host import files
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
        if self._fd is None:
            return True
        size = (end - start) // PAGE_BYTES * 8
        try:
            entries = os.pread(self._fd, size, start // PAGE_BYTES * 8)
        except OSError:
            return True
        flags = entries[7::8]
        return len(entries) < size or (flags.count(0) < len(flags) and max(flags) >= _PRESENT)

    def are_present(self, addresses: Sequence[int]) -> list[bool]:
        """Return for each page of a range whether it is present; False where this is unknown.

        :param addresses: addresses of consecutive pages
        """
        entries = b''
        if self._fd is not None:
            try:
                entries = os.pread(self._fd, 8 * len(addresses), addresses[0] // PAGE_BYTES * 8)
            except OSError:
                pass
        present = [flags >= _PRESENT for flags in entries[7::8]]
        return present + [False] * (len(addresses) - len(present))

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
