# SPDX-License-Identifier: Apache-2.0
"""Keep a host's promises to its guests in a file that all starts of guests share.

The file is one JSON object with the id of the boot, the number of placements so far and the
promises, as :mod:`nova_numa_pmc.json_values` writes and checks records.

Writers take ``lock`` and replace the file by rename(2). Readers therefore need no lock, and a
writer that is killed at any point leaves either the old file or the new one. There is no fsync(2),
because the directory is a tmpfs, and a file from another boot is not used. ``lock`` is a separate
file, because the promises file is replaced. Only its owner may open ``lock``, because flock(2)
would let any reader hold it; the same holds for the other lock files. All files but these may be
read by nova-compute, which does not run as root.
"""

from __future__ import annotations

import contextlib
import os

from nova_numa_pmc import json_values
from nova_numa_pmc.exceptions import StateError, StateUnavailable
from nova_numa_pmc.host import files
from nova_numa_pmc.model import Promise  # noqa: TC001  # a field of a record that is read
from nova_numa_pmc.record import TYPE_CHECKING, Record
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from nova_numa_pmc.conf.host_options import HostOptions

FILE, LOCK = 'promises', 'lock'
#: How long the agent and the commands wait for the lock [s]; a short time, because starts of
#: guests take precedence.
LOCK_TIMEOUT_S = 0.25
_MAJOR = 2
_SIZE_MAX_BYTES = 4 << 20


class _Content(Record):
    """Content of the file.

    :param boot_id: boot id of the kernel at the time of writing
    :param rotation: as in :class:`HostPromises`
    """

    boot_id: str
    rotation: int
    promises: tuple[Promise, ...]


class HostPromises:
    """The promises to a host's guests, which may be changed; :func:`locked` writes the changes.

    :ivar promises: {guest uuid: :class:`~nova_numa_pmc.model.Promise`}
    :ivar rotation: number of placements made so far, which breaks ties between equal nodes
    :ivar problem: why the promises could not be read, or None
    """

    def __init__(
        self,
        promises: Mapping[str, Promise] | None = None,
        rotation: int = 0,
        problem: str | None = None,
    ) -> None:
        self.promises = dict(promises or {})
        self.rotation = rotation
        self.problem = problem

    def put(self, promise: Promise) -> None:
        """Record a promise, replacing an earlier one of the guest."""
        self.promises[promise.uuid] = promise

    def forget(self, name: str, uuid: str | None = None) -> None:
        """Forget the promises of all guests with this name or this uuid."""
        self.promises = {
            promise.uuid: promise
            for promise in self.promises.values()
            if promise.uuid != uuid and promise.name != name
        }


def encode(host_promises: HostPromises, boot_id: str) -> bytes:
    """Return promises as the file's bytes.

    :raises StateError: a promise has a value that :func:`decode` would refuse
    """
    try:
        promises = tuple(host_promises.promises.values())
        data = json_values.encode(_Content(boot_id, host_promises.rotation, promises), _MAJOR)
        decode(data)
    except (StateError, TypeError, ValueError) as error:
        raise StateError('a promise cannot be written: %s' % error) from None
    return data


def decode(data: bytes) -> tuple[str, HostPromises]:
    """Parse the file's bytes.

    :returns: (boot id, the promises)
    :raises StateError: this is not a promises file, is truncated, or is of another major version
    """
    try:
        content = json_values.decode(_Content, data, _MAJOR)
    except ValueError as error:
        raise StateError('%s' % error) from None
    promises = {promise.uuid: promise for promise in content.promises if promise.uuid}
    if len(promises) < len(content.promises):
        raise StateError('two promises for one guest, or one for none')
    return content.boot_id, HostPromises(promises, content.rotation)


def locked(
    host_options: HostOptions, root: str, timeout_s: float = LOCK_TIMEOUT_S
) -> AbstractContextManager[HostPromises]:
    """Return :func:`locked_at` for the promises of the host at ``root``."""
    return locked_at(host_options.state_path(root), timeout_s, files.read_boot_id(root))


@contextlib.contextmanager
def locked_at(directory_path: str, timeout_s: float, boot_id: str) -> Iterator[HostPromises]:
    """Read the promises, let the ``with`` block change them, and write them, under the lock.

    They are written if they have changed, unless the block raises an exception. Do not call
    libvirt or wait inside the block, because all other starts of guests wait for the lock. A file
    from another boot is not used, and one that cannot be parsed is renamed to ``promises.bad``,
    about which ``problem`` says why.

    :param directory_path: path of the state directory, which is created if necessary
    :param timeout_s: how long to wait for the lock
    :param boot_id: boot id of the running kernel
    :raises StateLocked: another process has held the lock for longer than ``timeout_s``
    :raises StateUnavailable: the file cannot be read at the moment; it is left as it is
    :raises StateError: the directory cannot be trusted, or the file cannot be written
    """
    with state_files.StateDirectory(directory_path) as directory, directory.lock(LOCK, timeout_s):
        draft = _load(directory, boot_id)
        before = dict(draft.promises), draft.rotation
        yield draft
        if (draft.promises, draft.rotation) != before:
            directory.replace(FILE, encode(draft, boot_id))


def _load(directory: state_files.StateDirectory, boot_id: str) -> HostPromises:
    try:
        data = directory.read(FILE, _SIZE_MAX_BYTES)
        return _parse(data, directory.path, boot_id) or HostPromises()
    except StateUnavailable:
        raise
    except StateError as error:
        _set_aside(directory)
        return HostPromises(problem=str(error))


def read(host_options: HostOptions, root: str) -> HostPromises:
    """Read the promises of the host at ``root`` without a lock.

    :raises StateError: the file cannot be used; the message names it and the remedy
    """
    return read_optional(host_options.state_path(root), files.read_boot_id(root)) or HostPromises()


def read_optional(directory: str, boot_id: str) -> HostPromises | None:
    """Read the promises as :func:`read` does; return None if this boot has written none."""
    return _parse(state_files.read(directory, FILE, _SIZE_MAX_BYTES), directory, boot_id)


def replace_running(
    promise: Promise,
    host_options: HostOptions,
    root: str,
    timeout_s: float = LOCK_TIMEOUT_S,
    started: bool = True,
) -> bool:
    """Replace the whole promise of a running guest, as :func:`update_running` does some fields.

    :param started: False: its start is still in progress
    :returns: whether it was recorded
    """
    changes = promise._replace(started=started)._asdict()
    return update_running(promise, host_options, root, timeout_s, **changes) is not None


def update_running(
    promise: Promise,
    host_options: HostOptions,
    root: str,
    timeout_s: float = LOCK_TIMEOUT_S,
    **changes: Any,
) -> Promise | None:
    """Change some fields of a running guest's promise, and keep what others have recorded.

    Nothing is recorded if the guest has ended or been started again since ``promise`` was read,
    which a late child process would not have noticed.

    :param promise: as it was read
    :param timeout_s: how long to wait for the lock [s]
    :param changes: the new values of the fields
    :returns: the current promise; None: nothing was recorded
    :raises StateError: the promise cannot be written
    """
    with locked(host_options, root, timeout_s) as draft:
        current = draft.promises.get(promise.uuid)
        if current is None or current.since_ns != promise.since_ns:
            return None
        current = current._replace(**changes)
        draft.put(current)
    return current


def _parse(data: bytes | None, directory: str, boot_id: str) -> HostPromises | None:
    """Return the promises in a file; None if there is no file or it is from another boot."""
    if data is None:
        return None
    try:
        written_by, host_promises = decode(data)
    except StateError as error:
        raise StateError(
            '%s: %s: remove it; it is rebuilt from the running guests'
            % (os.path.join(directory, FILE), error)
        ) from None
    return host_promises if written_by == boot_id else None


def _set_aside(directory: state_files.StateDirectory) -> None:
    try:
        os.rename(FILE, FILE + '.bad', src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
    except OSError as error:
        raise StateError(
            '%s: cannot be set aside as %s.bad: %s: remove both'
            % (os.path.join(directory.path, FILE), FILE, error.strerror)
        ) from None
