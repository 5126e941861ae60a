# SPDX-License-Identifier: Apache-2.0
"""List the places that a guest could have: one node, a set of nodes, or only CPUs.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import memory_domains, missing
from nova_numa_pmc.core.placement import node_sets, reasons
from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


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
    :ivar cpu_counts: by position, the number of CPUs that the guest may use
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
        'unpromised_bytes',
        'devices',
    )

    def __init__(self, view_by_node: model.HostView, request: model.Request) -> None:
        self.view_by_node, self.request = view_by_node, request
        self.view_by_domain, self.members = memory_domains.merge(view_by_node)
        self.cpu_counts = _allowed_cpu_counts(self.view_by_domain, request)
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


def kinds_of_place(
    inputs: PlacementInput, pressure_keys: Callable[[], Sequence[node_sets.PressureKey]]
) -> Iterator[tuple[str, list[Candidate]]]:
    """Yield (code, candidates) for each kind of place, the best kind first.

    :param pressure_keys: a function that returns the sort key of each position by its pressure, by
        which :func:`node_sets.smallest_sets` chooses if many sets of positions hold the guest
    """
    policy = inputs.request.policy
    if policy == model.SPREAD:
        yield reasons.ON_ALL_NODES, _all_nodes_candidates(inputs)
        return
    bandwidth = None if policy == model.ONE_NODE else _bandwidth_need(inputs)
    yield reasons.ON_ONE_NODE, single_node_candidates(inputs, bandwidth)
    if policy != model.ONE_NODE:
        yield reasons.ON_SPAN, _span_candidates(inputs, bandwidth, pressure_keys())
    vcpus = max(1, inputs.request.vcpus)
    yield (
        reasons.CPUS_ONLY,
        [
            Candidate((position,), (), False)
            for position, cpu_count in enumerate(inputs.cpu_counts)
            if cpu_count >= vcpus
        ],
    )
    if policy != model.ONE_NODE:
        yield (
            reasons.CPUS_ONLY,
            [
                Candidate(positions, (), False)
                for positions in node_sets.smallest_sets(
                    [(cpu_count,) for cpu_count in inputs.cpu_counts],
                    (vcpus,),
                    inputs.distance,
                    pressure_keys(),
                )
            ],
        )


def _all_nodes_candidates(inputs: PlacementInput) -> list[Candidate]:
    positions = tuple(
        position for position, cpu_count in enumerate(inputs.cpu_counts) if cpu_count
    )
    memory_fits = (
        sum(max(0, inputs.unpromised_bytes[position]) for position in positions)
        >= inputs.request.memory_bytes
    )
    return [Candidate(positions, positions if memory_fits else (), memory_fits)]


def _bandwidth_maxima(inputs: PlacementInput) -> list[float | None]:
    """List the maximum bandwidth of each position's memory [bytes/s]; None if it is unknown.

    It is 0 for a node that has no memory of the guest's page size left, whatever its bandwidth,
    because none of the guest's traffic would go there.
    """
    return [
        node.bandwidth_max_bytes_per_sec if node_bytes > 0 else 0.0
        for node, node_bytes in zip(inputs.view_by_domain.nodes, inputs.unpromised_bytes)
    ]


def _bandwidth_need(inputs: PlacementInput) -> float | None:
    """Return the bandwidth that a place must have [bytes/s]; None if there is no constraint.

    A guest that exceeds a node's maximum by itself runs better on several nodes than on one. The
    need is at most what the nodes with memory left have. There is no constraint if the guest's
    traffic or the maximum of such a node is unknown.
    """
    guest_bandwidth = inputs.request.bandwidth_bytes_per_sec
    if guest_bandwidth is None:
        return None
    maxima = missing.all_known(_bandwidth_maxima(inputs))
    return None if maxima is None else min(guest_bandwidth, sum(maxima))


def single_node_candidates(
    inputs: PlacementInput, bandwidth_min_bytes_per_sec: float | None = None
) -> list[Candidate]:
    """List the single nodes that have CPUs, memory and bandwidth for the guest.

    :param bandwidth_min_bytes_per_sec: what a node's memory must serve; None: any will do
    """
    vcpus, memory_bytes = max(1, inputs.request.vcpus), inputs.request.memory_bytes
    found = []
    first_touch_positions = memory_domains.first_touch_positions(inputs.view_by_domain)
    for position, memory_position in enumerate(first_touch_positions):
        if (
            inputs.cpu_counts[position] >= vcpus
            and memory_position is not None
            and inputs.unpromised_bytes[memory_position] >= memory_bytes
        ) and not (
            bandwidth_min_bytes_per_sec
            and (inputs.view_by_domain.nodes[memory_position].bandwidth_max_bytes_per_sec or 0.0)
            < bandwidth_min_bytes_per_sec
        ):
            found.append(Candidate((position,), (memory_position,), memory_position == position))
    return found


def _span_candidates(
    inputs: PlacementInput,
    bandwidth_min_bytes_per_sec: float | None,
    pressure_keys: Sequence[node_sets.PressureKey],
) -> list[Candidate]:
    room: list[tuple[float, ...]] = [
        (cpu_count, max(0, node_bytes))
        for cpu_count, node_bytes in zip(inputs.cpu_counts, inputs.unpromised_bytes)
    ]
    need: tuple[float, ...] = (max(1, inputs.request.vcpus), inputs.request.memory_bytes)
    if bandwidth_min_bytes_per_sec:
        room = [
            (*amounts, maximum or 0.0) for amounts, maximum in zip(room, _bandwidth_maxima(inputs))
        ]
        need += (bandwidth_min_bytes_per_sec,)
    nodes = inputs.view_by_domain.nodes
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Candidate] = {}
    for positions in node_sets.smallest_sets(room, need, inputs.distance, pressure_keys):
        cpu_positions = tuple(position for position in positions if inputs.cpu_counts[position])
        mem_positions = tuple(
            position for position in positions if not memory_domains.is_memoryless(nodes[position])
        )
        # Sets that differ only in nodes with neither CPUs nor memory for the guest are one place.
        found.setdefault(
            (cpu_positions, mem_positions),
            Candidate(
                cpu_positions,
                mem_positions,
                not any(memory_domains.is_memoryless(nodes[position]) for position in positions),
            ),
        )
    return list(found.values())
