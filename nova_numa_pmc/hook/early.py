# SPDX-License-Identifier: Apache-2.0
"""Hold a guest to its CPUs before its first instruction, while libvirt starts it.

When libvirt calls the hook's ``started``, the guest's CPUs already run, and memory that they have
touched is wherever they ran. ``start`` therefore leaves a process behind that waits for QEMU.
libvirt unlinks the guest's pid file before ``start`` and writes it before QEMU is executed. From
then on, until libvirt has asked the monitor for the vCPUs' threads, libvirt touches no cpuset and
no affinity (qemuProcessLaunch() in its src/qemu/qemu_process.c).

With cgroup v2, the group ``libvirt/`` is narrowed during that time, and ``started`` narrows the
groups below it instead. In the meantime, the set of a vCPU, or the mask of its
sched_setaffinity(2), may be larger than that of ``libvirt/``. With cgroup v1, the kernel would
refuse both, and the start would fail, so each group is narrowed separately, those of the vCPUs
once libvirt has finished with them.
"""

from __future__ import annotations

import os
import time

from nova_numa_pmc.exceptions import CpusetError, GuestGone, StateError
from nova_numa_pmc.host import allowed, cgroups, cpusets, guests, holding
from nova_numa_pmc.record import TYPE_CHECKING
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from nova_numa_pmc import model
    from nova_numa_pmc.conf import host_options
    from nova_numa_pmc.host.files import Identity

#: Polling interval, the slower one for long starts, and the age at which that one applies [s].
POLL_S, SLOW_POLL_S, SLOW_AFTER_S = 0.005, 0.1, 10.0
#: Time between checks of whether the start has ended, which read the promises file [s].
END_CHECK_S = 1.0
#: With v1, libvirt sets up a vCPU's group, its thread and the thread's affinity in quick
#: succession; groups that have not changed for this long are complete [s].
QUIET_S = 0.05


class EarlyHold:
    """Holds one guest to its CPUs while it starts.

    :param promise: the promise that was recorded at its start
    :param guest: the guest, from the XML of its start
    :param cpus: the CPUs to hold it to
    :param old_pid_file: identity of the guest's pid file before the start
    :param write: writes a file, as :func:`cpusets.write_file` does
    """

    def __init__(
        self,
        promise: model.Promise,
        guest: model.Guest,
        cpus: frozenset[int],
        options: host_options.HostOptions,
        root: str = '/',
        old_pid_file: Identity | None = None,
        write: cpusets.Writer = cpusets.write_file,
    ) -> None:
        self._promise, self._guest, self._cpus, self._root = promise, guest, cpus, root
        self._options, self._old_pid_file, self._write = options, old_pid_file, write
        self._groups: cgroups.GuestGroups | None = None
        #: v1: each thread cgroup, and the ids of its threads.
        self._threads: dict[str, frozenset[int]] = {}
        self._threads_changed_s = 0.0

    def step(self, monotonic_s: float) -> bool:
        """Narrow the groups that are ready; return whether anything is left to do.

        If the groups above it grant the guest none of the CPUs, ``started`` decides again.

        :param monotonic_s: time of a monotonic clock [s]
        """
        if self._groups is None:
            self._groups = self._find()
            if self._groups is None:
                return True
            running = self._guest._replace(pid=self._groups.pid)
            (guest,) = allowed.with_grants([running], self._root)
            if guest.granted_cpus is not None:
                self._cpus &= guest.granted_cpus
            if not self._cpus or holding.narrow_early(self._groups, self._cpus, self._write):
                return False
        try:
            return not self._narrow_vcpus(self._groups, monotonic_s)
        except GuestGone:
            return False

    def _narrow_vcpus(self, groups: cgroups.GuestGroups, monotonic_s: float) -> bool:
        """Narrow the thread cgroups once libvirt has set up all vCPUs; return whether it has."""
        threads = {
            group: frozenset(cgroups.thread_ids(group))
            for group in cgroups.find_thread_cgroups(groups.parent)
        }
        if threads != self._threads:
            self._threads, self._threads_changed_s = threads, monotonic_s
        ready = [group for group in threads if threads[group]]
        vcpus = sum(os.path.basename(group).startswith('vcpu') for group in ready)
        if vcpus < self._guest.vcpus or monotonic_s - self._threads_changed_s < QUIET_S:
            return False
        for group in ready:
            holding.narrow_group(group, self._cpus, self._write)
        return True

    def has_start_ended(self) -> bool:
        """Return whether the start has ended, or can no longer be followed.

        It has ended if its promise is gone, is marked as started, or was replaced by a newer one.
        """
        try:
            recorded = promises_file.read(self._options, self._root).promises
        except StateError:
            return True
        promise = recorded.get(self._promise.uuid)
        return promise is None or promise.started or promise.since_ns != self._promise.since_ns

    def _find(self) -> cgroups.GuestGroups | None:
        """Return the guest's groups; None if its QEMU has not been executed yet."""
        if guests.runtime_file_identity(self._root, self._guest.name, '.pid') in (
            None,
            self._old_pid_file,
        ):
            return None
        try:
            return cgroups.of_guest(guests.with_process(self._guest, self._root), self._root)
        except CpusetError:
            return None  # the pid file is being written, or QEMU has not been executed yet


def run(
    hold: EarlyHold,
    grace_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Run the steps until nothing is left to do, the start has ended, or ``grace_s`` is over.

    This is the whole work of a child process of the hook.

    :raises OSError, CpuListError, CpusetError: a cpuset cannot be read or written, or a group
        cannot be listed; ``started`` then holds the guest
    """
    began_s = now_s = checked_s = clock()
    while hold.step(now_s) and now_s - began_s < grace_s:
        if now_s - checked_s >= END_CHECK_S:
            checked_s = now_s
            if hold.has_start_ended():
                return
        sleep(POLL_S if now_s - began_s < SLOW_AFTER_S else SLOW_POLL_S)
        now_s = clock()
