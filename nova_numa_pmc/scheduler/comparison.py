# SPDX-License-Identifier: Apache-2.0
"""Compare hosts by the loss that a guest would cause there.

Each host's own hook decides which of its nodes a guest gets, using only that host's figures. To
compare hosts, a single estimate of the guest is used for all of them: its demand follows from the
median demand per vCPU, and its cache lines from the median traffic per core.

A part of pressure that some hosts do not report is either estimated for them, as what hosts that
report it have in proportion to their demand, or left out for all: if it were left out only where
it is missing, hiding it would pay. Either needs several hosts that report it
(:func:`missing.is_agreed`), so that no single host decides for the others.
"""

from __future__ import annotations

import math
from statistics import median_low
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, expected_per_vcpu
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.core.placement.loss import LINES_PER_CORE_SEC, AddedLoss
from nova_numa_pmc.core.pressure import LINE_BYTES
from nova_numa_pmc.core.scheduling.outcome import added_loss, outcome, with_cores_per_vcpu
from nova_numa_pmc.scheduler import assumed_host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nova_numa_pmc.core.scheduling.host_columns import HostColumns
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, Outcome
    from nova_numa_pmc.scheduler.host_estimate import HostEstimate, HostStateLike

    _Place = tuple[HostColumns, Outcome]
    #: Whether CPU, bandwidth and link are reported.
    _Parts = tuple[bool, bool, bool]

#: Lines per core-second above this are implausible: 64 GB/s. At 80 ns for each line, a core would
#: wait for 80 lines at a time; the second-level cache of Intel's Golden Cove waits for 48.
LINES_PER_CORE_SEC_MAX = 1e9
_NO_HISTORY = 0, 0.0
#: Whether an assumed host counts as reporting CPU (from Nova's counts), bandwidth and link.
_ASSUMED_HOST_REPORTS = True, False, False
#: Traffic that is assumed in place of hosts that measure none [bytes per core-second].
_ASSUMED_RATE = LINES_PER_CORE_SEC * LINE_BYTES
#: The added loss on a host without a CPU that guests may use.
_NO_CPU = AddedLoss(math.inf, 0.0, 0.0, 1.0)
_PLACEMENT_OPTIONS = model.PlacementOptions()


def compare(
    host_states: Sequence[HostStateLike], estimates: Sequence[HostEstimate], guest: ExpectedGuest
) -> list[AddedLoss]:
    """Return the guest's added loss on each host.

    The figures of a host whose estimate is unknown come from :mod:`assumed_host`.
    """
    known_places = [_known_place(estimate) for estimate in estimates]
    guest = _with_expected_demand(guest, estimates, known_places)
    rates = _traffic_rates(known_places)
    lines_per_core_sec = guest.intensity * median_low(rates) / LINE_BYTES
    places = [
        place or _assumed_place(host_state, estimate, guest, rates)
        for host_state, estimate, place in zip(host_states, estimates, known_places)
    ]
    known_parts = [
        _parts_known(place[0]) if place else _ASSUMED_HOST_REPORTS for place in known_places
    ]
    if len(set(known_parts)) > 1:
        places = _with_same_parts(places, known_parts, rates)
    return [
        added_loss(*place, guest, lines_per_core_sec) if place else _NO_CPU for place in places
    ]


def _known_place(estimate: HostEstimate) -> _Place | None:
    """Return a host and where the guest would go; None if unknown, or without a CPU for guests."""
    host_outcome, host = estimate[0], estimate[-1]  # access by name takes as long as the rest
    if host_outcome is None or host is None or host_outcome[1][0] >= ranking.PRESSURE_MAX:
        return None
    return host, host_outcome


def _with_expected_demand(
    guest: ExpectedGuest, estimates: Sequence[HostEstimate], known_places: Sequence[_Place | None]
) -> ExpectedGuest:
    histories = [
        estimate.history or _NO_HISTORY
        for estimate, place in zip(estimates, known_places)
        if place
    ]
    if any(guests for guests, _ in histories):
        return with_cores_per_vcpu(guest, expected_demand(histories))
    return guest


def _traffic_rates(known_places: Sequence[_Place | None]) -> list[float]:
    """Return hosts' traffic [bytes per core-second of demand], padded with what is assumed.

    Hosts without traffic do not count: their guests have not begun to work, which says nothing
    about other guests. Nor do hosts with more traffic than their cores can cause.
    """
    bytes_max = LINES_PER_CORE_SEC_MAX * LINE_BYTES
    return missing.padded(
        [
            place[0].bytes_per_core_sec
            for place in known_places
            if place and place[0].bytes_per_core_sec and place[0].bytes_per_core_sec <= bytes_max
        ],
        _ASSUMED_RATE,
    )


def expected_demand(histories: Sequence[tuple[int, float]]) -> float:
    """Return the expected demand per vCPU of any guest, from the hosts' histories [cores].

    :param histories: for each host, (number of guests, sum of their cores per vCPU); not empty
    """
    host_means = [
        total / guests if guests else PRIOR_CORES_PER_VCPU for guests, total in histories
    ]
    guests = sum(guests for guests, _ in histories)
    median = median_low(missing.padded(host_means, PRIOR_CORES_PER_VCPU))
    return expected_per_vcpu(guests, guests * median)


def _assumed_place(
    host_state: HostStateLike, estimate: HostEstimate, guest: ExpectedGuest, rates: Sequence[float]
) -> _Place | None:
    """Return the assumed columns of an unknown host and where the guest would go; else None."""
    if estimate.outcome is not None:
        return None
    host = assumed_host.columns(host_state, estimate.demand_cores, missing.agreed_upper(rates))
    return host, outcome(host, guest, _PLACEMENT_OPTIONS)


def _parts_known(host: HostColumns) -> _Parts:
    """Return whether a host reports CPU, bandwidth and link, each for at least one domain.

    A bandwidth of 0 beside a demand is not believed.
    """
    bandwidths, maxima = host.bandwidth_bytes_per_sec, host.bandwidth_max_bytes_per_sec
    has_traffic = host.bytes_per_core_sec != 0
    if host.uniform:
        return (
            host.demand_cores is not None,
            has_traffic and bandwidths is not None and maxima is not None,
            host.link_ratio is not None,
        )
    return (
        _any_known(host.demand_cores),
        has_traffic
        and any(
            bandwidth is not None and maximum
            for bandwidth, maximum in zip(bandwidths or (), maxima or ())
        ),
        _any_known(host.link_ratio),
    )


def _any_known(column: Sequence[float | None] | None) -> bool:
    return column is not None and column.count(None) < len(column)


def _with_same_parts(
    places: Sequence[_Place | None], known_parts: Sequence[_Parts], rates: Sequence[float]
) -> list[_Place | None]:
    """Return the places with the same parts of pressure on all hosts.

    :param known_parts: for each host, which parts it reports
    :param rates: traffic of the hosts that report it [bytes per core-second]
    """
    cpu, bandwidth, link = (
        [place[0] for place, parts in zip(places, known_parts) if place and parts[part]]
        for part in range(3)
    )
    per_vcpu = PRIOR_CORES_PER_VCPU
    if missing.is_agreed(len(cpu), len(places)):
        per_vcpu = max(per_vcpu, _agreed(cpu, _cores_per_vcpu, per_vcpu))
    has_bandwidth = missing.is_agreed(len(bandwidth), len(places))
    has_link = missing.is_agreed(len(link), len(places))
    bytes_per_core_sec = missing.agreed_upper(rates)
    # A low one, so that traffic weighs no less than on hosts that report their maximum.
    max_per_core = -_agreed(bandwidth, lambda host: -_max_per_core(host), 0.0)
    link_per_use = _agreed(link, _link_per_use, 0.0)
    same_places: list[_Place | None] = []
    for place, parts in zip(places, known_parts):
        if place and parts != (True, has_bandwidth, has_link):
            knows_cpu, knows_bandwidth, knows_link = parts
            host = place[0].copy()
            if not knows_cpu:
                host.demand_cores = [per_vcpu * vcpus for vcpus in host.vcpus]
            if not has_bandwidth:
                host.bandwidth_bytes_per_sec = host.bandwidth_max_bytes_per_sec = None
            elif not knows_bandwidth:
                _add_bandwidth(host, bytes_per_core_sec, max_per_core)
            if not has_link:
                host.link_ratio = None
            elif not knows_link:
                host.link_ratio = [link_per_use * _use(host)] * len(host.cores)
            place = host, place[1]
        same_places.append(place)
    return same_places


def _add_bandwidth(host: HostColumns, bytes_per_core_sec: float, max_per_core: float) -> None:
    """Add what a host does not report: its traffic, its maximum or both."""
    traffic, maxima = host.bandwidth_bytes_per_sec, host.bandwidth_max_bytes_per_sec
    if not traffic or host.bytes_per_core_sec == 0:
        traffic = [bytes_per_core_sec * (cores or 0.0) for cores in _demand(host)]
    host.bandwidth_bytes_per_sec = traffic
    host.bandwidth_max_bytes_per_sec = maxima or [max_per_core * cores for cores in host.cores]


def _agreed(
    hosts: Sequence[HostColumns], figure: Callable[[HostColumns], float | None], assumed: float
) -> float:
    """Return the upper quartile of a figure over hosts, of which one alone does not decide."""
    known_figures = [value for value in map(figure, hosts) if value is not None]
    return missing.agreed_upper(missing.padded(known_figures, assumed))


def _demand(host: HostColumns) -> Sequence[float | None]:
    return host.demand_cores or [PRIOR_CORES_PER_VCPU * vcpus for vcpus in host.vcpus]


def _use(host: HostColumns) -> float:
    """Return the demand on a host, relative to its cores."""
    return sum(filter(None, _demand(host))) / (sum(host.cores) or 1.0)


def _cores_per_vcpu(host: HostColumns) -> float | None:
    vcpus = sum(host.vcpus)
    return sum(filter(None, _demand(host))) / vcpus if vcpus else None


def _max_per_core(host: HostColumns) -> float:
    return sum(filter(None, host.bandwidth_max_bytes_per_sec or ())) / (sum(host.cores) or 1.0)


def _link_per_use(host: HostColumns) -> float | None:
    use = _use(host)
    return max(filter(None, host.link_ratio or ()), default=0.0) / use if use else None
