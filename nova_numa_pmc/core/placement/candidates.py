# SPDX-License-Identifier: Apache-2.0
"""The places a guest could have: one node, a set of nodes, CPUs only.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import memory_domains
from nova_numa_pmc.core.placement import node_sets

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Candidate:
    """A place: positions of the CPUs and of the memory (empty: anywhere), and whether to bind."""

    __slots__ = ('cpus', 'mems', 'memory_fits')

    def __init__(self, cpus: tuple[int, ...], mems: tuple[int, ...], memory_fits: bool) -> None:
        self.cpus, self.mems, self.memory_fits = cpus, mems, memory_fits


class PlacementInput:
    """Input of a decision: a host by memory domain, a request, and the resources it finds there.

    :ivar threads: number of CPUs that the guest may use, by position
    :ivar free_bytes: bytes left to promise of the guest's kind of memory, by position
    :ivar devices: positions of the guest's devices
    """

    __slots__ = ('view', 'request', 'threads', 'free_bytes', 'devices')

    def __init__(
        self,
        merged: model.HostView,
        members: Sequence[tuple[int, ...]],
        host_view: model.HostView,
        request: model.Request,
    ) -> None:
        """Collect the input.

        :param merged, members: from :func:`memory_domains.merge`
        :param host_view: the view by node
        """
        self.view, self.request = merged, request
        self.threads = _threads(merged, request)
        self.free_bytes = free_bytes(merged.nodes, request)
        device_nodes = request.device_nodes
        self.devices = (
            tuple(
                at
                for at, group in enumerate(members)
                for member in group
                if host_view.nodes[member].id in device_nodes
            )
            if device_nodes
            else ()
        )

    def distance(self, a: int, b: int) -> float:
        """Read the SLIT distance between two positions."""
        return memory_domains.distance(self.view, a, b)


def _threads(view: model.HostView, request: model.Request) -> list[int]:
    """Count the threads that the guest may use on each node."""
    allowed = request.allowed_cpus
    return [
        node.threads
        if node.cpus is None
        else len(node.cpus if allowed is None else node.cpus & allowed)
        for node in view.nodes
    ]


def free_bytes(nodes: Sequence[model.NodeView], request: model.Request) -> list[int]:
    """Return the bytes left to promise on each node, of the guest's kind of memory."""
    if request.page_bytes is None:
        return [node.capacity_bytes - node.promised_bytes for node in nodes]
    return [dict(node.huge_free_bytes).get(request.page_bytes, 0) for node in nodes]


def kinds_of_place(
    inputs: PlacementInput, costs: Callable[[], Sequence[node_sets.Cost]] | None = None
) -> Iterator[tuple[str, list[Candidate]]]:
    """Yield (code, candidates) for each kind of place, the best kind first.

    :param costs: returns the costs by position, for :func:`node_sets.smallest` to choose by
        where many sets of positions hold the guest
    """
    policy = inputs.request.policy
    if policy == model.SPREAD:
        yield 'spread', _everywhere(inputs)
        return
    bandwidth = None if policy == model.ONE_NODE else _bandwidth_need(inputs)
    yield 'one_node', _single_nodes(inputs, bandwidth)
    if policy != model.ONE_NODE:
        yield 'span', _spans(inputs, bandwidth, costs and costs())
    vcpus = max(1, inputs.request.vcpus)
    yield (
        'cpus_only',
        [
            Candidate((at,), (), False)
            for at, threads in enumerate(inputs.threads)
            if threads >= vcpus
        ],
    )
    if policy != model.ONE_NODE:
        yield (
            'cpus_only',
            [
                Candidate(chosen, (), False)
                for chosen in node_sets.smallest(
                    [(threads,) for threads in inputs.threads],
                    (vcpus,),
                    inputs.distance,
                    costs and costs(),
                )
            ],
        )


def _everywhere(inputs: PlacementInput) -> list[Candidate]:
    cpus = tuple(at for at, threads in enumerate(inputs.threads) if threads)
    fits = sum(max(0, inputs.free_bytes[at]) for at in cpus) >= inputs.request.memory_bytes
    return [Candidate(cpus, cpus if fits else (), fits)]


def _maxima(inputs: PlacementInput) -> list[float | None]:
    """List each position's maximum bandwidth for the guest [bytes/s]; None: unknown.

    It is 0 where there is no such memory for guests: on a node with CPUs only, and on a node whose
    memory is withheld from guests, whatever its bandwidth.
    """
    huge = inputs.request.page_bytes is not None
    return [
        node.bandwidth_max_bytes_per_sec
        if (node.huge_free_bytes if huge else node.capacity_bytes)
        else 0.0
        for node in inputs.view.nodes
    ]


def _bandwidth_need(inputs: PlacementInput) -> float | None:
    """Return the bandwidth that a place must have [bytes/s]; None: unknown, so no constraint.

    A guest that alone exceeds a node's maximum runs better over several nodes than on one. No more
    is required than the host has for guests.
    """
    wanted = inputs.request.bandwidth_bytes_per_sec
    if wanted is None:
        return None
    maxima = [maximum for maximum in _maxima(inputs) if maximum is not None]
    return None if len(maxima) < len(inputs.view.nodes) else min(wanted, sum(maxima))


def _single_nodes(inputs: PlacementInput, bandwidth: float | None) -> list[Candidate]:
    vcpus, memory_bytes = max(1, inputs.request.vcpus), inputs.request.memory_bytes
    places = []
    for at, node in enumerate(inputs.view.nodes):
        if inputs.threads[at] < vcpus:
            continue
        home: int | None = at
        if inputs.free_bytes[at] < memory_bytes:
            # First touch on a node without memory falls back to the nearest node that has some.
            home = _nearest_memory(inputs, at) if is_memoryless(node) else None
        if home is not None and not (
            bandwidth and (inputs.view.nodes[home].bandwidth_max_bytes_per_sec or 0.0) < bandwidth
        ):
            places.append(Candidate((at,), (home,), home == at))
    return places


def is_memoryless(node: model.NodeView) -> bool:
    """Return whether a node has no memory that guests may be promised."""
    return not node.capacity_bytes and not node.huge_free_bytes


def _nearest_memory(inputs: PlacementInput, at: int) -> int | None:
    """Find where a guest on a CPU-only node would have its memory; None: it does not fit."""
    with_memory = [
        other for other, node in enumerate(inputs.view.nodes) if not is_memoryless(node)
    ]
    nearest = min(
        with_memory,
        default=None,
        key=lambda other: (inputs.distance(at, other), -inputs.free_bytes[other]),
    )
    if nearest is None or inputs.free_bytes[nearest] < inputs.request.memory_bytes:
        return None
    return nearest


def _spans(
    inputs: PlacementInput, bandwidth: float | None, costs: Sequence[node_sets.Cost] | None
) -> list[Candidate]:
    room: list[tuple[float, ...]] = [
        (threads, max(0, free)) for threads, free in zip(inputs.threads, inputs.free_bytes)
    ]
    need: tuple[float, ...] = (max(1, inputs.request.vcpus), inputs.request.memory_bytes)
    if bandwidth:
        room = [(*kinds, maximum or 0.0) for kinds, maximum in zip(room, _maxima(inputs))]
        need += (bandwidth,)
    nodes = inputs.view.nodes
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], Candidate] = {}
    for chosen in node_sets.smallest(room, need, inputs.distance, costs):
        cpus = tuple(at for at in chosen if inputs.threads[at])
        mems = tuple(at for at in chosen if not is_memoryless(nodes[at]))
        # Sets that differ only in nodes with neither CPUs nor memory for it are the same place.
        places.setdefault(
            (cpus, mems), Candidate(cpus, mems, not any(is_memoryless(nodes[at]) for at in chosen))
        )
    return list(places.values())
