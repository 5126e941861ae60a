# SPDX-License-Identifier: Apache-2.0
"""Read the topology of a host, reduced to the CPUs that guests may use.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import pools
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import allowed, files, topology
from nova_numa_pmc.state import publication

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from nova_numa_pmc import model


def host_with_pool_cpus(root: str, pool: pools.Pool | None = None) -> model.Topology:
    """Read the topology, with the floating pool's CPUs as its nodes' ``cpus`` (:mod:`pools`).

    :param pool: the floating pool; None: the one that the agent has published
    :raises TopologyError: the host cannot be read
    """
    return pools.with_floating_pool(host_with_usable_cpus(root), pool or published_pool(root))


def host_with_usable_cpus(root: str) -> model.Topology:
    """Read the topology, with the usable CPUs of libvirt's default partition as nodes' ``cpus``.

    :raises TopologyError: the host cannot be read
    """
    host = topology.with_caches(topology.read(root), root)
    granted_cpus = allowed.partition_cpus(allowed.DEFAULT_PARTITION, root)
    return host._replace(
        nodes=tuple(
            node._replace(
                cpus=node.cpus if granted_cpus is None else node.cpus & granted_cpus,
                usable_cpus=node.cpus,
            )
            for node in host.nodes
        )
    )


def published_pool(root: str) -> pools.Pool | None:
    """Return the floating pool that the agent last published since boot, or None."""
    try:
        published = publication.read_optional(host_options.read_under_root(root).state_path(root))
    except StateError:
        return None  # the code that reads the loads reports why
    if published is None or not published.pools or published.boot_id != files.read_boot_id(root):
        return None
    return pools.Pool(published.pools[0].cpus, pools.AGENT)
