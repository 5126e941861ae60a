# SPDX-License-Identifier: Apache-2.0
"""Read the sizes of the CPUs' last-level caches from sysfs.

Format: Documentation/ABI/testing/sysfs-devices-system-cpu, cache/indexN.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError
from nova_numa_pmc.host.files import CPUS, list_names, read_kernel_file

if TYPE_CHECKING:
    from collections.abc import Iterable

_CACHES = CPUS + '/cpu%d/cache'
_UNITS = {'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}


def read_last_level(cpu: int, root: str = '/') -> tuple[int, frozenset[int]] | None:
    """Return the size of a CPU's last-level cache and the CPUs that share it.

    :returns: (bytes, CPUs), or None if it is not reported
    """
    directory = os.path.join(root, _CACHES % cpu)
    last = None
    for name in list_names(directory):
        if name.startswith('index'):
            cache = _cache(os.path.join(directory, name), cpu)
            if cache is not None and (last is None or cache[0] > last[0]):
                last = cache
    return last and last[1:]


def _cache(path: str, cpu: int) -> tuple[int, int, frozenset[int]] | None:
    """Return a cache's (level, bytes, CPUs that share it); None if these cannot be read."""
    try:
        level, size, shared = (
            read_kernel_file(os.path.join(path, name)).strip()
            for name in ('level', 'size', 'shared_cpu_list')
        )
        size_bytes = int(size[:-1]) * _UNITS[size[-1]]
        cpus = parse_cpulist(shared)
        if not is_number(level) or size_bytes <= 0 or cpu not in cpus:
            return None
        return int(level), size_bytes, cpus
    except (OSError, KeyError, ValueError, IndexError, CpuListError):
        return None


def read_total_bytes(cpus: Iterable[int], root: str = '/') -> int:
    """Return the total size of the distinct last-level caches of some CPUs.

    :returns: 0 if none is reported
    """
    size_by_cpus = {
        shared: size for size, shared in filter(None, (read_last_level(cpu, root) for cpu in cpus))
    }
    return sum(size_by_cpus.values())
