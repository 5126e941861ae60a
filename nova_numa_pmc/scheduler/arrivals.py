# SPDX-License-Identifier: Apache-2.0
"""Compute what has arrived on a host, or left it, since its metrics were sent.

The figures come from Nova's HostState. This module imports nothing from Nova.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.compute.metrics_encoder import count_pinned_cpus, used_huge_page_mb

if TYPE_CHECKING:
    from nova_numa_pmc.compute.metrics_decoder import HostMetrics
    from nova_numa_pmc.scheduler.host_estimate import HostStateLike


def arrived_and_freed(
    decoded: HostMetrics, host_state: HostStateLike
) -> tuple[float, float, float]:
    """Return what has arrived since the metrics were sent [vCPUs, MiB], and what has left [MiB].

    Nova's counts have grown by the arrivals minus the departures. Departed guests are still part
    of the measurement, so they are added back, each with the mean size of the counted guests. CPUs
    that are dedicated to a guest do not count, because they are not among the shared ones, and
    neither do huge pages, because the metrics' capacity is that of normal memory.

    :returns: 0 or negative amounts if none have arrived; of what has left, the normal memory
    """
    vcpus = host_state.vcpus_used - decoded.vcpus_used
    growth_mb = _memory_growth_mb(decoded, host_state)
    fallen_mb = -growth_mb if growth_mb < 0 else 0.0
    if decoded.sent_s is None:  # metrics of an older release
        return vcpus, growth_mb, fallen_mb
    departed_share = 0.0  # of the counted guests
    saved_at = host_state.updated
    if saved_at is not None and saved_at.timestamp() > decoded.sent_s:
        departed_share = _departed_share(decoded, host_state, vcpus)
    if vcpus <= 0 and not departed_share:
        return vcpus, growth_mb, fallen_mb
    reserved_cpus, reserved_mb = decoded.reserved
    shared_vcpus = decoded.vcpus_used - reserved_cpus
    if host_state.numa_topology is not None:
        vcpus -= count_pinned_cpus(host_state.numa_topology) - decoded.pinned_cpus
        shared_vcpus -= decoded.pinned_cpus
    normal_mb = decoded.memory_mb_used - reserved_mb - (decoded.huge_page_mb or 0)
    memory_mb = growth_mb + departed_share * max(0, normal_mb)
    return (
        vcpus + departed_share * max(0, shared_vcpus),
        memory_mb,
        max(0, memory_mb) - growth_mb,
    )


def _memory_growth_mb(decoded: HostMetrics, host_state: HostStateLike) -> float:
    """Return by how much Nova's count of used memory has grown since the metrics were sent.

    Huge pages are not included, unless an older release sent the metrics.
    """
    # Nova's own sum: HostState has no memory_mb_used (nova/scheduler/host_manager.py).
    memory_mb_used = host_state.total_usable_ram_mb - host_state.free_ram_mb
    growth_mb = memory_mb_used - decoded.memory_mb_used
    sent_huge_mb = decoded.huge_page_mb
    if sent_huge_mb is not None and host_state.numa_topology is not None:
        growth_mb -= (used_huge_page_mb(host_state.numa_topology) or 0) - sent_huge_mb
    return growth_mb


def _departed_share(decoded: HostMetrics, host_state: HostStateLike, vcpus: float) -> float:
    """Return the share of the counted guests that have left, if others can have arrived.

    If none can have arrived, the share is 0: guests that left may be smaller than the mean, and
    the difference would look like an arrival. Instances that are being built or unshelved may be
    missing from Nova's list. The list is sent by nova-compute or read from the cell's database,
    whereas the counts belong to the compute node. They differ after a lost message and while an
    instance leaves. Neither includes what the same request has put on the host, or guests that are
    on their way from another host.

    :param vcpus: how many more vCPUs Nova counts now
    """
    listed, stats = len(host_state.instances), host_state.stats
    departed, counted = decoded.count_departed(host_state.instances)
    building = sum(
        int(stats.get(key) or 0) for key in ('num_vm_building', 'num_vm_shelved_offloaded')
    )
    instances = int(stats.get('num_instances') or 0)
    unlisted = max(0, instances - building - listed)
    have_others = (
        listed > counted - departed
        or building
        or unlisted
        or host_state.num_instances > instances
        or vcpus > -departed  # each departed guest had at least one
    )
    return max(0, departed - unlisted) / max(1, counted) if have_others else 0.0
