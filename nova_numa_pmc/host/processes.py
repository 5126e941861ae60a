# SPDX-License-Identifier: Apache-2.0
"""Find the services that run on a host, and the root directory that each of them sees."""

from __future__ import annotations

import os
import re

from nova_numa_pmc.host import files
from nova_numa_pmc.record import Record

NOVA_COMPUTE, NOVA_SCHEDULER, NUMAD = 'nova-compute', 'nova-scheduler', 'numad'
AGENT = 'nova-numa-agent'
_COMMAND_MAX_BYTES = 1 << 16
# Process title that oslo.service and cotyledon set if setproctitle is installed.
_TITLE = re.compile(r'\S+: master process \[(?P<command>[^\0]*)\][ \0]*')

#: Names of control groups that contain processes of users. Those of cron and at are not in
#: user.slice on Debian.
_OF_USERS = frozenset({'user.slice', 'cron.service', 'crond.service', 'atd.service'})


class Process(Record):
    """A running service.

    :param command: the program and its arguments
    :param uid, gid: ids that own the process's directory in procfs: its effective ids
    :param started_s: start time [s since the epoch], up to a second too late; None if not reported
    :param root: the process's root directory, as a path that we can open
    :param same_root: whether this is the host's own root directory (False in a container)
    """

    name: str
    pid: int
    command: tuple[str, ...]
    uid: int
    gid: int
    started_s: float | None
    root: str
    same_root: bool


def find(root: str, name: str) -> Process | None:
    """Return the first process of a service, or None if the service is not running.

    A service that was started by an interpreter is recognised by its script, and one that has set
    its process title by the command line in the title. A user's own process is not a service.
    """
    for pid in files.list_pids(root):
        process = _describe(root, os.path.join(root, 'proc', str(pid)), pid, name)
        if process is not None:
            return process
    return None


def is_running(root: str, process: Process) -> bool:
    """Return whether a process that was found is still running, with the same command line."""
    directory = os.path.join(root, 'proc', str(process.pid))
    found = _describe(root, directory, process.pid, process.name)
    return found is not None and found.command == process.command


def _describe(root: str, directory: str, pid: int, name: str) -> Process | None:
    try:
        with open(os.path.join(directory, 'cmdline'), 'rb') as stream:
            raw = stream.read(_COMMAND_MAX_BYTES)
        owner = os.stat(directory)
    except OSError:
        return None  # ended meanwhile
    text = raw.decode('utf-8', 'replace')
    title = _TITLE.fullmatch(text)
    parts = title['command'].split(' ') if title else text.split('\0')
    command = tuple(part for part in parts if part)
    # Match the program itself or the script of an interpreter, but not the argument of an editor.
    script = (
        [part for part in command[1:] if not part.startswith('-')][:1]
        if command and os.path.basename(command[0]).startswith('python')
        else []
    )
    if name not in [os.path.basename(part) for part in (*command[:1], *script)]:
        return None
    if _is_of_user_session(directory):
        return None
    is_same = _same_root(root, directory)
    return Process(
        name,
        pid,
        command,
        owner.st_uid,
        owner.st_gid,
        _started_s(root, pid),
        root if is_same else os.path.join(directory, 'root'),
        is_same,
    )


def _is_of_user_session(process: str) -> bool:
    """Return whether a process belongs to a user's session rather than to a service.

    Users choose the command lines of their processes. One that was taken for nova-compute would
    choose the file from which the pool of all guests is read. They cannot move them out of
    systemd's user.slice or the groups of cron and at. The uid does not tell: a process of su or
    sudo is root's, but its command line is the user's.

    :param process: the process's directory in procfs
    """
    groups = files.read_optional(process, 'cgroup') or ''
    return any(not _OF_USERS.isdisjoint(line.split('/')) for line in groups.splitlines())


def _started_s(root: str, pid: int) -> float | None:
    """Return a process's start time [s since the epoch], or None if not reported.

    The kernel rounds the boot time down to a whole second. A second is added, so that a service
    which was restarted right after a file had changed does not look older than the change.
    """
    start_ns, boot = files.process_start_ns(pid, root), boot_s(root)
    return None if start_ns is None or boot is None else boot + 1 + start_ns / 1e9


def boot_s(root: str) -> int | None:
    """Return the host's boot time, in whole seconds since the epoch; None if not reported."""
    text = files.read_fields(root, 'proc/stat', ' ').get('btime')
    return None if text is None else int(text)


def _same_root(root: str, process: str) -> bool:
    """Return whether a process sees the root directory ``root`` (False in a container).

    :param process: the process's directory in procfs
    """
    try:
        return os.path.samefile(os.path.join(process, 'root'), root)
    except OSError:
        return True
