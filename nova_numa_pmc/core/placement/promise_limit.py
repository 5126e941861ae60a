# SPDX-License-Identifier: Apache-2.0
"""Bound what a guest is promised by what its host could give.

``<maxMemory>`` is address space for memory that may be plugged, and some set it to as much as
the guest's CPU can address. If that much were promised, the guest would leave nothing of the
host to the others.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core.host_view import capacity_bytes, with_guest_memory


def promisable_bytes(
    host: model.Topology,
    limits: model.PlacementOptions,
    page_bytes: int | None = None,
    node_ids: tuple[int, ...] = (),
) -> int:
    """Return the largest promise that a host could make to one guest, alone on it [bytes].

    What the kernel cannot reclaim counts as if it could: it changes all the time, and promises
    would change with it.

    :param page_bytes: of the guest's huge pages, None: normal pages
    :param node_ids: to which others have bound its memory; empty: any
    """
    named = tuple(node for node in host.nodes if node.id in node_ids)
    nodes = named or with_guest_memory(host.nodes, limits)
    if page_bytes is None:
        return sum(capacity_bytes(node._replace(unreclaimable_bytes=0), limits) for node in nodes)
    return sum(
        pool.page_bytes * pool.total
        for node in nodes
        for pool in node.huge_pages
        if pool.page_bytes == page_bytes
    )


def limit_memory(
    guest: model.Guest, host: model.Topology, limits: model.PlacementOptions
) -> tuple[model.Guest, tuple[str, ...]]:
    """Return the guest, its memory limited to what its host could promise, and any problem.

    Memory that could never be plugged on this host does not count: only what the guest has now
    does, as far as the host could give it. Where the host has no huge pages of its size, the
    guest is left as it is, and QEMU reports it.

    :returns: (guest, problems)
    """
    maximum_bytes = promisable_bytes(
        host, limits, guest.page_bytes, guest.mem_nodes if guest.mem_bound else ()
    )
    if guest.memory_bytes <= maximum_bytes or not maximum_bytes:
        return guest, ()
    has = guest.memory_bytes if guest.plugged_bytes is None else guest.plugged_bytes
    promised = min(has, maximum_bytes)
    words = 'it may grow to %d MiB, but the host has at most %d MiB: %d MiB are promised, %s' % (
        guest.memory_bytes >> 20,
        maximum_bytes >> 20,
        promised >> 20,
        'what it has now' if promised == has else 'all of that',
    )
    return guest._replace(memory_bytes=promised), (words,)
