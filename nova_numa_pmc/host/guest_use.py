# SPDX-License-Identifier: Apache-2.0
"""Read at each tick for how long CPUs and guests ran and waited, and where guests' memory is.

libvirt sets ``<vcpu_quota>`` on each ``vcpuN`` group, ``<emulator_quota>`` on ``emulator``,
``<iothread_quota>`` on each ``iothreadN`` and ``<global_quota>`` on the group above them. systemd
sets ``CPUQuota=`` on the scope. A quota of the slice above the scope is not the guest's own and is
ignored.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.core.measurements import RunningGuest, ThreadTimes
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import CpusetError
from nova_numa_pmc.host import cgroups, files
from nova_numa_pmc.host.files import read_kernel_file, read_optional
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.model import Guest, RunId, Topology

    #: A thread's (pid, tid).
    Key = tuple[int, int]
    #: {thread id: its times}
    _TimesByTid = Mapping[int, ThreadTimes]


#: The nodes of a guest's memory change slowly unless it is moved, and each reading makes the
#: kernel sum up a tree of groups.
MEMORY_AGE_MAX_NS = 15 * 10**9
#: Quotas and threads outside of QEMU also change slowly.
GROUPS_AGE_MAX_NS = 60 * 10**9


class ThreadUse(Record):
    """The time that a guest's threads ran and waited, in fields of :class:`RunningGuest`."""

    cores: float | None = None
    waiting_cores: float | None = None
    cores_by_node: dict[int, float] = {}
    waiting_cores_by_cpu: dict[int, float] = {}


class _Threads(Record):
    """What is cached of a guest's threads from tick to tick.

    :param guest: the guest's record when this was read
    :param read_ns: CLOCK_MONOTONIC when this was read
    :param emulator_tids: ids of the threads in the emulator's group
    """

    guest: Guest
    read_ns: int
    quotas: tuple[Quota, ...]
    emulator_tids: tuple[int, ...]
    vcpus: tuple[int, ...]


class GuestUseReader:
    """Reads how the running guests used the host.

    It caches their groups and their threads' last times.
    """

    def __init__(self, root: str = '/') -> None:
        self._root = root
        self._threads: dict[RunId, _Threads] = {}
        #: Of the last tick: {thread id: its times} of each guest.
        self._times: dict[RunId, dict[int, ThreadTimes]] = {}
        #: When a guest's memory was read [ns], and its bytes by node.
        self._memory: dict[RunId, tuple[int, dict[int, int]]] = {}

    def read(
        self, guests: Sequence[Guest], host: Topology, monotonic_ns: int, elapsed_ns: int
    ) -> tuple[RunningGuest, ...]:
        """Return the guests' use of the host, sorted by the guests' names.

        :param guests: the running guests
        :param monotonic_ns: CLOCK_MONOTONIC
        :param elapsed_ns: time since the last call, 0 in the first call
        """
        node_of_cpu = {cpu: node.id for node in host.nodes for cpu in node.online_cpus}
        run_ids = {guest.run_id for guest in guests}
        for cache in (self._threads, self._memory):
            for run_id in cache.keys() - run_ids:
                del cache[run_id]
        times, self._times = self._times, {}
        running = []
        for guest in sorted(guests, key=lambda guest: (guest.name, guest.uuid)):
            threads = self._threads[guest.run_id] = self._look_up(guest, monotonic_ns)
            before = times.get(guest.run_id, {})
            keys = all_threads(guest.pid, threads.emulator_tids, self._root)
            after = self._times[guest.run_id] = self._read_threads(keys, before)
            use = use_between(before, after, node_of_cpu, elapsed_ns, threads.quotas)
            running.append(
                RunningGuest(
                    guest,
                    {tid: after[tid] for tid in threads.vcpus if tid in after},
                    use.cores,
                    use.waiting_cores,
                    use.cores_by_node,
                    self._bytes_by_node(guest, monotonic_ns),
                    use.waiting_cores_by_cpu,
                )
            )
        return tuple(running)

    def _look_up(self, guest: Guest, monotonic_ns: int) -> _Threads:
        """Return a guest's vCPUs and quotas, read again if they may have changed."""
        cached = self._threads.get(guest.run_id)
        if (
            cached is not None
            and cached.guest == guest
            and 0 <= monotonic_ns - cached.read_ns < GROUPS_AGE_MAX_NS
        ):
            return cached
        quotas, emulator_tids = find_quotas(guest.pid, self._root)
        vcpus = find_vcpus(guest, self._root)
        return _Threads(guest, monotonic_ns, quotas, emulator_tids, vcpus)

    def _read_threads(self, keys: Iterable[Key], before: _TimesByTid) -> dict[int, ThreadTimes]:
        """Return {thread id: its times} of the threads that exist."""
        times_by_tid = {}
        for key in keys:
            _, tid = key
            times = read_thread(key, before.get(tid), self._root)
            if times is not None:
                times_by_tid[tid] = times
        return times_by_tid

    def forget_memory(self) -> None:
        """Forget where the guests' memory is, so that the next call of :meth:`read` reads it."""
        self._memory.clear()

    def _bytes_by_node(self, guest: Guest, monotonic_ns: int) -> dict[int, int]:
        read_ns, bytes_by_node = self._memory.get(guest.run_id, (None, {}))
        if read_ns is None or monotonic_ns - read_ns >= MEMORY_AGE_MAX_NS:
            bytes_by_node = cgroups.memory_by_node(guest.pid, self._root, guest.page_bytes) or {}
            self._memory[guest.run_id] = monotonic_ns, bytes_by_node
        return bytes_by_node


def use_between(
    before: _TimesByTid,
    after: _TimesByTid,
    node_of_cpu: Mapping[int, int],
    elapsed_ns: int,
    quotas: Sequence[Quota] = (),
) -> ThreadUse:
    """Return how long a guest's threads ran and waited between two readings.

    If a thread was last seen on another node than before, its time is divided equally between the
    two nodes, because where it ran in between is unknown. Its waiting is divided in the same way
    between two CPUs. A thread is left out if it is in only one of the readings, or if another
    thread has been given its id.

    :param before, after: {thread id: its times} at the two readings
    :param node_of_cpu: {CPU: node id}
    """
    if elapsed_ns <= 0:
        return ThreadUse()
    uses: dict[int, tuple[int, int]] = {}  # {tid: (run, waited) [ns]}
    cores_by_node: dict[int | None, float] = {}
    by_cpu: dict[int, float] = {}
    for tid, new in after.items():
        old = before.get(tid)
        if old is new:  # most threads have neither run nor waited
            cores_by_node.setdefault(node_of_cpu.get(new.cpu), 0.0)
        elif (
            old
            and old.start_ticks == new.start_ticks
            and (old.run_ns <= new.run_ns and old.wait_ns <= new.wait_ns)
        ):
            uses[tid] = new.run_ns - old.run_ns, new.wait_ns - old.wait_ns
    waits = waited_ns(uses, quotas, elapsed_ns)
    for tid, (run_ns, _) in uses.items():
        for cpu in (before[tid].cpu, after[tid].cpu):
            node = node_of_cpu.get(cpu)
            cores_by_node[node] = cores_by_node.get(node, 0) + run_ns / 2 / elapsed_ns
            if waits[tid]:
                by_cpu[cpu] = by_cpu.get(cpu, 0) + waits[tid] / 2 / elapsed_ns
    if not cores_by_node:  # no thread is in both readings
        return ThreadUse()
    # Where it ran is not known if a CPU belongs to no node (it went offline meanwhile).
    known_nodes = sorted(node for node in cores_by_node if node is not None)
    known_cores_by_node = (
        {} if cores_by_node.get(None) else {node: cores_by_node[node] for node in known_nodes}
    )
    return ThreadUse(
        sum(run_ns for run_ns, _ in uses.values()) / elapsed_ns,
        sum(waits.values()) / elapsed_ns,
        known_cores_by_node,
        by_cpu,
    )


class Quota(Record):
    """A limit on the CPU time of some of a guest's threads.

    :param cores: quota ÷ period
    :param tids: ids of the threads that share it, or None if all of the guest's threads do
    """

    cores: float
    tids: frozenset[int] | None = None


def waited_ns(
    uses: Mapping[int, tuple[int, int]], quotas: Iterable[Quota], elapsed_ns: int
) -> dict[int, float]:
    """Return the time for which each thread waited for a CPU that its quotas allowed it to use.

    The kernel's ``run_delay`` also grows while a quota throttles a thread: with a quota of 0.05
    cores on an idle host, a thread that wants a whole core runs for 0.05 and "waits" for 0.95.
    Threads that share a quota wait for no longer than what they have left of it.

    :param uses: {thread id: (run, run_delay)} of the interval [ns]
    :param quotas: the quotas of the innermost control group first
    :returns: {thread id: time [ns]}
    """
    waits_ns = {tid: float(delay_ns) for tid, (_, delay_ns) in uses.items()}
    for quota in quotas:
        tids = [tid for tid in uses if quota.tids is None or tid in quota.tids]
        left_ns = max(0.0, quota.cores * elapsed_ns - sum(uses[tid][0] for tid in tids))
        total_ns = sum(waits_ns[tid] for tid in tids)
        if total_ns > left_ns:
            for tid in tids:
                waits_ns[tid] *= left_ns / total_ns
    return waits_ns


def find_quotas(pid: int | None, root: str = '/') -> tuple[tuple[Quota, ...], tuple[int, ...]]:
    """Find the quotas of a guest's groups; a group that cannot be read counts as having none.

    :returns: (the quotas, the innermost first; ids of the threads in the emulator's group,
        including the kernel's vhost workers, which are not threads of QEMU before 6.4)
    """
    try:
        machine = cgroups.find_machine_group(pid, 'cpu', root)
    except CpusetError:
        return (), ()
    scope = machine.scope
    base = os.path.join(scope, 'libvirt') if machine.tail[:1] == ['libvirt'] else scope
    children = [os.path.join(base, name) for name in files.list_names(base)]
    quotas = []
    for directory in (*children, *dict.fromkeys((base, scope))):
        cores = _quota_cores(directory)
        if cores is not None:
            is_child = directory in children
            tids = frozenset(cgroups.thread_ids(directory)) if is_child else None
            quotas.append(Quota(cores, tids))
    return tuple(quotas), cgroups.thread_ids(os.path.join(base, 'emulator'))


def _quota_cores(directory: str) -> float | None:
    """Return a group's quota ÷ period, or None if it has no quota or cannot be read.

    Sources: ``cpu.max`` (Documentation/admin-guide/cgroup-v2.rst) or, on v1, ``cpu.cfs_quota_us``
    and ``cpu.cfs_period_us`` (Documentation/scheduler/sched-bwc.rst).
    """
    text = read_optional(directory, 'cpu.max')
    if text is None:
        names = ('cpu.cfs_quota_us', 'cpu.cfs_period_us')
        text = ' '.join(read_optional(directory, name) or '' for name in names)
    try:
        quota_us, period_us = map(int, text.split())  # 'max' is not a number
    except ValueError:
        return None
    return quota_us / period_us if quota_us >= 0 and period_us > 0 else None


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


def _tids(directory: str) -> set[int]:
    """Return the ids of the threads in a process's ``task`` directory; empty if it is gone."""
    try:
        names = [name for name in os.listdir(directory) if name.isascii() and name.isdigit()]
    except OSError:
        return set()
    return {int(name) for name in names[:_THREADS_MAX]}


def read_thread(key: Key, last: ThreadTimes | None, root: str = '/') -> ThreadTimes | None:
    """Return a thread's times, or None if the thread is gone or they are not reported.

    ``schedstat`` has the run and wait times [ns] (Documentation/scheduler/sched-stats.rst), and
    ``stat`` has the CPU and the start time (Documentation/filesystems/proc.rst, fields 39 and 22).
    Both are read in the thread's own directory, because ``/proc/TID/stat`` has the sums of the
    whole process.

    :param last: the last times, which are returned if it has neither run nor waited since: it is
        where it was. ``stat``, which takes three times as long, is not read
    """
    directory = '%s/proc/%d/task/%d/' % (root.rstrip('/'), *key)
    try:
        words = read_kernel_file(directory + 'schedstat').split()
        if len(words) != 3 or not (is_number(words[0]) and is_number(words[1])):
            return None
        run_ns, wait_ns = int(words[0]), int(words[1])
        if last is not None and (last.run_ns, last.wait_ns) == (run_ns, wait_ns):
            return last
        fields = read_kernel_file(directory + 'stat').rpartition(')')[2].split(None, 37)
    except OSError:
        return None
    if len(fields) < 37 or not (is_number(fields[36]) and is_number(fields[19])):
        return None
    return ThreadTimes(run_ns, wait_ns, int(fields[36]), int(fields[19]))


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
