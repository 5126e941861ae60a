# SPDX-License-Identifier: Apache-2.0
"""Estimate what the guests of a host would lose because of one more guest, for a scheduler.

The loss is that by which a place is chosen (:mod:`nova_numa_pmc.core.placement.loss`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU
from nova_numa_pmc.core.placement import loss
from nova_numa_pmc.core.scheduling.host_columns import is_uniform

if TYPE_CHECKING:
    from nova_numa_pmc.core.scheduling.host_columns import HostColumns, UniformHostColumns
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, Outcome

#: The demand and traffic of other guests on a node are a weighted mean of the node's own figures
#: and the host's, spread evenly over its nodes. This is the weight of the host's. When a guest
#: starts, it meets the demand on its nodes; later, once the agent has moved guests and others have
#: arrived, it meets that of the host. In ``make arena``, values from 0.4 to 1 differ less than
#: seeds do.
HOST_SHARE = 0.8


def added_loss(
    host: HostColumns, outcome: Outcome, guest: ExpectedGuest, lines_per_core_sec: float
) -> loss.AddedLoss:
    """Return the utilisations that a guest would meet on a host, and the loss that it would cause.

    The loss is at most what the guest wants.

    :param outcome: where the guest would go
    :param lines_per_core_sec: cache lines that it transfers per core-second
    """
    # Access by name would take as long as everything else here, and this runs for each host.
    _, _, _, cpu_positions, mem_positions = outcome
    ratios = loss.added_loss(
        columns(host),
        cpu_positions,
        mem_positions,
        guest[2],
        lines_per_core_sec,
        HOST_SHARE,
        guest.policy != model.SPREAD,
    )
    return ratios if ratios[3] <= 1.0 else loss.AddedLoss._make((*ratios[:3], 1.0))


def columns(host: HostColumns | UniformHostColumns) -> loss.Columns:
    """Return what a loss depends on."""
    if not is_uniform(host):
        return loss.columns(host.view())[0]
    demand, bandwidth = host.demand_cores, host.bandwidth_bytes_per_sec
    bandwidth_max = host.bandwidth_max_bytes_per_sec
    if demand is None:
        demand = [PRIOR_CORES_PER_VCPU * vcpus for vcpus in host.vcpus]
    if not bandwidth or not bandwidth_max:
        bandwidth = bandwidth_max = []
    return loss.Columns._make(
        (
            host.cores,
            demand,
            bandwidth,
            bandwidth_max,
            host.link_ratio or (),
            host.distances,
            range(len(host.cores)),
            host.vcpus,
        )
    )
