# SPDX-License-Identifier: Apache-2.0
"""When and where a guest's vCPU threads ran, from procfs."""

import os

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
    return _read('%s/%d/comm' % (directory, tid)) or b''


def read(pid, tid, root='/'):
    """Return a thread's :class:`Ran`; None: it is gone, or the kernel does not tell.

    ``schedstat`` (run and wait in ns: Documentation/scheduler/sched-stats.rst) has the times,
    ``stat`` the CPU and the start time (Documentation/filesystems/proc.rst, fields 39, 22). Of
    the thread's own directory: ``/proc/TID/stat`` sums over the whole process.
    """
    directory = '%s/proc/%d/task/%d/' % (root.rstrip('/'), pid, tid)
    times, stat = _read(directory + 'schedstat'), _read(directory + 'stat')
    if times is None or stat is None:
        return None
    times, fields = times.split(), stat.rpartition(b')')[2].split()
    if len(times) != 3 or len(fields) < 37:
        return None
    numbers = (times[0], times[1], fields[36], fields[19])
    # isdigit takes ASCII only in bytes; a sign, a dot or a longer number is none of the kernel's
    if not all(number.isdigit() and len(number) < 21 for number in numbers):
        return None
    return Ran(*map(int, numbers))


def _read(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 4096)
        finally:
            os.close(fd)
    except OSError:
        return None
