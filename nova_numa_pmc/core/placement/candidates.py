# SPDX-License-Identifier: Apache-2.0
"""List the places that a guest could have: one node, a set of nodes, or only CPUs.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

import math
from itertools import combinations, product

from nova_numa_pmc import model
from nova_numa_pmc.core import memory_domains
from nova_numa_pmc.core.host_view import demand_or_prior
from nova_numa_pmc.core.placement import loss, ranking
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    #: Set of positions, in ascending order.
    NodeSet = tuple[int, ...]

#: Maximum number of sets of one size that are enumerated. If there are more, only those of nodes
#: near each other are listed.
ENUMERATED_MAX = 300


class Candidate(Record):
    """A place that is considered for a guest.

    :param cpu_positions: positions of the nodes of its CPUs
    :param mem_positions: positions of the nodes of its memory; empty if that may be anywhere
    :param memory_fits: whether the nodes have room for the memory, so that it can be bound to them
    """

    cpu_positions: tuple[int, ...]
    mem_positions: tuple[int, ...]
    memory_fits: bool


class PlacementInput:
    """Input of a decision: a host by memory domain, a request, and the resources for it.

    :ivar view_by_node: the view by node
    :ivar view_by_domain, members: the view by domain, whose positions are used, and the positions
        of each domain's nodes in ``view_by_node``
    :ivar cpu_counts, cores: by position, the CPUs that the guest may use: their number, and their
        capacity [cores]
    :ivar cores_needed: the capacity that holds the guest [cores]
    :ivar unpromised_bytes: by position, the bytes that may still be promised of the guest's page
        size
    :ivar devices: positions of the guest's devices
    """

    __slots__ = (
        'view_by_node',
        'view_by_domain',
        'members',
        'request',
        'cpu_counts',
        'cores',
        'cores_needed',
        'unpromised_bytes',
        'devices',
    )

    def __init__(self, view_by_node: model.HostView, request: model.Request) -> None:
        self.view_by_node, self.request = view_by_node, request
        self.view_by_domain, self.members = memory_domains.merge(view_by_node)
        self.cpu_counts = _allowed_cpu_counts(self.view_by_domain, request)
        self.cores = [
            node.cores * min(1.0, count / (node.cpu_count or 1))
            for node, count in zip(self.view_by_domain.nodes, self.cpu_counts)
        ]
        self.cores_needed = min(
            loss.peak_cores(request.vcpus, demand_or_prior(request)), sum(self.cores)
        )
        self.unpromised_bytes = unpromised_bytes(self.view_by_domain.nodes, request)
        device_nodes = request.device_nodes
        self.devices = (
            tuple(
                position
                for position, domain_members in enumerate(self.members)
                for member in domain_members
                if view_by_node.nodes[member].id in device_nodes
            )
            if device_nodes
            else ()
        )

    def distance(self, a: int, b: int) -> float:
        """Return the SLIT distance from position ``a`` to ``b``."""
        return memory_domains.distance(self.view_by_domain, a, b)

    def node_ids(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Turn positions into an ascending tuple of node ids."""
        return tuple(
            sorted(
                self.view_by_node.nodes[member].id
                for position in set(positions)
                for member in self.members[position]
            )
        )


def _allowed_cpu_counts(view: model.HostView, request: model.Request) -> list[int]:
    """Count the CPUs that the guest may use on each node."""
    return [
        node.cpu_count if node.cpus is None else len(request.allowed_among(node.cpus))
        for node in view.nodes
    ]


def unpromised_bytes(nodes: Sequence[model.NodeView], request: model.Request) -> list[int]:
    """Return the bytes that may still be promised on each node, of the guest's page size."""
    if request.page_bytes is None:
        return [node.capacity_bytes - node.promised_bytes for node in nodes]
    return [dict(node.huge_free_bytes).get(request.page_bytes, 0) for node in nodes]


def by_size(inputs: PlacementInput, needs_memory: bool) -> Iterator[list[Candidate]]:
    """Yield the places that hold a guest, on as few nodes as do, then on more and more.

    :param needs_memory: whether there has to be room for its memory; if not, it may be anywhere
    """
    places, size = single_node_candidates(inputs, needs_memory), 1
    if not places and inputs.request.policy != model.ONE_NODE:
        sets = smallest_sets(inputs, needs_memory)
        places, size = _span_candidates(inputs, sets, needs_memory), len(sets[0]) if sets else 0
    if places:
        yield places
        if inputs.request.policy != model.ONE_NODE:
            yield from _wider(inputs, needs_memory, size)


def _wider(inputs: PlacementInput, needs_memory: bool, size: int) -> Iterator[list[Candidate]]:
    """Yield the places on more nodes than hold a guest, for its CPUs' sake.

    Part of its memory is on each: only nodes count that have CPUs, and room for an equal part, and
    no more than it has vCPUs.

    :param size: the number of nodes that hold it
    """
    while size < min(len(inputs.cores), inputs.request.vcpus):
        sets = smallest_sets(inputs, needs_memory, size + 1)
        if not sets:
            return
        size = len(sets[0])
        part_bytes = inputs.request.memory_bytes / size if needs_memory else -math.inf
        places = _span_candidates(
            inputs,
            [
                positions
                for positions in sets
                if all(
                    inputs.cpu_counts[position] and inputs.unpromised_bytes[position] >= part_bytes
                    for position in positions
                )
            ],
            needs_memory,
        )
        if places:
            yield places


def smallest_sets(inputs: PlacementInput, needs_memory: bool, size_min: int = 1) -> list[NodeSet]:
    """List the smallest sets of nodes, of at least some size, that together hold a guest.

    The list is complete unless there are more than 300 sets of that size, as on hosts of more than
    ten nodes: there, a set is grown from each node by the nearest others, those of the lowest
    pressure first, and some of the roomiest nodes, by several weights of CPUs, cores and memory.
    The smallest that are found are listed; one that is smaller by a node rarely exists.

    :returns: ascending tuples, all of the same size; empty if all nodes together do not suffice
    """
    needs = [max(1, inputs.request.vcpus), inputs.cores_needed]
    room: list[Sequence[float]] = [inputs.cpu_counts, inputs.cores]
    if needs_memory:
        needs.append(inputs.request.memory_bytes)
        room.append([max(0, node_bytes) for node_bytes in inputs.unpromised_bytes])

    def holds(positions: Sequence[int]) -> bool:
        return all(
            sum([amounts[position] for position in positions]) >= need
            for amounts, need in zip(room, needs)
        )

    count = len(inputs.cores)
    for size in range(size_min, count + 1):
        if math.comb(count, size) > ENUMERATED_MAX:
            orders = [*_nearest_first(inputs), *_roomiest_first(room, needs)]
            return _grown_sets(orders, holds, size) if holds(range(count)) else []
        sets = list(filter(holds, combinations(range(count), size)))
        if sets:
            return sets
    return []


def _nearest_first(inputs: PlacementInput) -> Iterator[list[int]]:
    """Yield the positions by distance from each of them, those of the lowest pressure first."""
    pressures = ranking.pressures(inputs.view_by_domain)
    everywhere = range(len(pressures))
    for seed in everywhere:
        yield sorted(everywhere, key=lambda at: (inputs.distance(seed, at), pressures[at]))


def _roomiest_first(
    room: Sequence[Sequence[float]], needs: Sequence[float]
) -> Iterator[list[int]]:
    """Yield the positions by what they have of the needs, with several weights of each need."""
    for weights in product((0, 1, 2), repeat=len(needs)):
        values = [
            sum(
                weight * min(1.0, amount / need)
                for weight, amount, need in zip(weights, amounts, needs)
                if need
            )
            for amounts in zip(*room)
        ]
        yield sorted(range(len(values)), key=lambda at: -values[at])


def _grown_sets(
    orders: Iterable[Sequence[int]], holds: Callable[[Sequence[int]], bool], size_min: int
) -> list[NodeSet]:
    """Take as many positions of each order as hold a guest; return the smallest sets.

    :param holds: returns whether positions hold the guest, as all together do
    """
    grown: set[NodeSet] = set()
    for order in orders:
        size = next((size for size in range(size_min, len(order)) if holds(order[:size])), 0)
        chosen = order[:size] if size else order
        for position in chosen:  # some of them may have no room
            others = [other for other in chosen if other != position]
            if len(others) >= size_min and holds(others):
                chosen = others
        grown.add(tuple(sorted(chosen)))
    least = min(map(len, grown))
    return sorted(positions for positions in grown if len(positions) == least)


def all_nodes(inputs: PlacementInput) -> list[Candidate]:
    """Return the place of a guest whose policy asks for all nodes."""
    positions = tuple(
        position for position, cpu_count in enumerate(inputs.cpu_counts) if cpu_count
    )
    memory_fits = (
        sum(max(0, inputs.unpromised_bytes[position]) for position in positions)
        >= inputs.request.memory_bytes
    )
    return [Candidate(positions, positions if memory_fits else (), memory_fits)]


def single_node_candidates(inputs: PlacementInput, needs_memory: bool = True) -> list[Candidate]:
    """List the single nodes that have cores and memory for the guest.

    :param needs_memory: as for :func:`by_size`
    """
    vcpus, memory_bytes = max(1, inputs.request.vcpus), inputs.request.memory_bytes
    cores_needed = 0 if inputs.request.policy == model.ONE_NODE else inputs.cores_needed
    found = []
    first_touch_positions = memory_domains.first_touch_positions(inputs.view_by_domain)
    for position, memory_position in enumerate(first_touch_positions):
        if inputs.cpu_counts[position] < vcpus or inputs.cores[position] < cores_needed:
            continue
        if not needs_memory:
            found.append(Candidate((position,), (), False))
        elif (
            memory_position is not None
            and inputs.unpromised_bytes[memory_position] >= memory_bytes
        ):
            found.append(Candidate((position,), (memory_position,), memory_position == position))
    return found


def _span_candidates(
    inputs: PlacementInput, sets: Iterable[NodeSet], needs_memory: bool
) -> list[Candidate]:
    nodes = inputs.view_by_domain.nodes
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Candidate] = {}
    for positions in sets:
        cpu_positions = tuple(position for position in positions if inputs.cpu_counts[position])
        memoryless = [memory_domains.is_memoryless(nodes[position]) for position in positions]
        mem_positions = tuple(
            position
            for position, is_memoryless in zip(positions, memoryless)
            if needs_memory and not is_memoryless
        )
        # Sets that differ only in nodes with neither CPUs nor memory for the guest are one place.
        found.setdefault(
            (cpu_positions, mem_positions),
            Candidate(cpu_positions, mem_positions, needs_memory and not any(memoryless)),
        )
    return list(found.values())
