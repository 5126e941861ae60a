# SPDX-License-Identifier: Apache-2.0
"""Compare what a guest would meet on several hosts.

Each host's own hook decides which of its nodes a guest gets, from that host's figures alone. To
compare hosts, one estimate of the guest is used for all: its demand from the median demand per
vCPU, its cache lines from the median traffic per core. Medians keep a host with odd values from
deciding for the others, where most are sound. A utilisation that a host does not know is assumed
to be the upper quartile of the request's hosts that do (:mod:`nova_numa_pmc.core.missing`), unless
these are few.
"""

from __future__ import annotations

import math
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

    from nova_numa_pmc.core.scheduling.aggregates import Aggregates
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, Outcome
    from nova_numa_pmc.scheduler.host_estimate import HostEstimate, HostStateLike

    _Place = tuple[Aggregates, Outcome]

#: A utilisation that a smaller share of the hosts knows is not assumed of the others.
_KNOWN_MIN_RATIO = 1 / 8
_NO_HISTORY = 0, 0.0
#: Parts that an assumed host counts as knowing: CPU, by Nova's counts; not bandwidth and link.
_ASSUMED_HOST_KNOWS = True, False, False
#: What a guest would meet on a host without a CPU that guests may use.
_NO_CPU = AddedLoss(math.inf, 0.0, 0.0, 1.0)
_PLACEMENT_OPTIONS = model.PlacementOptions()


def compare(
    host_states: Sequence[HostStateLike], estimates: Sequence[HostEstimate], guest: ExpectedGuest
) -> list[AddedLoss]:
    """Return what the guest would meet on each host.

    A host whose estimate is unknown counts as :mod:`assumed_host` has it.
    """
    measured = [_place(estimate) for estimate in estimates]
    guest = _with_expected_demand(guest, estimates, measured)
    lines_per_core_sec = _expected_lines(guest, measured)
    places = [
        place or _assumed_place(host_state, estimate, guest)
        for host_state, estimate, place in zip(host_states, estimates, measured)
    ]
    losses = [
        added_loss(*place, guest, lines_per_core_sec) if place else _NO_CPU for place in places
    ]
    known = [place and _knows(place[0]) for place in measured]
    if len(set(known)) > 1:
        quartiles = _quartiles(known, losses)
        for position, (place, knows) in enumerate(zip(places, known)):
            assumed = [
                0.0 if is_known else quartile
                for quartile, is_known in zip(quartiles, knows or _ASSUMED_HOST_KNOWS)
            ]
            if place and any(assumed):
                losses[position] = _worst_loss(*place, guest, lines_per_core_sec, assumed)
    return losses


def _place(estimate: HostEstimate) -> _Place | None:
    """Return a host and where the guest would go there; None: unknown, or no CPU for guests."""
    found, host = estimate[0], estimate[-1]  # by position: names cost as much as all else here
    if found is None or host is None or found[1][0] >= ranking.PRESSURE_MAX:
        return None
    return host, found


def _with_expected_demand(
    guest: ExpectedGuest, estimates: Sequence[HostEstimate], places: Sequence[_Place | None]
) -> ExpectedGuest:
    histories = [
        estimate.history or _NO_HISTORY for estimate, place in zip(estimates, places) if place
    ]
    if any(guests for guests, _ in histories):
        return with_cores_per_vcpu(guest, expected_demand(histories))
    return guest


def _expected_lines(guest: ExpectedGuest, places: Sequence[_Place | None]) -> float:
    """Return the cache lines that the guest is expected to take [per core-second].

    A host without traffic has guests that have not begun to work, which tell nothing of others.
    """
    rates = [place[0].rate for place in places if place and place[0].rate]
    return guest.intensity * (_median(rates) / LINE_BYTES if rates else LINES_PER_CORE_SEC)


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


def _assumed_place(
    host_state: HostStateLike, estimate: HostEstimate, guest: ExpectedGuest
) -> _Place | None:
    """Return an unknown host as assumed, and where the guest would go there; None: it is known."""
    if estimate.outcome is not None:
        return None
    host = assumed_host.aggregates(host_state)
    return host, outcome(host, guest, _PLACEMENT_OPTIONS)


def _worst_loss(
    host: Aggregates,
    found: Outcome,
    guest: ExpectedGuest,
    lines_per_core_sec: float,
    assumed: Sequence[float],
) -> AddedLoss:
    """Return the loss on a host some of whose utilisations are assumed.

    As it is unknown which of its nodes is worst, the most loaded one counts.
    """
    outcomes = [found]
    if len(found.at) == 1:
        nodes = ((at,) for at, cores in enumerate(host.cores) if cores)
        outcomes = [found._replace(at=at, cpus=at, mems=at if found.mems else ()) for at in nodes]
    losses = [added_loss(host, each, guest, lines_per_core_sec, assumed) for each in outcomes]
    return AddedLoss(*map(max, zip(*losses)))


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


def _quartiles(
    known: Sequence[tuple[bool, bool, bool] | None], losses: Sequence[AddedLoss]
) -> list[float]:
    """Return the upper quartile of each utilisation over the hosts that know it."""
    values: tuple[list[float], ...] = ([], [], [])
    hosts = 0
    for knows, loss in zip(known, losses):
        if knows is None:
            continue
        hosts += 1
        for part, is_known in enumerate(knows):
            if is_known:
                values[part].append(loss[part])
    return [
        missing.upper_quartile(listed)
        if listed and len(listed) >= _KNOWN_MIN_RATIO * hosts
        else 0.0
        for listed in values
    ]
