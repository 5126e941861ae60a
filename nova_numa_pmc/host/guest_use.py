# SPDX-License-Identifier: Apache-2.0
"""Read the running guests at each tick: where they ran, for how long, where their memory lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import cpu_wait
from nova_numa_pmc.core.evidence import RunningGuest
from nova_numa_pmc.exceptions import CpusetError
from nova_numa_pmc.host import cgroups, guests, quotas, threads
from nova_numa_pmc.host.paging import hugetlb
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.core.evidence import ThreadTimes
    from nova_numa_pmc.model import Guest, Life, Topology

    #: {thread id: its times}
    _Ran = Mapping[int, ThreadTimes]

#: Where memory lies changes slowly, and each reading makes the kernel sum up a tree of groups.
MEMORY_AGE_MAX_NS = 15 * 10**9
#: Quotas and threads outside of QEMU change slowly, too. libvirt's changes of quotas are seen at
#: once, as it writes the status file, and so are new threads of QEMU, whose number is checked.
GROUPS_AGE_MAX_NS = 60 * 10**9


class ThreadUse(Record):
    """Time that a guest's threads ran and waited; the fields are :class:`RunningGuest`'s."""

    cores: float | None = None
    waiting_cores: float | None = None
    cores_by_node: dict[int, float] = {}
    waiting_by_cpu: dict[int, float] = {}


class _KeptThreads(Record):
    """State of a guest's threads, kept from tick to tick.

    :param guest: the guest it was read for
    :param read_ns: CLOCK_MONOTONIC when its groups were read
    :param tasks: how many threads its process had
    :param helpers: (pid, tid) of its threads that are no vCPUs
    """

    guest: Guest
    read_ns: int
    guest_quotas: quotas.GuestQuotas
    tasks: int | None
    helpers: frozenset[tuple[int, int]]


class GuestUseReader:
    """Reads the running guests; caches their groups and the last times of their threads."""

    def __init__(self, root: str = '/') -> None:
        self._root = root
        self._files = guests.StatusFiles(root)
        self._threads = threads.ThreadReader(root)
        self._kept: dict[Life, _KeptThreads] = {}
        #: Of all threads in the last tick, by uuid.
        self._ran: dict[str, dict[int, ThreadTimes]] = {}
        #: {directory: time for which the group was throttled so far [ns]} at the last reading.
        self._throttled: dict[str, int | None] = {}
        #: (version, directory) of the group of its memory.
        self._groups: dict[Life, tuple[int, str]] = {}
        #: When it was read [ns], and bytes by node.
        self._memory: dict[Life, tuple[int, dict[int, int]]] = {}

    def read(
        self, host: Topology, now_ns: int, elapsed_ns: int
    ) -> tuple[tuple[RunningGuest, ...], list[str]]:
        """Return (guests by name, problems).

        :param elapsed_ns: time since the last call, 0 in the first
        """
        all_guests, problems = self._files.read()
        # Two files of one guest would be counted twice; libvirt has one for each name.
        by_uuid = {guest.uuid: guest for guest in all_guests}
        node_of_cpu = {cpu: node.id for node in host.nodes for cpu in node.online_cpus}
        vcpus = {uuid: threads.find(guest, self._root) for uuid, guest in by_uuid.items()}
        self._forget(by_uuid.values())
        ran = self._read_threads(by_uuid, vcpus, now_ns)
        throttled, self._throttled = self._throttled, {}
        running = []
        for guest in sorted(by_uuid.values(), key=lambda guest: (guest.name, guest.uuid)):
            uuid = guest.uuid
            limits = self._quotas(guest, self._ran.get(uuid, {}), ran[uuid], throttled)
            used = use_between(self._ran.get(uuid, {}), ran[uuid], node_of_cpu, elapsed_ns, limits)
            running.append(
                RunningGuest(
                    guest,
                    {tid: ran[uuid][tid] for tid in vcpus[uuid] if tid in ran[uuid]},
                    used.cores,
                    used.waiting_cores,
                    used.cores_by_node,
                    self._bytes_by_node(guest, now_ns),
                    used.waiting_by_cpu,
                )
            )
        self._ran = ran
        return tuple(running), problems

    def _read_threads(
        self, by_uuid: Mapping[str, Guest], vcpus: Mapping[str, tuple[int, ...]], now_ns: int
    ) -> dict[str, dict[int, ThreadTimes]]:
        """Return {uuid: {tid: times}} of all threads."""
        keys: dict[str, frozenset[threads.Key]] = {}
        for uuid, guest in by_uuid.items():
            own = frozenset((guest.pid, tid) for tid in vcpus[uuid] if guest.pid is not None)
            kept = self._kept[guest.life] = self._look_up(guest, own, now_ns)
            keys[uuid] = own | kept.helpers
        ran = self._threads.read(frozenset().union(*keys.values()))
        return {
            uuid: {key[1]: ran[key] for key in own if key in ran} for uuid, own in keys.items()
        }

    def _look_up(self, guest: Guest, vcpus: frozenset[threads.Key], now_ns: int) -> _KeptThreads:
        """Return the cached state of a guest, renewed where something has changed."""
        before = self._kept.get(guest.life)
        if before is not None and (
            _has_changed(before.guest, guest)
            or not 0 <= now_ns - before.read_ns < GROUPS_AGE_MAX_NS
        ):
            before = None
        tasks = threads.count(guest.pid, self._root)
        if before is not None and before.tasks == tasks:
            return before
        guest_quotas = (
            quotas.find(guest.pid, self._root) if before is None else before.guest_quotas
        )
        helpers = threads.helpers(guest.pid, guest_quotas.emulator_tids, self._root) - vcpus
        return _KeptThreads(
            guest, now_ns if before is None else before.read_ns, guest_quotas, tasks, helpers
        )

    def _quotas(
        self, guest: Guest, before: _Ran, after: _Ran, throttled: Mapping[str, int | None]
    ) -> tuple[cpu_wait.Quota, ...]:
        """Return the guest's quotas for the interval.

        How long a group was held back is read only where one of its threads has run or waited
        since: of most guests there is nothing to read.
        """
        limits = []
        for group in self._kept[guest.life].guest_quotas.groups:
            tids = after if group.tids is None else group.tids
            old = throttled.get(group.directory)
            if old is None or any(before.get(tid) != after.get(tid) for tid in tids):
                new = quotas.throttled_ns(group)
            else:
                new = old
            self._throttled[group.directory] = new
            limits.append(
                cpu_wait.Quota(
                    group.cores,
                    group.tids,
                    (new - old if old is not None and new is not None and new >= old else None),
                )
            )
        return tuple(limits)

    def _forget(self, present: Iterable[Guest]) -> None:
        alive = {guest.life for guest in present}
        for kept in (self._kept, self._groups, self._memory):
            for key in kept.keys() - alive:
                del kept[key]

    def _bytes_by_node(self, guest: Guest, now_ns: int) -> dict[int, int]:
        key = guest.life
        since_ns, by_node = self._memory.get(key, (None, {}))
        if since_ns is None or now_ns - since_ns >= MEMORY_AGE_MAX_NS:
            by_node = self._read_memory(guest, key)
            self._memory[key] = now_ns, by_node
        return by_node

    def _read_memory(self, guest: Guest, key: Life) -> dict[int, int]:
        try:
            if key not in self._groups:
                self._groups[key] = cgroups.memory_group(guest.pid, self._root)
            by_node = cgroups.group_memory_by_node(*self._groups[key])
        except CpusetError:
            by_node = None
        if by_node is None:
            self._groups.pop(key, None)  # the group may have been made again elsewhere
            by_node = {}
        if guest.page_bytes:
            return hugetlb.add_huge_pages(by_node, guest.pid, self._root) or {}
        return by_node

    def close(self) -> None:
        """Close the threads' files."""
        self._threads.close()


def _has_changed(before: Guest, guest: Guest) -> bool:
    """Return whether libvirt has written a guest's status file, which makes another record of it.

    The record of a guest with pins is created anew at each reading and has changed only if it is
    unequal.
    """
    return before is not guest and (not guest.pins or before != guest)


def use_between(
    before: _Ran,
    after: _Ran,
    node_of_cpu: Mapping[int, int],
    elapsed_ns: int,
    limits: tuple[cpu_wait.Quota, ...] = (),
) -> ThreadUse:
    """Return the use of a guest's threads between two readings.

    The time of a thread that was last seen on another node than before is halved between
    the two: where it was in between is unknown; so is its waiting between two CPUs. A
    thread that is in one reading only, or whose id another one has got, is left out.

    :param node_of_cpu: {CPU: node id}
    """
    if elapsed_ns <= 0:
        return ThreadUse()
    used: dict[int, tuple[int, int]] = {}
    by_node: dict[int | None, float] = {}
    by_cpu: dict[int, float] = {}
    for tid, ran in after.items():
        old = before.get(tid)
        if old is ran:  # most threads have neither run nor waited
            by_node.setdefault(node_of_cpu.get(ran.cpu), 0.0)
        elif (
            old
            and old.since == ran.since
            and (old.run_ns <= ran.run_ns and old.wait_ns <= ran.wait_ns)
        ):
            used[tid] = ran.run_ns - old.run_ns, ran.wait_ns - old.wait_ns
    waits = (
        cpu_wait.waited_ns(used, limits, elapsed_ns)
        if limits
        else {tid: wait for tid, (_, wait) in used.items()}
    )
    for tid, (run, _) in used.items():
        for cpu in (before[tid].cpu, after[tid].cpu):
            node = node_of_cpu.get(cpu)
            by_node[node] = by_node.get(node, 0) + run / 2 / elapsed_ns
            if waits[tid]:
                by_cpu[cpu] = by_cpu.get(cpu, 0) + waits[tid] / 2 / elapsed_ns
    if not by_node:  # no thread is in both
        return ThreadUse()
    # A CPU that no node has (it went offline meanwhile): where it ran is not known.
    known = (
        {}
        if None in by_node
        else {node: by_node[node] for node in sorted(node for node in by_node if node is not None)}
    )
    return ThreadUse(
        sum(run for run, _ in used.values()) / elapsed_ns,
        sum(waits.values()) / elapsed_ns,
        known,
        by_cpu,
    )
