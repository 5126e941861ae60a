# SPDX-License-Identifier: Apache-2.0
"""Compare the pressures that a guest would leave on several hosts.

Each host's own hook decides which of its nodes a guest gets, from that host's figures alone. To
compare hosts, one estimate of the guest is used for all: its demand from the median demand per
vCPU, its traffic from the median traffic. Medians keep a host with odd values from deciding for
the others. A part of pressure that a host does not know is assumed to be the upper quartile of the
request's hosts that do (:mod:`nova_numa_pmc.core.missing`), unless these are few.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, expected_per_vcpu, expected_traffic
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.core.scheduling.aggregates import is_uniform
from nova_numa_pmc.core.scheduling.outcome import with_cores_per_vcpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.scheduling.aggregates import Aggregates, UniformAggregates
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, Outcome
    from nova_numa_pmc.scheduler.host_estimate import HostEstimate

    #: A domain's utilisations: CPU, bandwidth, link; 0.0: unknown.
    _Parts = tuple[float, float, float]


#: Weight of the whole host's pressure in the comparison; the rest is that of the nodes that the
#: guest would use. At its start a guest is under the pressure of its nodes; later, once its host
#: has moved guests and others have come, under the host's. In ``make arena``, weights of 0.6 to 1
#: reduce the guests' losses equally, and 0 by a third of that.
_HOST_SHARE = 0.8
#: A part known by a smaller share of the hosts is not filled in for the others.
_KNOWN_MIN_RATIO = 1 / 8
_NO_HISTORY = 0, 0.0


def pressures(estimates: Sequence[HostEstimate], guest: ExpectedGuest) -> list[float | None]:
    """Return the pressure that the guest would leave on each host, its own nodes and the whole.

    :returns: None where a host's pressure is unknown; infinite where none of its CPUs is one that
        guests may use
    """
    kinds, rates, histories = _collect_known(estimates)
    # Without maxima traffic makes no pressure.
    rate = _median(rates) if rates and any(kind[1] for kind in kinds) else None
    has_history = any(guests for guests, _ in histories)
    if has_history:
        guest = with_cores_per_vcpu(guest, expected_demand(histories))
    traffic = expected_traffic(guest.demand_cores, guest.intensity, rate) or 0
    least = _quartiles(estimates, guest, traffic) if len(kinds) > 1 else None
    listed: list[float | None] = []
    for estimate in estimates:
        outcome, host = estimate[0], estimate[-1]
        if outcome is None:
            listed.append(None)
        elif host is None or outcome[1][0] >= ranking.PRESSURE_MAX:
            listed.append(math.inf)
        elif least is not None:
            listed.append(_highest_or_assumed_part(host, outcome, guest, traffic, least))
        else:
            listed.append(_highest_part(host, outcome, guest, traffic))
    return listed


def _collect_known(
    estimates: Sequence[HostEstimate],
) -> tuple[set[tuple[bool, bool, bool]], list[float], list[tuple[int, float]]]:
    """Return the parts that hosts know, their bytes per core-second and their histories."""
    kinds: set[tuple[bool, bool, bool]] = set()
    rates: list[float] = []
    histories: list[tuple[int, float]] = []
    for estimate in estimates:  # by position: names cost as much as all else here
        outcome, host = estimate[0], estimate[-1]
        if outcome is not None and host is not None and outcome[1][0] < ranking.PRESSURE_MAX:
            kinds.add(_knows(host))
            if host.rate is not None:
                rates.append(host.rate)
            histories.append(estimate[-2] or _NO_HISTORY)
    return kinds, rates, histories


def expected_demand(histories: Sequence[tuple[int, float]]) -> float:
    """Return the expected demand per vCPU of any guest, by the hosts' histories [cores].

    :param histories: (guests, sum of their cores per vCPU) of each host, not empty
    """
    means = [total / guests if guests else PRIOR_CORES_PER_VCPU for guests, total in histories]
    guests = sum(guests for guests, _ in histories)
    return expected_per_vcpu(guests, guests * _median(means))


def _median(values: list[float]) -> float:
    """Return the lower median, which is always one of the values."""
    return sorted(values)[(len(values) - 1) // 2]


def _knows(host: Aggregates) -> tuple[bool, bool, bool]:
    """Return whether a host knows each part, CPU, bandwidth, link, of any of its domains."""
    if host.uniform:
        return (
            host.demand is not None,
            host.bandwidth is not None and host.maximum is not None,
            host.link is not None,
        )
    return (
        _any_known(host.demand),
        any(
            bandwidth is not None and maximum
            for bandwidth, maximum in zip(host.bandwidth or (), host.maximum or ())
        ),
        _any_known(host.link),
    )


def _any_known(column: Sequence[float | None] | None) -> bool:
    return column is not None and column.count(None) < len(column)


def _highest_part(
    host: Aggregates, outcome: Outcome, guest: ExpectedGuest, traffic: float
) -> float:
    """Return the highest part of the pressure that the guest would leave.

    :param traffic: of the guest [bytes/s]
    """
    at = outcome[3]
    if is_uniform(host) and len(at) == 1 and host.link is None:
        demand, bandwidth, maximum = host.demand, host.bandwidth, host.maximum
        if demand and bandwidth and maximum:  # _parts() inlined: this is run for each host
            (where,), cores, wanted = at, host.cores, guest[2]
            cpu = (demand[where] + wanted) / cores[where]
            used = (bandwidth[where] + traffic) / maximum[where]
            cpu += _HOST_SHARE * ((sum(demand) + wanted) / sum(cores) - cpu)
            used += _HOST_SHARE * ((sum(bandwidth) + traffic) / sum(maximum) - used)
            return max(cpu, used)
    return max(_parts(host, outcome, guest, traffic))


def _highest_or_assumed_part(
    host: Aggregates,
    outcome: Outcome,
    guest: ExpectedGuest,
    traffic: float,
    least: Sequence[float],
) -> float:
    """Return the highest part of the pressure, assuming those that the host does not report.

    As it is unknown which of its nodes is worst, the most loaded one counts.

    :param least: the upper quartile of each part, 0.0: not assumed
    """
    lacking = [quartile for quartile, knows in zip(least, _knows(host)) if quartile and not knows]
    if not lacking:
        return _highest_part(host, outcome, guest, traffic)
    by_domain = [
        _highest_part(host, outcome._replace(at=at, cpus=at, mems=at), guest, traffic)
        for at in ((at,) for at in range(len(host.cores)))
    ]
    return max(*lacking, *by_domain)


def _quartiles(
    estimates: Sequence[HostEstimate], guest: ExpectedGuest, traffic: float
) -> list[float]:
    """Return the upper quartile of each part over the hosts that know it."""
    values: tuple[list[float], ...] = ([], [], [])
    hosts = 0
    for estimate in estimates:
        outcome, host = estimate.outcome, estimate.host
        if outcome is None or host is None or outcome.used[0] >= ranking.PRESSURE_MAX:
            continue
        hosts += 1
        parts = _parts(host, outcome, guest, traffic)
        for part, knows in enumerate(_knows(host)):
            if knows:
                values[part].append(parts[part])
    return [
        missing.upper_quartile(known) if known and len(known) >= _KNOWN_MIN_RATIO * hosts else 0.0
        for known in values
    ]


def _parts(host: Aggregates, outcome: Outcome, guest: ExpectedGuest, traffic: float) -> _Parts:
    """Return the utilisations by which a host is compared, 0.0 for what is unknown.

    Of a link there is no whole: the host's is that of the nodes used.
    """
    cpu, bandwidth, link = _node_parts(host, outcome, guest, traffic)
    host_cpu, host_bandwidth = _host_parts(host, guest.demand_cores, traffic)
    return (
        cpu + _HOST_SHARE * (host_cpu - cpu),
        bandwidth + _HOST_SHARE * (host_bandwidth - bandwidth),
        link,
    )


def _node_parts(
    host: Aggregates, outcome: Outcome, guest: ExpectedGuest, traffic: float
) -> _Parts:
    """Return the highest utilisations of the domains that a guest would use."""
    at = outcome[3]
    if is_uniform(host) and len(at) == 1:
        return _domain_parts(host, at[0], guest.demand_cores, traffic)
    cores = sum(host.cores[at] for at in outcome.cpus) or 1.0
    shares = {at: guest.demand_cores * host.cores[at] / cores for at in outcome.cpus}
    adds = dict.fromkeys(outcome.mems or outcome.cpus, traffic / len(outcome.mems or outcome.cpus))
    if is_uniform(host):
        by_domain = [_domain_parts(host, at, shares.get(at), adds.get(at, 0)) for at in outcome.at]
    else:
        nodes, _ = missing.fill_in(host.view().nodes)
        by_domain = [
            ranking.parts(nodes[at], shares.get(at), adds.get(at, 0)) for at in outcome.at
        ]
    cpu, bandwidth, link = map(max, zip(*by_domain))
    return cpu, bandwidth, link


def _domain_parts(host: UniformAggregates, at: int, cores: float | None, added: float) -> _Parts:
    """Return a domain's utilisations as :func:`ranking.parts`, of a uniform host."""
    cpu = bandwidth = 0.0
    if cores is not None:
        demand = host.demand[at] if host.demand else PRIOR_CORES_PER_VCPU * host.vcpus[at]
        cpu = (demand + cores) / host.cores[at]
    if host.maximum and host.bandwidth:
        bandwidth = (host.bandwidth[at] + added) / host.maximum[at]
    return cpu, bandwidth, host.link[at] if host.link else 0.0


def _host_parts(host: Aggregates, cores: float, traffic: float) -> tuple[float, float]:
    """Return the utilisations of a host's CPUs and of its memory with a guest, 0.0: unknown."""
    if is_uniform(host):
        demand = sum(host.demand) if host.demand else PRIOR_CORES_PER_VCPU * sum(host.vcpus)
        cpu = (demand + cores) / sum(host.cores)
        if host.maximum and host.bandwidth:
            return cpu, (sum(host.bandwidth) + traffic) / sum(host.maximum)
        return cpu, 0.0
    nodes, _ = missing.fill_in(host.view().nodes)
    cpus = sum(node.cores for node in nodes)
    measured = [node for node in nodes if node.bandwidth_bytes_per_sec is not None]
    maximum = sum(node.bandwidth_max_bytes_per_sec or 0.0 for node in measured)
    demand = sum(
        PRIOR_CORES_PER_VCPU * node.vcpus if node.demand_cores is None else node.demand_cores
        for node in nodes
        if node.cores
    )
    served = sum(
        node.bandwidth_bytes_per_sec or 0.0
        for node in measured
        if node.bandwidth_max_bytes_per_sec
    )
    return (demand + cores) / cpus if cpus else 0.0, (
        served + traffic
    ) / maximum if maximum else 0.0
