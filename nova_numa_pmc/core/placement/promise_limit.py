# SPDX-License-Identifier: Apache-2.0
"""Limit what a guest is promised to what its host could give.

``<maxMemory>`` is address space for memory that may be plugged, and may be set to as much as the
guest's CPU can address. If that much were promised, no memory of the host would be left for other
guests.
"""

from __future__ import annotations

from nova_numa_pmc.core.host_view import capacity_bytes, with_guest_memory_only

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from nova_numa_pmc import model


def promisable_bytes(
    host: model.Topology,
    placement_options: model.PlacementOptions,
    page_bytes: int | None = None,
    node_ids: tuple[int, ...] = (),
) -> int:
    """Return the most memory that a host could promise to a guest if it were alone [bytes].

    Memory that the kernel cannot reclaim counts as if it could: its amount changes all the time,
    and promises would change with it.

    :param page_bytes: size of the guest's huge pages; None for normal pages
    :param node_ids: ids of the nodes that others have bound its memory to; empty for any nodes
    """
    bound_nodes = tuple(node for node in host.nodes if node.id in node_ids)
    nodes = bound_nodes or with_guest_memory_only(host.nodes, placement_options)
    if page_bytes is None:
        return sum(
            capacity_bytes(node._replace(unreclaimable_bytes=0), placement_options)
            for node in nodes
        )
    return sum(
        pool.page_bytes * pool.total
        for node in nodes
        for pool in node.huge_pages
        if pool.page_bytes == page_bytes
    )


def limit_memory(
    guest: model.Guest, host: model.Topology, placement_options: model.PlacementOptions
) -> tuple[model.Guest, tuple[str, ...]]:
    """Limit the memory of a guest to what its host could promise.

    If the guest could grow beyond that, only the memory that it has now counts, up to what the
    host could give. If the host has no huge pages of the guest's page size, the guest is returned
    as it is, and QEMU reports the error.

    :returns: (guest, problems)
    """
    promisable_max_bytes = promisable_bytes(
        host, placement_options, guest.page_bytes, guest.numatune_nodes if guest.mem_bound else ()
    )
    if guest.memory_bytes <= promisable_max_bytes or not promisable_max_bytes:
        return guest, ()
    present_bytes = guest.memory_bytes if guest.plugged_bytes is None else guest.plugged_bytes
    promised_bytes = min(present_bytes, promisable_max_bytes)
    problem = (
        'it may grow to %d MiB, but the host has at most %d MiB: it is promised %d MiB, %s'
        % (
            guest.memory_bytes >> 20,
            promisable_max_bytes >> 20,
            promised_bytes >> 20,
            'the memory that it has now'
            if promised_bytes == present_bytes
            else 'all that the host has',
        )
    )
    return guest._replace(memory_bytes=promised_bytes), (problem,)
