# SPDX-License-Identifier: Apache-2.0
"""Assume the figures of a host whose own are unknown, from Nova's counts.

It counts as two equal nodes whose guests want what guests usually do. So it is neither the best
host, which would attract all guests, nor avoided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.scheduling.aggregates import Aggregates

if TYPE_CHECKING:
    from nova_numa_pmc.scheduler.host_estimate import HostStateLike

#: Cores that are wanted for each vCPU that Nova has promised there (assumed), and cores for each
#: CPU, which is taken for one of two threads of a core: 1.25 ÷ 2.
CORES_PER_VCPU, CORES_PER_CPU = 0.3, 0.625
#: vCPUs promised for each CPU, where the host's CPUs are not known.
_VCPUS_PER_CPU = 0.625
_DISTANCES = (10.0, 21.0), (21.0, 10.0)  # as most firmware of two sockets has them
_RAM_MIB = 1 << 40  # where it is not known: any guest fits


def aggregates(host_state: HostStateLike) -> Aggregates:
    """Return the aggregates that are assumed for a host."""
    vcpus = max(0.0, host_state.vcpus_used)
    cpus = host_state.vcpus_total
    if not cpus > 0:
        cpus = max(2.0, vcpus / _VCPUS_PER_CPU)
    used_mib = max(0.0, host_state.total_usable_ram_mb - host_state.free_ram_mb)
    # Saved rows may have none. With a ratio Nova promises more than there is.
    ratio = getattr(host_state, 'ram_allocation_ratio', None) or 1.0
    ram_mib = max(0.0, host_state.total_usable_ram_mb * ratio)

    def halves(total: float) -> list[float]:
        return [total / 2, total / 2]

    return Aggregates(
        halves(CORES_PER_CPU * cpus),
        [int(cpus // 2)] * 2,
        [int(ram_mib // 2) or _RAM_MIB] * 2,
        [int(used_mib // 2)] * 2,
        halves(0.0),
        halves(vcpus),
        [*halves(CORES_PER_VCPU * vcpus)],  # a column that may lack values
        None,
        None,
        None,
        _DISTANCES,
        ((0,), (1,)),
        uniform=True,
    )
