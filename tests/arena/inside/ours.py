# SPDX-License-Identifier: Apache-2.0
"""How the package places guests within a host, and moves them."""

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core.host_view import expected_per_vcpu
from nova_numa_pmc.core.placement import loss
from nova_numa_pmc.core.scheduling.host_columns import HostColumns
from nova_numa_pmc.core.scheduling.outcome import (
    ExpectedGuest,
    expected_guest,
    loss_columns,
    outcome,
)
from tests.arena import parameters as p
from tests.arena.inside import nodes

PLACEMENT_OPTIONS = model.PlacementOptions()


def placed(fleet, host, guest):
    """Place a guest as the libvirt hook does: by the package's own decision on the host's figures.

    Source: this repository, nova_numa_pmc/core/scheduling/outcome.py.
    Formula: doc/source/reference/rebalance.rst and pressure.rst.
    Deviations: the figures are current; guests are not widened while a node is crowded.
    """
    trace = fleet.trace
    placement = outcome(
        columns(fleet, host),
        expected_guest(
            int(trace.vcpus[guest]),
            int(trace.memory_mib[guest]),
            cores_per_vcpu=expected_per_vcpu(
                float(fleet.known_guests[host]), float(fleet.known_sum[host])
            ),
        ),
        PLACEMENT_OPTIONS,
    )
    return _parts(fleet, host, placement)


def _parts(fleet, host, placement, own_mib=0):
    hosts = fleet.hosts
    cpus = nodes.parts(placement.cpu_positions, hosts.cores[host])
    mem_positions = placement.mem_positions or range(hosts.nodes)
    if mem_positions == placement.cpu_positions and len(mem_positions) == 1:
        return cpus, cpus
    return cpus, nodes.parts(mem_positions, fleet.free_mib(host) + own_mib)


def relieve(fleet, guests):
    """Let each host with a node above the floor, or a guest on several nodes, move one guest.

    A stand-in for the agent's rebalancer that models only the outcome of its rule: of the guests
    of the most pressed node, and of those on several nodes, that want most, it moves the one whose
    move saves most, if that is worth it, to where the package would place it now. The loss is that
    by which the package places. Moves take no time.
    """
    pressed = fleet.node_demand / fleet.hosts.cores
    guests = guests[~fleet.trace.dedicated[guests]]
    guests = guests[np.argsort(fleet.host[guests], kind='stable')]
    firsts = np.searchsorted(fleet.host[guests], np.arange(len(pressed) + 1))
    for host in range(len(pressed)):
        here = guests[firsts[host] : firsts[host + 1]]
        parts = fleet.cpu_parts[here]
        source = int(pressed[host].argmax())
        may_move = (parts > 0).sum(1) > 1
        if pressed[host, source] > p.MOVE_FLOOR:
            may_move |= parts[:, source] > 0
        here = here[may_move]
        here = here[np.argsort(-fleet.usual[here], kind='stable')][: p.MOVE_TRIED]
        saved = [(*_saved(fleet, host, int(guest)), int(guest)) for guest in here]
        if saved:
            cores, placement, guest = max(saved, key=lambda found: found[0])
            if cores >= p.MOVE_GAIN:
                own_mib = fleet.memory_parts[guest] * fleet.trace.memory_mib[guest]
                fleet.move(guest, *_parts(fleet, host, placement, own_mib))


def _saved(fleet, host, guest):
    """Return (what a guest's move would save [cores], where it would go)."""
    trace, cpus, memory = fleet.trace, fleet.cpu_parts[guest], fleet.memory_parts[guest]
    cores = float(fleet.usual[guest])
    without = columns(fleet, host)
    rate = without.bytes_per_core_sec or 0.0
    for node in range(fleet.hosts.nodes):
        without.demand_cores[node] = max(0.0, without.demand_cores[node] - cores * cpus[node])
        without.bandwidth_bytes_per_sec[node] = max(
            0.0, without.bandwidth_bytes_per_sec[node] - cores * rate * memory[node]
        )
        without.promised_mib[node] -= round(memory[node] * trace.memory_mib[guest])
        without.guests[node] -= cpus[node]
        without.vcpus[node] -= cpus[node] * trace.vcpus[guest]
    asked = ExpectedGuest(int(trace.vcpus[guest]), int(trace.memory_mib[guest]), cores)
    placement = outcome(without, asked, PLACEMENT_OPTIONS)
    now = tuple(np.flatnonzero(cpus).tolist()), tuple(np.flatnonzero(memory > 1e-6).tolist())
    there = placement.cpu_positions, placement.mem_positions
    before, after = (
        loss.of_place(
            loss_columns(without),
            cpu_positions,
            mem_positions,
            asked.vcpus,
            cores,
            loss.guest_lines(cores, cores * rate if rate else None),
            len(cpu_positions) == 1,
        )
        for cpu_positions, mem_positions in (now, there)
    )
    return (before - after) * max(cores, loss.DEMAND_MIN_CORES), placement


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
