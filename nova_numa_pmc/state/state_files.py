# SPDX-License-Identifier: Apache-2.0
"""Access to files in a state directory: checking trust, locking, reading, replacing atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

from nova_numa_pmc.exceptions import StateError, StateLocked, StateUnavailable
from nova_numa_pmc.host import files
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

#: Directory of files that survive a reboot, relative to the root.
PERSISTENT = 'var/lib/nova-numa-pmc'
#: Errors of a process, a host or a device, which say nothing about the file.
_UNAVAILABLE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR))


class StateDirectory:
    """A state directory to which only root or this user can write, open.

    :ivar path: its path
    :ivar fd: its descriptor
    """

    def __init__(self, path: str, create: bool = True) -> None:
        """Open the directory; the end of a ``with`` block closes it.

        :param create: create it if it does not exist
        :raises FileNotFoundError: it does not exist, and is not to be created
        :raises StateUnavailable: it cannot be opened at the moment
        :raises StateError: it cannot be trusted or created
        """
        self.path = path
        self.fd = _open_directory(path, create)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    @contextlib.contextmanager
    def lock(self, name: str, timeout_s: float) -> Iterator[None]:
        """Hold the lock of a file of the directory inside the ``with`` block.

        A blocking flock(2) could only be interrupted by a signal, which the hook needs for its own
        timeout. Locks are usually held for a few milliseconds, so that a few attempts, at
        increasing intervals, suffice.

        :raises StateLocked: another process has held the lock for longer than ``timeout_s``
        :raises StateUnavailable: the file cannot be opened at the moment
        :raises StateError: the file cannot be trusted or created
        """
        path = os.path.join(self.path, name)
        with self._opened(name, os.O_RDWR | os.O_CREAT) as fd:
            if not stat.S_ISREG(_check_owner(fd, path, '0600').st_mode):
                raise StateError('%s: not a regular file: remove it' % path)
            deadline, wait_s = time.monotonic() + timeout_s, 0.001
            while not _try_lock(fd):
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise StateLocked(
                        '%s: locked by another process for over %g s: see fuser(1)'
                        % (path, timeout_s)
                    )
                time.sleep(min(wait_s, remaining_s))
                wait_s = min(2 * wait_s, 0.016)
            yield

    def read(self, name: str, size_max_bytes: int) -> bytes | None:
        """Read a file of the directory if only root or this user can write it.

        :returns: the file's bytes, or None if there is no such file
        :raises StateUnavailable: the file cannot be read at the moment
        :raises StateError: the file cannot be trusted or read, or is too large
        """
        path = os.path.join(self.path, name)
        try:
            with self._opened(name, os.O_RDONLY) as fd:
                status = _check_owner(fd, path, '0644')
                if not stat.S_ISREG(status.st_mode) or status.st_size > size_max_bytes:
                    raise StateError(
                        '%s: not a regular file of at most %d bytes: remove it'
                        % (path, size_max_bytes)
                    )
                return os.read(fd, size_max_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(path, error) from None

    @contextlib.contextmanager
    def _opened(self, name: str, flags: int) -> Iterator[int]:
        """Yield a descriptor of a file of the directory."""
        try:
            # O_NONBLOCK, so that a FIFO in its place does not block us.
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=self.fd)
        except OSError as error:
            if error.errno == errno.ENOENT and not flags & os.O_CREAT:
                raise
            raise _unusable(os.path.join(self.path, name), error) from None
        try:
            yield fd
        finally:
            os.close(fd)

    def replace(self, name: str, data: bytes, durable: bool = False) -> None:
        """Replace a file's content atomically; any user may read the file.

        A fixed temporary name suffices, because each file has only one writer at a time.

        :param durable: as :func:`files.replace_file` takes it
        :raises StateError: the file cannot be written
        """
        try:
            files.replace_file(name, data, name + '.tmp', durable=durable, directory_fd=self.fd)
        except OSError as error:
            raise StateError(
                '%s: cannot be written: %s: is its file system full or read-only?'
                % (os.path.join(self.path, name), error.strerror)
            ) from None


def read(directory: str, name: str, size_max_bytes: int) -> bytes | None:
    """Return a file's bytes; None if there is no such file or directory.

    :raises StateError: the directory or the file cannot be trusted or read
    """
    try:
        with StateDirectory(directory, create=False) as state_directory:
            return state_directory.read(name, size_max_bytes)
    except FileNotFoundError:
        return None


def write(directory: str, name: str, data: bytes, durable: bool = False) -> None:
    """Replace a file of the directory, which is created if necessary.

    :param durable: as :func:`files.replace_file` takes it
    :raises StateError: the directory cannot be trusted, or the file cannot be written
    """
    with StateDirectory(directory) as state_directory:
        state_directory.replace(name, data, durable)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_directory(path: str, create: bool) -> int:
    """Open the state directory if only root or this user can write to it.

    :param create: create it if it does not exist
    :returns: a file descriptor
    :raises FileNotFoundError: it does not exist, and is not to be created
    :raises StateUnavailable: it cannot be opened at the moment
    :raises StateError: it cannot be trusted or created
    """
    try:
        if create:
            try:
                os.mkdir(path)
                os.chmod(path, 0o755)  # regardless of the umask, as nova-compute reads there
            except FileExistsError:
                pass
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT and not create:
            raise
        remedy = 'make it a directory owned by root, mode 0755'
        raise _unusable(path, error, remedy) from None
    try:
        _check_owner(fd, path, '0755')
    except BaseException:
        os.close(fd)
        raise
    return fd


def _unusable(path: str, error: OSError, remedy: str | None = None) -> StateError:
    if error.errno in _UNAVAILABLE:
        return StateUnavailable('%s: cannot be used at the moment: %s' % (path, error.strerror))
    if remedy is None:
        remedy = 'run as root' if error.errno == errno.EACCES else 'remove it'
    return StateError('%s: %s: %s' % (path, error.strerror, remedy))


def _check_owner(fd: int, path: str, mode: str) -> os.stat_result:
    status = os.fstat(fd)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise StateError(
            '%s: users other than root may have written it (owner %d, mode %04o): inspect it, '
            'then chown it to root, mode %s, or remove it'
            % (path, status.st_uid, stat.S_IMODE(status.st_mode), mode)
        )
    return status
