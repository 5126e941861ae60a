# SPDX-License-Identifier: Apache-2.0
"""Compare hosts by the loss that a guest would cause there.

Each host's own hook decides which of its nodes a guest gets, using only that host's figures. To
compare hosts, a single estimate of the guest is used for all of them: its demand follows from the
median demand per vCPU, and its cache lines from the median traffic per core. With medians, an
outlier cannot skew the estimate as long as most hosts report sound values. If a host does not
report a utilisation, the upper quartile of the request's hosts that report it is assumed
(:mod:`nova_numa_pmc.core.missing`), unless only few do, or one that cannot be true.
"""

from __future__ import annotations

import math
from statistics import median_low
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, expected_per_vcpu
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.core.pressure import LINE_BYTES
from nova_numa_pmc.core.scheduling.added_loss import LINES_PER_CORE_SEC, AddedLoss, added_loss
from nova_numa_pmc.core.scheduling.outcome import outcome, with_cores_per_vcpu
from nova_numa_pmc.scheduler import assumed_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.scheduling.host_columns import HostColumns
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, Outcome
    from nova_numa_pmc.scheduler.host_estimate import HostEstimate, HostStateLike

    _Place = tuple[HostColumns, Outcome]

#: A utilisation is assumed for other hosts only if at least this share of all hosts of the request
#: reports it.
REPORTED_MIN_RATIO = 1 / 8
#: A host with a node whose memory or link serves more than this multiple of its maximum does not
#: count as reporting that part. Nothing serves more than its maximum, but a maximum that was
#: measured while guests used half of it is half as high as the true one.
SERVED_MAX_RATIO = 2.0
#: Lines per core-second above this are implausible: 64 GB/s. At 80 ns for each line, a core would
#: wait for 80 lines at a time; the second-level cache of Intel's Golden Cove waits for 48.
LINES_PER_CORE_SEC_MAX = 1e9
_NO_HISTORY = 0, 0.0
#: Whether an assumed host counts as reporting CPU (from Nova's counts), bandwidth and link.
_ASSUMED_HOST_REPORTS = True, False, False
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
    lines_per_core_sec = _expected_lines(guest, known_places)
    places = [
        place or _assumed_place(host_state, estimate, guest)
        for host_state, estimate, place in zip(host_states, estimates, known_places)
    ]
    losses = [
        added_loss(*place, guest, lines_per_core_sec) if place else _NO_CPU for place in places
    ]
    known_parts = [place and _parts_known(place[0]) for place in known_places]
    if len(set(known_parts)) > 1:
        quartiles = _quartiles(places, known_parts, losses)
        for position, (place, host_parts) in enumerate(zip(places, known_parts)):
            assumed = [
                0.0 if is_known else quartile
                for quartile, is_known in zip(quartiles, host_parts or _ASSUMED_HOST_REPORTS)
            ]
            if place and any(assumed):
                losses[position] = _worst_loss(*place, guest, lines_per_core_sec, assumed)
    return losses


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


def _expected_lines(guest: ExpectedGuest, known_places: Sequence[_Place | None]) -> float:
    """Return the cache lines that the guest is expected to transfer per core-second.

    Hosts without traffic do not count: their guests have not begun to work, which says nothing
    about other guests. Nor do hosts with more traffic than their cores can cause.
    """
    bytes_max = LINES_PER_CORE_SEC_MAX * LINE_BYTES
    rates = [
        place[0].bytes_per_core_sec
        for place in known_places
        if place and place[0].bytes_per_core_sec and place[0].bytes_per_core_sec <= bytes_max
    ]
    return guest.intensity * (median_low(rates) / LINE_BYTES if rates else LINES_PER_CORE_SEC)


def expected_demand(histories: Sequence[tuple[int, float]]) -> float:
    """Return the expected demand per vCPU of any guest, from the hosts' histories [cores].

    :param histories: for each host, (number of guests, sum of their cores per vCPU); not empty
    """
    host_means = [
        total / guests if guests else PRIOR_CORES_PER_VCPU for guests, total in histories
    ]
    guests = sum(guests for guests, _ in histories)
    return expected_per_vcpu(guests, guests * median_low(host_means))


def _assumed_place(
    host_state: HostStateLike, estimate: HostEstimate, guest: ExpectedGuest
) -> _Place | None:
    """Return the assumed columns of an unknown host and where the guest would go; else None."""
    if estimate.outcome is not None:
        return None
    host = assumed_host.columns(host_state)
    return host, outcome(host, guest, _PLACEMENT_OPTIONS)


def _worst_loss(
    host: HostColumns,
    host_outcome: Outcome,
    guest: ExpectedGuest,
    lines_per_core_sec: float,
    assumed: Sequence[float],
) -> AddedLoss:
    """Return the added loss on a host for which some utilisations are assumed.

    It is unknown which of its nodes is the worst, so the most loaded one counts.
    """
    outcomes = [host_outcome]
    if len(host_outcome.positions) == 1:
        nodes = ((position,) for position, cores in enumerate(host.cores) if cores)
        outcomes = [
            host_outcome._replace(
                positions=positions,
                cpu_positions=positions,
                mem_positions=positions if host_outcome.mem_positions else (),
            )
            for positions in nodes
        ]
    losses = [
        added_loss(host, node_outcome, guest, lines_per_core_sec, assumed)
        for node_outcome in outcomes
    ]
    return AddedLoss(*map(max, zip(*losses)))


def _parts_known(host: HostColumns) -> tuple[bool, bool, bool]:
    """Return whether a host reports CPU, bandwidth and link, each for at least one domain."""
    bandwidths, maxima = host.bandwidth_bytes_per_sec, host.bandwidth_max_bytes_per_sec
    if host.uniform:
        return (
            host.demand_cores is not None,
            bandwidths is not None and maxima is not None,
            host.link_ratio is not None,
        )
    return (
        _any_known(host.demand_cores),
        any(
            bandwidth is not None and maximum
            for bandwidth, maximum in zip(bandwidths or (), maxima or ())
        ),
        _any_known(host.link_ratio),
    )


def _any_known(column: Sequence[float | None] | None) -> bool:
    return column is not None and column.count(None) < len(column)


def _parts_reported(
    host: HostColumns, host_parts: tuple[bool, bool, bool]
) -> tuple[bool, bool, bool]:
    """Return which of the known parts a host reports with figures that can be true.

    CPU demand has been checked before the host was estimated.
    """
    bandwidths, maxima = host.bandwidth_bytes_per_sec or (), host.bandwidth_max_bytes_per_sec or ()
    cpu_known, bandwidth_known, link_known = host_parts
    return (
        cpu_known,
        bandwidth_known
        and all(
            bandwidth <= SERVED_MAX_RATIO * maximum
            for bandwidth, maximum in zip(bandwidths, maxima)
            if bandwidth is not None and maximum
        ),
        link_known and max(filter(None, host.link_ratio or ()), default=0.0) <= SERVED_MAX_RATIO,
    )


def _quartiles(
    places: Sequence[_Place | None],
    known_parts: Sequence[tuple[bool, bool, bool] | None],
    losses: Sequence[AddedLoss],
) -> list[float]:
    """Return each utilisation's upper quartile over hosts that report it; 0.0 if too few do."""
    values: tuple[list[float], ...] = ([], [], [])
    for place, host_parts, loss in zip(places, known_parts, losses):
        if place is None or host_parts is None:
            continue
        for part, is_reported in enumerate(_parts_reported(place[0], host_parts)):
            if is_reported:
                values[part].append(loss[part])
    return [
        missing.upper_quartile(utilisations)
        if utilisations and len(utilisations) >= REPORTED_MIN_RATIO * len(losses)
        else 0.0
        for utilisations in values
    ]
