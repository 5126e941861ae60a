# SPDX-License-Identifier: Apache-2.0
"""Read the pools of huge pages of each node.

A kernel without NUMA has them in ``/sys/kernel/mm/hugepages`` only. Format: the kernel's
Documentation/ABI/testing/sysfs-kernel-mm-hugepages and sysfs-devices-node.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.host.kernel_files import path_of, read_text, whole_number

_HOST = 'sys/kernel/mm/hugepages'
_NODE = 'sys/devices/system/node/node%d/hugepages'


def with_pools(root: str, nodes: tuple[model.Node, ...]) -> tuple[model.Node, ...]:
    """Return nodes with their pools of huge pages.

    Pages that the host has and no node tells of are divided evenly over the nodes with memory
    that tell none, as the kernel does when it makes them: free ones rounded down, all rounded up.

    :raises TopologyError: a file is malformed
    """
    pools = {node.id: [] for node in nodes}
    for name, host_total in _sizes(root):
        size = whole_number(root, f'{_HOST}/{name}',
                            name.removeprefix('hugepages-').removesuffix('kB'), 1 << 40) << 10
        for number, total, free in _of_size(root, name, host_total, nodes):
            pools[number].append((size, total, free))
    return tuple(_with_pools(node, pools[node.id]) if pools[node.id] else node for node in nodes)


def _sizes(root):
    """List (directory's name, pages) of the page sizes of which the host has any pages."""
    try:
        names = os.listdir(path_of(root, _HOST))
    except OSError:
        return []
    found = [(name, _read_pages(root, f'{_HOST}/{name}/nr_hugepages')) for name in sorted(names)]
    return [(name, total) for name, total in found if total]


def _of_size(root, name, host_total, nodes):
    """List (node id, pages, free pages) of one page size."""
    found, silent = [], []
    for node in nodes:
        path = _NODE % node.id + '/' + name
        total = _read_pages(root, path + '/nr_hugepages')
        if total is None:
            silent.append(node)
        elif total:
            found.append((node.id, total, _read_pages(root, path + '/free_hugepages') or 0))
    silent = [node for node in silent if node.memory_bytes]
    rest = host_total - sum(total for _, total, _ in found)
    if silent and rest > 0:
        free = ((_read_pages(root, f'{_HOST}/{name}/free_hugepages') or 0)
                - sum(free for _, _, free in found))
        found += [(node.id, -(-rest // len(silent)), max(0, free) // len(silent))
                  for node in silent]
    return found


def _with_pools(node, pools):
    """Return a node with pools that are no larger than its memory, nor freer than large."""
    found = []
    for size, total, free in sorted(pools):
        total = min(total, node.memory_bytes // size) if size else 0
        if total:
            found.append(model.HugePages(size, total, min(free, total)))
    return node._replace(huge_pages=tuple(found))


def _read_pages(root, path):
    text = read_text(root, path)
    return None if text is None else whole_number(root, path, text, 1 << 50)
