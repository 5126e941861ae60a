# SPDX-License-Identifier: Apache-2.0
"""Correct a host's figures for guests that they do not include yet, or should not include."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU
from nova_numa_pmc.core.scheduling.outcome import bandwidth_on, expected_guest, outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc.core.scheduling.host_columns import HostColumns
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest
    from nova_numa_pmc.model import PlacementOptions

#: Guests that arrived since the last measurement are charged as at most this many.
GUESTS_MAX = 8


def add_arrivals(
    host: HostColumns,
    vcpus: float,
    memory_mib: float,
    guest: ExpectedGuest,
    placement_options: PlacementOptions,
    cores_per_vcpu: float = PRIOR_CORES_PER_VCPU,
) -> HostColumns:
    """Charge a host for guests that arrived after it was measured, where they probably went.

    The guests are not known individually. Each is assumed to be about as large as the requested
    guest, and to have gone where the hook would put a guest of that size by default.

    :param host: a host, which is not changed
    :param vcpus, memory_mib: sums over these guests. A negative sum counts as 0, because what a
        guest that left has freed is not known before the next measurement
    :param cores_per_vcpu: expected demand per vCPU of any guest on this host [cores]
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
        positions = outcome(host, mean_guest, placement_options).positions
        cores = sum(host.cores[position] for position in positions)
        _add_shares(
            host,
            mean_guest,
            {
                position: host.cores[position] / cores if cores else 1 / len(positions)
                for position in positions
            },
        )
        host.rotation = (host.rotation + 1) % len(host.cores)
    return host


def subtract_guest(host: HostColumns, guest: ExpectedGuest) -> HostColumns:
    """Subtract a guest from a host that it is already on, so that it does not count twice.

    The scheduler does not know on which nodes the guest is, so its size is subtracted from all
    domains in proportion to their vCPUs.
    """
    amounts = host.vcpus if sum(host.vcpus) else host.cores
    host, total = host.copy(), sum(amounts)
    _add_shares(
        host,
        guest,
        {position: -amount / total for position, amount in enumerate(amounts)} if total else {},
    )
    return host


def _add_shares(host: HostColumns, guest: ExpectedGuest, shares: Mapping[int, float]) -> None:
    """Add shares of a guest to domains, or subtract negative ones; amounts stay at least 0."""
    guest_bandwidth = bandwidth_on(host, guest) or 0
    demands, bandwidths = host.demand_cores, host.bandwidth_bytes_per_sec
    for position, share in shares.items():
        host.vcpus[position] = max(0, host.vcpus[position] + share * guest.vcpus)
        host.guests[position] = max(0, host.guests[position] + share)
        host.promised_mib[position] = max(
            0, host.promised_mib[position] + round(share * guest.memory_mib)
        )
        demand = demands[position] if demands else None
        if demands and demand is not None:
            # Rounded as when nodes are merged, so that ties are broken in the same way.
            demands[position] = max(0, round(demand + share * guest.demand_cores, 6))
        bandwidth = bandwidths[position] if bandwidths else None
        if bandwidths and bandwidth is not None:
            bandwidths[position] = max(0, bandwidth + share * guest_bandwidth)
