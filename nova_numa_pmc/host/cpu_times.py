# SPDX-License-Identifier: Apache-2.0
"""Read each CPU's busy time, and the time stolen from it, from procfs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.host.files import read_kernel_file
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: user, nice, system, irq, softirq: fields of /proc/stat (Documentation/filesystems/proc.rst).
#: Guests' time is in user and nice already; iowait is idle; stolen time went to others.
_BUSY_FIELDS = (0, 1, 2, 5, 6)
_STEAL_FIELD = 7


class CpuTimes(Record):
    """Cumulative times of the online CPUs, {CPU: ns}; None: not reported.

    :param busy_ns: time for which the CPU was busy
    :param stolen_ns: time for which the CPU had work but was not run, where this host is a guest
    """

    busy_ns: dict[int, int] | None = None
    stolen_ns: dict[int, int] | None = None


def read(root: str = '/') -> CpuTimes:
    """Return the CPUs' times [ns], to the resolution of a clock tick (10 ms).

    The run times in ``/proc/schedstat`` are finer, but grow only when a thread leaves its CPU,
    which a busy vCPU may not do for seconds.
    """
    try:
        lines = read_kernel_file(os.path.join(root, 'proc/stat')).splitlines()
    except OSError:
        return CpuTimes()
    tick_ns = 10**9 // os.sysconf('SC_CLK_TCK')
    busy: dict[int, int] = {}
    stolen: dict[int, int] = {}
    for line in lines:
        name, _, rest = line.partition(' ')
        if not name.startswith('cpu') or name == 'cpu':
            continue
        fields = _numbers(rest.split())
        if not is_number(name[3:]) or fields is None or len(fields) < 7:
            return CpuTimes()
        cpu = int(name[3:])
        busy[cpu] = tick_ns * sum(fields[field] for field in _BUSY_FIELDS)
        if len(fields) > _STEAL_FIELD:
            stolen[cpu] = tick_ns * fields[_STEAL_FIELD]
    return CpuTimes(busy, stolen) if busy else CpuTimes()


def _numbers(words: list[str]) -> list[int] | None:
    return [int(word) for word in words] if all(map(is_number, words)) else None


def cores_between(
    before: Mapping[int, int] | None, after: Mapping[int, int] | None, elapsed_ns: int
) -> dict[int, float]:
    """Return {CPU: cores} between two readings of a time; a CPU whose time is not known is absent.

    That is a CPU that is in one reading only (hotplug), or whose time went backwards.

    :param before, after: {CPU: ns}
    """
    if before is None or after is None or elapsed_ns <= 0:
        return {}
    return {
        cpu: (ns - before[cpu]) / elapsed_ns
        for cpu, ns in after.items()
        if ns >= before.get(cpu, ns + 1)
    }


def sum_over(cores_by_cpu: Mapping[int, float], cpus: Iterable[int]) -> float | None:
    """Return the sum over CPUs [cores]; None: one of them is not known."""
    try:
        return sum([cores_by_cpu[cpu] for cpu in cpus])
    except KeyError:
        return None
