# SPDX-License-Identifier: Apache-2.0
"""The order of a guest's candidate places.

Imported by the libvirt hook at every guest start: light modules only.
"""

from nova_numa_pmc.core.domains import LOCAL_DISTANCE
from nova_numa_pmc.core.view import PRIOR_CORES_PER_VCPU

#: What candidates are compared by, in this order; the lowest wins.
KEY_PARTS = ('pressure above the floor', 'distance', 'pressure', 'vCPUs per core',
             'promised memory', 'guests', 'rotation')
#: Beyond any real pressure, and still countable in steps.
_ABSURD = 1e6


class Known:
    """Which parts of pressure every candidate's nodes know: the blind must not win."""

    __slots__ = ('demand', 'bandwidth', 'link')

    def __init__(self, nodes):
        self.demand = self.bandwidth = self.link = True
        for node in nodes:
            if node.demand_cores is None and node.cores:
                self.demand = False
            if node.bandwidth_bytes_per_sec is None or not node.bandwidth_max_bytes_per_sec:
                self.bandwidth = False
            if node.link_ratio is None:
                self.link = False


class Rank:
    """A candidate, its highest pressure, and the key that it is compared by."""

    __slots__ = ('candidate', 'pressure', 'key')

    def __init__(self, candidate, pressure, key):
        self.candidate, self.pressure, self.key = candidate, pressure, key


def ranked(ask, candidates, limits):
    """Sort candidates by their keys.

    :returns: (list of :class:`Rank`, best first; :class:`Known`)
    """
    nodes = ask.view.nodes
    single = all(len(c.cpus) == 1 and len(c.mems) < 2 for c in candidates)
    known = Known([nodes[at] for at in {
        at for c in candidates for at in c.cpus + c.mems}])
    rank = _rank_single if single else _rank_set
    ranks = [rank(ask, candidate, known, limits) for candidate in candidates]
    ranks.sort(key=lambda r: r.key)
    return ranks, known


def _rank_single(ask, candidate, known, limits):
    """Rank a single node; the same key as a set's, without the vectors: this is the usual case."""
    view, wanted, at = ask.view, ask.request, candidate.cpus[0]
    node = view.nodes[at]
    mems = candidate.mems or candidate.cpus
    pressure = _pressure(node, known, _demand(wanted), 0 if mems[0] != at else _traffic(wanted))
    if mems[0] != at:
        pressure = max(pressure, _pressure(view.nodes[mems[0]], known, None, _traffic(wanted)))
    cores = node.cores or 1.0
    return Rank(candidate, pressure, (
        _steps(max(pressure, limits.pressure_floor), limits), _distance(ask, candidate),
        _steps(pressure, limits), round((node.vcpus + wanted.vcpus) / cores, 9),
        _promised_ratio(ask, mems), round(node.guests, 9),
        (at - view.rotation) % len(view.nodes)))


def left(ask, candidate, known):
    """Say what pressures a guest would leave.

    :returns: (pressures of the candidate's nodes, highest first; those of the others, highest
        first, by the parts that all of the others know)
    """
    nodes, mems = ask.view.nodes, candidate.mems or candidate.cpus
    others = [node for at, node in enumerate(nodes) if at not in candidate.cpus + mems]
    theirs = Known(others)
    return (_charged(ask, candidate, known),
            sorted((_pressure(node, theirs, 0, 0) for node in others), reverse=True))


def _charged(ask, candidate, known):
    """List the pressures that a guest leaves on a candidate's nodes, highest first."""
    nodes, mems = ask.view.nodes, candidate.mems or candidate.cpus
    cores = sum(nodes[at].cores for at in candidate.cpus) or 1.0
    return sorted((_pressure(
        nodes[at], known,
        _demand(ask.request) * (nodes[at].cores / cores) if at in candidate.cpus else None,
        _traffic(ask.request) / len(mems) if at in mems else 0)
        for at in {*candidate.cpus, *mems}), reverse=True)


def _crowd(ask, candidate):
    """List vCPUs per core of a candidate's nodes with the guest on them, highest first."""
    nodes = ask.view.nodes
    cores = sum(nodes[at].cores for at in candidate.cpus) or 1.0
    return sorted((round((nodes[at].vcpus + ask.request.vcpus * (nodes[at].cores / cores))
                         / (nodes[at].cores or 1.0), 9) for at in candidate.cpus), reverse=True)


def _rank_set(ask, candidate, known, limits):
    view = ask.view
    nodes, mems = view.nodes, candidate.mems or candidate.cpus
    pressures = _charged(ask, candidate, known)
    return Rank(candidate, pressures[0], (
        [_steps(max(p, limits.pressure_floor), limits) for p in pressures],
        _distance(ask, candidate),
        [_steps(p, limits) for p in pressures],
        _crowd(ask, candidate),
        _promised_ratio(ask, mems),
        round(sum(nodes[at].guests for at in candidate.cpus), 9),
        [sorted((at - view.rotation) % len(nodes) for at in positions)
         for positions in (candidate.cpus, candidate.mems)]))


def _demand(wanted):
    if wanted.demand_cores is None:
        return PRIOR_CORES_PER_VCPU * wanted.vcpus
    return wanted.demand_cores


def _traffic(wanted):
    return wanted.bandwidth_bytes_per_sec or 0


def _pressure(node, known, cores, bytes_per_sec):
    """Take the highest known utilisation of a node with a guest's charge on it.

    :param cores: None: the guest doesn't use the node's CPUs, so they don't count
    """
    pressure = 0.0
    if node.cores and cores is not None:
        demand = node.demand_cores if known.demand else PRIOR_CORES_PER_VCPU * node.vcpus
        pressure = (demand + cores) / node.cores
    if known.bandwidth:
        pressure = max(pressure, (node.bandwidth_bytes_per_sec + bytes_per_sec)
                       / node.bandwidth_max_bytes_per_sec)
    if known.link and node.link_ratio > pressure:
        pressure = node.link_ratio
    return pressure


def _steps(pressure, limits):
    """Count the whole steps in a pressure; 1e-9 keeps 0.75 / 0.05 from being 14.99."""
    pressure = min(_ABSURD, pressure)  # NaN too: it compares as false
    if limits.pressure_step <= 0:
        return round(pressure, 9)
    return int(pressure / limits.pressure_step + 1e-9)


def _distance(ask, candidate):
    """Average how far CPUs are from memory, plus from devices [SLIT units beyond local]."""
    if len(candidate.cpus) == 1 and candidate.mems in ((), candidate.cpus) and not ask.devices:
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
