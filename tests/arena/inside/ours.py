# SPDX-License-Identifier: Apache-2.0
"""How the package places guests within a host, and moves them."""

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core.scheduling.host_columns import HostColumns
from nova_numa_pmc.core.scheduling.outcome import expected_guest, outcome
from tests.arena import parameters as p
from tests.arena.inside import nodes

PLACEMENT_OPTIONS = model.PlacementOptions()


def placed(fleet, host, guest):
    """Place a guest as the libvirt hook does: by the package's own decision on the host's figures.

    Source: this repository, nova_numa_pmc/core/scheduling/outcome.py.
    Formula: doc/source/reference/rebalance.rst and pressure.rst.
    Deviations: the figures are current; guests are not widened while a node is crowded.
    """
    trace, hosts = fleet.trace, fleet.hosts
    placement = outcome(
        columns(fleet, host),
        expected_guest(int(trace.vcpus[guest]), int(trace.memory_mib[guest])),
        PLACEMENT_OPTIONS,
    )
    cpus = nodes.parts(placement.cpu_positions, hosts.cores[host])
    mem_positions = placement.mem_positions or range(hosts.nodes)
    if mem_positions == placement.cpu_positions and len(mem_positions) == 1:
        return cpus, cpus
    return cpus, nodes.parts(mem_positions, fleet.free_mib(host))


def relieve(fleet, guests):
    """Let each host with a node above the floor move one guest.

    A stand-in for the agent's rebalancer that models only the outcome of its rule: it moves the
    guest whose move levels its two nodes best, if they are a gap apart and its memory fits.
    Moves take no time.
    """
    pressed = fleet.node_demand / fleet.hosts.cores
    most, least = pressed.argmax(1), pressed.argmin(1)
    rows = np.arange(len(most))
    gap = pressed[rows, most] - pressed[rows, least]
    guests = guests[np.argsort(fleet.host[guests], kind='stable')]
    firsts = np.searchsorted(fleet.host[guests], np.arange(len(most) + 1))
    for host in np.flatnonzero((pressed.max(1) > p.MOVE_FLOOR) & (gap > p.MOVE_GAP)):
        source, target = most[host], least[host]
        here = guests[firsts[host] : firsts[host + 1]]
        here = here[
            (fleet.cpu_parts[here, source] == 1)
            & (fleet.trace.memory_mib[here] <= fleet.free_mib(host)[target])
            & ~fleet.trace.dedicated[here]
        ]
        wanted = gap[host] / 2 * fleet.hosts.cores[host, source]
        here = here[fleet.usual[here] < 1.5 * wanted]
        if len(here):
            best = here[np.argmin(np.abs(fleet.usual[here] - wanted))]
            row = nodes.parts((int(target),), fleet.hosts.cores[host])
            fleet.move(best, row, row)


def columns(fleet, host):
    """Return a host as its agent sees it at this moment."""
    hosts = fleet.hosts
    return HostColumns(
        hosts.cores[host].tolist(),
        hosts.threads[host].tolist(),
        hosts.memory_mib[host].tolist(),
        fleet.promised_mib[host].tolist(),
        fleet.node_guests[host].tolist(),
        fleet.node_vcpus[host].tolist(),
        (np.rint(100 * (fleet.node_demand[host] + fleet.node_young[host])) / 100).tolist(),
        fleet.node_traffic[host].tolist(),
        hosts.bandwidth[host].tolist(),
        None,
        fleet.distance_rows,
        tuple((node,) for node in range(hosts.nodes)),
        rotation=int(fleet.placements[host]) % hosts.nodes,
    )
