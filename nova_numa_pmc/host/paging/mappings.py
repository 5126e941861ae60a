# SPDX-License-Identifier: Apache-2.0
"""Read the mappings of a process that may hold guest memory, and which of their pages exist.

``/proc/PID/maps`` names them without a look at page tables, which ``smaps`` and
``numa_maps`` walk for each mapping at once, with the address space's lock held.

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
#: 65,530 mappings (vm.max_map_count) of a hundred bytes.
_READ_MAX_BYTES = 16 << 20
_PRESENT = 0x80  # in the last byte of a pagemap entry


class Mapping(Record):
    """A range of addresses that a process may write.

    :param shared: also move pages that other processes map, as in a memfd or a file of the guest's
        own (vhost-user); not in /dev/shm, where guests share memory (ivshmem)
    """

    start: int
    end: int
    shared: bool


def read(pid: int, root: str = '/') -> list[Mapping]:
    """Read the mappings that hold pages of the process's own, ascending.

    They are the writable ones, and before these what the linker has made read-only (RELRO: 3 MiB
    of a QEMU with its libraries).

    :raises GuestGone: there is no such process any more
    :raises PageMoveError: the file cannot be read or understood
    """
    path = os.path.join(root, 'proc/%d/maps' % pid)
    mappings: list[Mapping] = []
    relocated: tuple[int, int, str] | None = None  # a file's read-only data, if these come next
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
            if relocated and relocated[1:] == (start, name):
                mappings.append(Mapping(relocated[0], start, False))
            own = mode[3] == 's' and inode and not name.startswith('/dev/shm/')
            mappings.append(Mapping(start, end, bool(own)))
        relocated = (start, end, name) if mode == 'r--p' and inode else None
    return mappings


def start_ticks(pid: int, root: str = '/') -> int:
    """Return when a process started [ticks since boot]; this shows that a pid was reused.

    :raises GuestGone: it is gone, or a zombie whose memory is
    :raises PageMoveError: the file cannot be understood
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


class Presence:
    """Finds the pages that exist: looking a range up takes a hundredth of locating its pages."""

    def __init__(self, pid: int, root: str = '/') -> None:
        """Open a process's pagemap; if that is denied, any page counts as possibly present."""
        try:
            self._fd: int | None = os.open(
                os.path.join(root, 'proc/%d/pagemap' % pid), os.O_RDONLY | os.O_CLOEXEC
            )
        except OSError:
            self._fd = None

    def any(self, start: int, end: int) -> bool:
        """Return whether a page of the range may be present."""
        if self._fd is None:
            return True
        wanted = (end - start) // PAGE_BYTES * 8
        try:
            entries = os.pread(self._fd, wanted, start // PAGE_BYTES * 8)
        except OSError:
            return True
        flags = entries[7::8]
        return len(entries) < wanted or (flags.count(0) < len(flags) and max(flags) >= _PRESENT)

    def are_present(self, addresses: Sequence[int]) -> list[bool]:
        """Return for each page of a range whether it is present; all False if that is denied.

        :param addresses: of pages one after the other
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
    """Yield a kernel file's lines, up to a size that no such file reaches."""
    left = _READ_MAX_BYTES
    try:
        with open(path, encoding='utf-8', errors='surrogateescape') as file:
            for line in iter(lambda: file.readline(65536), ''):
                left -= len(line)
                if left < 0:
                    raise PageMoveError('%s: larger than 16 MiB' % path)
                yield line
    except OSError as error:
        gone = error.errno in (errno.ENOENT, errno.ESRCH)
        if gone:
            raise GuestGone('%s: the process has ended' % path) from None
        raise PageMoveError(
            "%s: %s: reading another user's process needs CAP_SYS_PTRACE"
            % (path, error.strerror or error)
        ) from None
