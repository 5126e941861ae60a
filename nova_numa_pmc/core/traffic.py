# SPDX-License-Identifier: Apache-2.0
"""Derive the DRAM traffic of guests from their counted accesses or bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.pressure import LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nova_numa_pmc.core.sample_records import GuestSample, NodeSample


def lines_per_sec(sample: GuestSample) -> float | None:
    """Return a guest's DRAM accesses per second; None if they are unknown.

    They are derived from the traffic in bytes if the source counts only that.
    """
    if sample.local_per_sec is not None and sample.remote_per_sec is not None:
        return sample.local_per_sec + sample.remote_per_sec
    if sample.bandwidth_bytes_per_sec is not None:
        return sample.bandwidth_bytes_per_sec / LINE_BYTES
    return None


def bandwidth_by_guest(
    samples: Sequence[GuestSample], nodes: Sequence[NodeSample]
) -> dict[str, float]:
    """Return {uuid: DRAM traffic [bytes/s]} of the guests whose traffic is known.

    It is as counted, or else estimated from the guest's accesses.
    """
    line_bytes = _bytes_per_line(samples, nodes)
    served = {node.id: node.bandwidth_bytes_per_sec for node in nodes}
    rates = {sample.uuid: _bytes_per_sec(sample, line_bytes, served) for sample in samples}
    return {uuid: rate for uuid, rate in rates.items() if rate is not None}


def _bytes_per_line(samples: Sequence[GuestSample], nodes: Sequence[NodeSample]) -> float | None:
    """Return the host's DRAM traffic per counted access [bytes]; None if it is unknown.

    Events of retired loads count neither prefetches nor stores, so that a counted access stands
    for more than its own 64 bytes. The traffic that the memory controllers served is therefore
    divided over the counted accesses: those of all CPUs, which include the host's own work, or of
    the guests where CPUs are not counted.
    """
    lines = sum(lines_per_sec(sample) or 0.0 for sample in samples)
    # Where traffic is measured (resctrl), the lines of nodes are of traffic, not of accesses.
    if all(sample.bandwidth_bytes_per_sec is None for sample in samples):
        lines = max(
            lines,
            sum((node.local_per_sec or 0.0) + (node.remote_per_sec or 0.0) for node in nodes),
        )
    # Memory controllers are known by the CPUs of their node; other memory is seldom for guests.
    bandwidths = all_known(
        [
            node.bandwidth_bytes_per_sec
            for node in nodes
            if node.bandwidth_bytes_per_sec is not None
            or (node.capacity_cores and node.memory_bytes != 0)
        ]
    )
    return sum(bandwidths) / lines if lines and bandwidths is not None else None


def _bytes_per_sec(
    sample: GuestSample, line_bytes: float | None, served: Mapping[int, float | None]
) -> float | None:
    """Return a guest's DRAM traffic [bytes/s]; None if it is unknown.

    :param line_bytes: the result of :func:`_bytes_per_line`
    :param served: {node id: DRAM traffic [bytes/s], None: unknown}
    """
    lines = lines_per_sec(sample)
    if sample.bandwidth_bytes_per_sec is not None or lines is None or line_bytes is None:
        return sample.bandwidth_bytes_per_sec
    # Where CPUs are not counted, the estimate includes other work, on any node.
    limits = all_known([served.get(node) for node, size in sample.bytes_by_node if size])
    return min(lines * line_bytes, sum(limits)) if limits else lines * line_bytes
