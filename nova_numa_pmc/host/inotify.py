# SPDX-License-Identifier: Apache-2.0
"""Watch directories for changes: inotify(7), which Python's standard library lacks.

Files that were created before a directory is watched are not reported, so list the directory after
:meth:`Inotify.add`. Control groups report writes to their files and new groups, but not the files
that a write to ``cgroup.subtree_control`` creates.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

from nova_numa_pmc.record import Record

#: Bits of :class:`InotifyEvent` (include/uapi/linux/inotify.h).
MODIFY, MOVED_TO, CREATE, DELETE = 0x2, 0x80, 0x100, 0x200
OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORY = 0x01000000
_HEAD = struct.Struct('iIII')  # wd, mask, cookie, length of the name that follows
_READ_BYTES = 1 << 16


class InotifyEvent(Record):
    """An event: its watch (−1 if none), its bits, and the name of the directory entry or ''."""

    watch: int
    mask: int
    name: str


class Inotify:
    """An inotify instance.

    :raises OSError: none is available (EMFILE: limited by fs.inotify.max_user_instances)
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._check(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), 'inotify')

    def fileno(self) -> int:
        """Return the descriptor, which is readable while there are events."""
        return self._fd

    def add(self, directory: str, mask: int) -> int:
        """Watch a directory and return the watch, which is always the same for a directory.

        :raises OSError: the directory does not exist (ENOENT), or there are too many watches
            (ENOSPC: limited by fs.inotify.max_user_watches)
        """
        return self._check(
            self._libc.inotify_add_watch(
                self._fd, os.fsencode(directory), ctypes.c_uint32(mask | _ONLY_DIRECTORY)
            ),
            directory,
        )

    def remove(self, watch: int) -> None:
        """Remove a watch; do nothing if its directory is gone."""
        self._libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> list[InotifyEvent]:
        """Return the events since the last call, without waiting.

        An :data:`OVERFLOW` event means that events were lost (fs.inotify.max_queued_events).
        """
        events = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data = os.read(self._fd, _READ_BYTES)
                offset = 0
                while offset < len(data):
                    watch, mask, _, length = _HEAD.unpack_from(data, offset)
                    offset += _HEAD.size
                    name = data[offset : offset + length].split(b'\0', 1)[0]
                    events.append(InotifyEvent(watch, mask, os.fsdecode(name)))
                    offset += length
        return events

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    @staticmethod
    def _check(result: int, path: str) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
        return result
