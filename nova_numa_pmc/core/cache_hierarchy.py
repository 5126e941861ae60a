# SPDX-License-Identifier: Apache-2.0
"""Derive from caches and sockets which nodes share memory channels, and which are near.

From the inside out: CPUs share an L3 cache, nodes share memory channels (a domain), domains a
socket. SLIT distances alone do not show which nodes share channels: both sub-NUMA clusters, which
have controllers of their own, and AMD's L3-as-NUMA, whose nodes have none, are 11 apart.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core.memory_domains import (
    DISTANCE_MAX,
    domains_from_distances,
    domains_from_labels,
)

#: Vendors whose CPUs can show L3 caches as nodes (``vendor_id`` of /proc/cpuinfo).
_L3_AS_NUMA = ('AuthenticAMD', 'HygonGenuine')
#: The most nodes per socket that AMD makes by memory controllers (NPS4).
_BY_CONTROLLERS_MAX = 4


def domains(host: model.Topology, limits: model.PlacementOptions) -> tuple[int, ...]:
    """Return the nodes that share memory channels, as in :class:`model.HostView`.

    * An L3 cache that spans several nodes: sub-NUMA clustering, each with its own controllers.
    * A node that spans several L3 caches: AMD's NPS, or one node a socket: its own.
    * A node that is one L3 cache, on AMD, with more than four nodes on its socket: L3-as-NUMA;
      the nodes of the socket share theirs.
    * Else, and where caches or sockets are not known: its own.

    :param limits: whose ``domain_distance``, where not 0, takes precedence
    """
    if limits.domain_distance:
        return domains_from_distances(host.distances, limits.domain_distance)
    if host.vendor not in _L3_AS_NUMA:
        return ()
    sockets = [
        socket if _is_one_l3(node, l3s) else None
        for node, l3s, socket in zip(host.nodes, host.l3s, host.sockets)
    ]
    return domains_from_labels(
        [
            at
            if socket is None or sockets.count(socket) <= _BY_CONTROLLERS_MAX
            else ('socket', socket)
            for at, socket in enumerate(sockets)
        ]
    )


def _is_one_l3(node: model.Node, l3s: tuple[frozenset[int], ...]) -> bool:
    return len(l3s) == 1 and bool(l3s[0]) and l3s[0] == (node.online_cpus or node.cpus)


def distances(host: model.Topology) -> tuple[tuple[int, ...], ...]:
    """Return SLIT distances in which no node of another socket is as near as one's own.

    Firmware without a SLIT, or with a flat one, shows no difference. Two sockets of one node each
    stay as they are.
    """
    far, sockets = host.distances, host.sockets
    if len(far) != len(sockets) or any(len(row) != len(sockets) for row in far):
        return far
    pairs = [
        (a, b)
        for a, socket in enumerate(sockets)
        for b, other in enumerate(sockets)
        if a != b and socket is not None and other is not None
    ]
    within = max((far[a][b] for a, b in pairs if sockets[a] == sockets[b]), default=0)
    beyond = {(a, b) for a, b in pairs if sockets[a] != sockets[b] and far[a][b] <= within}
    if not beyond:
        return far
    return tuple(
        tuple(
            min(DISTANCE_MAX, within + 1) if (a, b) in beyond else distance
            for b, distance in enumerate(row)
        )
        for a, row in enumerate(far)
    )
