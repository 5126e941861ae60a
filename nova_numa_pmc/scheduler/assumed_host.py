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
#: CPU: two threads of one core (:mod:`nova_numa_pmc.host.topology`).
CORES_PER_VCPU, CORES_PER_CPU = 0.3, 0.625
#: vCPUs promised for each CPU, where the host's CPUs are not known.
_VCPUS_PER_CPU = 0.625
_DISTANCES = (10.0, 21.0), (21.0, 10.0)  # as most firmware of two sockets has them
_RAM_MIB = 1 << 40  # where it is not known: any guest fits


def aggregates(host_state: HostStateLike) -> Aggregates:
    """Return a host's aggregates as assumed."""
    vcpus = max(0.0, host_state.vcpus_used)
    cpus = host_state.vcpus_total
    if not cpus > 0:
        cpus = max(2.0, vcpus / _VCPUS_PER_CPU)
    ram_mib = max(0.0, host_state.total_usable_ram_mb)
    used_mib = max(0.0, ram_mib - host_state.free_ram_mb)

    def halves(total: float) -> list[float]:
        return [total / 2, total / 2]

    return Aggregates(
        halves(CORES_PER_CPU * cpus),
        [int(cpus // 2)] * 2,
        [int(ram_mib // 2) or _RAM_MIB] * 2,
        [int(used_mib // 2)] * 2,
        halves(0.0),
        halves(vcpus),
        list(halves(CORES_PER_VCPU * vcpus)),
        None,
        None,
        None,
        _DISTANCES,
        ((0,), (1,)),
        uniform=True,
    )
