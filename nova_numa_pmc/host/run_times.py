# SPDX-License-Identifier: Apache-2.0
"""Read from procfs for how long CPUs and guests' threads ran and waited, and where they ran."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.core.sample_records import ThreadTimes
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.host.files import read_kernel_file, read_optional
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.model import Guest

    #: A thread's (pid, tid).
    Key = tuple[int, int]


_THREADS_MAX = 65536


def find_vcpus(guest: Guest, root: str = '/') -> tuple[int, ...]:
    """Return the ids of a guest's vCPU threads, ascending; empty if the guest is gone.

    The ids are those in libvirt's status file. If there are none, the threads are recognised by
    the names that QEMU gives them ('CPU 0/KVM'). If none has such a name, because QEMU runs all
    vCPUs in one thread (TCG), the ids are those of all threads of the process.
    """
    if guest.vcpu_tids or guest.pid is None:
        return guest.vcpu_tids
    directory = os.path.join(root, 'proc/%d/task' % guest.pid)
    tids = sorted(_tids(directory))
    named_tids = tuple(
        tid for tid in tids if (read_optional(directory, '%d/comm' % tid) or '').startswith('CPU ')
    )
    return named_tids or tuple(tids)


def all_threads(pid: int | None, emulator_tids: Iterable[int], root: str = '/') -> frozenset[Key]:
    """Return (pid, tid) of all threads that work for a guest.

    These are the threads of its process, including vCPUs, and the kernel's own threads in its
    emulator's group: before Linux 6.4, vhost workers are separate processes
    (drivers/vhost/vhost.c).

    :param pid: id of the guest's process, or None if not known
    :param emulator_tids: ids of the threads in the emulator's group
    """
    own_tids = set() if pid is None else _tids(os.path.join(root, 'proc/%d/task' % pid))
    return frozenset(
        [(pid or 0, tid) for tid in own_tids]
        + [(tid, tid) for tid in emulator_tids if tid not in own_tids]
    )


def task_link_count(pid: int | None, root: str = '/') -> int | None:
    """Return a number that changes with a process's number of threads; None if it is gone.

    The kernel includes the threads in the link count of the process's ``task`` directory
    (proc_task_getattr() in fs/proc/base.c).
    """
    try:
        return os.stat('%s/proc/%d/task' % (root.rstrip('/'), pid or 0)).st_nlink
    except OSError:
        return None


def _tids(directory: str) -> set[int]:
    """Return the ids of the threads in a process's ``task`` directory; empty if it is gone."""
    try:
        names = [name for name in os.listdir(directory) if name.isascii() and name.isdigit()]
    except OSError:
        return set()
    return {int(name) for name in names[:_THREADS_MAX]}


class ThreadReading(Record):
    """The times of a thread, and the text of ``schedstat`` when they were read."""

    schedstat: str
    times: ThreadTimes


def read_thread(key: Key, last: ThreadReading | None, root: str = '/') -> ThreadReading | None:
    """Return a thread's times, or None if the thread is gone or they are not reported.

    ``schedstat`` has the run and wait times [ns] (Documentation/scheduler/sched-stats.rst), and
    ``stat`` has the CPU and the start time (Documentation/filesystems/proc.rst, fields 39 and 22).
    Both are read in the thread's own directory, because ``/proc/TID/stat`` has the sums of the
    whole process.

    :param last: the last reading, which is returned if ``schedstat`` has not changed: the thread
        has not run and is where it was. ``stat``, which takes three times as long, is not read
    """
    directory = '%s/proc/%d/task/%d/' % (root.rstrip('/'), *key)
    try:
        schedstat = read_kernel_file(directory + 'schedstat')
        if last is not None and last.schedstat == schedstat:
            return last
        times = _parse_thread(schedstat, read_kernel_file(directory + 'stat'))
    except OSError:
        return None
    return None if times is None else ThreadReading(schedstat, times)


def _parse_thread(schedstat: str, stat: str) -> ThreadTimes | None:
    """Return the times in the two files, or None if these are not a thread's."""
    times = schedstat.split()
    fields = stat.rpartition(')')[2].split(None, 37)
    if len(times) != 3 or len(fields) < 37:
        return None
    numbers = times[0], times[1], fields[36], fields[19]
    if not all(map(is_number, numbers)):
        return None
    return ThreadTimes(*map(int, numbers))


#: Positions of user, nice, system, irq and softirq among a CPU's fields in /proc/stat
#: (Documentation/filesystems/proc.rst). User and nice already include the time of guests, iowait
#: is idle time, and stolen time went to others.
_BUSY_FIELDS = (0, 1, 2, 5, 6)
_STEAL_FIELD = 7


class CpuTimes(Record):
    """Cumulative times of the online CPUs as {CPU: ns}, or None if not reported.

    :param busy_ns: time for which the CPU was busy
    :param stolen_ns: time for which the CPU had work but did not run, if this host is itself a
        guest
    """

    busy_ns: dict[int, int] | None = None
    stolen_ns: dict[int, int] | None = None


def read_cpus(root: str = '/') -> CpuTimes:
    """Return the CPUs' times [ns], with the resolution of a clock tick (10 ms).

    The run times in ``/proc/schedstat`` are finer, but only grow when a thread leaves its CPU,
    which a busy vCPU may not do for seconds.
    """
    lines = (read_optional(root, 'proc/stat') or '').splitlines()
    tick_ns = 10**9 // os.sysconf('SC_CLK_TCK')
    busy: dict[int, int] = {}
    stolen: dict[int, int] = {}
    for line in lines:
        name, _, rest = line.partition(' ')
        if not name.startswith('cpu') or name == 'cpu':
            continue
        words = rest.split()
        if not all(map(is_number, (name[3:], *words))) or len(words) < 7:
            return CpuTimes()
        fields = [int(word) for word in words]
        cpu = int(name[3:])
        busy[cpu] = tick_ns * sum(fields[field] for field in _BUSY_FIELDS)
        if len(fields) > _STEAL_FIELD:
            stolen[cpu] = tick_ns * fields[_STEAL_FIELD]
    return CpuTimes(busy, stolen) if busy else CpuTimes()


def cores_between(
    before: Mapping[int, int] | None, after: Mapping[int, int] | None, elapsed_ns: int
) -> dict[int, float]:
    """Return {CPU: cores} between two readings of a time.

    A CPU is left out if it is in only one of the readings (hotplug) or if its time went backwards.

    :param before, after: {CPU: ns}, or None if not reported
    """
    if before is None or after is None or elapsed_ns <= 0:
        return {}
    return {
        cpu: (ns - before[cpu]) / elapsed_ns
        for cpu, ns in after.items()
        if ns >= before.get(cpu, ns + 1)
    }


def sum_over(cores_by_cpu: Mapping[int, float], cpus: Iterable[int]) -> float | None:
    """Return the sum over CPUs [cores], or None if one of them is not known."""
    try:
        return sum([cores_by_cpu[cpu] for cpu in cpus])
    except KeyError:
        return None
