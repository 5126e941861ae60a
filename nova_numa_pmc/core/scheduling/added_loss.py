# SPDX-License-Identifier: Apache-2.0
"""Estimate what the guests of a host would lose because of one more guest.

It is the loss of :mod:`nova_numa_pmc.core.pressure` before it occurs: CPU demand that has to wait
on the nodes that the guest would use, and cache lines that take longer because they come from
another node or from busy memory. It is 0 where nothing waits, no memory is busy and the guest
fits on one node.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU
from nova_numa_pmc.core.pressure import (
    LINE_BYTES,
    LOCAL_LATENCY_NS,
    MLP_WITH_PREFETCH,
    QUEUEING_FACTOR,
    QUEUEING_KNEE,
)
from nova_numa_pmc.core.scheduling.aggregates import is_uniform
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.scheduling.aggregates import Aggregates
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, Outcome
    from nova_numa_pmc.model import NodeView

    _Column = Sequence[float]


#: The weight of the host's demand and traffic, spread evenly over its nodes, in what counts as
#: the others' on a node; the node's own have the rest. At its start a guest meets the demand of
#: its nodes; later, once its host has moved guests and others have come, that of the host. In
#: ``make arena``, 0.4 to 1 make less difference than seeds do.
HOST_SHARE = 0.8
#: Variance of a node's demand, relative to its mean [cores]: that of guests of six vCPUs that
#: want a fifth of them, in bursts that their vCPUs have in common (assumed).
VARIANCE_RATIO = 2.0
#: What waits because of a guest is divided by what it wants, but at least by this [cores].
DEMAND_MIN_CORES = 0.25
#: Cache lines that a guest takes in a core-second, where no host has measured any (assumed):
#: 0.64 GB.
LINES_PER_CORE_SEC = 1e7
_SQRT_2, _SQRT_2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


class AddedLoss(Record):
    """What a guest would meet on a host.

    :param cpu_ratio, bandwidth_ratio, link_ratio: highest utilisations of the nodes that it would
        use, with it
    :param loss_ratio: what the host's guests, it included, would lose because of it, as a share of
        the CPU that it wants; 0 to 1
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
    host: Aggregates,
    outcome: Outcome,
    guest: ExpectedGuest,
    lines_per_core_sec: float,
    assumed: Sequence[float] = (0.0, 0.0, 0.0),
) -> AddedLoss:
    """Return what a guest would meet on a host.

    :param outcome: where it would go
    :param lines_per_core_sec: cache lines that it takes in a core-second
    :param assumed: utilisations of CPUs, bandwidth and link that are assumed at least
    """
    # Records and names cost as much as all else here, and this is run for each host.
    _, _, _, positions, cpus, mems = outcome
    wanted = guest[2]
    cores, demand, bandwidth, maximum, link = _columns(host)
    cpu_ratio, waiting_cores = _cpu_part(cores, demand, cpus, wanted, assumed[0])
    bytes_per_sec = wanted * lines_per_core_sec * LINE_BYTES
    bandwidth_ratio, latency_ns = _memory_part(
        bandwidth, maximum, mems or _with_memory(host), bytes_per_sec, assumed[1]
    )
    link_ratio = assumed[2]
    if link:
        link_ratio = max(link_ratio, *(link[at] for at in positions))
    # A guest that asks for all nodes, or whose nodes Nova chooses, is not compared by distance.
    if (len(cpus) > 1 or mems != cpus) and guest.policy != model.SPREAD:
        latency_ns += _distance_ns(host, cpus, mems or _with_memory(host), link_ratio)
    loss_ratio = waiting_cores / (wanted if wanted > DEMAND_MIN_CORES else DEMAND_MIN_CORES)
    loss_ratio += lines_per_core_sec * latency_ns * 1e-9 / MLP_WITH_PREFETCH
    return tuple.__new__(
        AddedLoss,
        (cpu_ratio, bandwidth_ratio, link_ratio, loss_ratio if loss_ratio < 1.0 else 1.0),
    )


def _with_memory(host: Aggregates) -> Sequence[int]:
    """Return the domains that have memory, where it may lie anywhere."""
    capacities = host.capacity_mib
    return [at for at, mib in enumerate(capacities) if mib] or range(len(capacities))


def waiting(demand_cores: float, capacity_cores: float) -> float:
    """Return the demand that waits on average [cores].

    h(D, C) = E[max(0, x − C)], for a demand x that varies normally around D with variance 2·D.
    """
    if demand_cores <= 0:
        return 0.0
    sigma = math.sqrt(VARIANCE_RATIO * demand_cores)
    excess = demand_cores - capacity_cores
    z = excess / sigma
    density = math.exp(-z * z / 2) / _SQRT_2PI
    return sigma * density + excess * 0.5 * math.erfc(-z / _SQRT_2)


def added_queueing(utilisation_ratio: float) -> float:
    """Return the queueing that one more access adds to all of them, its own included.

    :returns: d(u·q)/du, where q(u) = u/(1 − u), along its tangent above the knee, is what
        :func:`pressure.loaded_latency_ns` multiplies by :data:`QUEUEING_FACTOR` and the latency
    """
    u = utilisation_ratio
    knee = u if u < QUEUEING_KNEE else QUEUEING_KNEE
    slope = 1 / (1 - knee) ** 2
    return knee / (1 - knee) + (u - knee) * slope + u * slope


def _cpu_part(
    cores: _Column, demand: _Column, cpus: Sequence[int], wanted: float, assumed: float
) -> tuple[float, float]:
    """Return (highest utilisation of the guest's nodes, demand that waits because of it)."""
    used_cores = cores[cpus[0]] if len(cpus) == 1 else sum([cores[at] for at in cpus])
    host_ratio = sum(demand) / (sum(cores) or 1.0)
    highest = waiting_cores = 0.0
    for at in cpus:
        capacity = cores[at]
        if capacity:
            added = wanted * capacity / used_cores
            others = demand[at]
            after = others + HOST_SHARE * (host_ratio * capacity - others) + added
            ratio = after / capacity
            if ratio < assumed:
                ratio, after = assumed, assumed * capacity
            highest = ratio if ratio > highest else highest
            more = waiting(after, capacity) - waiting(after - added, capacity)
            if more > 0:  # a difference of rounding errors may be below
                waiting_cores += more
    return highest, waiting_cores


def _memory_part(
    bandwidth: _Column, maximum: _Column, mems: Sequence[int], bytes_per_sec: float, assumed: float
) -> tuple[float, float]:
    """Return (highest utilisation of the guest's memory, queueing that an access adds [ns])."""
    if not maximum and not assumed:
        return 0.0, 0.0
    host_ratio = sum(bandwidth) / (sum(maximum) or 1.0)
    highest = queueing = 0.0
    for at in mems:
        ratio = assumed
        if maximum and maximum[at]:
            others = bandwidth[at]
            others += HOST_SHARE * (host_ratio * maximum[at] - others)
            ratio = (others + bytes_per_sec / len(mems)) / maximum[at]
            ratio = ratio if ratio > assumed else assumed
        highest = ratio if ratio > highest else highest
        queueing += added_queueing(ratio)
    return highest, QUEUEING_FACTOR * LOCAL_LATENCY_NS * queueing / len(mems)


def _distance_ns(
    host: Aggregates, cpus: Sequence[int], mems: Sequence[int], link_ratio: float
) -> float:
    """Return how much longer an access takes than a local one, with queueing on the link [ns].

    By SLIT distances. The guest's accesses come from its nodes in proportion to their cores, and
    go to its memory evenly.
    """
    used_cores = sum(host.cores[at] for at in cpus) or 1.0
    queueing = QUEUEING_FACTOR * added_queueing(link_ratio)
    total = 0.0
    for at in cpus:
        share, row = host.cores[at] / used_cores, host.distances[at]
        for memory in mems:
            if memory != at:
                total += share * (max(0.0, row[memory] / row[at] - 1) + queueing)
    return LOCAL_LATENCY_NS * total / len(mems)


def _columns(host: Aggregates) -> tuple[_Column, _Column, _Column, _Column, _Column]:
    """Return cores, demand [cores], bandwidth, its maximum [bytes/s] and link of each domain.

    A column is empty where nothing of it is known, and has 0.0 where a domain's is not.
    """
    if is_uniform(host):
        demand, bandwidth, maximum = host.demand, host.bandwidth, host.maximum
        if demand is None:
            demand = [PRIOR_CORES_PER_VCPU * vcpus for vcpus in host.vcpus]
        if not bandwidth or not maximum:
            bandwidth = maximum = []
        return host.cores, demand, bandwidth, maximum, host.link or ()
    nodes, _ = missing.fill_in(host.view().nodes)
    return (
        [node.cores for node in nodes],
        [_demand(node) for node in nodes],
        [node.bandwidth_bytes_per_sec or 0.0 for node in nodes],
        [
            node.bandwidth_max_bytes_per_sec or 0.0
            if node.bandwidth_bytes_per_sec is not None
            else 0.0
            for node in nodes
        ],
        [node.link_ratio or 0.0 for node in nodes],
    )


def _demand(node: NodeView) -> float:
    if not node.cores:
        return 0.0
    return PRIOR_CORES_PER_VCPU * node.vcpus if node.demand_cores is None else node.demand_cores
