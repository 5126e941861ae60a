# SPDX-License-Identifier: Apache-2.0
"""Find out how much more memory a node can take before its guests suffer."""

from __future__ import annotations

from nova_numa_pmc.exceptions import PageMoveError, TopologyError
from nova_numa_pmc.host.files import NODES, meminfo_bytes, path_of

_TOTAL, _FREE, _CACHES = 'MemTotal', 'MemFree', ('Active(file)', 'Inactive(file)')


def available_bytes(node: int, root: str = '/') -> int:
    """Return a node's free memory and half of its page cache.

    Half, as the kernel assumes of MemAvailable at the least (si_mem_available() in
    mm/show_mem.c), which it does not report per node.

    :raises PageMoveError: there is no such node with memory, or its file is not understood
    """
    path = '%s/node%d/meminfo' % (NODES, node)
    try:
        fields = meminfo_bytes(root, path, (_TOTAL, _FREE, *_CACHES))
    except TopologyError as error:
        raise PageMoveError(str(error)) from None
    path = path_of(root, path)
    if fields is None:
        raise PageMoveError('%s: no such file: there is no such node' % path)
    if fields.get(_TOTAL) == 0:
        raise PageMoveError('%s: node %d has no memory, so none can be moved there' % (path, node))
    if _FREE not in fields:
        raise PageMoveError('%s: no MemFree in it' % path)
    return fields[_FREE] + sum(fields.get(name, 0) for name in _CACHES) // 2
