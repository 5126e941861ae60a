# SPDX-License-Identifier: Apache-2.0
"""The order of a guest's candidate places.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU
from nova_numa_pmc.core.memory_domains import LOCAL_DISTANCE

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nova_numa_pmc.core.placement.candidates import Candidate, PlacementInput
    from nova_numa_pmc.model import NodeView, PlacementOptions, Request

    #: Parallel to :data:`KEY_FIELDS`. A set of nodes has lists in it: the two kinds do not
    #: compare.
    Key = tuple[Any, ...]

#: Fields of the sort key of candidates, in order; the lowest key wins.
KEY_FIELDS = (
    'pressure above the floor',
    'distance',
    'pressure',
    'vCPUs per core',
    'promised memory',
    'guests',
    'rotation',
)
#: A pressure beyond any real one, but small enough to count in steps.
PRESSURE_MAX = 1e6


class Rank:
    """A candidate, its highest pressure, and the key that it is compared by."""

    __slots__ = ('candidate', 'pressure', 'key')

    def __init__(self, candidate: Candidate, pressure: float, key: Key) -> None:
        self.candidate, self.pressure, self.key = candidate, pressure, key


def rank_candidates(
    inputs: PlacementInput, candidates: Sequence[Candidate], limits: PlacementOptions
) -> tuple[list[Rank], tuple[str, ...]]:
    """Sort candidates by their keys.

    :returns: (the ranks, best first; the parts of pressure that are
        assumed on some nodes, see :mod:`missing`)
    """
    nodes, assumed = missing.fill_in(inputs.view.nodes)
    single = all(len(candidate.cpus) == 1 and len(candidate.mems) < 2 for candidate in candidates)
    rank = _rank_single if single else _rank_set
    ranks = [rank(inputs, candidate, nodes, limits) for candidate in candidates]
    ranks.sort(key=lambda rank: rank.key)
    return ranks, assumed


def costs(inputs: PlacementInput, limits: PlacementOptions) -> list[tuple[float, float]]:
    """Return (steps of pressure above the floor, pressure) per position, without the guest."""
    nodes, _ = missing.fill_in(inputs.view.nodes)
    pressures = [_pressure(node, 0, 0) for node in nodes]
    return [
        (steps(max(pressure, limits.pressure_floor), limits), pressure) for pressure in pressures
    ]


def _rank_single(
    inputs: PlacementInput,
    candidate: Candidate,
    nodes: Sequence[NodeView],
    limits: PlacementOptions,
) -> Rank:
    """Rank a single node: the key of a set of one, without lists because it is the usual case."""
    view, request, at = inputs.view, inputs.request, candidate.cpus[0]
    node = nodes[at]
    mems = candidate.mems or candidate.cpus
    pressure = _pressure(node, _demand(request), 0 if mems[0] != at else _traffic(request))
    if mems[0] != at:
        pressure = max(pressure, _pressure(nodes[mems[0]], None, _traffic(request)))
    cores = node.cores or 1.0
    return Rank(
        candidate,
        pressure,
        (
            steps(max(pressure, limits.pressure_floor), limits),
            _distance(inputs, candidate),
            steps(pressure, limits),
            round((node.vcpus + request.vcpus) / cores, 9),
            _promised_ratio(inputs, mems),
            round(node.guests, 9),
            (at - view.rotation) % len(view.nodes),
        ),
    )


def pressures_with(
    inputs: PlacementInput, candidate: Candidate
) -> tuple[list[float], list[float]]:
    """Return the pressures with the guest placed.

    :returns: (pressures of the candidate's nodes, highest first; those of the others, highest
        first)
    """
    nodes, _ = missing.fill_in(inputs.view.nodes)
    return (
        _pressures_left(inputs, candidate, nodes),
        sorted(
            (
                _pressure(node, 0, 0)
                for at, node in enumerate(nodes)
                if at not in candidate.cpus + (candidate.mems or candidate.cpus)
            ),
            reverse=True,
        ),
    )


def _pressures_left(
    inputs: PlacementInput, candidate: Candidate, nodes: Sequence[NodeView]
) -> list[float]:
    """List the pressures that a guest leaves on a candidate's nodes, highest first."""
    mems = candidate.mems or candidate.cpus
    cores = sum(nodes[at].cores for at in candidate.cpus) or 1.0
    return sorted(
        (
            _pressure(
                nodes[at],
                _demand(inputs.request) * (nodes[at].cores / cores)
                if at in candidate.cpus
                else None,
                _traffic(inputs.request) / len(mems) if at in mems else 0,
            )
            for at in {*candidate.cpus, *mems}
        ),
        reverse=True,
    )


def _crowd(inputs: PlacementInput, candidate: Candidate) -> list[float]:
    """List vCPUs per core of a candidate's nodes with the guest on them, highest first."""
    nodes = inputs.view.nodes
    cores = sum(nodes[at].cores for at in candidate.cpus) or 1.0
    return sorted(
        (
            round(
                (nodes[at].vcpus + inputs.request.vcpus * (nodes[at].cores / cores))
                / (nodes[at].cores or 1.0),
                9,
            )
            for at in candidate.cpus
        ),
        reverse=True,
    )


def _rank_set(
    inputs: PlacementInput,
    candidate: Candidate,
    nodes: Sequence[NodeView],
    limits: PlacementOptions,
) -> Rank:
    view, mems = inputs.view, candidate.mems or candidate.cpus
    pressures = _pressures_left(inputs, candidate, nodes)
    return Rank(
        candidate,
        pressures[0],
        (
            [steps(max(pressure, limits.pressure_floor), limits) for pressure in pressures],
            _distance(inputs, candidate),
            [steps(pressure, limits) for pressure in pressures],
            _crowd(inputs, candidate),
            _promised_ratio(inputs, mems),
            round(sum(nodes[at].guests for at in candidate.cpus), 9),
            [
                sorted((at - view.rotation) % len(nodes) for at in positions)
                for positions in (candidate.cpus, candidate.mems)
            ],
        ),
    )


def _demand(request: Request) -> float:
    if request.demand_cores is None:
        return PRIOR_CORES_PER_VCPU * request.vcpus
    return request.demand_cores


def _traffic(request: Request) -> float:
    return request.bandwidth_bytes_per_sec or 0


def _pressure(node: NodeView, cores: float | None, bytes_per_sec: float) -> float:
    """Take the highest utilisation of a node with a guest's charge on it.

    :param cores: the guest's demand on the node's CPUs; None: it does not use them, and they
        do not count
    """
    return max(parts(node, cores, bytes_per_sec))


def parts(node: NodeView, cores: float | None, bytes_per_sec: float) -> tuple[float, float, float]:
    """Return a node's utilisations with a guest's charge: CPU, bandwidth, link; 0.0: unknown.

    :param node: a node after :func:`missing.fill_in`: each part is known of all nodes or of none
    """
    cpu = bandwidth = 0.0
    if node.cores and cores is not None:
        demand = node.demand_cores
        if demand is None:
            demand = PRIOR_CORES_PER_VCPU * node.vcpus
        cpu = (demand + cores) / node.cores
    if node.bandwidth_max_bytes_per_sec and node.bandwidth_bytes_per_sec is not None:
        bandwidth = (
            node.bandwidth_bytes_per_sec + bytes_per_sec
        ) / node.bandwidth_max_bytes_per_sec
    return cpu, bandwidth, node.link_ratio or 0.0


def steps(pressure: float, limits: PlacementOptions) -> float:
    """Count the steps in a pressure: whole ones up to 1, thousandths of a pressure above.

    Above 1 a whole step would hide too much: on 16 cores it is 0.8 cores that wait, and a guest
    could be placed where a move would pay at once. 1e-9 keeps 0.75 / 0.05 from becoming 14.99.
    """
    pressure = min(PRESSURE_MAX, pressure)  # NaN too: it compares as false
    if limits.pressure_step <= 0:
        return round(pressure, 9)
    if pressure > 1:
        return round(pressure, 3) / limits.pressure_step
    return int(pressure / limits.pressure_step + 1e-9)


def _distance(inputs: PlacementInput, candidate: Candidate) -> float:
    """Return the mean distance of memory plus that of devices [SLIT units beyond local]."""
    if len(candidate.cpus) == 1 and candidate.mems in ((), candidate.cpus) and not inputs.devices:
        return 0
    far = 0.0
    for targets in (candidate.mems, inputs.devices):
        if targets:
            far += sum(
                inputs.distance(at, to) - LOCAL_DISTANCE for at in candidate.cpus for to in targets
            ) / (len(targets) * len(candidate.cpus))
    return round(far, 6)


def _promised_ratio(inputs: PlacementInput, positions: tuple[int, ...]) -> float:
    """Return the promised share of the nodes' capacity, with the guest on them."""
    memory_bytes = inputs.request.memory_bytes
    if inputs.request.page_bytes is not None:
        promised, capacity = 0, sum(inputs.free_bytes[at] for at in positions)
    else:
        promised = sum(inputs.view.nodes[at].promised_bytes for at in positions)
        capacity = sum(inputs.view.nodes[at].capacity_bytes for at in positions)
    return round((promised + memory_bytes) / capacity, 6) if capacity else float('inf')
