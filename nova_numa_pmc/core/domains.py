# SPDX-License-Identifier: Apache-2.0
"""Nodes that share their memory channels, as one.

AMD's L3-as-NUMA shows one node per L3 cache, all behind the same memory controllers.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import missing

LOCAL_DISTANCE, REMOTE_DISTANCE = 10, 20


def distance(view, a, b):
    """Read the SLIT distance between two positions; firmware that tells none gets the usual."""
    try:
        return view.distances[a][b]
    except IndexError:
        return LOCAL_DISTANCE if a == b else REMOTE_DISTANCE


def merged(view, limits):
    """Merge nodes nearer than ``limits.domain_distance`` into one each.

    :returns: (view, members): the view by domain, and for each domain the ascending
        tuple of its positions in the view given
    """
    groups = _groups(view, limits.domain_distance)
    if len(groups) == len(view.nodes):
        return view, groups
    nodes = tuple(_sum([view.nodes[at] for at in group]) for group in groups)
    distances = tuple(tuple(_mean_distance(view, a, b) for b in groups) for a in groups)
    return model.HostView(nodes, distances, view.rotation), groups


def _groups(view, threshold):
    """Partition positions into those connected by distances below the threshold."""
    count = len(view.nodes)
    if threshold <= LOCAL_DISTANCE or all(
            min(row[:at] + row[at + 1:], default=threshold) >= threshold
            for at, row in enumerate(view.distances)):
        return tuple((at,) for at in range(count))
    left, groups = set(range(count)), []
    while left:
        group = set()
        reached = {min(left)}
        while reached:
            at = reached.pop()
            group.add(at)
            left.discard(at)
            reached |= {other for other in left if distance(view, at, other) < threshold
                        or distance(view, other, at) < threshold}
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def _mean_distance(view, group, other):
    if group == other:
        return LOCAL_DISTANCE
    return sum(distance(view, a, b) for a in group for b in other) / (len(group) * len(other))


def _sum(nodes):
    """Add up nodes; a part that one of them doesn't know, their domain doesn't know."""
    def total(field, of=nodes):
        values = [getattr(node, field) for node in of]
        return None if None in values else sum(values)

    huge = {}
    for node in nodes:
        for page_bytes, free in node.huge_free_bytes:
            huge[page_bytes] = huge.get(page_bytes, 0) + free
    serving = [node for node in nodes if missing.serves(node)] or nodes
    links = [node.link_ratio for node in nodes]
    cpus = None if any(node.cpus is None for node in nodes) else frozenset().union(
        *(node.cpus for node in nodes))
    return model.NodeView(
        nodes[0].id, total('cores'), total('threads'), total('capacity_bytes'),
        total('promised_bytes'), total('guests'), total('vcpus'),
        total('demand_cores', [node for node in nodes if node.cores]),
        total('bandwidth_bytes_per_sec', serving), total('bandwidth_max_bytes_per_sec', serving),
        None if None in links else max(links), tuple(sorted(huge.items())), cpus)
