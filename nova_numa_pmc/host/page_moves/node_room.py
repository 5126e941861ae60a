# SPDX-License-Identifier: Apache-2.0
"""Estimate how much more memory a node can take without harm to its guests."""

from __future__ import annotations

import os

from nova_numa_pmc.exceptions import PageMoveError, TopologyError
from nova_numa_pmc.host.files import NODES, read_meminfo_bytes

_TOTAL, _FREE, _CACHES = 'MemTotal', 'MemFree', ('Active(file)', 'Inactive(file)')


def available_bytes(node: int, root: str = '/') -> int:
    """Return a node's free memory plus half of its page cache.

    The kernel counts at least half of the page cache in MemAvailable (si_mem_available() in
    mm/show_mem.c), which it does not report for each node.

    :raises PageMoveError: the node does not exist or has no memory, or its file cannot be parsed
    """
    path = '%s/node%d/meminfo' % (NODES, node)
    try:
        fields = read_meminfo_bytes(root, path, (_TOTAL, _FREE, *_CACHES))
    except TopologyError as error:
        raise PageMoveError(str(error)) from None
    path = os.path.join(root, path)
    if fields is None:
        raise PageMoveError('%s: no such file: there is no such node' % path)
    if fields.get(_TOTAL) == 0:
        raise PageMoveError('%s: node %d has no memory, so none can be moved there' % (path, node))
    if _FREE not in fields:
        raise PageMoveError('%s: no MemFree in it' % path)
    return fields[_FREE] + sum(fields.get(name, 0) for name in _CACHES) // 2
