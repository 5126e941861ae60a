# SPDX-License-Identifier: Apache-2.0
"""Nodes that share their memory channels, as one.

AMD's L3-as-NUMA shows one node per L3 cache, all behind the same memory controllers. Which nodes
do, ``core/hierarchy.py`` tells.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import missing

LOCAL_DISTANCE, REMOTE_DISTANCE = 10, 20
#: Nodes nearer than this were one domain in releases that knew distances only [SLIT units].
NEAR_DEFAULT = 12


def distance(view, a, b):
    """Read the SLIT distance between two positions; firmware that tells none gets the usual."""
    try:
        return view.distances[a][b]
    except IndexError:
        return LOCAL_DISTANCE if a == b else REMOTE_DISTANCE


def merged(view):
    """Merge the nodes of each of the view's domains into one.

    :returns: (view, members): the view by domain, and for each domain the ascending
        tuple of its positions in the view given
    """
    if not view.domains:
        return view, tuple((at,) for at in range(len(view.nodes)))
    groups = _groups(view.domains)
    nodes = tuple(_sum([view.nodes[at] for at in group]) for group in groups)
    distances = tuple(tuple(_mean_distance(view, a, b) for b in groups) for a in groups)
    return model.HostView(nodes, distances, view.rotation), groups


def _groups(labels):
    groups = {}
    for at, label in enumerate(labels):
        groups.setdefault(label, []).append(at)
    return tuple(map(tuple, groups.values()))


def labelled(labels):
    """Return a tuple of labels by position as :class:`model.HostView` has it: equal, one domain.

    :param labels: sequence by position of what is hashable; () where each is its own
    """
    first = {}
    found = tuple(first.setdefault(label, at) for at, label in enumerate(labels))
    return () if len(first) == len(found) else found


def near(distances, threshold):
    """Return the domains of nodes that are connected by distances below a threshold.

    :param distances: tuple of tuples by position; one that isn't square tells nothing
    :param threshold: SLIT units
    :returns: tuple as in :class:`model.HostView`
    """
    count = len(distances)
    if threshold <= LOCAL_DISTANCE or any(len(row) != count for row in distances) or all(
            min(row[:at] + row[at + 1:], default=threshold) >= threshold
            for at, row in enumerate(distances)):
        return ()
    labels = list(range(count))
    for seed in range(count):
        reached = [seed] if labels[seed] == seed else []
        while reached:
            at = reached.pop()
            for other in range(seed + 1, count):
                if labels[other] == other and min(
                        distances[at][other], distances[other][at]) < threshold:
                    labels[other] = seed
                    reached.append(other)
    return labelled(labels)


def threshold(view):
    """Return the distance below which a view's nodes are its domains [SLIT units].

    So those are told to whoever knows distances only.

    :returns: (distance, whether it says all; else it keeps all nodes apart)
    """
    further = sorted({distance + 1 for row in view.distances for distance in row})
    for found in (NEAR_DEFAULT, LOCAL_DISTANCE, *further):
        if near(view.distances, found) == view.domains:
            return found, True
    return LOCAL_DISTANCE, False


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
