# SPDX-License-Identifier: Apache-2.0
"""Read how many bytes of a process's huge pages are on each node.

The libvirt hook imports this module for guests with huge pages, so it imports only light modules.
"""

from __future__ import annotations

import os

from nova_numa_pmc.host.files import read_kernel_file
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_bytes_by_node(pid: int | None, root: str = '/') -> dict[int, int]:
    """Return the bytes of a process's huge pages on each node, from ``/proc/PID/numa_maps``.

    ``memory.numa_stat`` does not include huge pages from a pool, and libvirt's control groups have
    no hugetlb controller. The kernel walks the page tables for this file, which is cheap for a
    guest on huge pages, but not for others.

    :param pid: id of the process, or None if it is not known
    :returns: {node id: bytes}; empty if there are none or the kernel does not report them
    """
    bytes_by_node: dict[int, int] = {}
    if pid is None:
        return bytes_by_node
    try:
        lines = read_kernel_file(os.path.join(root, 'proc/%d/numa_maps' % pid)).splitlines()
        for line in lines:
            words = line.split(' ')
            counts = [
                (int(node[1:]), int(pages))
                for node, equals, pages in [word.partition('=') for word in words]
                if equals and node[:1] == 'N' and node[1:].isdigit()
            ]
            if 'huge' not in words or not counts:  # the kernel names no size if there are no pages
                continue
            page_bytes = next(
                int(word[18:]) << 10 for word in words if word.startswith('kernelpagesize_kB=')
            )
            for node, pages in counts:
                bytes_by_node[node] = bytes_by_node.get(node, 0) + pages * page_bytes
    except (OSError, ValueError, StopIteration):
        return {}
    return bytes_by_node


def add_huge_pages(
    bytes_by_node: Mapping[int, int], pid: int | None, root: str = '/'
) -> dict[int, int] | None:
    """Return all memory of a guest that is backed by huge pages from a pool, with these pages.

    :param bytes_by_node: the rest of its memory, as read by :func:`cgroups.read_memory_by_node`
    :returns: {node id: bytes}; None if its huge pages are unknown, since the rest is then QEMU's
        own memory and not the guest's
    """
    huge_bytes = read_bytes_by_node(pid, root)
    if not huge_bytes:
        return None
    return {
        node: bytes_by_node.get(node, 0) + huge_bytes.get(node, 0)
        for node in {*bytes_by_node, *huge_bytes}
    }
