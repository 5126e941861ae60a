# SPDX-License-Identifier: Apache-2.0
"""How much more a node can take before anybody on it suffers."""

from __future__ import annotations

import os

from nova_numa_pmc.exceptions import MigrationError
from nova_numa_pmc.host.cgroups import read_text

_TOTAL, _FREE, _CACHES = 'MemTotal', 'MemFree', ('Active(file)', 'Inactive(file)')


def available_bytes(node: int, root: str = '/') -> int:
    """Return a node's free memory and half of its page cache.

    Half, as the kernel assumes of MemAvailable at the least (si_mem_available() in
    mm/show_mem.c), which it does not tell per node.

    :raises MigrationError: there is no such node with memory, or its file is not understood
    """
    path = os.path.join(root, 'sys/devices/system/node/node%d/meminfo' % node)
    found = {}
    try:
        for line in read_text(path).splitlines():
            name, _, value = line.partition(':')
            name = name.rpartition(' ')[2]
            if name in (_TOTAL, _FREE) or name in _CACHES:
                found[name] = int(value.split()[0]) << 10
        if found.get(_TOTAL) == 0:
            raise MigrationError('%s: node %d has no memory to move any to' % (path, node))
        return found[_FREE] + sum(found.get(name, 0) for name in _CACHES) // 2
    except OSError as e:
        raise MigrationError('%s: %s: no node to move memory to' % (path, e.strerror)) from None
    except (ValueError, IndexError, KeyError):
        raise MigrationError('%s: no MemFree in it' % path) from None
