# SPDX-License-Identifier: Apache-2.0
"""Read the topology of a host, reduced to the CPUs that guests may use.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import pools
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import cpu_topology, files, topology
from nova_numa_pmc.state import pool_loads

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from nova_numa_pmc import model

#: CPUs of the guests' partition, with and without systemd; operators may withhold CPUs from it.
_PARTITION_CPUS = (
    'sys/fs/cgroup/machine.slice/cpuset.cpus.effective',
    'sys/fs/cgroup/machine/cpuset.cpus.effective',
    'sys/fs/cgroup/cpuset/machine.slice/cpuset.effective_cpus',
    'sys/fs/cgroup/cpuset/machine/cpuset.effective_cpus',
)


def host_with_pool_cpus(root: str, pool: pools.Pool | None = None) -> model.Topology:
    """Read the topology, with the floating pool's CPUs as its nodes' ``cpus`` (:mod:`pools`).

    :param pool: the floating pool; None: the one that the agent has published
    :raises TopologyError: the host cannot be read
    """
    return pools.with_floating_pool(host_with_usable_cpus(root), pool or published_pool(root))


def host_with_usable_cpus(root: str) -> model.Topology:
    """Read the topology, with all usable CPUs as its nodes' ``cpus``.

    A CPU is usable if it is neither isolated nor withheld from the guests' partition.

    :raises TopologyError: the host cannot be read
    """
    host = cpu_topology.read(topology.read(root), root)
    partition_cpus = (files.optional_cpus(root, path) for path in _PARTITION_CPUS)
    allowed = next(filter(None, partition_cpus), host.online_cpus)
    nodes = [(node, node.cpus & allowed) for node in host.nodes]
    return host._replace(
        nodes=tuple(node._replace(cpus=cpus, usable_cpus=cpus) for node, cpus in nodes)
    )


def published_pool(root: str) -> pools.Pool | None:
    """Return the floating pool that the agent last published since boot, or None."""
    try:
        loads = pool_loads.read(host_options.read_under_root(root).state_path(root))
    except StateError:
        return None  # the code that reads the loads reports why
    if loads is None or not loads.pools or loads.boot_id != files.read_boot_id(root):
        return None
    return pools.Pool(loads.pools[0].cpus, pools.AGENT)
