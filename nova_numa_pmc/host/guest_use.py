# SPDX-License-Identifier: Apache-2.0
"""Read at each tick where and for how long the running guests ran, and where their memory is.

libvirt sets ``<vcpu_quota>`` on each ``vcpuN`` group, ``<emulator_quota>`` on ``emulator``,
``<iothread_quota>`` on each ``iothreadN`` and ``<global_quota>`` on the group above them. systemd
sets ``CPUQuota=`` on the scope. A quota of the slice above the scope is not the guest's own and is
ignored.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.core import cpu_wait
from nova_numa_pmc.core.sample_records import RunningGuest
from nova_numa_pmc.exceptions import CpusetError
from nova_numa_pmc.host import cgroups, files, run_times
from nova_numa_pmc.host.page_moves import hugetlb
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.core.sample_records import ThreadTimes
    from nova_numa_pmc.model import Guest, RunId, Topology

    #: {thread id: its times}
    _TimesByTid = Mapping[int, ThreadTimes]


#: The nodes of a guest's memory change slowly unless it is moved, and each reading makes the
#: kernel sum up a tree of groups.
MEMORY_AGE_MAX_NS = 15 * 10**9
#: Quotas and threads outside of QEMU also change slowly. A change of a quota by libvirt is noticed
#: at once, because libvirt writes the status file; so are new threads of QEMU, because they are
#: counted.
GROUPS_AGE_MAX_NS = 60 * 10**9


class ThreadUse(Record):
    """The time that a guest's threads ran and waited, in fields of :class:`RunningGuest`."""

    cores: float | None = None
    waiting_cores: float | None = None
    cores_by_node: dict[int, float] = {}
    waiting_cores_by_cpu: dict[int, float] = {}


class _CachedThreads(Record):
    """State of a guest's threads that is cached from tick to tick.

    :param guest: the guest's record when this was read
    :param read_ns: CLOCK_MONOTONIC when the guest's groups were read
    :param task_link_count: result of :func:`run_times.task_link_count` for the guest's process
    :param other_threads: (pid, tid) of the guest's threads that are not vCPUs
    """

    guest: Guest
    read_ns: int
    guest_quotas: GuestQuotas
    task_link_count: int | None
    other_threads: frozenset[tuple[int, int]]


class GuestUseReader:
    """Reads how the running guests used the host.

    It caches their groups and their threads' last times.
    """

    def __init__(self, root: str = '/') -> None:
        self._root = root
        self._threads = run_times.ThreadReader(root)
        self._cached: dict[RunId, _CachedThreads] = {}
        #: {uuid: {tid: times}} of all threads at the last tick.
        self._times: dict[str, dict[int, ThreadTimes]] = {}
        #: {directory: time for which the group had been throttled [ns]} at the last tick.
        self._throttled: dict[str, int | None] = {}
        #: (version, directory) of the group that counts a guest's memory.
        self._memory_groups: dict[RunId, tuple[int, str]] = {}
        #: When a guest's memory was read [ns], and its bytes by node.
        self._memory_readings: dict[RunId, tuple[int, dict[int, int]]] = {}

    def read(
        self, guests: Sequence[Guest], host: Topology, monotonic_ns: int, elapsed_ns: int
    ) -> tuple[RunningGuest, ...]:
        """Return the guests' use of the host, sorted by the guests' names.

        :param guests: the running guests; the same record as before if nothing was rewritten
        :param monotonic_ns: CLOCK_MONOTONIC
        :param elapsed_ns: time since the last call, 0 in the first call
        """
        by_uuid = {guest.uuid: guest for guest in guests}
        node_of_cpu = {cpu: node.id for node in host.nodes for cpu in node.online_cpus}
        vcpus = {uuid: run_times.find_vcpus(guest, self._root) for uuid, guest in by_uuid.items()}
        self._forget(guests)
        times = self._read_threads(by_uuid, vcpus, monotonic_ns)
        throttled, self._throttled = self._throttled, {}
        running = []
        for guest in sorted(guests, key=lambda guest: (guest.name, guest.uuid)):
            uuid = guest.uuid
            before, after = self._times.get(uuid, {}), times[uuid]
            interval_quotas = self._quotas(guest, before, after, throttled)
            use = use_between(before, after, node_of_cpu, elapsed_ns, interval_quotas)
            running.append(
                RunningGuest(
                    guest,
                    {tid: after[tid] for tid in vcpus[uuid] if tid in after},
                    use.cores,
                    use.waiting_cores,
                    use.cores_by_node,
                    self._bytes_by_node(guest, monotonic_ns),
                    use.waiting_cores_by_cpu,
                )
            )
        self._times = times
        return tuple(running)

    def _read_threads(
        self, by_uuid: Mapping[str, Guest], vcpus: Mapping[str, tuple[int, ...]], monotonic_ns: int
    ) -> dict[str, dict[int, ThreadTimes]]:
        """Return {uuid: {tid: times}} of all threads."""
        keys: dict[str, frozenset[run_times.Key]] = {}
        for uuid, guest in by_uuid.items():
            vcpu_keys = frozenset((guest.pid, tid) for tid in vcpus[uuid] if guest.pid is not None)
            cached = self._cached[guest.run_id] = self._look_up(guest, vcpu_keys, monotonic_ns)
            keys[uuid] = vcpu_keys | cached.other_threads
        times = self._threads.read(frozenset().union(*keys.values()))
        return {
            uuid: {key[1]: times[key] for key in guest_keys if key in times}
            for uuid, guest_keys in keys.items()
        }

    def _look_up(
        self, guest: Guest, vcpus: frozenset[run_times.Key], monotonic_ns: int
    ) -> _CachedThreads:
        """Return the state of a guest's threads, read again where it may have changed."""
        cached = self._cached.get(guest.run_id)
        if cached is not None and (
            _has_changed(cached.guest, guest)
            or not 0 <= monotonic_ns - cached.read_ns < GROUPS_AGE_MAX_NS
        ):
            cached = None
        task_link_count = run_times.task_link_count(guest.pid, self._root)
        if cached is not None and cached.task_link_count == task_link_count:
            return cached
        guest_quotas = (
            find_quotas(guest.pid, self._root) if cached is None else cached.guest_quotas
        )
        other_threads = (
            run_times.all_threads(guest.pid, guest_quotas.emulator_tids, self._root) - vcpus
        )
        return _CachedThreads(
            guest,
            monotonic_ns if cached is None else cached.read_ns,
            guest_quotas,
            task_link_count,
            other_threads,
        )

    def _quotas(
        self,
        guest: Guest,
        before: _TimesByTid,
        after: _TimesByTid,
        throttled: Mapping[str, int | None],
    ) -> tuple[cpu_wait.Quota, ...]:
        """Return the guest's quotas for the interval.

        How long a group was throttled is only read if one of its threads has run or waited since
        the last tick; for most guests, nothing is read.

        :param throttled: {directory: time for which the group had been throttled [ns]} at the
            last tick
        """
        interval_quotas = []
        for group in self._cached[guest.run_id].guest_quotas.groups:
            tids = after if group.tids is None else group.tids
            old_ns = throttled.get(group.directory)
            if old_ns is None or any(before.get(tid) != after.get(tid) for tid in tids):
                new_ns = throttled_ns(group)
            else:
                new_ns = old_ns
            self._throttled[group.directory] = new_ns
            interval_quotas.append(
                cpu_wait.Quota(
                    group.cores,
                    group.tids,
                    new_ns - old_ns
                    if old_ns is not None and new_ns is not None and new_ns >= old_ns
                    else None,
                )
            )
        return tuple(interval_quotas)

    def _forget(self, running: Iterable[Guest]) -> None:
        run_ids = {guest.run_id for guest in running}
        for cache in (self._cached, self._memory_groups, self._memory_readings):
            for run_id in cache.keys() - run_ids:
                del cache[run_id]

    def forget_memory(self) -> None:
        """Forget where the guests' memory is, so that the next call of :meth:`read` reads it."""
        self._memory_readings.clear()

    def _bytes_by_node(self, guest: Guest, monotonic_ns: int) -> dict[int, int]:
        run_id = guest.run_id
        read_ns, bytes_by_node = self._memory_readings.get(run_id, (None, {}))
        if read_ns is None or monotonic_ns - read_ns >= MEMORY_AGE_MAX_NS:
            bytes_by_node = self._read_memory(guest, run_id)
            self._memory_readings[run_id] = monotonic_ns, bytes_by_node
        return bytes_by_node

    def _read_memory(self, guest: Guest, run_id: RunId) -> dict[int, int]:
        try:
            if run_id not in self._memory_groups:
                self._memory_groups[run_id] = cgroups.find_memory_group(guest.pid, self._root)
            bytes_by_node = cgroups.read_group_memory_by_node(*self._memory_groups[run_id])
        except CpusetError:
            bytes_by_node = None
        if bytes_by_node is None:
            # The group may have been created again elsewhere.
            self._memory_groups.pop(run_id, None)
            bytes_by_node = {}
        if guest.page_bytes:
            return hugetlb.add_huge_pages(bytes_by_node, guest.pid, self._root) or {}
        return bytes_by_node

    def close(self) -> None:
        """Close the threads' files."""
        self._threads.close()


def _has_changed(before: Guest, guest: Guest) -> bool:
    """Return whether libvirt has rewritten a guest's status file between two records.

    A rewritten file results in a new record. For a guest with pins every reading creates a new
    record, so the contents of the records are compared.
    """
    return before is not guest and (not guest.pins or before != guest)


def use_between(
    before: _TimesByTid,
    after: _TimesByTid,
    node_of_cpu: Mapping[int, int],
    elapsed_ns: int,
    interval_quotas: tuple[cpu_wait.Quota, ...] = (),
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
    waits = (
        cpu_wait.waited_ns(uses, interval_quotas, elapsed_ns)
        if interval_quotas
        else {tid: wait_ns for tid, (_, wait_ns) in uses.items()}
    )
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


class QuotaGroup(Record):
    """A control group with a quota.

    :param version: version of the hierarchy that has the CPU controller, 1 or 2
    :param cores: quota ÷ period
    :param tids: ids of the group's threads, or None if all of the guest's threads are below it
    """

    directory: str
    version: int
    cores: float
    tids: frozenset[int] | None = None


class GuestQuotas(Record):
    """Quotas of a guest's groups.

    :param groups: the groups with a quota, the innermost first
    :param emulator_tids: ids of the threads in the emulator's group, including the kernel's vhost
        workers, which are not threads of QEMU before Linux 6.4
    """

    groups: tuple[QuotaGroup, ...] = ()
    emulator_tids: tuple[int, ...] = ()


def find_quotas(pid: int | None, root: str = '/') -> GuestQuotas:
    """Find the quotas of a guest's groups; a group that cannot be read counts as having none."""
    try:
        machine = cgroups.find_machine_group(pid, 'cpu', root)
    except CpusetError:
        return GuestQuotas()
    version, scope = machine.version, machine.scope
    base = os.path.join(scope, 'libvirt') if machine.tail[:1] == ['libvirt'] else scope
    try:
        names = [
            name for name in os.listdir(base) if name.startswith(('vcpu', 'emulator', 'iothread'))
        ]
    except OSError:
        names = []
    groups = []
    for name in sorted(names):
        directory = os.path.join(base, name)
        cores = quota_cores(directory, version)
        if cores is not None:
            groups.append(
                QuotaGroup(directory, version, cores, frozenset(cgroups.thread_ids(directory)))
            )
    for directory in dict.fromkeys((base, scope)):
        cores = quota_cores(directory, version)
        if cores is not None:
            groups.append(QuotaGroup(directory, version, cores))
    return GuestQuotas(tuple(groups), cgroups.thread_ids(os.path.join(base, 'emulator')))


def quota_cores(directory: str, version: int) -> float | None:
    """Return a group's quota ÷ period, or None if it has no quota or cannot be read.

    Sources: ``cpu.max`` (Documentation/admin-guide/cgroup-v2.rst) or, on v1, ``cpu.cfs_quota_us``
    and ``cpu.cfs_period_us`` (Documentation/scheduler/sched-bwc.rst).
    """
    names = ('cpu.max',) if version == 2 else ('cpu.cfs_quota_us', 'cpu.cfs_period_us')
    try:
        words = [
            word
            for name in names
            for word in files.read_kernel_file(os.path.join(directory, name)).split()
        ]
        quota_us, period_us = (int(word) for word in words)  # 'max' is not a number
    except (OSError, ValueError):
        return None
    return quota_us / period_us if quota_us >= 0 and period_us > 0 else None


def throttled_ns(group: QuotaGroup) -> int | None:
    """Return the time for which a group has been throttled, or None if not reported."""
    key, unit_ns = ('throttled_usec', 1000) if group.version == 2 else ('throttled_time', 1)
    try:
        return int(files.read_fields(group.directory, 'cpu.stat', ' ')[key]) * unit_ns
    except (KeyError, ValueError):
        return None
