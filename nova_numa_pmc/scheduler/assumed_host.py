# SPDX-License-Identifier: Apache-2.0
"""Assume figures for a host whose own are unknown, based on Nova's counts.

Such a host counts as two equal nodes whose guests have the usual demand. It is therefore neither
the best host, which would attract all guests, nor avoided. If figures that cannot be right or are
too old name a higher demand, that counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.compute.metrics_encoder import count_pinned_cpus
from nova_numa_pmc.core.scheduling.host_columns import HostColumns

if TYPE_CHECKING:
    from nova_numa_pmc.scheduler.host_estimate import HostStateLike

#: Assumed demand for each vCPU that Nova has allocated on the host's shared CPUs. It is more than
#: most guests want, because the host may have less room than its counts show: with the demand that
#: is measured on the other hosts, guests lose 0.8 % more in ``make arena``.
CORES_PER_VCPU = 0.3
#: Assumed cores for each CPU, which is taken to be one of the two threads of a core: 1.25 ÷ 2.
CORES_PER_CPU = 0.625
#: Assumed number of vCPUs allocated per CPU if the number of the host's CPUs is not known.
_VCPUS_PER_CPU = 0.625
_DISTANCES = (10.0, 21.0), (21.0, 10.0)  # as most firmware of two-socket hosts reports them
_RAM_MIB = 1 << 40  # if it is not known, so that any guest fits


def columns(
    host_state: HostStateLike, demand_cores: float = 0.0, bytes_per_core_sec: float = 0.0
) -> HostColumns:
    """Return the assumed columns of a host, whose maximum of bandwidth is unknown.

    :param demand_cores: a lower bound of its demand
    :param bytes_per_core_sec: traffic of its guests, with those to which Nova pins CPUs
    """
    # Nova's vcpus_used counts the vCPUs of all guests. Its vcpus_total does not count the CPUs of
    # cpu_dedicated_set; without that, guests are pinned to CPUs that it counts.
    topology = host_state.numa_topology
    pinned_cpus = 0 if topology is None else count_pinned_cpus(topology)
    vcpus = max(0.0, host_state.vcpus_used - pinned_cpus)
    demand_cores = max(demand_cores, CORES_PER_VCPU * vcpus)
    traffic_cores = demand_cores + CORES_PER_VCPU * pinned_cpus
    cpus = host_state.vcpus_total
    if not cpus > 0:
        cpus = vcpus / _VCPUS_PER_CPU
    elif pinned_cpus:
        cpus -= sum(len(cell.pinned_cpus & cell.cpuset) for cell in topology.cells)
    cpus = max(2.0, cpus)  # each node has one, so that its pressure is finite
    used_mib = max(0.0, host_state.total_usable_ram_mb - host_state.free_ram_mb)
    # Nova allocates up to the RAM multiplied by this ratio.
    ram_mib = max(0.0, host_state.total_usable_ram_mb * (host_state.ram_allocation_ratio or 1.0))

    def halve(total: float) -> list[float]:
        return [total / 2, total / 2]

    return HostColumns(
        halve(CORES_PER_CPU * cpus),
        [int(cpus // 2)] * 2,
        [int(ram_mib // 2) or _RAM_MIB] * 2,
        [int(used_mib // 2)] * 2,
        halve(0.0),
        halve(vcpus),
        [*halve(demand_cores)],  # copied for its type: a column may lack values
        [*halve(bytes_per_core_sec * traffic_cores)],
        None,
        None,
        _DISTANCES,
        ((0,), (1,)),
        uniform=True,
    )
