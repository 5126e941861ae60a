# SPDX-License-Identifier: Apache-2.0
"""Derive the pressure on each NUMA node, and what makes its memory slower.

Cores are core-seconds per second, lines are cache lines of 64 bytes, latencies are in nanoseconds.
Sequences have one item for each node, in the order of positions. ``None`` means unknown, never 0;
an unknown part is left out and not assumed.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc import model

LINE_BYTES = 64
#: Latency of local memory if it was not measured (two-socket servers have 60 to 100 ns).
LOCAL_LATENCY_NS = 80.0
#: Memory-level parallelism, the number of cache misses that a core waits for at the same time: 1
#: for events that count demand loads, 4 for events that count prefetches, too. Both are assumed:
#: the first is the worst case, the second a usual one.
MLP_DEMAND, MLP_WITH_PREFETCH = 1, 4
#: Queueing adds this part of the local latency at u/(1 − u) = 1. Assumed, with the shape of an
#: M/M/1 queue; Intel's Memory Latency Checker shows such curves.
QUEUEING_FACTOR = 0.15
#: Above this utilisation the latency follows its tangent, so that it stays finite.
QUEUEING_KNEE = 0.95

_AT_KNEE, _SLOPE_AT_KNEE = QUEUEING_KNEE / (1 - QUEUEING_KNEE), 1 / (1 - QUEUEING_KNEE) ** 2


class NodePressure(Record):
    """Utilisations of a node and the highest known one.

    0 is idle, 1 is saturated, and above 1 the node is overloaded.
    """

    cpu_ratio: float | None
    bandwidth_ratio: float | None
    link_ratio: float | None
    pressure: float | None


def node_pressure(
    cpu_ratio: float | None, bandwidth_ratio: float | None, link_ratio: float | None
) -> NodePressure:
    """Return a node's utilisations with the highest of those that are known.

    The utilisation of a resource whose maximum is unknown is unknown, too: if the highest value
    seen were assumed to be the maximum, an idle host would read 1.0. Remote accesses are not part
    of pressure, because they are a loss; neither is promised memory, which is a constraint.
    """
    known_ratios = [
        ratio for ratio in (cpu_ratio, bandwidth_ratio, link_ratio) if ratio is not None
    ]
    return NodePressure(cpu_ratio, bandwidth_ratio, link_ratio, max(known_ratios, default=None))


def view_pressure(node: model.NodeView) -> NodePressure:
    """Return the utilisations of a node as it was published."""
    from nova_numa_pmc.core import rates  # which the hook does not need

    return node_pressure(
        rates.ratio(node.demand_cores, node.cores),
        rates.ratio(node.bandwidth_bytes_per_sec, node.bandwidth_max_bytes_per_sec),
        node.link_ratio,
    )


def slit_latencies_ns(
    distances: Sequence[Sequence[float]], local_ns: float
) -> tuple[tuple[float, ...], ...]:
    """Return unloaded latencies estimated from SLIT distances, ℓ_nm = local · d_nm / d_nn [ns].

    Use them only if no latencies were measured, and label them as an estimate.
    """
    return tuple(
        tuple(local_ns * distance / row[n] for distance in row) for n, row in enumerate(distances)
    )


def queueing_at(utilisation_ratio: float) -> float:
    """Return q(u) = u/(1 − u), continued along its tangent above u = 0.95."""
    u = utilisation_ratio
    return u / (1 - u) if u < QUEUEING_KNEE else _AT_KNEE + (u - QUEUEING_KNEE) * _SLOPE_AT_KNEE


def added_queueing(utilisation_ratio: float) -> float:
    """Return the queueing that one more access adds to all accesses, including itself.

    :returns: d(u·q)/du, with q as in :func:`queueing_at`; it is 1/(1 − u)² − 1 up to u = 0.95
    """
    u = utilisation_ratio
    return 1 / (1 - u) ** 2 - 1 if u < QUEUEING_KNEE else queueing_at(u) + u * _SLOPE_AT_KNEE
