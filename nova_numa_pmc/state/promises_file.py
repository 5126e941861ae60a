# SPDX-License-Identifier: Apache-2.0
"""Keep what the host has promised to its guests in a file that starts of guests share.

Writers take ``lock`` and replace the file by rename(2), so that readers need no lock and a
writer killed anywhere leaves the old file or the new one. There is no fsync(2): the directory
is a tmpfs, and what another boot wrote doesn't count. ``lock`` is a file of its own, as the
other one is replaced, and only its owner may open it: flock(2) would let any reader hold it.
Everything else may be read by nova-compute, which is not root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from nova_numa_pmc.exceptions import StateBusy, StateError
from nova_numa_pmc.host import files
from nova_numa_pmc.state.promises_format import (
    Promises as Promises,  # noqa: PLC0414 -- whoever reads the file has it from here
    decode,
    decode_one,
    encode,
)

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from nova_numa_pmc.model import Promise

FILE, LOCK = 'promises', 'lock'
_SIZE_MAX_BYTES = 4 << 20


class locked(Promises):  # noqa: N801 -- a context manager, used like a function
    """Hold the lock over deciding and recording, and over nothing else.

    ``with locked(…) as record:`` reads the file; leaving the block writes it if anything has
    changed, and not if the block raised. Never call libvirt or wait inside: every other
    start waits here.

    :param directory: path; made if it isn't there
    :param timeout_s: how long to wait for the lock [s]
    :param boot_id: of the running kernel; what another boot wrote doesn't count
    :ivar problem: why the file there was set aside as ``promises.bad``, else None

    :raises StateBusy: another process holds the lock for longer than ``timeout_s``
    :raises StateError: the directory can't be trusted or the file not be written
    """

    def __init__(self, directory: str, timeout_s: float, boot_id: str) -> None:
        super().__init__()
        self.directory, self.timeout_s = directory, timeout_s
        self.boot_id = boot_id
        self.problem: str | None = None
        self._directory_fd: int | None = None
        self._lock_fd: int | None = None

    def put(self, promise: Promise) -> None:
        """Record a promise, in place of the guest's earlier one."""
        self.promises[promise.uuid] = promise

    def drop(self, uuid: str) -> None:
        """Forget a guest's promise; one that isn't there is fine."""
        self.promises.pop(uuid, None)

    def __enter__(self) -> locked:
        try:
            self._directory_fd = open_directory(self.directory, create=True)
            self._lock_fd = take_lock(self._directory_fd, self.directory, self.timeout_s)
            self._load(self._directory_fd)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if (
                kind is None
                and self._directory_fd is not None
                and (self.promises, self.rotation) != self._loaded
            ):
                replace_file(
                    self._directory_fd,
                    self.directory,
                    FILE,
                    encode(self.promises.values(), self.rotation, self.boot_id),
                )
        finally:
            self._close()

    def _load(self, directory_fd: int) -> None:
        try:
            record = _read(directory_fd, self.directory, self.boot_id)
        except StateError as e:
            self.problem = str(e)
            record = None
            _set_aside(directory_fd, self.directory)
        record = record or Promises()
        self.promises, self.rotation = record.promises, record.rotation
        self._loaded = dict(self.promises), self.rotation

    def _close(self) -> None:
        # Closing releases the lock; flock(2) goes with the open file.
        for fd in (self._lock_fd, self._directory_fd):
            if fd is not None:
                os.close(fd)
        self._lock_fd = self._directory_fd = None


def read(directory: str, boot_id: str) -> Promises | None:
    """Read the promises without a lock.

    :returns: None: this boot has written none
    :raises StateError: names the file and the remedy
    """
    try:
        fd = open_directory(directory, create=False)
    except FileNotFoundError:
        return None
    try:
        return _read(fd, directory, boot_id)
    finally:
        os.close(fd)


def read_one(directory: str, uuid: str, boot_id: str) -> Promise | None:
    """Read one guest's promise without a lock, and without parsing the others'.

    :returns: None: this boot has made none
    :raises StateError: the file can't be trusted or understood
    """
    try:
        fd = open_directory(directory, create=False)
    except FileNotFoundError:
        return None
    try:
        data = read_file(fd, directory, FILE, _SIZE_MAX_BYTES)
    finally:
        os.close(fd)
    written_by, promise = decode_one(data, uuid) if data else (None, None)
    return promise if written_by == boot_id else None


def read_boot_id(root: str = '/') -> str:
    """Read the id that the kernel gave this boot.

    :raises StateError: it can't be read
    """
    path = os.path.join(root, 'proc/sys/kernel/random/boot_id')
    try:
        with open(path, encoding='ascii') as f:
            return f.read(64).strip()
    except (OSError, ValueError) as e:
        raise StateError('%s: %s: mount procfs' % (path, e)) from None


def prune(
    promises: Mapping[str, Promise], running: Iterable[str], now_ns: int, grace_ns: int
) -> dict[str, Promise]:
    """Leave out the promises that nobody will claim any more.

    A promise stays while its guest runs, or while its start may still be on the way. One that is
    younger than now_ns is a start, too: the hook recorded it after the caller looked at the clock.

    :param running: uuids of the guests that libvirt's status files show
    :param now_ns: CLOCK_BOOTTIME
    :param grace_ns: how long a start may take: it waits through preallocation
    :returns: {uuid: Promise}, in the same order
    """
    running = frozenset(running)
    return {
        uuid: promise
        for uuid, promise in promises.items()
        if uuid in running or (not promise.started and now_ns - promise.since_ns < grace_ns)
    }


def open_directory(path: str, create: bool) -> int:
    """Open the state directory if only root, or we, can have put anything there.

    :returns: a file descriptor
    :raises FileNotFoundError: it isn't there, and isn't to be made
    :raises StateError: it can't be trusted or made
    """
    try:
        if create:
            try:
                os.mkdir(path)
                os.chmod(path, 0o755)  # whatever the umask: nova-compute reads there
            except FileExistsError:
                pass
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as e:
        if e.errno == errno.ENOENT and not create:
            raise
        raise StateError(
            '%s: %s: make it a directory owned by root, mode 0755' % (path, e.strerror)
        ) from None
    try:
        _check_owner(fd, path, '0755')
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_owner(fd: int, path: str, mode: str) -> os.stat_result:
    status = os.fstat(fd)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise StateError(
            '%s: others than root may have written it (owner %d, mode %04o): inspect it, then '
            'chown it to root, mode %s, or remove it'
            % (path, status.st_uid, stat.S_IMODE(status.st_mode), mode)
        )
    return status


def take_lock(directory_fd: int, directory: str, timeout_s: float, name: str = LOCK) -> int:
    """Lock a file of the directory by asking again at growing intervals, within bounds.

    A blocking flock(2) could be bounded only by a signal, which the hook needs for its own
    bound; the record's lock is held for a few milliseconds, so that a few questions suffice.

    :returns: a file descriptor; closing it releases the lock
    :raises StateBusy: another process holds it for longer than ``timeout_s``
    :raises StateError: the file can't be trusted or made
    """
    path = os.path.join(directory, name)
    fd = None
    try:
        fd = os.open(
            name,
            os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
            0o600,
            dir_fd=directory_fd,
        )
        if not stat.S_ISREG(_check_owner(fd, path, '0600').st_mode):
            raise StateError('%s: not a regular file: remove it' % path)
        deadline, wait_s = time.monotonic() + timeout_s, 0.001
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise StateBusy(
                        '%s: locked by another process for over %g s: see fuser(1)'
                        % (path, timeout_s)
                    ) from None
                time.sleep(min(wait_s, left_s))
                wait_s = min(2 * wait_s, 0.016)
    except BaseException as e:
        if fd is not None:
            os.close(fd)
        if isinstance(e, OSError):
            raise StateError('%s: %s: remove it' % (path, e.strerror)) from None
        raise


def _read(directory_fd: int, directory: str, boot_id: str) -> Promises | None:
    """Read the file; None when there is none or another boot's."""
    data = read_file(directory_fd, directory, FILE, _SIZE_MAX_BYTES)
    if data is None:
        return None
    try:
        written_by, record = decode(data)
    except StateError as e:
        raise StateError(
            '%s: %s: remove it; it is rebuilt from the running guests'
            % (os.path.join(directory, FILE), e)
        ) from None
    return record if written_by == boot_id else None


def open_file(
    directory_fd: int, directory: str, name: str, size_max_bytes: int
) -> tuple[int, int] | None:
    """Open a file of the state directory to read if only root, or we, can have written it.

    :param directory: path, for messages
    :returns: (descriptor, size [bytes]), None when there is none
    :raises StateError: it can't be trusted or opened, or is larger than ``size_max_bytes``
    """
    path = os.path.join(directory, name)
    try:
        # O_NONBLOCK: a FIFO put there must not hold us.
        fd = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd
        )
    except FileNotFoundError:
        return None
    except OSError as e:
        raise StateError('%s: %s: remove it' % (path, e.strerror)) from None
    try:
        status = _check_owner(fd, path, '0644')
        if not stat.S_ISREG(status.st_mode) or status.st_size > size_max_bytes:
            raise StateError(
                '%s: not a regular file of at most %d bytes: remove it' % (path, size_max_bytes)
            )
    except BaseException:
        os.close(fd)
        raise
    return fd, status.st_size


def read_file(directory_fd: int, directory: str, name: str, size_max_bytes: int) -> bytes | None:
    """Read a file that :func:`open_file` opens.

    :returns: its bytes, None when there is none
    """
    opened = open_file(directory_fd, directory, name, size_max_bytes)
    if opened is None:
        return None
    try:
        return os.read(opened[0], size_max_bytes)
    except OSError as e:
        raise StateError(
            '%s: %s: remove it' % (os.path.join(directory, name), e.strerror)
        ) from None
    finally:
        os.close(opened[0])


def _set_aside(directory_fd: int, directory: str) -> None:
    try:
        os.rename(FILE, FILE + '.bad', src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except OSError as e:
        raise StateError(
            "%s: can't be set aside as %s.bad: %s: remove both"
            % (os.path.join(directory, FILE), FILE, e.strerror)
        ) from None


def replace_file(
    directory_fd: int, directory: str, name: str, data: bytes, durable: bool = False
) -> None:
    """Put new bytes in the file's place in one step, to be read by all.

    One temporary name will do: each file has one writer at a time.

    :param directory: path, for messages
    :param durable: let it outlast a crash of the host; on a tmpfs nothing does
    :raises StateError: it can't be written
    """
    try:
        files.replace_file(name, data, name + '.tmp', durable=durable, directory_fd=directory_fd)
    except OSError as e:
        raise StateError(
            "%s: can't be written: %s: is its file system full or read-only?"
            % (os.path.join(directory, name), e.strerror)
        ) from None
