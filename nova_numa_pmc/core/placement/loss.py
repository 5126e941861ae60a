# SPDX-License-Identifier: Apache-2.0
"""Estimate what the guests of a host would lose because of one more guest.

This is the loss of :mod:`nova_numa_pmc.core.pressure`, estimated before it occurs: CPU demand that
has to wait on the nodes that the guest would use, and cache lines that take longer because they
come from another node or from busy memory. It is 0 where nothing waits, no memory is busy and the
guest fits on one node.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

import math

from nova_numa_pmc.core import memory_domains, missing
from nova_numa_pmc.core.host_view import demand_or_prior
from nova_numa_pmc.core.pressure import (
    LINE_BYTES,
    LOCAL_LATENCY_NS,
    MLP_WITH_PREFETCH,
    QUEUEING_FACTOR,
    added_queueing,
)
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.model import HostView

    _Column = Sequence[float]

#: Variance of a node's demand, relative to its mean [cores]: that of guests with six vCPUs which
#: want a fifth of them, in bursts that a guest's vCPUs have in common (assumed).
VARIANCE_RATIO = 2.0
#: The demand that waits because of a guest is divided by the guest's demand, but at least by this
#: [cores].
DEMAND_MIN_CORES = 0.25
#: Cache lines that a guest is assumed to transfer per core-second if no host has measured any:
#: 0.64 GB.
LINES_PER_CORE_SEC = 1e7
#: What a guest without evidence is expected to want is half of its vCPUs; so much more it may want
#: at its peak. See :func:`peak_cores`.
PEAK_RATIO = 2.0
#: Weight of the mean of a host's nodes in :func:`met_on_host`. With a half, hosts that are packed
#: lose 3 percent more in the arena.
_HOST_SHARE = 0.8
#: A place on more nodes has to save at least this share of what the guest wants.
GAIN_MIN_RATIO = 0.01
_SQRT_2, _SQRT_2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


def met_on_host(mean: float, node: float) -> float:
    """Return what a guest meets in the long run on a host, where hosts are compared.

    It is between the node that it gets when it starts and the mean of the host's nodes, which it
    meets once others have arrived and the agent has moved guests.

    :param mean, node: demand, or traffic, on the mean of the nodes and on that node
    """
    return _HOST_SHARE * mean + (1 - _HOST_SHARE) * node


class Columns(Record):
    """What a loss depends on, by position: what is unknown is assumed or 0.0.

    :param bandwidth, bandwidth_max, link: [bytes/s], [bytes/s], utilisation; may be empty if none
        of their values is known
    :param memory_positions: where there is memory for guests, and unbound memory may be
    :param vcpus: those of the guests that are there
    """

    cores: _Column
    demand: _Column
    bandwidth: _Column
    bandwidth_max: _Column
    link: _Column
    distances: Sequence[_Column]
    memory_positions: Sequence[int]
    vcpus: _Column


def columns(view: HostView) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns of a host, and the codes of what is assumed (:func:`missing.fill_in`)."""
    nodes, assumed = missing.fill_in(view.nodes)
    everywhere = range(len(nodes))
    return Columns(
        [node.cores for node in nodes],
        [demand_or_prior(node) if node.cores else 0.0 for node in nodes],
        [node.bandwidth_bytes_per_sec or 0.0 for node in nodes],
        [
            node.bandwidth_max_bytes_per_sec or 0.0
            if node.bandwidth_bytes_per_sec is not None
            else 0.0
            for node in nodes
        ],
        [node.link_ratio or 0.0 for node in nodes],
        view.distances
        if [*map(len, view.distances)] == [len(nodes)] * len(nodes)
        else tuple(
            tuple(memory_domains.distance(view, a, b) for b in everywhere) for a in everywhere
        ),
        [position for position, node in enumerate(nodes) if node.capacity_bytes] or everywhere,
        [node.vcpus for node in nodes],
    ), assumed


def peak_cores(vcpus: float, demand_cores: float) -> float:
    """Return how many cores a guest may want: twice what is expected, at most its vCPUs.

    A place has to have that many cores, and not only threads, or waiting costs more than any
    distance. Without evidence, these are all of a guest's vCPUs; so they are if its peers use what
    they have. Peers that want a fifth of it show that a node with fewer cores than vCPUs will do.
    What waits on average is computed from the expected demand, as everywhere.
    """
    return min(vcpus, PEAK_RATIO * demand_cores)


def guest_lines(demand_cores: float, bytes_per_sec: float | None) -> float:
    """Return a guest's cache lines per core-second, from its traffic or else assumed."""
    if bytes_per_sec is None or not demand_cores:
        return LINES_PER_CORE_SEC
    return bytes_per_sec / demand_cores / LINE_BYTES


def of_place(
    host: Columns,
    cpu_positions: Sequence[int],
    mem_positions: Sequence[int],
    vcpus: float,
    demand_cores: float,
    lines_per_core_sec: float,
    is_smallest: bool,
) -> float:
    """Return what guests lose at once if a guest gets a place on its host, relative to its demand.

    :param cpu_positions, mem_positions: the place; no ``mem_positions``: memory may be anywhere
    :param lines_per_core_sec: cache lines that the guest transfers per core-second
    :param is_smallest: whether no fewer nodes hold the guest. If these have a core for each vCPU,
        nothing is to be gained elsewhere; that more nodes have one is no gain by itself. If it
        were, a host would look worse shortly before its nodes are full than when they are
    """
    memory, link_ratio, latency_ns = mem_positions or host.memory_positions, 0.0, 0.0
    if host.bandwidth_max:
        bytes_per_sec = demand_cores * lines_per_core_sec * LINE_BYTES
        latency_ns = _queueing_ns(host, memory, bytes_per_sec)
    if len(cpu_positions) > 1 or mem_positions != cpu_positions:
        if host.link:
            link_ratio = max([host.link[at] for at in (*cpu_positions, *mem_positions)])
        latency_ns += _distance_ns(host, cpu_positions, memory, link_ratio)
    waiting_cores = _waiting_cores(
        host, cpu_positions, demand_cores, vcpus if is_smallest else math.inf
    )
    return relative_loss(waiting_cores, demand_cores, lines_per_core_sec, latency_ns)


def relative_loss(
    waiting_cores: float, demand_cores: float, lines_per_core_sec: float, latency_ns: float
) -> float:
    """Return what is lost because of a guest, relative to its demand.

    :param waiting_cores: demand that waits because of it
    :param latency_ns: by how much longer each of its lines takes than a local, idle one
    """
    return (
        waiting_cores / max(demand_cores, DEMAND_MIN_CORES)
        + lines_per_core_sec * latency_ns * 1e-9 / MLP_WITH_PREFETCH
    )


def added_waiting_cores(others_cores: float, guest_cores: float, capacity_cores: float) -> float:
    """Return the demand on a node that waits because of a guest [cores]."""
    waiting_cores = mean_waiting_cores(others_cores + guest_cores, capacity_cores)
    # Rounding may make the difference negative.
    return max(0.0, waiting_cores - mean_waiting_cores(others_cores, capacity_cores))


def mean_waiting_cores(demand_cores: float, capacity_cores: float) -> float:
    """Return the demand that waits on average [cores].

    h(D, C) = E[max(0, x − C)], for a demand x that is normally distributed around D with
    variance 2·D.
    """
    if demand_cores <= 0:
        return 0.0
    sigma = math.sqrt(VARIANCE_RATIO * demand_cores)
    excess = demand_cores - capacity_cores
    z = excess / sigma
    density = math.exp(-z * z / 2) / _SQRT_2PI
    return sigma * density + excess * 0.5 * math.erfc(-z / _SQRT_2)


def _waiting_cores(
    host: Columns, positions: Sequence[int], guest_cores: float, guest_vcpus: float
) -> float:
    """Return the demand that waits because of the guest [cores].

    :param guest_vcpus: on a node that has a core for each of these and of the vCPUs there, nothing
        waits
    """
    used_cores = sum([host.cores[position] for position in positions])
    waiting_cores = 0.0
    for position in positions:
        capacity, others = host.cores[position], host.demand[position]
        if capacity:
            own_vcpus = guest_vcpus * capacity / used_cores
            if host.vcpus[position] + own_vcpus <= capacity and others + own_vcpus <= capacity:
                continue
            own_cores = guest_cores * capacity / used_cores
            waiting_cores += added_waiting_cores(others, own_cores, capacity)
    return waiting_cores


def _queueing_ns(host: Columns, positions: Sequence[int], bytes_per_sec: float) -> float:
    """Return by how much traffic to memory lengthens all accesses to it [ns]."""
    queueing = 0.0
    for position in positions:
        if host.bandwidth_max[position]:
            queueing += added_queueing(
                (host.bandwidth[position] + bytes_per_sec / len(positions))
                / host.bandwidth_max[position]
            )
    return QUEUEING_FACTOR * LOCAL_LATENCY_NS * queueing / len(positions)


def _distance_ns(
    host: Columns, cpu_positions: Sequence[int], mem_positions: Sequence[int], link_ratio: float
) -> float:
    """Return how much longer an access takes than a local one, with queueing on the link [ns].

    The distances are those of SLIT. Accesses are assumed to come from the guest's nodes in
    proportion to their cores, and to be spread evenly over its memory.
    """
    used_cores = sum(host.cores[position] for position in cpu_positions) or 1.0
    queueing = QUEUEING_FACTOR * added_queueing(link_ratio)
    total = 0.0
    for position in cpu_positions:
        share, row = host.cores[position] / used_cores, host.distances[position]
        for memory_position in mem_positions:
            if memory_position != position:
                total += share * (max(0.0, row[memory_position] / row[position] - 1) + queueing)
    return LOCAL_LATENCY_NS * total / len(mem_positions)
