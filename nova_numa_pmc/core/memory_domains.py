# SPDX-License-Identifier: Apache-2.0
"""Find the nodes that share memory channels, which are one memory domain, and merge them.

From the inside out, CPUs share an L3 cache, nodes share memory channels, and memory domains share
a socket. SLIT distances alone do not show which nodes share memory channels: they are 11 both
between sub-NUMA clusters, which have memory controllers of their own, and between the nodes of
AMD's L3-as-NUMA that share theirs. Among nodes that are one L3 cache each, they do.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

#: The kernel's defaults, and the highest value: a distance is a byte of ACPI's SLIT.
LOCAL_DISTANCE, REMOTE_DISTANCE, DISTANCE_MAX = 10, 20, 255
#: Nodes of AMD's L3-as-NUMA nearer than this share memory channels [SLIT units].
_NEAR = 12
#: Vendors whose CPUs can show L3 caches as nodes (``vendor_id`` of /proc/cpuinfo).
_L3_AS_NUMA_VENDORS = ('AuthenticAMD', 'HygonGenuine')
#: AMD divides a socket by memory controllers into at most this many nodes (NPS4).
_NPS_MAX = 4


def distance(view: model.HostView, a: int, b: int) -> float:
    """Return the SLIT distance from position ``a`` to ``b``.

    It is 10 (local) or 20 (remote) if the firmware does not report one.
    """
    try:
        return view.distances[a][b]
    except IndexError:
        return LOCAL_DISTANCE if a == b else REMOTE_DISTANCE


def is_memoryless(node: model.NodeView) -> bool:
    """Return whether a node has no memory that guests may be promised."""
    return not node.capacity_bytes and not node.huge_free_bytes


def first_touch_positions(view: model.HostView) -> list[int | None]:
    """Return by position from which node the kernel takes what the node's CPUs touch first.

    It is the node itself or, if that has no memory, the first of its fallback list. As
    build_zonelists() and find_next_best_node() in the kernel's mm/page_alloc.c do at boot, nodes
    are sorted by their distance, plus 1 if they precede the node, then by how often they were the
    first at their distance in the lists of nodes with lower ids, which has been accumulated since
    5.16. Nodes with CPUs are not put behind others, because the lists are built before any CPU is
    on its node. The kernel's log has the result ("Fallback order for Node N").

    Where firmware has no distances, those of :func:`distances` are used instead,
    and the lists that the kernel builds when memory is plugged in are not known.

    :returns: for each position a position, or None if no node has memory
    """
    positions = range(len(view.nodes))
    with_memory = [n for n in positions if not is_memoryless(view.nodes[n])]
    if len(with_memory) == len(positions):
        return list(positions)
    lists_with_it_first = [0] * len(positions)
    first_positions: list[int | None] = []
    for local in positions:
        order, remaining = [local], set(with_memory) - {local}
        while remaining:
            nearest = min(
                remaining,
                key=lambda n: (distance(view, local, n) + (n < local), lists_with_it_first[n], n),
            )
            if distance(view, local, nearest) != distance(view, local, order[-1]):
                lists_with_it_first[nearest] += 1
            order.append(nearest)
            remaining.remove(nearest)
        if is_memoryless(view.nodes[local]):
            del order[0]
        first_positions.append(order[0] if order else None)
    return first_positions


def merge(view: model.HostView) -> tuple[model.HostView, tuple[tuple[int, ...], ...]]:
    """Merge the nodes of each memory domain of a view into one.

    :returns: (view by domain, for each domain the ascending positions of its nodes in the view
        given)
    """
    if not view.domains:
        return view, tuple((position,) for position in range(len(view.nodes)))
    groups = _groups(view.domains)
    nodes = tuple(_sum([view.nodes[position] for position in group]) for group in groups)
    distances = tuple(tuple(_mean_distance(view, a, b) for b in groups) for a in groups)
    return model.HostView(nodes, distances, view.rotation), groups


def _groups(labels: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    groups: dict[int, list[int]] = {}
    for position, label in enumerate(labels):
        groups.setdefault(label, []).append(position)
    return tuple(map(tuple, groups.values()))


def domains_from_labels(labels: Sequence[Hashable]) -> tuple[int, ...]:
    """Turn labels that are equal within a domain into domains as in :class:`model.HostView`.

    :param labels: the label of each position
    :returns: () if each position is a domain of its own
    """
    first_positions: dict[Hashable, int] = {}
    domains = tuple(
        first_positions.setdefault(label, position) for position, label in enumerate(labels)
    )
    return () if len(first_positions) == len(domains) else domains


def domains_from_distances(
    distances: tuple[tuple[float, ...], ...], limit: float
) -> tuple[int, ...]:
    """Return the domains of nodes that are connected by distances below a limit.

    :param distances: distances by position; a matrix that is not square is ignored
    :param limit: the distance from which on nodes are not connected [SLIT units]
    :returns: domains as in :class:`model.HostView`
    """
    count = len(distances)
    if (
        limit <= LOCAL_DISTANCE
        or any(len(row) != count for row in distances)
        or all(
            min(row[:position] + row[position + 1 :], default=limit) >= limit
            for position, row in enumerate(distances)
        )
    ):
        return ()
    labels = list(range(count))
    for seed in range(count):
        pending = [seed] if labels[seed] == seed else []
        while pending:
            position = pending.pop()
            for other in range(seed + 1, count):
                if (
                    labels[other] == other
                    and min(distances[position][other], distances[other][position]) < limit
                ):
                    labels[other] = seed
                    pending.append(other)
    return domains_from_labels(labels)


def _mean_distance(view: model.HostView, group: tuple[int, ...], other: tuple[int, ...]) -> float:
    if group == other:
        return LOCAL_DISTANCE
    return sum(distance(view, a, b) for a in group for b in other) / (len(group) * len(other))


def _sum(nodes: list[model.NodeView]) -> model.NodeView:
    """Sum up the nodes of a domain; a figure that is unknown for one of them is unknown."""
    huge_free_bytes: dict[int, int] = {}
    for node in nodes:
        for page_bytes, free_bytes in node.huge_free_bytes:
            huge_free_bytes[page_bytes] = huge_free_bytes.get(page_bytes, 0) + free_bytes
    memory_nodes = [node for node in nodes if missing.reports_memory(node)] or nodes
    link_ratios = missing.all_known([node.link_ratio for node in nodes])
    cpu_sets = missing.all_known([node.cpus for node in nodes])
    return model.NodeView(
        nodes[0].id,
        sum([node.cores for node in nodes]),
        sum([node.cpu_count for node in nodes]),
        sum([node.capacity_bytes for node in nodes]),
        sum([node.promised_bytes for node in nodes]),
        sum([node.guests for node in nodes]),
        sum([node.vcpus for node in nodes]),
        _total([node.demand_cores for node in nodes if node.cores]),
        _total([node.bandwidth_bytes_per_sec for node in memory_nodes]),
        _total([node.bandwidth_max_bytes_per_sec for node in memory_nodes]),
        None if link_ratios is None else max(link_ratios),
        tuple(sorted(huge_free_bytes.items())),
        None
        if cpu_sets is None
        else frozenset(cpu for node_cpus in cpu_sets for cpu in node_cpus),
    )


def _total(values: list[float | None]) -> float | None:
    known_values = missing.all_known(values)
    # Rounded, so that the sum does not depend on the order: values are in hundredths of cores.
    return None if known_values is None else round(sum(known_values), 6)


def domains(host: model.Topology) -> tuple[int, ...]:
    """Return the memory domains of a host's nodes, as in :class:`model.HostView`.

    Each node has memory channels of its own, except for AMD's L3-as-NUMA: nodes of a socket that
    are one L3 cache each, divided by :func:`_channel_groups`. If an L3 cache spans several nodes
    (sub-NUMA clusters) or a node several L3 caches (AMD's NPS, or one node per socket), or if
    caches or sockets are unknown, none is assumed to share its channels.
    """
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
    for limit in (_NEAR, *(limit for limit in limits if limit > _NEAR)):
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
