# SPDX-License-Identifier: Apache-2.0
"""Derive the DRAM traffic of guests from their accesses or their counted bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.pressure import LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc import model
    from nova_numa_pmc.sample_records import GuestSample, NodeSample


def lines_per_sec(sample: GuestSample) -> float | None:
    """Return a guest's DRAM accesses per second, from bytes if the source counts only those."""
    if sample.local_per_sec is not None and sample.remote_per_sec is not None:
        return sample.local_per_sec + sample.remote_per_sec
    if sample.bandwidth_bytes_per_sec is not None:
        return sample.bandwidth_bytes_per_sec / LINE_BYTES
    return None


def bytes_per_line(
    samples: Sequence[GuestSample], nodes: Sequence[model.NodeView | NodeSample]
) -> float | None:
    """Return the host's DRAM traffic per access that its guests' counters saw; None: unknown.

    Events of retired loads see neither prefetches nor stores, so that an access stands for
    more than its 64 bytes; what the memory controllers served is shared out by accesses.
    """
    lines = sum(lines_per_sec(sample) or 0.0 for sample in samples)
    served = [
        node.bandwidth_bytes_per_sec for node in nodes if node.bandwidth_bytes_per_sec is not None
    ]
    return sum(served) / lines if lines and len(served) == len(nodes) else None


def traffic_of(samples: Sequence[GuestSample], nodes: Sequence[NodeSample]) -> dict[str, float]:
    """Return {uuid: DRAM traffic in bytes/s}; a guest whose traffic is unknown is left out."""
    line_bytes = bytes_per_line(samples, nodes)
    traffic_by_guest = {sample.uuid: bytes_per_sec(sample, line_bytes) for sample in samples}
    return {uuid: traffic for uuid, traffic in traffic_by_guest.items() if traffic is not None}


def bytes_per_sec(sample: GuestSample, line_bytes: float | None) -> float | None:
    """Return a guest's DRAM traffic: as counted, else by its accesses; None: unknown [bytes/s].

    :param line_bytes: :func:`bytes_per_line`
    """
    lines = lines_per_sec(sample)
    if sample.bandwidth_bytes_per_sec is not None or lines is None or line_bytes is None:
        return sample.bandwidth_bytes_per_sec
    return lines * line_bytes
