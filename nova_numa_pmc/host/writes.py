# SPDX-License-Identifier: Apache-2.0
"""Write a guest's control files in order: skip what holds, read back, undo when half done.

Every value is in the kernel's list format ('0-3,6'), which a flag ('1') is as well, so that
two spellings of one set count as equal.
"""

import errno
import os
from collections import namedtuple

from nova_numa_pmc.exceptions import CpuListError, CpusetError, GuestGone
from nova_numa_pmc.host.cgroups import read_text
from nova_numa_pmc.host.topology import parse_cpulist


class Change(namedtuple('Change', 'path before after')):
    """One file's change, as texts in the kernel's list format."""

    __slots__ = ()


def write(path, text):
    """Write a control file in one call; it must exist.

    The newline makes an empty list a write at all: the kernel never sees one of no bytes.
    """
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(fd, os.fsencode(text + '\n'))
    finally:
        os.close(fd)


def run(scope, steps, write=write):
    """Do steps in order: skip what holds already, read back, undo all when one fails.

    :param steps: list of (path, text)
    :param scope: the guest's outermost group: while it exists, the guest does
    :returns: tuple of :class:`Change`, net and in order
    :raises GuestGone: the guest ended meanwhile
    :raises CpusetError: names the file, the value, the error and what was undone, or not
    """
    done = []
    for path, text in steps:
        try:
            before = read_text(path).strip()
            if parse_cpulist(before) == parse_cpulist(text):
                continue
            done.append(Change(path, before, text))
            write(path, text)
            after = read_text(path).strip()
            if parse_cpulist(after) != parse_cpulist(text):
                raise OSError(errno.EIO, 'reads back as %r' % after)
        except BaseException as e:
            # Any exception: a bound on the hook's time may arrive as one, in the middle.
            if isinstance(e, OSError) and vanished(scope, path):
                done = [change for change in done if change.path != path]
                continue
            undone = _take_back(done, write)
            if not isinstance(e, (OSError, CpuListError)):
                raise
            raise CpusetError('%s: writing %r failed: %s%s'
                              % (path, text, _why(e), undone)) from None
    return _net(done)


def _take_back(done, write):
    """Restore what was changed, last first; tell what was, and what could not be."""
    undone, left = [], []
    for change in reversed(done):
        try:
            if parse_cpulist(read_text(change.path)) != parse_cpulist(change.before):
                write(change.path, change.before)
                undone.append(change.path)
        except (OSError, CpuListError) as e:
            left.append('%s (was %r: %s)' % (change.path, change.before, _why(e)))
    if not undone and not left:
        return '; nothing had been changed'
    return ('; undone: ' + ', '.join(undone) if undone else '') + (
        '; NOT undone: ' + ', '.join(left) if left else '')


def _why(error):
    code = errno.errorcode.get(getattr(error, 'errno', None), type(error).__name__)
    return '%s (%s)' % (code, getattr(error, 'strerror', None) or error)


def vanished(scope, path):
    """Tell whether a file's group went away by itself (an unplugged vCPU).

    :raises GuestGone: the whole guest did
    """
    if not os.path.isdir(scope):
        raise GuestGone('%s: the guest has ended' % scope)
    return not os.path.isdir(os.path.dirname(path))


def _net(done):
    """Fold changes of one file into one and drop those that ended where they began."""
    folded = {}
    for change in done:
        first = folded.get(change.path, change)
        folded[change.path] = Change(change.path, first.before, change.after)
    return tuple(change for change in folded.values()
                 if parse_cpulist(change.before) != parse_cpulist(change.after))
