# SPDX-License-Identifier: Apache-2.0
"""Read from procfs for how long and where a guest's threads ran."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from nova_numa_pmc.core.evidence import ThreadTimes

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from nova_numa_pmc.model import Guest

    #: A thread's (pid, tid).
    Key = tuple[int, int]

_THREADS_MAX = 65536
_READ_BYTES = 4096
#: At most one in this many of the process's descriptors is kept open for threads.
_KEPT_DIVISOR = 8


def find(guest: Guest, root: str = '/') -> tuple[int, ...]:
    """Return the ids of a guest's vCPU threads, ascending.

    From libvirt's status file; where that has none, by the names that QEMU gives them
    ('CPU 0/KVM'); where it runs all vCPUs in one (TCG), all of its threads. Empty: it is gone.
    """
    if guest.vcpu_tids or guest.pid is None:
        return guest.vcpu_tids
    directory = os.path.join(root, 'proc/%d/task' % guest.pid)
    tids = sorted(_tids(directory))
    named = tuple(tid for tid in tids if _name(directory, tid).startswith(b'CPU '))
    return named or tuple(tids)


def helpers(pid: int | None, emulator_tids: Iterable[int], root: str = '/') -> frozenset[Key]:
    """Return (pid, tid) of all threads that work for a guest.

    Those of its process, vCPUs included, and the kernel's own in its emulator's group: before
    Linux 6.4 vhost workers are processes of their own (drivers/vhost/vhost.c).

    :param pid: id of the guest's process, None: not known
    :param emulator_tids: ids of the threads in the emulator's group
    """
    if pid is None:
        return frozenset((tid, tid) for tid in emulator_tids)
    own = _tids(os.path.join(root, 'proc/%d/task' % pid))
    return frozenset(
        [(pid, tid) for tid in own] + [(tid, tid) for tid in emulator_tids if tid not in own]
    )


def count(pid: int | None, root: str = '/') -> int | None:
    """Return a number that changes with the number of a process's threads; None: it is gone.

    The kernel counts them in the links of the directory (proc_task_getattr() in fs/proc/base.c).
    """
    if pid is None:
        return None
    try:
        return os.stat('%s/proc/%d/task' % (root.rstrip('/'), pid)).st_nlink
    except OSError:
        return None


def _tids(directory: str) -> set[int]:
    """Return the set of the threads in a process's directory of tasks; empty: it is gone."""
    try:
        names = [name for name in os.listdir(directory) if name.isascii() and name.isdigit()]
    except OSError:
        return set()
    return {int(name) for name in names[:_THREADS_MAX]}


def _name(directory: str, tid: int) -> bytes:
    try:
        with open('%s/%d/comm' % (directory, tid), 'rb') as file:
            return file.read(64)
    except OSError:
        return b''


def read(pid: int, tid: int, root: str = '/') -> ThreadTimes | None:
    """Return a thread's times; None: it is gone, or the kernel does not report it.

    ``schedstat`` (run and wait in ns: Documentation/scheduler/sched-stats.rst) has the times,
    ``stat`` the CPU and the start time (Documentation/filesystems/proc.rst, fields 39, 22). Of
    the thread's own directory: ``/proc/TID/stat`` sums over the whole process.
    """
    try:
        files = _ThreadFiles(pid, tid, root)
    except OSError:
        return None
    try:
        return files.read()
    finally:
        files.close()


class ThreadReader:
    """Reads the times of threads at each tick.

    Their files stay open, as opening and closing them takes twice as long as reading. An open file
    belongs to one thread even if another thread gets its id. At most an eighth of the process's
    descriptors is used, as counters need more. A thread that never runs, like most of an
    emulator's, needs only one.
    """

    def __init__(self, root: str = '/') -> None:
        self._root = root
        self._kept: dict[Key, _ThreadFiles] = {}
        self._room = 0  # how many more descriptors may be kept

    def read(self, wanted: Set[Key]) -> dict[Key, ThreadTimes]:
        """Return the times of the wanted threads that exist; close the files of all others."""
        for key in self._kept.keys() - wanted:
            self._kept.pop(key).close()
        # Read each time, as the limit is raised when counters need it.
        self._room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _KEPT_DIVISOR - sum(
            files.descriptors for files in self._kept.values()
        )
        times = {}
        for key in wanted:
            files = self._kept.get(key)
            ran = (files and files.read()) or self._read_anew(key)
            if ran is not None:
                times[key] = ran
        return times

    def _read_anew(self, key: Key) -> ThreadTimes | None:
        """Read a thread that is new, or has got the id of one that ended."""
        if key in self._kept:
            self._kept.pop(key).close()
        try:
            files = _ThreadFiles(*key, self._root)
        except OSError:
            return None
        ran = files.read()
        if ran and self._room > 0:
            self._kept[key] = files
            self._room -= files.descriptors
        else:
            files.close()
        return ran

    def close(self) -> None:
        """Close the files."""
        for files in self._kept.values():
            files.close()
        self._kept = {}


class _ThreadFiles:
    """A thread's open files, and what they last contained.

    :ivar descriptors: how many are open
    """

    __slots__ = ('_directory', '_schedstat', '_stat', '_times', '_ran', 'descriptors')

    def __init__(self, pid: int, tid: int, root: str) -> None:
        """Open the first.

        :raises OSError: it is gone
        """
        self._directory = '%s/proc/%d/task/%d/' % (root.rstrip('/'), pid, tid)
        self._schedstat = self._open('schedstat')
        self._stat: int | None = None
        self._times: bytes | None = None
        self._ran: ThreadTimes | None = None
        self.descriptors = 1

    def _open(self, name: str) -> int:
        return os.open(self._directory + name, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> ThreadTimes | None:
        """Return the thread's times; None: it is gone, or the kernel does not report it.

        When its times are as before it has not run, and is where it was: the other file, which
        takes three times as long, is not read. It stays open once the thread has run.
        """
        try:
            times = os.pread(self._schedstat, _READ_BYTES, 0)
            if times != self._times:
                # The first file is still of a thread that lives, so this is of the same.
                stat = self._open('stat') if self._stat is None else self._stat
                try:
                    self._ran = _parse(times, os.pread(stat, _READ_BYTES, 0))
                finally:
                    if self._times is None:
                        os.close(stat)
                    else:
                        self._stat, self.descriptors = stat, 2
                self._times = times
        except OSError:
            return None
        return self._ran

    def close(self) -> None:
        """Close them."""
        os.close(self._schedstat)
        if self._stat is not None:
            os.close(self._stat)


def _parse(schedstat: bytes, stat: bytes) -> ThreadTimes | None:
    """Return the times in the two files; None: they are not a thread's."""
    times = schedstat.split()
    fields = stat.rpartition(b')')[2].split(None, 37)
    if len(times) != 3 or len(fields) < 37:
        return None
    run_ns, wait_ns, cpu, since = times[0], times[1], fields[36], fields[19]
    # In bytes isdigit takes ASCII only; a sign, a dot or a longer number is none of the kernel's.
    if not (
        run_ns.isdigit()
        and wait_ns.isdigit()
        and cpu.isdigit()
        and since.isdigit()
        and max(map(len, (run_ns, wait_ns, cpu, since))) < 21
    ):
        return None
    return ThreadTimes(int(run_ns), int(wait_ns), int(cpu), int(since))
