# SPDX-License-Identifier: Apache-2.0
"""Handle values that are missing: find out whether all are known, and fill in parts of pressure.

A node must not look better because it reports less. A part that is missing on some of a host's
nodes is therefore assumed to be the upper quartile of the values that are reported. A node whose
true value is at or below that quartile then gains nothing by not reporting it, and one above gains
at most the difference. Among hosts, :func:`agreed_upper` keeps one of them from deciding for all.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Optional, TypeVar

    from nova_numa_pmc.model import NodeView

    _T = TypeVar('_T')
    _HasPart = Callable[[NodeView], bool]
    _RatioOf = Callable[[NodeView], Optional[float]]
    _WithRatio = Callable[[NodeView, float, tuple[NodeView, ...]], NodeView]

#: Codes of the remarks that a part of pressure is assumed for some nodes.
CPU_ASSUMED, BANDWIDTH_ASSUMED, LINK_ASSUMED = (
    'demand_assumed',
    'bandwidth_assumed',
    'link_assumed',
)
#: The least number of hosts whose figures may count for others: of two, none is in the middle.
VOTES_MIN = 3


def all_known(values: Collection[_T | None]) -> list[_T] | None:
    """Return the values, or None if one of them is unknown (None)."""
    known_values = [value for value in values if value is not None]
    return known_values if len(known_values) == len(values) else None


def upper_quartile(values: Sequence[float]) -> float:
    """Return the smallest of the values that at least three quarters of them do not exceed.

    Nothing is interpolated: the upper quartile of two or three values is the largest of them.

    :param values: at least one value
    """
    return sorted(values)[-(-3 * len(values) // 4) - 1]


def is_agreed(known_count: int, count: int) -> bool:
    """Return whether what some of the hosts report may count for those that do not report it."""
    return known_count >= VOTES_MIN and 3 * known_count >= count


def padded(votes: Sequence[float], assumed: float) -> list[float]:
    """Return hosts' figures, with an assumed one for each that lacks to :data:`VOTES_MIN`."""
    return [*votes, *[assumed] * (VOTES_MIN - len(votes))]


def agreed_upper(votes: Sequence[float]) -> float:
    """Return the upper quartile of hosts' figures, but never the highest alone.

    Whatever one host reports, the result is thus between two figures of the others, neighbours by
    size: where these agree, it changes nothing.

    :param votes: at least :data:`VOTES_MIN` values
    """
    return sorted(votes)[min(-(-3 * len(votes) // 4), len(votes) - 1) - 1]


def fill_in(nodes: tuple[NodeView, ...]) -> tuple[tuple[NodeView, ...], tuple[str, ...]]:
    """Fill in the parts of pressure that are known for only some of a host's nodes.

    A part that is unknown for all nodes stays unknown. A node without CPUs has no CPU pressure,
    and a node without memory has no bandwidth: these parts are not missing.

    :returns: (nodes, a code such as :data:`CPU_ASSUMED` for each part that was filled in)
    """
    filled_parts: tuple[str, ...] = ()
    parts: tuple[tuple[str, _HasPart, _RatioOf, _WithRatio], ...] = (
        (CPU_ASSUMED, lambda node: bool(node.cores), _cpu_ratio, _with_cpu_ratio),
        (BANDWIDTH_ASSUMED, reports_memory, _bandwidth_ratio, _with_bandwidth_ratio),
        (LINK_ASSUMED, lambda node: True, lambda node: node.link_ratio, _with_link_ratio),
    )
    for part, has_part, ratio_of, with_ratio in parts:
        known = [ratio for ratio in map(ratio_of, nodes) if ratio is not None]
        if not known or len(known) == sum(map(has_part, nodes)):
            continue
        filled_nodes = list(nodes)
        for position, node in enumerate(nodes):
            if has_part(node) and ratio_of(node) is None:
                filled_nodes[position] = with_ratio(node, upper_quartile(known), nodes)
        nodes = tuple(filled_nodes)
        filled_parts += (part,)
    return nodes, filled_parts


def reports_memory(node: NodeView) -> bool:
    """Return whether a node's figures show that it has memory."""
    return bool(node.capacity_bytes) or node.bandwidth_bytes_per_sec is not None


def _cpu_ratio(node: NodeView) -> float | None:
    return node.demand_cores / node.cores if node.cores and node.demand_cores is not None else None


def _bandwidth_ratio(node: NodeView) -> float | None:
    used, maximum = node.bandwidth_bytes_per_sec, node.bandwidth_max_bytes_per_sec
    return used / maximum if maximum and used is not None else None


def _with_cpu_ratio(node: NodeView, ratio: float, _nodes: tuple[NodeView, ...]) -> NodeView:
    return node._replace(demand_cores=ratio * node.cores)


def _with_bandwidth_ratio(node: NodeView, ratio: float, nodes: tuple[NodeView, ...]) -> NodeView:
    # The lowest maximum, so that a guest's traffic weighs no less here than on another node.
    maximum = node.bandwidth_max_bytes_per_sec or min(
        other.bandwidth_max_bytes_per_sec or 0.0
        for other in nodes
        if _bandwidth_ratio(other) is not None
    )
    return node._replace(
        bandwidth_bytes_per_sec=ratio * maximum, bandwidth_max_bytes_per_sec=maximum
    )


def _with_link_ratio(node: NodeView, ratio: float, _nodes: tuple[NodeView, ...]) -> NodeView:
    return node._replace(link_ratio=ratio)
