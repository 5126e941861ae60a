# SPDX-License-Identifier: Apache-2.0
"""Read the cpusets of a guest's control groups, and write them so that a failure undoes all.

Files are written in order, and each write is verified. Every value is in the kernel's list format
('0-3,6'), so that two spellings of the same set count as equal; a flag ('1') is also valid in this
format.

A group with an empty set (v2) inherits the parent's, but an empty set cannot be restored: once a
group that has tasks has a set, the kernel refuses to empty it with ENOSPC (validate_change() in
kernel/cgroup/cpuset.c; seen on 6.1). An empty set is therefore always represented by the parent's
effective set.
"""

from __future__ import annotations

import errno
import os

from nova_numa_pmc.cpulist import parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, CpusetError, GuestGone
from nova_numa_pmc.host.files import read_kernel_file
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from nova_numa_pmc.host.cgroups import GuestGroups

    #: A function that writes a text to a file, as :func:`write_file` does.
    Writer = Callable[[str, str], object]


def read_sets(groups: GuestGroups, kind: str) -> dict[str, frozenset[int]]:
    """Read the sets that each of a guest's groups has of its own; an empty one (v2) is inherited.

    :param kind: 'cpus' or 'mems'
    :returns: {directory: its set} for the parent and the thread cgroups that still exist
    :raises GuestGone: the guest has ended
    :raises CpusetError: the parent, or a thread cgroup that still exists, cannot be read
    """
    sets = {}
    for directory in (groups.parent, *groups.thread_cgroups):
        path = cpuset_path(directory, kind)
        try:
            sets[directory] = parse_cpulist(read_kernel_file(path))
        except (OSError, CpuListError) as error:
            is_gone = has_vanished(groups.scope, path)
            if directory == groups.parent or not is_gone:
                raise CpusetError('%s: %s' % (path, error)) from None
    return sets


def thread_sets(groups: GuestGroups, kind: str) -> dict[str, frozenset[int]]:
    """Read the sets of a guest's thread cgroups, as :func:`read_sets` does."""
    sets = read_sets(groups, kind)
    del sets[groups.parent]
    return sets


def held_cpus(groups: GuestGroups) -> frozenset[int]:
    """Return the CPUs that a guest's own groups hold it to; empty if they hold it to none.

    :raises GuestGone, CpusetError: as :func:`read_sets`
    """
    sets = read_sets(groups, 'cpus')
    parent_cpus = sets.pop(groups.parent)
    thread_cpus = frozenset[int]().union(*sets.values())
    if groups.version == 1:
        return thread_cpus
    return thread_cpus & parent_cpus or thread_cpus or parent_cpus


def is_held(
    groups: GuestGroups,
    cpus: frozenset[int],
    online: frozenset[int],
    set_by_others: Container[str] = frozenset(),
    needs_all_cpus: bool = False,
) -> bool:
    """Return whether a guest's groups hold it to ``cpus``; offline CPUs are disregarded.

    :param set_by_others: names of groups that others have set, which are disregarded
    :param needs_all_cpus: whether each group must have all of ``cpus``, not only a part
    :raises GuestGone, CpusetError: as :func:`read_sets`
    """
    cpus_by_group = read_sets(groups, 'cpus')
    parent_cpus = cpus_by_group.pop(groups.parent)
    is_narrowed = parent_cpus and parent_cpus & online <= cpus and cpus != online
    if groups.version == 2 and is_narrowed:
        return False  # still as at the guest's start: libvirt's commands would fail
    # A newly plugged vCPU has all CPUs, and has yet to be held.
    return all(
        group_cpus
        and (group_cpus & online == cpus or (not needs_all_cpus and group_cpus & online <= cpus))
        for directory, group_cpus in cpus_by_group.items()
        if os.path.basename(directory) not in set_by_others
    )


def common_set(groups: GuestGroups, kind: str) -> frozenset[int] | None:
    """Return the set that all of a guest's thread cgroups have; None if they differ.

    :param kind: 'cpus' or 'mems'
    :raises GuestGone, CpusetError: as :func:`read_sets`
    """
    sets = set(thread_sets(groups, kind).values())
    return sets.pop() if len(sets) == 1 else None


def groups_set_by_others(
    groups: GuestGroups,
    own_cpus: Mapping[str, frozenset[int]],
    cpus: frozenset[int],
    written_cpus: frozenset[int] = frozenset(),
) -> list[str]:
    """Return the names of the thread cgroups whose CPUs others have set.

    A subset or superset of ``cpus`` does not contradict it. Nor does a set that has no effect on
    the thread, which a libvirt command leaves behind if it fails to pin the thread.

    :param own_cpus: as returned by :func:`read_sets`
    :param written_cpus: the CPUs that an earlier call of :func:`holding.hold` may have left
    """
    return [
        os.path.basename(directory)
        for directory, own in own_cpus.items()
        if directory != groups.parent
        and not (
            own <= cpus
            or own >= cpus
            or own == written_cpus
            or _has_no_effect(groups, directory, own)
        )
    ]


def _has_no_effect(groups: GuestGroups, directory: str, cpus: frozenset[int]) -> bool:
    """Return whether a set is disjoint from its parent's and therefore has no effect (v2)."""
    if groups.version != 2:
        return False
    try:
        effective = parse_cpulist(read_kernel_file(cpuset_path(directory, 'cpus') + '.effective'))
        return not cpus & effective
    except (OSError, CpuListError):
        return False


def cpuset_path(directory: str, kind: str) -> str:
    """Return the path of a group's file for a set of this kind, 'cpus' or 'mems'."""
    return os.path.join(directory, 'cpuset.' + kind)


class FileChange(Record):
    """The change of a file, as texts in the kernel's list format, neither of them empty on v2."""

    path: str
    before: str
    after: str


def write_file(path: str, text: str) -> None:
    """Write a control file in one call; it must exist."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(fd, os.fsencode(text + '\n'))
    finally:
        os.close(fd)


def read_set(path: str) -> str:
    """Read the set that is in force: the group's own or, if that is empty, the inherited one.

    :returns: text in the kernel's list format
    :raises OSError: the file cannot be read
    """
    return read_kernel_file(path).strip() or read_inherited(path)


def read_inherited(path: str) -> str:
    """Read the set that a group with an empty file ``path`` inherits: the parent's effective one.

    :raises OSError: the parent's file cannot be read
    """
    directory, name = os.path.split(path)
    return read_kernel_file(os.path.join(os.path.dirname(directory), name + '.effective')).strip()


def write_or_undo(
    scope: str, steps: Iterable[tuple[str, str]], write: Writer = write_file
) -> tuple[FileChange, ...]:
    """Write files in order, verify each write, and undo all writes if one fails.

    A value that a file already has is not written again; one that is only inherited is written.

    :param scope: the guest's outermost group, which exists for as long as the guest does
    :param steps: (path, text) of each write; an empty text means what the group would inherit
    :returns: the net changes, in order
    :raises GuestGone: the guest ended meanwhile
    :raises CpusetError: a write failed; the message names the file, the value, the error and what
        was or was not undone
    """
    changes: list[FileChange] = []
    for path, text in steps:
        try:
            own_text = read_kernel_file(path).strip()
            before = own_text or read_inherited(path)
            # An inherited set is written even if it is the same, because it is lost once the group
            # above is widened.
            is_inherited = not own_text and bool(text)
            text = text or read_inherited(path)
            if not is_inherited and parse_cpulist(before) == parse_cpulist(text):
                continue
            changes.append(FileChange(path, before, text))
            write(path, text)
            after = read_set(path)
            if parse_cpulist(after) != parse_cpulist(text):
                raise OSError(errno.EIO, 'reads back as %r' % after)
        except BaseException as error:
            # The limit on the hook's time may raise any exception here, in the middle of a write.
            if isinstance(error, OSError) and has_vanished(scope, path):
                changes = [change for change in changes if change.path != path]
                continue
            undo_text = _undo(changes, write)
            if not isinstance(error, (OSError, CpuListError)):
                raise
            raise CpusetError(
                '%s: writing %r failed: %s%s' % (path, text, _describe_error(error), undo_text)
            ) from None
    return _net(changes)


def _undo(changes: Sequence[FileChange], write: Writer) -> str:
    """Undo changes, the last first; return a text that says what was undone and what was not."""
    undone_paths: list[str] = []
    failures: list[str] = []
    for change in reversed(changes):
        try:
            if parse_cpulist(read_set(change.path)) != parse_cpulist(change.before):
                write(change.path, change.before)
                undone_paths.append(change.path)
        except (OSError, CpuListError) as error:
            failures.append(
                '%s (was %r: %s)' % (change.path, change.before, _describe_error(error))
            )
    if not undone_paths and not failures:
        return '; nothing had been changed'
    return ('; undone: ' + ', '.join(undone_paths) if undone_paths else '') + (
        '; NOT undone: ' + ', '.join(failures) if failures else ''
    )


def _describe_error(error: BaseException) -> str:
    code = errno.errorcode.get(getattr(error, 'errno', 0), type(error).__name__)
    return '%s (%s)' % (code, getattr(error, 'strerror', None) or error)


def has_vanished(scope: str, path: str) -> bool:
    """Return whether a file's group has vanished while the guest runs (an unplugged vCPU).

    :raises GuestGone: the whole guest is gone
    """
    if not os.path.isdir(scope):
        raise GuestGone('%s: the guest has ended' % scope)
    return not os.path.isdir(os.path.dirname(path))


def _net(changes: Iterable[FileChange]) -> tuple[FileChange, ...]:
    """Merge the changes of each file into one, and drop those without a net effect."""
    merged: dict[str, FileChange] = {}
    for change in changes:
        first = merged.get(change.path, change)
        merged[change.path] = FileChange(change.path, first.before, change.after)
    return tuple(
        change
        for change in merged.values()
        if parse_cpulist(change.before) != parse_cpulist(change.after)
    )
