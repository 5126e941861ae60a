# SPDX-License-Identifier: Apache-2.0
"""Merge nodes that share their memory channels into memory domains.

AMD's L3-as-NUMA shows one node per L3 cache, all behind the same memory controllers;
``core/cache_hierarchy.py`` finds out which nodes these are.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import missing

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

#: The kernel's own; a distance is a byte of ACPI's SLIT.
LOCAL_DISTANCE, REMOTE_DISTANCE, DISTANCE_MAX = 10, 20, 255
#: Nodes nearer than this were one domain in releases that knew distances only [SLIT units].
NEAR_DEFAULT = 12


def distance(view: model.HostView, a: int, b: int) -> float:
    """Return the SLIT distance between two positions; 10 or 20 if the firmware reports none."""
    try:
        return view.distances[a][b]
    except IndexError:
        return LOCAL_DISTANCE if a == b else REMOTE_DISTANCE


def merge(view: model.HostView) -> tuple[model.HostView, tuple[tuple[int, ...], ...]]:
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


def _groups(labels: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    groups: dict[int, list[int]] = {}
    for at, label in enumerate(labels):
        groups.setdefault(label, []).append(at)
    return tuple(map(tuple, groups.values()))


def domains_from_labels(labels: Sequence[Hashable]) -> tuple[int, ...]:
    """Turn labels, equal within a domain, into domains as in :class:`model.HostView`.

    :param labels: by position; () where each is its own
    """
    first: dict[Hashable, int] = {}
    firsts = tuple(first.setdefault(label, at) for at, label in enumerate(labels))
    return () if len(first) == len(firsts) else firsts


def domains_from_distances(
    distances: tuple[tuple[float, ...], ...], threshold: float
) -> tuple[int, ...]:
    """Return the domains of nodes that are connected by distances below a threshold.

    :param distances: by position; what is not square is ignored
    :param threshold: SLIT units
    :returns: as in :class:`model.HostView`
    """
    count = len(distances)
    if (
        threshold <= LOCAL_DISTANCE
        or any(len(row) != count for row in distances)
        or all(
            min(row[:at] + row[at + 1 :], default=threshold) >= threshold
            for at, row in enumerate(distances)
        )
    ):
        return ()
    labels = list(range(count))
    for seed in range(count):
        reached = [seed] if labels[seed] == seed else []
        while reached:
            at = reached.pop()
            for other in range(seed + 1, count):
                if (
                    labels[other] == other
                    and min(distances[at][other], distances[other][at]) < threshold
                ):
                    labels[other] = seed
                    reached.append(other)
    return domains_from_labels(labels)


def threshold(view: model.HostView) -> tuple[float, bool]:
    """Return the distance below which nodes share a domain [SLIT units].

    For readers that know distances only.

    :returns: (distance, whether it yields the same domains; if not, it keeps all nodes apart)
    """
    further = sorted({distance + 1 for row in view.distances for distance in row})
    for below in (NEAR_DEFAULT, LOCAL_DISTANCE, *further):
        if domains_from_distances(view.distances, below) == view.domains:
            return below, True
    return LOCAL_DISTANCE, False


def _mean_distance(view: model.HostView, group: tuple[int, ...], other: tuple[int, ...]) -> float:
    if group == other:
        return LOCAL_DISTANCE
    return sum(distance(view, a, b) for a in group for b in other) / (len(group) * len(other))


def _sum(nodes: list[model.NodeView]) -> model.NodeView:
    """Sum up the nodes of a domain; a figure that one of them lacks is unknown."""
    huge: dict[int, int] = {}
    for node in nodes:
        for page_bytes, free in node.huge_free_bytes:
            huge[page_bytes] = huge.get(page_bytes, 0) + free
    serving = [node for node in nodes if missing.has_memory(node)] or nodes
    links = [node.link_ratio for node in nodes if node.link_ratio is not None]
    cpus = [node.cpus for node in nodes if node.cpus is not None]
    return model.NodeView(
        nodes[0].id,
        sum([node.cores for node in nodes]),
        sum([node.threads for node in nodes]),
        sum([node.capacity_bytes for node in nodes]),
        sum([node.promised_bytes for node in nodes]),
        sum([node.guests for node in nodes]),
        sum([node.vcpus for node in nodes]),
        _total([node.demand_cores for node in nodes if node.cores]),
        _total([node.bandwidth_bytes_per_sec for node in serving]),
        _total([node.bandwidth_max_bytes_per_sec for node in serving]),
        None if len(links) < len(nodes) else max(links),
        tuple(sorted(huge.items())),
        None
        if len(cpus) < len(nodes)
        else frozenset(cpu for node_cpus in cpus for cpu in node_cpus),
    )


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    # Hundredths of cores: of the same ones, the same sum in whichever order.
    return None if len(known) < len(values) else round(sum(known), 6)
