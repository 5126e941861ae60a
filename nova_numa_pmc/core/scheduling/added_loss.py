# SPDX-License-Identifier: Apache-2.0
"""Estimate what the guests of a host would lose because of one more guest.

This is the loss of :mod:`nova_numa_pmc.core.pressure`, estimated before it occurs: CPU demand that
has to wait on the nodes that the guest would use, and cache lines that take longer because they
come from another node or from busy memory. It is 0 where nothing waits, no memory is busy and the
guest fits on one node.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, demand_or_prior
from nova_numa_pmc.core.pressure import (
    LINE_BYTES,
    LOCAL_LATENCY_NS,
    MLP_WITH_PREFETCH,
    QUEUEING_FACTOR,
    added_queueing,
)
from nova_numa_pmc.core.scheduling.host_columns import is_uniform
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.scheduling.host_columns import HostColumns
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, Outcome

    _Column = Sequence[float]


#: The demand and traffic of other guests on a node are a weighted mean of the node's own figures
#: and the host's, spread evenly over its nodes. This is the weight of the host's. When a guest
#: starts, it meets the demand on its nodes; later, once the agent has moved guests and others have
#: arrived, it meets that of the host. In ``make arena``, values from 0.4 to 1 differ less than
#: seeds do.
HOST_SHARE = 0.8
#: Variance of a node's demand, relative to its mean [cores]: that of guests with six vCPUs which
#: want a fifth of them, in bursts that a guest's vCPUs have in common (assumed).
VARIANCE_RATIO = 2.0
#: The demand that waits because of a guest is divided by the guest's demand, but at least by this
#: [cores].
DEMAND_MIN_CORES = 0.25
#: Cache lines that a guest is assumed to transfer per core-second if no host has measured any:
#: 0.64 GB.
LINES_PER_CORE_SEC = 1e7
_SQRT_2, _SQRT_2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


class AddedLoss(Record):
    """Utilisations that a guest would meet on a host, and the loss that it would cause there.

    :param cpu_ratio, bandwidth_ratio, link_ratio: the highest utilisation of any node that the
        guest would use, with the guest on it
    :param loss_ratio: what the host's guests, including the new one, would lose because of it, as
        a share of the CPU time that it wants; 0 to 1
    """

    cpu_ratio: float
    bandwidth_ratio: float
    link_ratio: float
    loss_ratio: float

    @property
    def pressure(self) -> float:
        """Return the highest of the utilisations."""
        return max(self.cpu_ratio, self.bandwidth_ratio, self.link_ratio)


def added_loss(
    host: HostColumns, outcome: Outcome, guest: ExpectedGuest, lines_per_core_sec: float
) -> AddedLoss:
    """Return the utilisations that a guest would meet on a host, and the loss that it would cause.

    :param outcome: where the guest would go
    :param lines_per_core_sec: cache lines that it transfers per core-second
    """
    # Access by name would take as long as everything else here, and this runs for each host.
    _, _, positions, cpu_positions, mem_positions = outcome
    guest_cores = guest[2]
    cores, demand, bandwidth, bandwidth_max, link = _columns(host)
    cpu_ratio, waiting_cores = _cpu_part(cores, demand, cpu_positions, guest_cores)
    bytes_per_sec = guest_cores * lines_per_core_sec * LINE_BYTES
    bandwidth_ratio, latency_ns = _memory_part(
        bandwidth, bandwidth_max, mem_positions or _memory_positions(host), bytes_per_sec
    )
    link_ratio = 0.0
    if link:
        for position in positions:
            link_ratio = link[position] if link[position] > link_ratio else link_ratio
    # Distance does not count for guests that ask for all nodes or whose nodes Nova chooses.
    if (len(cpu_positions) > 1 or mem_positions != cpu_positions) and guest.policy != model.SPREAD:
        latency_ns += _distance_ns(
            host, cpu_positions, mem_positions or _memory_positions(host), link_ratio
        )
    loss_ratio = waiting_cores / (
        guest_cores if guest_cores > DEMAND_MIN_CORES else DEMAND_MIN_CORES
    )
    loss_ratio += lines_per_core_sec * latency_ns * 1e-9 / MLP_WITH_PREFETCH
    return AddedLoss._make(
        (cpu_ratio, bandwidth_ratio, link_ratio, loss_ratio if loss_ratio < 1.0 else 1.0)
    )


def _memory_positions(host: HostColumns) -> Sequence[int]:
    """Return the positions of the domains with memory, where unbound memory may be."""
    capacities = host.capacity_mib
    return [position for position, mib in enumerate(capacities) if mib] or range(len(capacities))


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
    cores: _Column, demand: _Column, positions: Sequence[int], guest_cores: float
) -> tuple[float, float]:
    """Return (highest CPU utilisation, demand that waits because of the guest [cores])."""
    used_cores = (
        cores[positions[0]]
        if len(positions) == 1
        else sum([cores[position] for position in positions])
    )
    host_ratio = sum(demand) / (sum(cores) or 1.0)
    highest_ratio = waiting_cores = 0.0
    for position in positions:
        capacity = cores[position]
        if capacity:
            added_cores = guest_cores * capacity / used_cores
            other_cores = demand[position]
            total_cores = (
                other_cores + HOST_SHARE * (host_ratio * capacity - other_cores) + added_cores
            )
            ratio = total_cores / capacity
            highest_ratio = ratio if ratio > highest_ratio else highest_ratio
            added_waiting = mean_waiting_cores(total_cores, capacity) - mean_waiting_cores(
                total_cores - added_cores, capacity
            )
            if added_waiting > 0:  # rounding may make it negative
                waiting_cores += added_waiting
    return highest_ratio, waiting_cores


def _memory_part(
    bandwidth: _Column, bandwidth_max: _Column, positions: Sequence[int], bytes_per_sec: float
) -> tuple[float, float]:
    """Return (highest bandwidth utilisation, queueing that an access adds [ns])."""
    if not bandwidth_max:
        return 0.0, 0.0
    host_ratio = sum(bandwidth) / (sum(bandwidth_max) or 1.0)
    highest_ratio = queueing = 0.0
    for position in positions:
        ratio = 0.0
        if bandwidth_max[position]:
            other_bandwidth = bandwidth[position]
            other_bandwidth += HOST_SHARE * (
                host_ratio * bandwidth_max[position] - other_bandwidth
            )
            ratio = (other_bandwidth + bytes_per_sec / len(positions)) / bandwidth_max[position]
        highest_ratio = ratio if ratio > highest_ratio else highest_ratio
        queueing += added_queueing(ratio)
    return highest_ratio, QUEUEING_FACTOR * LOCAL_LATENCY_NS * queueing / len(positions)


def _distance_ns(
    host: HostColumns,
    cpu_positions: Sequence[int],
    mem_positions: Sequence[int],
    link_ratio: float,
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


def _columns(host: HostColumns) -> tuple[_Column, _Column, _Column, _Column, _Column]:
    """Return columns of cores, demand [cores], bandwidth, its maximum [bytes/s] and link.

    Demand that is not measured is assumed. Another unknown value is 0.0, and a column without any
    known value may be empty.
    """
    if is_uniform(host):
        demand, bandwidth = host.demand_cores, host.bandwidth_bytes_per_sec
        bandwidth_max = host.bandwidth_max_bytes_per_sec
        if demand is None:
            demand = [PRIOR_CORES_PER_VCPU * vcpus for vcpus in host.vcpus]
        if not bandwidth or not bandwidth_max:
            bandwidth = bandwidth_max = []
        return host.cores, demand, bandwidth, bandwidth_max, host.link_ratio or ()
    nodes, _ = missing.fill_in(host.view().nodes)
    return (
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
    )
