# SPDX-License-Identifier: Apache-2.0
"""The order of a guest's candidate places.

Imported by the libvirt hook at every guest start: light modules only.
"""

from collections import namedtuple

from nova_numa_pmc.core.domains import LOCAL_DISTANCE
from nova_numa_pmc.core.view import PRIOR_CORES_PER_VCPU

#: What candidates are compared by, in this order; the lowest wins.
KEY_PARTS = ('pressure above the floor', 'distance', 'pressure', 'vCPUs per core',
             'promised memory', 'guests', 'rotation')


class Rank(namedtuple('Rank', 'key candidate pressure distance promised_ratio')):
    """A candidate with its key and what people want to read of it; sorts by its key."""

    __slots__ = ()


class Known(namedtuple('Known', 'demand bandwidth link')):
    """Which parts of pressure are known on every node in question."""

    __slots__ = ()


def ranked(ask, candidates, limits):
    """Sort candidates by their keys.

    :returns: (list of :class:`Rank`, best first; :class:`Known`)
    """
    known = _known(ask, candidates)
    return sorted(_rank(ask, candidate, known, limits) for candidate in candidates), known


def _known(ask, candidates):
    """Find the parts of pressure that each candidate's nodes know: the blind must not win."""
    nodes = [ask.view.nodes[at]
             for at in {at for candidate in candidates for at in candidate.cpus + candidate.mems}]
    return Known(
        all(node.demand_cores is not None for node in nodes if node.cores),
        all(node.bandwidth_bytes_per_sec is not None and node.bandwidth_max_bytes_per_sec
            for node in nodes),
        all(node.link_ratio is not None for node in nodes))


def _rank(ask, candidate, known, limits):
    nodes, wanted = ask.view.nodes, ask.request
    cores = sum(nodes[at].cores for at in candidate.cpus) or 1.0
    pressures = sorted((
        _pressure(nodes[at], known, *_charge(wanted, candidate, at, nodes[at].cores / cores))
        for at in {*candidate.cpus, *candidate.mems}), reverse=True)
    crowd = sorted((
        (nodes[at].vcpus + wanted.vcpus * nodes[at].cores / cores) / (nodes[at].cores or 1.0)
        for at in candidate.cpus), reverse=True)
    distance = _distance(ask, candidate)
    ratio = _promised_ratio(ask, candidate.mems or candidate.cpus)
    count = len(nodes)
    key = (tuple(_steps(max(p, limits.pressure_floor), limits) for p in pressures),
           distance,
           tuple(_steps(p, limits) for p in pressures),
           tuple(round(c, 9) for c in crowd),
           ratio,
           round(sum(nodes[at].guests for at in candidate.cpus), 9),
           [sorted((at - ask.view.rotation) % count for at in positions)
            for positions in (candidate.cpus, candidate.mems)])
    return Rank(key, candidate, pressures[0], distance, ratio)


def _charge(wanted, candidate, at, share):
    """Say what the guest adds to a node: (cores, bytes per second)."""
    cores = wanted.demand_cores
    if cores is None:
        cores = PRIOR_CORES_PER_VCPU * wanted.vcpus
    traffic = wanted.bandwidth_bytes_per_sec or 0
    where = candidate.mems or candidate.cpus
    return (cores * share if at in candidate.cpus else 0,
            traffic / len(where) if at in where else 0)


def _pressure(node, known, cores, bytes_per_sec):
    """Take the highest known utilisation of a node with a guest's charge on it."""
    pressure = 0.0
    if node.cores:
        demand = node.demand_cores if known.demand else PRIOR_CORES_PER_VCPU * node.vcpus
        pressure = (demand + cores) / node.cores
    if known.bandwidth:
        pressure = max(pressure, (node.bandwidth_bytes_per_sec + bytes_per_sec)
                       / node.bandwidth_max_bytes_per_sec)
    if known.link:
        pressure = max(pressure, node.link_ratio)
    return pressure


def _steps(pressure, limits):
    """Count the whole steps in a pressure; 1e-9 keeps 0.75 / 0.05 from being 14.99."""
    if limits.pressure_step <= 0:
        return round(pressure, 9)
    return int(pressure / limits.pressure_step + 1e-9)


def _distance(ask, candidate):
    """Average how far CPUs are from memory, plus from devices [SLIT units beyond local]."""
    if candidate.cpus == candidate.mems and len(candidate.cpus) == 1 and not ask.devices:
        return 0
    far = 0
    for targets in (candidate.mems, ask.devices):
        if targets:
            far += sum(ask.distance(at, to) - LOCAL_DISTANCE for at in candidate.cpus
                       for to in targets) / (len(targets) * len(candidate.cpus))
    return round(far, 6)


def _promised_ratio(ask, positions):
    """Say how much of the nodes' capacity is promised with the guest on them."""
    memory_bytes = ask.request.memory_bytes
    if ask.request.page_bytes is not None:
        promised, capacity = 0, sum(ask.free_bytes[at] for at in positions)
    else:
        promised = sum(ask.view.nodes[at].promised_bytes for at in positions)
        capacity = sum(ask.view.nodes[at].capacity_bytes for at in positions)
    return round((promised + memory_bytes) / capacity, 6) if capacity else float('inf')
