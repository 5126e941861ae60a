# SPDX-License-Identifier: Apache-2.0
"""Write a guest's control files in order: skip those in force, read back, undo on failure.

Every value is in the kernel's list format ('0-3,6'), which a flag ('1') is as well, so that
two spellings of one set count as equal.

An empty set (v2) inherits the parent's, but cannot be written back: once a group that has tasks
holds a set, the kernel refuses to empty it with ENOSPC (validate_change() in
kernel/cgroup/cpuset.c; seen on 6.1). So the parent's effective set stands for it everywhere.
"""

from __future__ import annotations

import errno
import os

from nova_numa_pmc.cpulist import parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, CpusetError, GuestGone
from nova_numa_pmc.host.files import read_kernel_file
from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    #: Writes a text into a file, as :func:`write`.
    Writer = Callable[[str, str], object]


class FileChange(Record):
    """One file's change, as texts in the kernel's list format; neither is empty on v2."""

    path: str
    before: str
    after: str


def write(path: str, text: str) -> None:
    """Write a control file in one call; it must exist."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(fd, os.fsencode(text + '\n'))
    finally:
        os.close(fd)


def read_set(path: str) -> str:
    """Read the set in force: a group's own, or the one that it inherits.

    :returns: text in the kernel's list format
    :raises OSError: as the kernel says
    """
    return read_kernel_file(path).strip() or read_inherited(path)


def read_inherited(path: str) -> str:
    """Read the set that an empty file ``path`` inherits: the parent's effective one.

    :raises OSError: as the kernel says
    """
    directory, name = os.path.split(path)
    return read_kernel_file(os.path.join(os.path.dirname(directory), name + '.effective')).strip()


def run(
    scope: str, steps: Iterable[tuple[str, str]], write: Writer = write
) -> tuple[FileChange, ...]:
    """Run steps in order: skip those in force already, read back, undo all if one fails.

    :param scope: the guest's outermost group: while it exists, the guest does
    :param steps: (path, text); an empty text: what the group would inherit then
    :returns: the changes, net and in order
    :raises GuestGone: the guest ended meanwhile
    :raises CpusetError: names the file, the value, the error and what was undone, or not
    """
    done: list[FileChange] = []
    for path, text in steps:
        try:
            own = read_kernel_file(path).strip()
            before = own or read_inherited(path)
            # A set that a group only inherits is lost once the group above it is widened.
            if (own or not text) and parse_cpulist(before) == parse_cpulist(
                text or read_inherited(path)
            ):
                continue
            text = text or read_inherited(path)
            done.append(FileChange(path, before, text))
            write(path, text)
            after = read_set(path)
            if parse_cpulist(after) != parse_cpulist(text):
                raise OSError(errno.EIO, 'reads back as %r' % after)
        except BaseException as error:
            # Any exception: a bound on the hook's time may arrive as one, in the middle.
            if isinstance(error, OSError) and has_vanished(scope, path):
                done = [change for change in done if change.path != path]
                continue
            undone = _take_back(done, write)
            if not isinstance(error, (OSError, CpuListError)):
                raise
            raise CpusetError(
                '%s: writing %r failed: %s%s' % (path, text, _why(error), undone)
            ) from None
    return _net(done)


def _take_back(done: Sequence[FileChange], write: Writer) -> str:
    """Undo changes, the last first; return text on what was restored and what was not."""
    undone: list[str] = []
    left: list[str] = []
    for change in reversed(done):
        try:
            if parse_cpulist(read_set(change.path)) != parse_cpulist(change.before):
                write(change.path, change.before)
                undone.append(change.path)
        except (OSError, CpuListError) as error:
            left.append('%s (was %r: %s)' % (change.path, change.before, _why(error)))
    if not undone and not left:
        return '; nothing had been changed'
    return ('; undone: ' + ', '.join(undone) if undone else '') + (
        '; NOT undone: ' + ', '.join(left) if left else ''
    )


def _why(error: BaseException) -> str:
    code = errno.errorcode.get(getattr(error, 'errno', 0), type(error).__name__)
    return '%s (%s)' % (code, getattr(error, 'strerror', None) or error)


def has_vanished(scope: str, path: str) -> bool:
    """Return whether a file's group went away by itself (an unplugged vCPU).

    :raises GuestGone: the whole guest is gone
    """
    if not os.path.isdir(scope):
        raise GuestGone('%s: the guest has ended' % scope)
    return not os.path.isdir(os.path.dirname(path))


def _net(done: Iterable[FileChange]) -> tuple[FileChange, ...]:
    """Fold changes of one file into one and drop those that ended where they began."""
    folded: dict[str, FileChange] = {}
    for change in done:
        first = folded.get(change.path, change)
        folded[change.path] = FileChange(change.path, first.before, change.after)
    return tuple(
        change
        for change in folded.values()
        if parse_cpulist(change.before) != parse_cpulist(change.after)
    )
