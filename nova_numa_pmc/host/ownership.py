# SPDX-License-Identifier: Apache-2.0
"""Determine who can change a file: follow its path, links included, and check each component.

Below a root other than '/', that of a container or of another system, links are followed as a
process with that root would follow them, so that none leads out of it.
"""

from __future__ import annotations

import errno
import os
import stat

from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: As the kernel's MAXSYMLINKS.
_LINKS_MAX = 40
_ACCOUNTS_MAX_BYTES = 1 << 20


def follow(path: str, base: str = '/') -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path, status) of each component of a path and of the links that it leads through.

    The first is ``base`` itself; the last is the file, by a path without links below ``base``.

    :param path: the path as a process whose root is ``base`` names it
    :raises OSError: a component does not exist or cannot be read, or there are too many links
    """
    yield base, os.stat(base)  # /proc/PID/root is itself a link, to a process's root
    waiting = path.split('/')[::-1]
    current: list[str] = []
    link_count = 0
    while waiting:
        name = waiting.pop()
        if name in ('', '.'):
            continue
        if name == '..':
            del current[-1:]
            continue
        full = os.path.join(base, *current, name)
        status = os.lstat(full)
        yield full, status
        if not stat.S_ISLNK(status.st_mode):
            current.append(name)
            continue
        link_count += 1
        if link_count > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), full)
        target = os.readlink(full)
        if target.startswith('/'):
            current = []
        waiting += target.split('/')[::-1]
    path = os.path.join(base, *current)
    yield path, os.lstat(path) if current else os.stat(base)


def real_path(path: str, base: str = '/') -> str | None:
    """Return a path without links that leads to the same file below ``base``; None without one."""
    try:
        return list(follow(path, base))[-1][0]
    except (OSError, ValueError):
        return None


def read_text(path: str, base: str, max_bytes: int) -> str:
    """Return the beginning of a regular file below ``base``; '' if it cannot be read.

    A container may have anything in its place, such as a pipe that nobody writes to.
    """
    followed = real_path(path, base)
    if followed is None:
        return ''
    try:
        descriptor = os.open(followed, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, 'rb') as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ''
            return stream.read(max_bytes).decode('utf-8', 'replace')
    except OSError:
        return ''


def can_others_change(
    status: os.stat_result, owners: Collection[int], groups: Collection[int] = ()
) -> bool:
    """Return whether users other than ``owners`` and members of ``groups`` can change a file.

    In a directory with the sticky bit, others can add names, but not change those that exist.
    """
    mode = status.st_mode
    if status.st_uid not in owners:
        return True
    if stat.S_ISLNK(mode):
        return False
    is_open = mode & stat.S_IWOTH or (mode & stat.S_IWGRP and status.st_gid not in groups)
    return bool(is_open) and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX)


def find_changeable(
    path: str, base: str = '/', owners: Collection[int] = (0,), groups: Collection[int] = ()
) -> str | None:
    """Return the first component of a path that others than ``owners`` can change, or None.

    A component that cannot be read counts as changeable.

    :param path: the path as a process whose root is ``base`` names it
    :param groups: ids of groups whose members may change it as well
    """
    component = base
    try:
        for component, status in follow(path, base):
            if can_others_change(status, owners, groups):
                return component
    except (OSError, ValueError) as error:
        return getattr(error, 'filename', None) or component
    return None


def accounts(name: str, base: str = '/') -> list[tuple[int, int]]:
    """Return (uid, gid) of each account of a name in the ``/etc/passwd`` below ``base``."""
    found = []
    for line in read_text('etc/passwd', base, _ACCOUNTS_MAX_BYTES).splitlines():
        account, _, uid, gid, *_ = (*line.split(':'), '', '', '', '')
        if account == name and uid.isdigit() and gid.isdigit():
            found.append((int(uid), int(gid)))
    return found


def root_uid(root: str) -> int:
    """Return the uid that counts as root's below a root: 0 for this system's own.

    A tree of another system (``--root``) may belong to the user who examines it.
    """
    return os.stat(root).st_uid
