# SPDX-License-Identifier: Apache-2.0
"""Derive from caches and sockets which nodes share memory channels, and which are near.

From the inside out, CPUs share an L3 cache, nodes share memory channels (as a memory domain), and
memory domains share a socket. SLIT distances do not show which nodes share memory channels: they
are 11 both between sub-NUMA clusters, which have memory controllers of their own, and between the
nodes of AMD's L3-as-NUMA, which have none.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.core.memory_domains import (
    DISTANCE_MAX,
    domains_from_distances,
    domains_from_labels,
)

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from nova_numa_pmc import model

#: Vendors whose CPUs can show L3 caches as nodes (``vendor_id`` of /proc/cpuinfo).
_L3_AS_NUMA_VENDORS = ('AuthenticAMD', 'HygonGenuine')
#: AMD divides a socket by memory controllers into at most this many nodes (NPS4).
_NPS_MAX = 4


def domains(host: model.Topology, placement_options: model.PlacementOptions) -> tuple[int, ...]:
    """Return the memory domains of a host's nodes, as in :class:`model.HostView`.

    * If an L3 cache spans several nodes, they are sub-NUMA clusters, and each node has memory
      channels of its own.
    * If a node spans several L3 caches (AMD's NPS, or one node per socket), it has memory channels
      of its own.
    * If more than four nodes of an AMD socket are one L3 cache each, they are L3-as-NUMA and share
      the memory channels of the socket.
    * Otherwise, and if caches or sockets are unknown, each node has memory channels of its own.

    :param placement_options: their ``domain_distance`` takes precedence unless it is 0
    """
    if placement_options.domain_distance:
        return domains_from_distances(host.distances, placement_options.domain_distance)
    if host.vendor not in _L3_AS_NUMA_VENDORS:
        return ()
    sockets = [
        socket if _is_one_l3(node, l3s) else None
        for node, l3s, socket in zip(host.nodes, host.l3s, host.sockets)
    ]
    return domains_from_labels(
        [
            position if socket is None or sockets.count(socket) <= _NPS_MAX else ('socket', socket)
            for position, socket in enumerate(sockets)
        ]
    )


def _is_one_l3(node: model.Node, l3s: tuple[frozenset[int], ...]) -> bool:
    return len(l3s) == 1 and bool(l3s[0]) and l3s[0] == (node.online_cpus or node.cpus)


def distances(host: model.Topology) -> tuple[tuple[int, ...], ...]:
    """Return SLIT distances that are longer between sockets than within a socket.

    Firmware without a SLIT, or with a flat one, shows no difference between the two. The distances
    between sockets of one node each are returned as they are.
    """
    slit, sockets = host.distances, host.sockets
    if len(slit) != len(sockets) or any(len(row) != len(sockets) for row in slit):
        return slit
    pairs = [
        (a, b)
        for a, socket in enumerate(sockets)
        for b, other_socket in enumerate(sockets)
        if a != b and socket is not None and other_socket is not None
    ]
    within_max = max((slit[a][b] for a, b in pairs if sockets[a] == sockets[b]), default=0)
    too_near_pairs = {
        (a, b) for a, b in pairs if sockets[a] != sockets[b] and slit[a][b] <= within_max
    }
    if not too_near_pairs:
        return slit
    return tuple(
        tuple(
            min(DISTANCE_MAX, within_max + 1) if (a, b) in too_near_pairs else distance
            for b, distance in enumerate(row)
        )
        for a, row in enumerate(slit)
    )
