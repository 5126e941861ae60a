# SPDX-License-Identifier: Apache-2.0
"""Derive the DRAM traffic of guests from their counted accesses or bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.pressure import LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.sample_records import GuestSample, NodeSample


def lines_per_sec(sample: GuestSample) -> float | None:
    """Return a guest's DRAM accesses per second; None if they are unknown.

    They are derived from the traffic in bytes if the source counts only that.
    """
    if sample.local_per_sec is not None and sample.remote_per_sec is not None:
        return sample.local_per_sec + sample.remote_per_sec
    if sample.bandwidth_bytes_per_sec is not None:
        return sample.bandwidth_bytes_per_sec / LINE_BYTES
    return None


def bytes_per_line(
    samples: Sequence[GuestSample], bandwidths: Sequence[float | None]
) -> float | None:
    """Return the host's DRAM traffic per counted access of its guests [bytes]; None if unknown.

    Events of retired loads count neither prefetches nor stores, so that a counted access stands
    for more than its own 64 bytes. The traffic that the memory controllers served is therefore
    divided over the counted accesses.

    :param bandwidths: of the nodes that guests may use [bytes/s]; None: unknown
    """
    lines = sum(lines_per_sec(sample) or 0.0 for sample in samples)
    known = [bandwidth for bandwidth in bandwidths if bandwidth is not None]
    return sum(known) / lines if lines and len(known) == len(bandwidths) else None


def traffic_by_guest(
    samples: Sequence[GuestSample], nodes: Sequence[NodeSample]
) -> dict[str, float]:
    """Return {uuid: DRAM traffic [bytes/s]} of the guests whose traffic is known."""
    # Memory controllers are known by the CPUs of their node; other memory is seldom for guests.
    line_bytes = bytes_per_line(
        samples,
        [
            node.bandwidth_bytes_per_sec
            for node in nodes
            if node.capacity_cores or node.bandwidth_bytes_per_sec is not None
        ],
    )
    rates = {sample.uuid: bytes_per_sec(sample, line_bytes) for sample in samples}
    return {uuid: rate for uuid, rate in rates.items() if rate is not None}


def bytes_per_sec(sample: GuestSample, line_bytes: float | None) -> float | None:
    """Return a guest's DRAM traffic [bytes/s], as counted or else estimated from its accesses.

    :param line_bytes: the result of :func:`bytes_per_line`
    :returns: None if the traffic is unknown
    """
    lines = lines_per_sec(sample)
    if sample.bandwidth_bytes_per_sec is not None or lines is None or line_bytes is None:
        return sample.bandwidth_bytes_per_sec
    return lines * line_bytes
