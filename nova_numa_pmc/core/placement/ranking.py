# SPDX-License-Identifier: Apache-2.0
"""Rank the candidates for a guest's place.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import demand_or_prior
from nova_numa_pmc.core.memory_domains import LOCAL_DISTANCE
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nova_numa_pmc.core.placement.candidates import Candidate, PlacementInput
    from nova_numa_pmc.model import HostView, NodeView, PlacementOptions, Request

    #: Sort key of a candidate, parallel to :data:`KEY_FIELDS`.
    Key = tuple[Any, ...]

#: Fields of a candidate's sort key, in order. The candidate with the lowest key is the best.
KEY_FIELDS = (
    'pressure above the floor',
    'distance',
    'pressure',
    'room to grow',
    'vCPUs per core',
    'promised memory',
    'guests',
    'rotation',
)
#: A pressure above any real one, but small enough to be counted in steps.
PRESSURE_MAX = 1e6


class Rank(Record):
    """A candidate with its highest pressure and its sort key.

    :param distance, promised_ratio: fields of the key
    """

    candidate: Candidate
    pressure: float
    distance: float
    promised_ratio: float
    key: Key


def rank_candidates(
    inputs: PlacementInput, candidates: Sequence[Candidate], placement_options: PlacementOptions
) -> tuple[list[Rank], tuple[str, ...]]:
    """Sort candidates by their keys.

    :returns: (ranks, best first; codes of what is assumed for some nodes, see
        :mod:`missing`)
    """
    nodes, assumed = missing.fill_in(inputs.view_by_domain.nodes)
    ranks = [_rank(inputs, candidate, nodes, placement_options) for candidate in candidates]
    ranks.sort(key=lambda rank: rank.key)
    return ranks, assumed


def pressures(view: HostView) -> list[float]:
    """Return the pressures of a host's nodes by position, with what is unknown filled in."""
    nodes, _ = missing.fill_in(view.nodes)
    return [_pressure(node, 0, 0) for node in nodes]


def pressures_with(
    inputs: PlacementInput, candidate: Candidate, nodes: Sequence[NodeView]
) -> list[float]:
    """Return the pressures that the guest would leave on a candidate's nodes, highest first.

    :param nodes: the host's nodes, with what is unknown filled in
    """
    mem_positions = candidate.mem_positions or candidate.cpu_positions
    cores = sum(nodes[position].cores for position in candidate.cpu_positions) or 1.0
    return sorted(
        (
            _pressure(
                nodes[position],
                demand_or_prior(inputs.request) * (nodes[position].cores / cores)
                if position in candidate.cpu_positions
                else None,
                _bandwidth(inputs.request) / len(mem_positions)
                if position in mem_positions
                else 0,
            )
            for position in {*candidate.cpu_positions, *mem_positions}
        ),
        reverse=True,
    )


def _vcpus_per_core(inputs: PlacementInput, candidate: Candidate) -> list[float]:
    """List the vCPUs per core of a candidate's nodes with the guest, highest first."""
    nodes = inputs.view_by_domain.nodes
    cores = sum(nodes[position].cores for position in candidate.cpu_positions) or 1.0
    return sorted(
        (
            round(
                (nodes[position].vcpus + inputs.request.vcpus * (nodes[position].cores / cores))
                / (nodes[position].cores or 1.0),
                9,
            )
            for position in candidate.cpu_positions
        ),
        reverse=True,
    )


def _rank(
    inputs: PlacementInput,
    candidate: Candidate,
    nodes: Sequence[NodeView],
    placement_options: PlacementOptions,
) -> Rank:
    view, mem_positions = inputs.view_by_domain, candidate.mem_positions or candidate.cpu_positions
    pressures_left = pressures_with(inputs, candidate, nodes)
    distance = _distance(inputs, candidate)
    promised_ratio = _promised_ratio(inputs, mem_positions)
    return Rank(
        candidate,
        pressures_left[0],
        distance,
        promised_ratio,
        (
            [
                in_steps(max(pressure, placement_options.pressure_floor), placement_options)
                for pressure in pressures_left
            ],
            distance,
            [in_steps(pressure, placement_options) for pressure in pressures_left],
            _lacks_room_to_grow(inputs, candidate),
            _vcpus_per_core(inputs, candidate),
            promised_ratio,
            round(sum(nodes[position].guests for position in candidate.cpu_positions), 9),
            [
                sorted((position - view.rotation) % len(nodes) for position in positions)
                for positions in (candidate.cpu_positions, candidate.mem_positions)
            ],
        ),
    )


def _bandwidth(request: Request) -> float:
    return request.bandwidth_bytes_per_sec or 0


def _pressure(node: NodeView, cores: float | None, bytes_per_sec: float) -> float:
    """Return the highest utilisation of a node with a guest's demand and traffic on it.

    :param cores: the guest's demand on the node's CPUs [cores]; None if it does not use them, so
        that their utilisation does not count
    """
    return max(utilisations(node, cores, bytes_per_sec))


def utilisations(
    node: NodeView, cores: float | None, bytes_per_sec: float
) -> tuple[float, float, float]:
    """Return a node's utilisations with a guest's demand and traffic on it.

    :param node: a node as :func:`missing.fill_in` returns it, so that each part is known for all
        nodes or for none
    :param cores: the guest's demand on the node's CPUs [cores]; None if it does not use them
    :param bytes_per_sec: the guest's traffic to the node's memory
    :returns: (CPU, bandwidth, link), each 0.0 if it is unknown; CPU also if ``cores`` is None
    """
    cpu = bandwidth = 0.0
    if node.cores and cores is not None:
        cpu = (demand_or_prior(node) + cores) / node.cores
    if node.bandwidth_max_bytes_per_sec and node.bandwidth_bytes_per_sec is not None:
        bandwidth = (
            node.bandwidth_bytes_per_sec + bytes_per_sec
        ) / node.bandwidth_max_bytes_per_sec
    return cpu, bandwidth, node.link_ratio or 0.0


def in_steps(pressure: float, placement_options: PlacementOptions) -> float:
    """Return a pressure in steps: whole steps up to 1, above it with the pressure in thousandths.

    Above 1, whole steps would hide too much: on 16 cores, a step is 0.8 cores of waiting, and a
    guest could be placed where a move would pay at once. Adding 1e-9 keeps 0.75 / 0.05 from
    becoming 14.99.
    """
    pressure = min(PRESSURE_MAX, pressure)  # also replaces NaN: comparisons with it are false
    if placement_options.pressure_step <= 0:
        return round(pressure, 9)
    if pressure > 1:
        return round(pressure, 3) / placement_options.pressure_step
    return int(pressure / placement_options.pressure_step + 1e-9)


def _distance(inputs: PlacementInput, candidate: Candidate) -> float:
    """Return the mean distance of memory plus that of devices, in SLIT units beyond local."""
    if (
        len(candidate.cpu_positions) == 1
        and candidate.mem_positions in ((), candidate.cpu_positions)
        and not inputs.devices
    ):
        return 0
    total = 0.0
    for targets in (candidate.mem_positions, inputs.devices):
        if targets:
            total += sum(
                inputs.distance(position, target) - LOCAL_DISTANCE
                for position in candidate.cpu_positions
                for target in targets
            ) / (len(targets) * len(candidate.cpu_positions))
    return round(total, 6)


def _lacks_room_to_grow(inputs: PlacementInput, candidate: Candidate) -> int:
    """Return of how many resources, CPUs and memory, a place lacks what the guest may grow to."""
    request = inputs.request
    if request.vcpus_max is None and request.memory_max_bytes is None:
        return 0
    cpu_count = sum(inputs.cpu_counts[position] for position in candidate.cpu_positions)
    node_bytes = sum(inputs.unpromised_bytes[position] for position in candidate.mem_positions)
    return (cpu_count < (request.vcpus_max or 0)) + (node_bytes < (request.memory_max_bytes or 0))


def _promised_ratio(inputs: PlacementInput, positions: tuple[int, ...]) -> float:
    """Return the share of the nodes' memory capacity that is promised, with the guest on them."""
    memory_bytes = inputs.request.memory_bytes
    if inputs.request.page_bytes is not None:
        promised, capacity = 0, sum(inputs.unpromised_bytes[position] for position in positions)
    else:
        nodes = inputs.view_by_domain.nodes
        promised = sum(nodes[position].promised_bytes for position in positions)
        capacity = sum(nodes[position].capacity_bytes for position in positions)
    return round((promised + memory_bytes) / capacity, 6) if capacity else float('inf')
