# SPDX-License-Identifier: Apache-2.0
"""Correct a host's figures for guests that arrived after the measurement, or that will move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU
from nova_numa_pmc.core.scheduling.outcome import expected_guest, outcome, traffic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc.core.scheduling.aggregates import Aggregates
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest
    from nova_numa_pmc.model import PlacementOptions

#: Guests that came since the last measurement are charged as at most this many.
GUESTS_MAX = 8


def add_new_guests(
    host: Aggregates,
    vcpus: float,
    memory_mib: float,
    guest: ExpectedGuest,
    limits: PlacementOptions,
    cores_per_vcpu: float = PRIOR_CORES_PER_VCPU,
) -> Aggregates:
    """Charge a host for guests that came after it was measured, where they probably went.

    They are not known one by one: each is assumed to be as large as the requested guest, and to
    have gone where that would have gone.

    :param host: left as it is
    :param vcpus, memory_mib: sums over these guests. Below 0 counts as 0: what a guest that left
        has freed is not known before the next measurement
    :param cores_per_vcpu: what is expected of any guest of this host
    """
    vcpus, memory_mib = max(0, vcpus), max(0, memory_mib)
    if not vcpus and not memory_mib:
        return host
    count = max(1, min(GUESTS_MAX, round(vcpus / max(1, guest.vcpus))))
    mean_guest = expected_guest(
        vcpus / count,
        int(-(-memory_mib // count)),
        intensity=guest.intensity,
        cores_per_vcpu=cores_per_vcpu,
    )
    host = host.copy()
    for _ in range(count):
        positions = outcome(host, mean_guest, limits).at
        cores = sum(host.cores[at] for at in positions)
        _add(
            host,
            mean_guest,
            {at: host.cores[at] / cores if cores else 1 / len(positions) for at in positions},
        )
        host.rotation = (host.rotation + 1) % len(host.cores)
    return host


def subtract_guest(host: Aggregates, guest: ExpectedGuest) -> Aggregates:
    """Take a guest off a host that has it already, so that it does not count twice.

    The scheduler does not know on which nodes the guest is, so its size is taken off all domains
    in proportion to their vCPUs.
    """
    borne = host.vcpus if sum(host.vcpus) else host.cores
    host, total = host.copy(), sum(borne)
    _add(host, guest, {at: -vcpus / total for at, vcpus in enumerate(borne)} if total else {})
    return host


def _add(host: Aggregates, guest: ExpectedGuest, shares: Mapping[int, float]) -> None:
    """Add shares of a guest to domains, or take them off where negative; never below 0."""
    added = traffic(host, guest) or 0
    for at, share in shares.items():
        host.vcpus[at] = max(0, host.vcpus[at] + share * guest.vcpus)
        host.guests[at] = max(0, host.guests[at] + share)
        host.promised_mib[at] = max(0, host.promised_mib[at] + round(share * guest.memory_mib))
        wanted = host.demand[at] if host.demand else None
        if host.demand and wanted is not None:
            # Rounded as in merging nodes, so that ties are broken alike.
            host.demand[at] = max(0, round(wanted + share * guest.demand_cores, 6))
        served = host.bandwidth[at] if host.bandwidth else None
        if host.bandwidth and served is not None:
            host.bandwidth[at] = max(0, served + share * added)
