# SPDX-License-Identifier: Apache-2.0
"""Read the time for which each CPU was busy, and the time stolen from it, from procfs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.host.files import read_optional
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def read(root: str = '/') -> CpuTimes:
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
        fields = _parse_numbers(rest.split())
        if not is_number(name[3:]) or fields is None or len(fields) < 7:
            return CpuTimes()
        cpu = int(name[3:])
        busy[cpu] = tick_ns * sum(fields[field] for field in _BUSY_FIELDS)
        if len(fields) > _STEAL_FIELD:
            stolen[cpu] = tick_ns * fields[_STEAL_FIELD]
    return CpuTimes(busy, stolen) if busy else CpuTimes()


def _parse_numbers(words: list[str]) -> list[int] | None:
    return [int(word) for word in words] if all(map(is_number, words)) else None


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
