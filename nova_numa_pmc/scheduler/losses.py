# SPDX-License-Identifier: Apache-2.0
"""Compare hosts by what guests would lose there because of a new one.

Each host's own hook decides which of its nodes a guest gets: the least loaded one that holds it.
A guest meets that node when it starts, and the mean of the host's nodes later, when others have
arrived and the agent has moved guests. It loses to waiting for CPUs, to busy memory, and to
distance where no single node would hold it.

To compare hosts, a single estimate of the guest is used for all of them: its demand follows from
the median demand per vCPU, and its cache lines from the median traffic per core.

A part of pressure that some hosts do not report is either estimated for them, as what hosts that
report it have in proportion to their demand, or left out for all: if it were left out only where
it is missing, hiding it would pay. Either needs several hosts that report it
(:func:`missing.is_agreed`), so that no single host decides for the others.

A penalty depends only on the loss on its own host. Apart from jitter, it is 0 where nothing would
be lost, and it is at most 1. Nova multiplies it by the multiplier and subtracts it from the host's
weight. If penalties were normalised over the hosts, as Nova does with other weights, a single
outlier would distort the weights of all hosts.
"""

from __future__ import annotations

import functools
import hashlib
import math
from statistics import median_low
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, expected_per_vcpu
from nova_numa_pmc.core.placement.loss import (
    GAIN_MIN_RATIO,
    LINES_PER_CORE_SEC,
    added_waiting_cores,
    met_on_host,
    peak_cores,
    relative_loss,
)
from nova_numa_pmc.core.pressure import (
    LINE_BYTES,
    LOCAL_LATENCY_NS,
    QUEUEING_FACTOR,
    added_queueing,
)
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.compute.metrics_decoder import HostFigures
    from nova_numa_pmc.scheduler.hosts import Host
    from nova_numa_pmc.scheduler.request import Guest

#: Lines per core-second above this are implausible: 64 GB/s. At 80 ns for each line, a core would
#: wait for 80 lines at a time; the second-level cache of Intel's Golden Cove waits for 48.
LINES_PER_CORE_SEC_MAX = 1e9
#: Demand from which a host's traffic per core is more than noise [cores].
_TRAFFIC_DEMAND_MIN_CORES = 0.5
#: Traffic that is assumed in place of hosts that measure none [bytes per core-second].
_ASSUMED_RATE = LINES_PER_CORE_SEC * LINE_BYTES
#: Weight of the random part of a penalty that is not below the floor. Requests that arrive
#: together, before any of them is counted, see the same figures: it spreads them over hosts whose
#: losses differ by less than 2 percent. From 0.005 to 0.05, the arena shows no difference.
JITTER = 0.02


class Loss(Record):
    """What a guest would meet on a host, and the loss that it would cause there.

    :param nodes: on how many of the host's nodes the guest would be; 0: it has no usable CPU
    :param pressure: the highest utilisation of CPUs and memory on these
    :param ratio: what the host's guests, including the new one, would lose because of it, as a
        share of the CPU time that it wants, at most 1
    """

    nodes: int
    pressure: float
    ratio: float


def compare(hosts: Sequence[Host], guest: Guest) -> list[Loss]:
    """Return the guest's loss on each host."""
    cores_per_vcpu = expected_demand(
        [host.history for host in hosts if host.history is not None and host.figures.nodes]
    )
    rates = _traffic_rates([host.figures for host in hosts])
    lines = guest.intensity * median_low(rates) / LINE_BYTES
    figures = _with_same_parts([host.figures for host in hosts], rates)
    return [
        loss(host, host_figures, guest, cores_per_vcpu, lines)
        for host, host_figures in zip(hosts, figures)
    ]


def loss(
    host: Host, figures: HostFigures, guest: Guest, cores_per_vcpu: float, lines: float
) -> Loss:
    """Return what guests lose on a host because of a new one.

    The guest gets one node if one holds it, else as few as do, and more of them as long as one
    more saves something, as the host's own decision is (:func:`placement.place`).

    :param figures: the host's, with what is assumed where it does not report a part of pressure
    :param cores_per_vcpu: the expected demand of any vCPU [cores]
    :param lines: cache lines that the guest transfers per core-second
    """
    nodes, cores, _, demand_cores, bandwidth, bandwidth_max, _, distances, _ = figures
    if not nodes or demand_cores is None:
        return Loss(0, math.inf, 1.0)
    # What a host expects by its own guests counts for those that have arrived, and for where it
    # will put this one.
    own_cores_per_vcpu = expected_per_vcpu(*host.history) if host.history else cores_per_vcpu
    arrived_cores = own_cores_per_vcpu * (host.arrived_vcpus - host.own_vcpus)
    mean, capacity = max(0.0, demand_cores + arrived_cores) / nodes, cores / nodes
    guest_cores = cores_per_vcpu * guest.vcpus
    ratio, pressure, best = math.inf, 0.0, 0
    smallest, node_ratio = _smallest_place(host, figures, guest, own_cores_per_vcpu * guest.vcpus)
    for count in range(smallest, nodes + 1):
        own, others = guest_cores / count, mean
        if count == 1:
            node = node_ratio * capacity + arrived_cores / nodes
            others = max(0.0, met_on_host(mean, node))
        waiting_cores = count * added_waiting_cores(others, own, capacity)
        latency_ns, used = 0.0, 0.0
        if bandwidth is not None and bandwidth_max:
            bytes_per_sec = (arrived_cores / nodes + own) * lines * LINE_BYTES
            used = max(0.0, bandwidth / nodes + bytes_per_sec) / (bandwidth_max / nodes)
            latency_ns = QUEUEING_FACTOR * LOCAL_LATENCY_NS * added_queueing(used)
        if guest.policy != model.SPREAD:  # it asks for all of them, wherever its memory is
            latency_ns += LOCAL_LATENCY_NS * _far_ratios(distances)[count - 1]
        lost = relative_loss(waiting_cores, guest_cores, lines, latency_ns)
        if lost >= ratio - GAIN_MIN_RATIO:
            break
        ratio, pressure, best = lost, max((others + own) / capacity, used), count
        if lost <= GAIN_MIN_RATIO or guest.policy == model.ONE_NODE:
            break
    return Loss._make((best, pressure, min(1.0, ratio)))


def _smallest_place(
    host: Host, figures: HostFigures, guest: Guest, guest_cores: float
) -> tuple[int, float]:
    """Return how many nodes of a host hold a guest at least; all of them if none do.

    Where guests have arrived that are not in the figures is not known. Their memory is taken from
    what is free on each node, in proportion.

    :param guest_cores: what the host expects the guest to want [cores]
    :returns: (that number, demand per core of the least loaded node that holds it, or of all)
    """
    nodes, cores, rooms = figures.nodes, figures.cores, figures.rooms
    mean_ratio = (figures.demand_cores or 0.0) / cores
    vcpus, _, policy, _ = guest
    memory_mib: float = guest.memory_mib
    if policy == model.SPREAD:
        return nodes, mean_ratio
    needed = 0.0 if policy == model.ONE_NODE else min(peak_cores(vcpus, guest_cores), cores)
    arrived_mib = host.arrived_mib - host.own_mib
    if arrived_mib:
        total_mib = sum([max(0.0, room[2]) for room in rooms])
        left = max(0.0, 1.0 - arrived_mib / total_mib) if total_mib else 0.0
        memory_mib = memory_mib / left if left else math.inf
    ratios = [
        mean_ratio if demand_cores is None else demand_cores / node_cores
        for cpus, node_cores, free_mib, demand_cores in rooms
        if cpus >= vcpus and node_cores >= needed and free_mib >= memory_mib
    ]
    if ratios:
        return 1, min(ratios)
    if nodes > 2:
        cpus = sum([room[0] for room in rooms])
        by_free = sorted([room[2] for room in rooms], reverse=True)
        for count in range(2, nodes):
            if (
                count * cpus >= nodes * vcpus
                and count * cores >= nodes * needed
                and count * by_free[count - 1] >= memory_mib
            ):
                return count, mean_ratio
    return nodes, mean_ratio


@functools.lru_cache(maxsize=64)
def _far_ratios(distances: tuple[tuple[float, ...], ...]) -> list[float]:
    """Return for 1, 2, … nodes by how much memory on the nearest ones is farther than local."""
    rows = [
        sorted([max(0.0, entry / row[position] - 1) for entry in row])
        for position, row in enumerate(distances)
    ]
    return [
        min([sum(row[:count]) / count for row in rows]) for count in range(1, len(distances) + 1)
    ]


def expected_demand(histories: Sequence[tuple[int, float]]) -> float:
    """Return the expected demand per vCPU of any guest, from the hosts' histories [cores].

    :param histories: for each host, (number of guests, sum of their cores per vCPU)
    """
    host_means = [
        total / guests if guests else PRIOR_CORES_PER_VCPU for guests, total in histories
    ]
    guests = sum(guests for guests, _ in histories)
    median = median_low(missing.padded(host_means, PRIOR_CORES_PER_VCPU))
    return expected_per_vcpu(guests, guests * median)


def _traffic_rates(hosts: Sequence[HostFigures]) -> list[float]:
    """Return hosts' traffic [bytes per core-second of demand], padded with what is assumed.

    Hosts without traffic do not count: their guests have not begun to work, which says nothing
    about other guests. Nor do hosts with more traffic than their cores can cause.
    """
    rates = [
        bandwidth / demand_cores
        for _, _, _, demand_cores, bandwidth, *_ in hosts
        if bandwidth and demand_cores and demand_cores >= _TRAFFIC_DEMAND_MIN_CORES
    ]
    most = LINES_PER_CORE_SEC_MAX * LINE_BYTES
    return missing.padded([rate for rate in rates if rate <= most], _ASSUMED_RATE)


def _with_same_parts(
    hosts: Sequence[HostFigures], rates: Sequence[float]
) -> Sequence[HostFigures]:
    """Return the hosts with the same parts of pressure for all.

    :param rates: traffic of the hosts that report it [bytes per core-second]
    """
    measured = [host for host in hosts if host.demand_cores is not None]
    if len(measured) < len(hosts):
        per_vcpu = PRIOR_CORES_PER_VCPU
        if missing.is_agreed(len(measured), len(hosts)):
            means = [(host.demand_cores or 0.0) / host.vcpus for host in measured if host.vcpus]
            per_vcpu = max(per_vcpu, missing.agreed_upper(missing.padded(means, per_vcpu)))
        hosts = [
            host
            if host.demand_cores is not None
            else host._replace(demand_cores=per_vcpu * host.vcpus)
            for host in hosts
        ]
    reporting = [host for host in hosts if host.bandwidth_max_bytes_per_sec is not None]
    if len(reporting) == len(hosts):
        return hosts
    if not missing.is_agreed(len(reporting), len(hosts)):
        return [host._replace(bandwidth_max_bytes_per_sec=None) for host in hosts]
    rate = missing.agreed_upper(rates)
    # A low one, so that traffic weighs no less than on hosts that report their maximum.
    max_per_core = -missing.agreed_upper(
        [-(host.bandwidth_max_bytes_per_sec or 0.0) / (host.cores or 1.0) for host in reporting]
    )
    return [
        host
        if host.bandwidth_max_bytes_per_sec is not None
        else host._replace(
            bandwidth_bytes_per_sec=rate * (host.demand_cores or 0.0)
            if host.bandwidth_bytes_per_sec is None
            else host.bandwidth_bytes_per_sec,
            bandwidth_max_bytes_per_sec=max_per_core * host.cores,
        )
        for host in hosts
    ]


def penalty(loss: Loss, floor: float, nodename: str, instance_uuid: str | None = None) -> float:
    """Return the penalty of a host, from 0 to 1.

    :param floor: loss below which there is no penalty
    :param nodename, instance_uuid: names that determine the jitter
    """
    if not loss.nodes:
        return 1.0
    # oslo.config accepts NaN as an option, and one NaN among the penalties would spoil the weights
    # of all hosts. A loss of NaN counts as 1.0 and a floor of NaN as above any loss.
    excess = min(1.0, loss.ratio) - floor
    if not excess >= 0.0:
        return 0.0
    return excess * (1.0 - JITTER) + JITTER * random_part(instance_uuid, nodename)


def describe(host: Host, loss: Loss) -> str:
    """Return what is known of a host, and what a guest would meet there, as one line of text."""
    if host.why_unknown is not None:
        return 'unknown: %s' % host.why_unknown
    if not loss.nodes:
        return 'no CPU there that guests may use'
    arrivals = ''
    if host.arrived_vcpus:
        arrivals = ', with %g vCPUs that arrived after the measurement' % host.arrived_vcpus
    return 'pressure %.2f on %d of %d nodes%s' % (
        loss.pressure,
        loss.nodes,
        host.figures.nodes,
        arrivals,
    )


def random_part(instance_uuid: str | None, nodename: str) -> float:
    """Return a random number from 0 to 1 that is always the same for an instance and a node.

    Concurrent requests see the same figures for the same hosts. If all of them ordered the hosts
    in the same way, the first host would get all guests before any of them is counted.

    :param nodename: the name of the host's compute node (Nova's hypervisor_hostname)
    """
    key = ('%s/%s' % (instance_uuid, nodename)).encode(errors='replace')
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), 'big') / 0xFFFFFFFF
