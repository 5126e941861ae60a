# SPDX-License-Identifier: Apache-2.0
"""Infer the remote ratio from where a guest's pages are and its vCPUs ran, as a last resort."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import rates
from nova_numa_pmc.core.evidence import Evidence
from nova_numa_pmc.core.sample_records import INFERRED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc.host.sources import SourceTick


class Pages:
    """The source ``pages``, which assumes that a guest accesses all its pages equally often."""

    name = 'pages'
    problems: tuple[str, ...] = ()

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, which has a ratio but no rates."""
        evidence = {}
        for running in tick.guests:
            ratio = remote_ratio(running.cores_by_node, running.bytes_by_node)
            if ratio is not None:
                evidence[running.guest.uuid] = Evidence(self.name, INFERRED, remote_ratio=ratio)
        return evidence

    def close(self) -> None:
        """Do nothing, since nothing is open."""


def remote_ratio(
    cores_by_node: Mapping[int, float], bytes_by_node: Mapping[int, int]
) -> float | None:
    """Return 1 − Σ_n (cores_n ÷ Σ cores) · (bytes_n ÷ Σ bytes).

    :param cores_by_node, bytes_by_node: {node id: amount}
    :returns: None if the guest did not run or none of its memory is known
    """
    cpu_shares, mem_shares = rates.shares(cores_by_node), rates.shares(bytes_by_node)
    if not cpu_shares or not mem_shares:
        return None
    local = sum(share * mem_shares.get(node, 0.0) for node, share in cpu_shares.items())
    return min(1.0, max(0.0, 1.0 - local))
