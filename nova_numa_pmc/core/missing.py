# SPDX-License-Identifier: Apache-2.0
"""Fill in parts of pressure that only some nodes or hosts report.

A host that reports less must not look better. A missing part is assumed to be the upper quartile
of those that report it. Hiding a part then gains nothing at or below that quartile, and at most
the distance to it above. If the part were left out for all, or assumed to be the mean, hosts that
report nothing would win.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.model import NodeView

#: The parts of a node's pressure.
CPU, BANDWIDTH, LINK = 'demand', 'bandwidth', 'link'


def upper_quartile(values: Sequence[float]) -> float:
    """Return the smallest value that at least three quarters of the values do not exceed.

    It is always one of the values, never interpolated: of two or three it is the largest.

    :param values: not empty
    """
    return sorted(values)[-(-3 * len(values) // 4) - 1]


def fill_in(nodes: tuple[NodeView, ...]) -> tuple[tuple[NodeView, ...], tuple[str, ...]]:
    """Fill in the parts of pressure that are known of some of a host's nodes only.

    What no node knows stays unknown. A node without CPUs has no CPU pressure and one without
    memory no bandwidth: that is not missing.

    :returns: (nodes, tuple of the parts that were filled in)
    """
    filled: tuple[str, ...] = ()
    for part, fill in ((CPU, _with_demand), (BANDWIDTH, _with_bandwidth), (LINK, _with_link)):
        filled_in = fill(nodes)
        if filled_in is not None:
            nodes, filled = filled_in, (*filled, part)
    return nodes, filled


def has_memory(node: NodeView) -> bool:
    """Return whether a node has memory, as far as its figures show."""
    return bool(node.capacity_bytes) or node.bandwidth_bytes_per_sec is not None


def _with_demand(nodes: tuple[NodeView, ...]) -> tuple[NodeView, ...] | None:
    ratios = [
        node.demand_cores / node.cores
        for node in nodes
        if node.cores and node.demand_cores is not None
    ]
    if not ratios or len(ratios) == sum(1 for node in nodes if node.cores):
        return None
    assumed = upper_quartile(ratios)
    return tuple(
        node
        if node.demand_cores is not None or not node.cores
        else node._replace(demand_cores=assumed * node.cores)
        for node in nodes
    )


def _with_bandwidth(nodes: tuple[NodeView, ...]) -> tuple[NodeView, ...] | None:
    known = [
        (node.bandwidth_bytes_per_sec, node.bandwidth_max_bytes_per_sec)
        for node in nodes
        if node.bandwidth_bytes_per_sec is not None and node.bandwidth_max_bytes_per_sec
    ]
    if not known or len(known) == sum(1 for node in nodes if has_memory(node)):
        return None
    assumed = upper_quartile([served / maximum for served, maximum in known])
    # The lowest, so that what a guest adds counts no less here than elsewhere.
    lowest = min(maximum for _, maximum in known)
    filled = []
    for node in nodes:
        if has_memory(node) and not _knows_bandwidth(node):
            maximum = node.bandwidth_max_bytes_per_sec or lowest
            node = node._replace(
                bandwidth_bytes_per_sec=assumed * maximum, bandwidth_max_bytes_per_sec=maximum
            )
        filled.append(node)
    return tuple(filled)


def _knows_bandwidth(node: NodeView) -> bool:
    return node.bandwidth_bytes_per_sec is not None and bool(node.bandwidth_max_bytes_per_sec)


def _with_link(nodes: tuple[NodeView, ...]) -> tuple[NodeView, ...] | None:
    ratios = [node.link_ratio for node in nodes if node.link_ratio is not None]
    if not ratios or len(ratios) == len(nodes):
        return None
    assumed = upper_quartile(ratios)
    return tuple(
        node if node.link_ratio is not None else node._replace(link_ratio=assumed)
        for node in nodes
    )
