# SPDX-License-Identifier: Apache-2.0
"""Read the CPU quotas of a guest's control groups, and the threads below each group.

libvirt sets ``<vcpu_quota>`` on each ``vcpuN`` group, ``<emulator_quota>`` on ``emulator``,
``<iothread_quota>`` on each ``iothreadN`` and ``<global_quota>`` on the group above them. systemd
sets ``CPUQuota=`` on the scope. A quota of the slice above the scope is not the guest's own and is
ignored.
"""

from __future__ import annotations

import os

from nova_numa_pmc.exceptions import CpusetError
from nova_numa_pmc.host import cgroups, files
from nova_numa_pmc.record import Record


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


def find(pid: int | None, root: str = '/') -> GuestQuotas:
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
