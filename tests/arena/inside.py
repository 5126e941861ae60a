# SPDX-License-Identifier: Apache-2.0
"""Which nodes of its host a guest is given when it starts: a way is one function.

A way takes the fleet, a host and a guest and returns two rows of parts by node, which each sum
to 1: of its CPUs and of its memory.
"""

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core.scheduling.aggregates import Aggregates
from nova_numa_pmc.core.scheduling.outcome import expected_guest, outcome
from tests.arena import parameters as p

LIMITS = model.Limits()


def placed(fleet, host, guest):
    """Place it as the libvirt hook does: by the package's own decision on the host's figures."""
    trace, hosts = fleet.trace, fleet.hosts
    if trace.dedicated[guest]:
        return _dedicated(fleet, host)
    found = outcome(
        aggregates(fleet, host),
        expected_guest(int(trace.vcpus[guest]), int(trace.memory_mib[guest])),
        LIMITS,
    )
    return (
        _parts(found.cpus, hosts.cores[host]),
        _parts(found.mems or range(hosts.nodes), fleet.free_mib(host)),
    )


def floating(fleet, host, guest):
    """Leave it floating over all nodes, its memory with it: as without the package."""
    del guest
    everywhere = range(fleet.hosts.nodes)
    return _parts(everywhere, fleet.hosts.cores[host]), _parts(everywhere, fleet.free_mib(host))


def relieve(fleet, guests):
    """Let hosts with a node above the floor move one guest each; return the hosts.

    A stand-in for the agent's rebalancer, by its rule's outcome only: the guest whose move
    levels its two nodes best, if they are a gap apart and its memory fits. Moves take no time.
    """
    pressed = fleet.node_demand / fleet.hosts.cores
    most, least = pressed.argmax(1), pressed.argmin(1)
    rows = np.arange(len(most))
    gap = pressed[rows, most] - pressed[rows, least]
    moved = []
    for host in np.flatnonzero((pressed.max(1) > p.MOVE_FLOOR) & (gap > p.MOVE_GAP)):
        source, target = most[host], least[host]
        here = guests[(fleet.host[guests] == host) & (fleet.cpu_parts[guests, source] == 1)]
        here = here[
            (fleet.trace.memory_mib[here] <= fleet.free_mib(host)[target])
            & ~fleet.trace.dedicated[here]
        ]
        wanted = gap[host] / 2 * fleet.hosts.cores[host, source]
        here = here[fleet.usual[here] < 1.5 * wanted]
        if len(here):
            best = here[np.argmin(np.abs(fleet.usual[here] - wanted))]
            fleet.move(best, int(target))
            moved.append(int(host))
    return moved


def aggregates(fleet, host):
    """Return a host as its agent sees it at this moment."""
    hosts, nodes = fleet.hosts, fleet.hosts.nodes
    return Aggregates(
        hosts.cores[host].tolist(),
        hosts.threads[host].tolist(),
        hosts.memory_mib[host].tolist(),
        fleet.promised_mib[host].tolist(),
        fleet.node_guests[host].tolist(),
        fleet.node_vcpus[host].tolist(),
        np.round(fleet.node_demand[host] + fleet.node_young[host], 2).tolist(),
        fleet.node_traffic[host].tolist(),
        hosts.bandwidth[host].tolist(),
        None,
        fleet.distance_rows,
        tuple((at,) for at in range(nodes)),
        rotation=int(fleet.placements[host]) % nodes,
    )


def _dedicated(fleet, host):
    """Give it CPUs of its own on the node with most memory left, as Nova pins it."""
    best = (int(np.argmax(fleet.free_mib(host))),)
    parts = _parts(best, fleet.hosts.cores[host])
    return parts, parts


def _parts(nodes, weights):
    row = np.zeros(len(weights))
    for at in nodes:
        row[at] = max(weights[at], p.RESERVED_MIB * 1e-6)
    return row / row.sum()
