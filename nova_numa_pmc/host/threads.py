# SPDX-License-Identifier: Apache-2.0
"""When and where a guest's vCPU threads ran, from procfs."""

import os
import resource

from nova_numa_pmc.record import Record

_MAX_THREADS = 65536


class Ran(Record, fields='run_ns wait_ns cpu since'):
    """A thread's times so far.

    :param run_ns, wait_ns: on a CPU, and waiting for one, cumulative
    :param cpu: where it ran last
    :param since: its start time, which tells apart two threads that had one id
    """

    __slots__ = ()


def find(guest, root='/'):
    """Return the ids of a guest's vCPU threads, ascending.

    From libvirt's status file; where that has none, by the names that QEMU gives them
    ('CPU 0/KVM'); where it runs all vCPUs in one (TCG), all of its threads. Empty: it is gone.

    :param guest: :class:`model.Guest` with its ``pid``
    """
    if guest.vcpu_tids or guest.pid is None:
        return guest.vcpu_tids
    directory = os.path.join(root, 'proc/%d/task' % guest.pid)
    try:
        names = [name for name in os.listdir(directory) if name.isascii() and name.isdigit()]
    except OSError:
        return ()
    tids = sorted(int(name) for name in names[:_MAX_THREADS])
    named = tuple(tid for tid in tids if _name(directory, tid).startswith(b'CPU '))
    return named or tuple(tids)


def _name(directory, tid):
    try:
        with open('%s/%d/comm' % (directory, tid), 'rb') as file:
            return file.read(64)
    except OSError:
        return b''


def read(pid, tid, root='/'):
    """Return a thread's :class:`Ran`; None: it is gone, or the kernel does not tell.

    ``schedstat`` (run and wait in ns: Documentation/scheduler/sched-stats.rst) has the times,
    ``stat`` the CPU and the start time (Documentation/filesystems/proc.rst, fields 39, 22). Of
    the thread's own directory: ``/proc/TID/stat`` sums over the whole process.
    """
    files = _open(pid, tid, root)
    if files is None:
        return None
    try:
        return _read_open(*files)
    finally:
        _close(files)


class Threads:
    """Threads that are read again and again.

    Their files stay open: opening and closing them costs twice the reading (14 µs and 4 µs a
    thread in all). An open file is of one thread, whoever gets its id next. At most a quarter
    of the process's descriptors is kept.
    """

    def __init__(self, root='/'):
        self._root = root
        self._files = {}  # (pid, tid) → (descriptor of schedstat, of stat)
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8

    def read(self, wanted):
        """Return {(pid, tid): :class:`Ran`} of those that are there; others are closed.

        :param wanted: set of (pid, tid)
        """
        for key in self._files.keys() - wanted:
            _close(self._files.pop(key))
        found = {}
        for key in wanted:
            ran = _read_open(*self._files[key]) if key in self._files else None
            if ran is None:
                ran = self._anew(key)
            if ran is not None:
                found[key] = ran
        return found

    def _anew(self, key):
        """Read a thread that is new, or has got the id of one that ended."""
        if key in self._files:
            _close(self._files.pop(key))
        files = _open(*key, self._root)
        if files is None:
            return None
        ran = _read_open(*files)
        if ran is not None and len(self._files) < self._most:
            self._files[key] = files
        else:
            _close(files)
        return ran

    def close(self):
        """Close the files."""
        for files in self._files.values():
            _close(files)
        self._files = {}


def _open(pid, tid, root):
    """Return descriptors of a thread's (schedstat, stat); None: it is gone."""
    files = []
    try:
        for name in ('schedstat', 'stat'):
            files.append(os.open('%s/proc/%d/task/%d/%s' % (root.rstrip('/'), pid, tid, name),
                                 os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        _close(files)
        return None
    return files


def _close(files):
    for fd in files:
        os.close(fd)


def _read_open(schedstat, stat):
    try:
        times = os.pread(schedstat, 4096, 0).split()
        fields = os.pread(stat, 4096, 0).rpartition(b')')[2].split(None, 37)
    except OSError:
        return None
    if len(times) != 3 or len(fields) < 37:
        return None
    run_ns, wait_ns, cpu, since = times[0], times[1], fields[36], fields[19]
    # In bytes isdigit takes ASCII only; a sign, a dot or a longer number is none of the kernel's.
    if not (run_ns.isdigit() and wait_ns.isdigit() and cpu.isdigit() and since.isdigit()
            and max(map(len, (run_ns, wait_ns, cpu, since))) < 21):
        return None
    return Ran(int(run_ns), int(wait_ns), int(cpu), int(since))
