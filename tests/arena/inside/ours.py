# SPDX-License-Identifier: Apache-2.0
"""How the package places guests within a host, and moves them."""

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view
from nova_numa_pmc.core.placement import candidates, loss, placement as placements
from nova_numa_pmc.model import MIB
from tests.arena import parameters as p
from tests.arena.inside import nodes

PLACEMENT_OPTIONS = model.PlacementOptions()


def placed(fleet, host, guest):
    """Place a guest as the libvirt hook does: by the package's own decision on the host's figures.

    Source: this repository, nova_numa_pmc/core/placement/placement.py.
    Formula: doc/source/reference/rebalance.rst and pressure.rst.
    Deviations: the figures are current; guests are not widened while a node is crowded.
    """
    per_vcpu = host_view.expected_per_vcpu(
        float(fleet.known_guests[host]), float(fleet.known_sum[host])
    )
    view = current_view(fleet, host)
    return _parts(fleet, host, _place(view, fleet.trace, guest, per_vcpu))


def _place(view, trace, guest, cores_per_vcpu):
    """Return the best place for a guest; all CPUs if it would be left alone."""
    vcpus, rate = int(trace.vcpus[guest]), host_view.node_traffic_per_core(view.nodes)
    cores = cores_per_vcpu * vcpus
    request = model.Request(
        vcpus,
        int(trace.memory_mib[guest]) * MIB,
        demand_cores=cores,
        bandwidth_bytes_per_sec=host_view.expected_bandwidth(cores, 1.0, rate),
    )
    inputs = candidates.PlacementInput(view, request)
    ranks = placements.decide_place(inputs, PLACEMENT_OPTIONS).ranks
    if ranks:
        return ranks[0].candidate
    return candidates.Candidate(tuple(range(len(view.nodes))), (), False)


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
    vcpus, cores = int(trace.vcpus[guest]), float(fleet.usual[guest])
    present = current_view(fleet, host)
    rate = host_view.node_traffic_per_core(present.nodes) or 0.0
    without = present._replace(
        nodes=tuple(
            node._replace(
                demand_cores=max(0.0, node.demand_cores - cores * cpus[node.id]),
                bandwidth_bytes_per_sec=max(
                    0.0, node.bandwidth_bytes_per_sec - cores * rate * memory[node.id]
                ),
                promised_bytes=node.promised_bytes
                - round(memory[node.id] * trace.memory_mib[guest]) * MIB,
                guests=node.guests - cpus[node.id],
                vcpus=node.vcpus - cpus[node.id] * vcpus,
            )
            for node in present.nodes
        )
    )
    placement = _place(without, trace, guest, cores / vcpus)
    now = tuple(np.flatnonzero(cpus).tolist()), tuple(np.flatnonzero(memory > 1e-6).tolist())
    there = placement.cpu_positions, placement.mem_positions
    before, after = (
        loss.of_place(
            loss.columns(without)[0],
            cpu_positions,
            mem_positions,
            vcpus,
            cores,
            loss.guest_lines(cores, cores * rate if rate else None),
            len(cpu_positions) == 1,
        )
        for cpu_positions, mem_positions in (now, there)
    )
    return (before - after) * max(cores, loss.DEMAND_MIN_CORES), placement


def current_view(fleet, host):
    """Return a host as its agent sees it at this moment."""
    hosts = fleet.hosts
    demand = np.rint(100 * (fleet.node_demand[host] + fleet.node_young[host])) / 100
    return model.HostView(
        tuple(
            model.NodeView(
                node,
                float(hosts.cores[host, node]),
                int(hosts.threads[host, node]),
                int(hosts.memory_mib[host, node]) * MIB,
                int(fleet.promised_mib[host, node]) * MIB,
                float(fleet.node_guests[host, node]),
                float(fleet.node_vcpus[host, node]),
                float(demand[node]),
                float(fleet.node_traffic[host, node]),
                float(hosts.bandwidth[host, node]),
            )
            for node in range(hosts.nodes)
        ),
        fleet.distance_rows,
        int(fleet.placements[host]) % hosts.nodes,
    )
