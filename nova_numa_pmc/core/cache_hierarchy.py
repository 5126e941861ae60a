# SPDX-License-Identifier: Apache-2.0
"""Derive from caches and sockets which nodes share memory channels, and which are near.

From the inside out, CPUs share an L3 cache, nodes share memory channels (as a memory domain), and
memory domains share a socket. SLIT distances alone do not show which nodes share memory channels:
they are 11 both between sub-NUMA clusters, which have memory controllers of their own, and between
the nodes of AMD's L3-as-NUMA that share theirs. Among nodes that are one L3 cache each, they do.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.core.memory_domains import (
    DISTANCE_MAX,
    NEAR_DEFAULT,
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

    Each node has memory channels of its own, except for AMD's L3-as-NUMA: nodes of a socket that
    are one L3 cache each, divided by :func:`_channel_groups`. If an L3 cache spans several nodes
    (sub-NUMA clusters) or a node several L3 caches (AMD's NPS, or one node per socket), or if
    caches or sockets are unknown, none is assumed to share its channels.

    :param placement_options: their ``domain_distance`` takes precedence unless it is 0
    """
    if placement_options.domain_distance:
        return domains_from_distances(host.distances, placement_options.domain_distance)
    if host.vendor not in _L3_AS_NUMA_VENDORS:
        return ()
    labels = list(range(len(host.nodes)))
    for positions in one_l3_positions(host):
        for group in _channel_groups(host.distances, positions):
            for position in group:
                labels[position] = group[0]
    return domains_from_labels(labels)


def one_l3_positions(host: model.Topology) -> list[tuple[int, ...]]:
    """List for each socket the positions of its nodes that are one L3 cache each, if several."""
    by_socket: dict[int, list[int]] = {}
    for position, (node, l3s, socket) in enumerate(zip(host.nodes, host.l3s, host.sockets)):
        if socket is not None and _is_one_l3(node, l3s):
            by_socket.setdefault(socket, []).append(position)
    return [tuple(positions) for positions in by_socket.values() if len(positions) > 1]


def _channel_groups(
    slit: tuple[tuple[int, ...], ...], positions: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Divide nodes of an AMD socket that are one L3 cache each into those that share channels.

    AMD's firmware reports 11 between nodes behind the same memory controllers, 12 between the up
    to four groups of controllers of a socket (NPS) and 32 between sockets; NPS4 without
    L3-as-NUMA therefore shows four nodes at 12. If the nodes nearer than 12 to each other form
    more than four groups, the firmware has other distances, and the nearest groups are joined
    until there are four or fewer: with a SLIT that says nothing, all nodes of the socket.
    """
    within = tuple(tuple(slit[a][b] for b in positions) for a in positions)
    limits = sorted({distance + 1 for row in within for distance in row})
    for limit in (NEAR_DEFAULT, *(limit for limit in limits if limit > NEAR_DEFAULT)):
        labels = domains_from_distances(within, limit) or tuple(range(len(positions)))
        if len(set(labels)) <= _NPS_MAX:
            break
    return [
        tuple(position for position, other in zip(positions, labels) if other == label)
        for label in sorted(set(labels))
    ]


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
