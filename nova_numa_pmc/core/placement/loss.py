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
#: A place on more nodes has to save at least this share of what the guest wants.
GAIN_MIN_RATIO = 0.01
_SQRT_2, _SQRT_2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


class AddedLoss(Record):
    """Utilisations that a guest would meet on a host, and the loss that it would cause there.

    :param cpu_ratio, bandwidth_ratio, link_ratio: the highest utilisation of any node that the
        guest would use, with the guest on it
    :param loss_ratio: what the host's guests, including the new one, would lose because of it, as
        a share of the CPU time that it wants
    """

    cpu_ratio: float
    bandwidth_ratio: float
    link_ratio: float
    loss_ratio: float

    @property
    def pressure(self) -> float:
        """Return the highest of the utilisations."""
        return max(self.cpu_ratio, self.bandwidth_ratio, self.link_ratio)


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


def added_loss(
    host: Columns,
    cpu_positions: Sequence[int],
    mem_positions: Sequence[int],
    guest_cores: float,
    lines_per_core_sec: float,
    host_share: float = 0.0,
    distance_counts: bool = True,
    guest_vcpus: float = math.inf,
) -> AddedLoss:
    """Return the utilisations that a guest would meet at a place, and the loss it would cause.

    :param cpu_positions, mem_positions: the place; no ``mem_positions``: memory may be anywhere
    :param lines_per_core_sec: cache lines that it transfers per core-second
    :param host_share: weight of the host's mean in the figures of each node; 0.0: what guests lose
        at once
    :param distance_counts: False for a guest that asks for all nodes, wherever its memory is
    :param guest_vcpus: on a node that has a core for each of these and of the vCPUs there, nothing
        waits
    """
    # Access by name takes longer, and the scheduler does this several times for each host.
    cores, demand, bandwidth, bandwidth_max, link, _, memory_positions, vcpus = host
    cpu_ratio, waiting_cores = _cpu_part(
        cores, demand, vcpus, cpu_positions, guest_cores, host_share, guest_vcpus
    )
    memory = mem_positions or memory_positions
    bandwidth_ratio = latency_ns = link_ratio = 0.0
    if bandwidth_max:
        bandwidth_ratio, latency_ns = _memory_part(
            bandwidth,
            bandwidth_max,
            memory,
            guest_cores * lines_per_core_sec * LINE_BYTES,
            host_share,
        )
    if link:
        for position in (*cpu_positions, *mem_positions):
            link_ratio = link[position] if link[position] > link_ratio else link_ratio
    if distance_counts and (len(cpu_positions) > 1 or mem_positions != cpu_positions):
        latency_ns += _distance_ns(host, cpu_positions, memory, link_ratio)
    return AddedLoss._make(
        (
            cpu_ratio,
            bandwidth_ratio,
            link_ratio,
            waiting_cores / max(guest_cores, DEMAND_MIN_CORES)
            + lines_per_core_sec * latency_ns * 1e-9 / MLP_WITH_PREFETCH,
        )
    )


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

    It is the loss that the weigher compares hosts by, at the demand of the nodes themselves.

    :param is_smallest: whether no fewer nodes hold the guest. If these have a core for each vCPU,
        nothing is to be gained elsewhere; that more nodes have one is no gain by itself. If it
        were, a host would look worse shortly before its nodes are full than when they are
    """
    return added_loss(
        host,
        cpu_positions,
        mem_positions,
        demand_cores,
        lines_per_core_sec,
        guest_vcpus=vcpus if is_smallest else math.inf,
    )[3]


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


def _cpu_part(
    cores: _Column,
    demand: _Column,
    vcpus: _Column,
    positions: Sequence[int],
    guest_cores: float,
    host_share: float,
    guest_vcpus: float,
) -> tuple[float, float]:
    """Return (highest CPU utilisation, demand that waits because of the guest [cores])."""
    used_cores = (
        cores[positions[0]]
        if len(positions) == 1
        else sum([cores[position] for position in positions])
    )
    host_ratio = sum(demand) / (sum(cores) or 1.0) if host_share else 0.0
    highest_ratio = waiting_cores = 0.0
    for position in positions:
        capacity = cores[position]
        if capacity:
            added_cores = guest_cores * capacity / used_cores
            other_cores = demand[position]
            total_cores = (
                other_cores + host_share * (host_ratio * capacity - other_cores) + added_cores
            )
            ratio = total_cores / capacity
            highest_ratio = ratio if ratio > highest_ratio else highest_ratio
            own_vcpus = guest_vcpus * capacity / used_cores
            if vcpus[position] + own_vcpus <= capacity and other_cores + own_vcpus <= capacity:
                continue
            added_waiting = mean_waiting_cores(total_cores, capacity) - mean_waiting_cores(
                total_cores - added_cores, capacity
            )
            if added_waiting > 0:  # rounding may make it negative
                waiting_cores += added_waiting
    return highest_ratio, waiting_cores


def _memory_part(
    bandwidth: _Column,
    bandwidth_max: _Column,
    positions: Sequence[int],
    bytes_per_sec: float,
    host_share: float,
) -> tuple[float, float]:
    """Return (highest bandwidth utilisation, queueing that an access adds [ns])."""
    host_ratio = sum(bandwidth) / (sum(bandwidth_max) or 1.0) if host_share else 0.0
    highest_ratio = queueing = 0.0
    for position in positions:
        ratio = 0.0
        if bandwidth_max[position]:
            other_bandwidth = bandwidth[position]
            other_bandwidth += host_share * (
                host_ratio * bandwidth_max[position] - other_bandwidth
            )
            ratio = (other_bandwidth + bytes_per_sec / len(positions)) / bandwidth_max[position]
        highest_ratio = ratio if ratio > highest_ratio else highest_ratio
        queueing += added_queueing(ratio)
    return highest_ratio, QUEUEING_FACTOR * LOCAL_LATENCY_NS * queueing / len(positions)


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
