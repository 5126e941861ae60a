# SPDX-License-Identifier: Apache-2.0
"""Build the views of a host and a guest that decisions are based on.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility, memory_domains
from nova_numa_pmc.core.missing import all_known, reports_memory
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.core.measurements import NodeSample

#: Assumed cores per vCPU of a guest without history, and the weight of that assumption as a number
#: of guests.
PRIOR_CORES_PER_VCPU, PRIOR_GUESTS = 0.5, 5
#: An estimate per vCPU is rounded to this many steps per core. It is a power of two, so that sums
#: of estimates do not depend on the order in which guests are charged.
_STEPS_PER_CORE = 64
#: Extra specs of a flavor that influence the placement of its guests.
INTENSITY_KEY = model.EXTRA_SPEC_PREFIX + 'memory_intensity'
#: Values of ``numa_pmc:memory_intensity``: bandwidth per core relative to the host's mean.
INTENSITY = {'low': 0.3, 'medium': 1.0, 'high': 3.0}
#: Memory intensity of a flavor that does not specify one.
DEFAULT_INTENSITY = 'medium'
#: The expected demand of a guest younger than this is added to the measurements [ns].
NOT_YET_MEASURED_NS = 120 * 10**9
#: Traffic per core is not derived from less demand than this, because it would be noise
#: [0.01 cores].
TRAFFIC_DEMAND_MIN_HUNDREDTHS = 50

_UNMEASURED, _NO_HISTORY = model.NodeLoad(), model.DemandHistory()
#: The smallest share of its capacity that stolen time leaves to a node. Without any cores left, it
#: would count as a node without CPUs.
_CAPACITY_MIN_RATIO = 0.05


def view(
    host: model.Topology,
    promises: Iterable[model.Promise],
    placement_options: model.PlacementOptions,
    loads: Mapping[int, model.NodeLoad | NodeSample] | None = None,
    rotation: int = 0,
) -> model.HostView:
    """Aggregate a host per node, in the units of :func:`quantise`.

    Memory that is promised on several nodes counts as it was divided when it was promised, or, if
    that was not recorded, evenly if such parts fit, otherwise in proportion to the capacity of
    these nodes. The memory of a floating guest is spread over all nodes in proportion to their
    capacity. A node whose memory is not for guests (:func:`is_for_guests`) counts as having none.
    Huge pages count only against their pools. A guest's vCPUs are spread over its nodes in
    proportion to their cores.

    :param loads: {node id: its measured load}, without the nodes that were not measured; None if
        none was
    :param rotation: number of placements made before
    """
    nodes = with_guest_memory_only(host.nodes, placement_options)
    promises = list(promises)
    cores = capacity_cores(host, placement_options)
    capacities = [capacity_bytes(node, placement_options) for node in nodes]
    promised_bytes, promised_huge_bytes = _sum_promises(nodes, capacities, promises)
    guests, vcpus = _count_guests(nodes, cores, promises)
    views = []
    for position, node in enumerate(nodes):
        load = (loads or {}).get(node.id) or _UNMEASURED
        cores[position] = capacity_without_stolen(
            cores[position], _hundredths(load.stolen_cores or 0.0)
        )
        views.append(
            model.NodeView(
                id=node.id,
                cores=cores[position],
                cpu_count=len(node.cpus),
                capacity_bytes=capacities[position],
                promised_bytes=promised_bytes[position],
                guests=guests[position],
                vcpus=vcpus[position],
                demand_cores=load.demand_cores,
                bandwidth_bytes_per_sec=load.bandwidth_bytes_per_sec,
                bandwidth_max_bytes_per_sec=load.bandwidth_max_bytes_per_sec,
                link_ratio=load.link_ratio,
                huge_free_bytes=_huge_free(node, promised_huge_bytes[position]),
                cpus=node.cpus,
            )
        )
    return quantise(
        model.HostView(
            tuple(views), memory_domains.distances(host), rotation, memory_domains.domains(host)
        )
    )


def with_memory_on(host_view: model.HostView, mems: frozenset[int] | None) -> model.HostView:
    """Return a host's view in which only some nodes have memory that may be promised.

    :param mems: ids of the nodes whose memory a guest may use; None: all
    """
    if mems is None:
        return host_view
    return host_view._replace(
        nodes=tuple(
            node
            if node.id in mems
            else node._replace(capacity_bytes=0, promised_bytes=0, huge_free_bytes=())
            for node in host_view.nodes
        )
    )


def quantise(host_view: model.HostView) -> model.HostView:
    """Round a host's view to the units of Nova's metrics, so that all readers decide alike.

    The units are 0.01 for cores, guests and vCPUs, 1 MB/s for bandwidth and 0.001 for the
    utilisation of a link. Memory is in whole MiB, as in Nova: promised memory is rounded up,
    capacity down.
    """
    return host_view._replace(
        nodes=tuple(
            node._replace(
                cores=_hundredths(node.cores),
                capacity_bytes=node.capacity_bytes // model.MIB * model.MIB,
                promised_bytes=-(-node.promised_bytes // model.MIB) * model.MIB,
                guests=_hundredths(node.guests),
                vcpus=_hundredths(node.vcpus),
                demand_cores=None if node.demand_cores is None else _hundredths(node.demand_cores),
                bandwidth_bytes_per_sec=_megabytes(node.bandwidth_bytes_per_sec),
                bandwidth_max_bytes_per_sec=_megabytes(node.bandwidth_max_bytes_per_sec),
                link_ratio=None
                if node.link_ratio is None
                else round(1000 * node.link_ratio) / 1000,
            )
            for node in host_view.nodes
        )
    )


def _hundredths(value: float) -> float:
    return round(100 * value) / 100


def _megabytes(value: float | None) -> float | None:
    return None if value is None else round(value / model.MB) * model.MB


def with_arrivals_and_departures(
    host_view: model.HostView,
    promised: Mapping[int, float],
    counted: Mapping[int, float],
    history: model.DemandHistory,
) -> model.HostView:
    """Add the demand of guests that arrived since the measurement; subtract that of departed ones.

    The demand of a guest is the expected demand of its vCPUs; its traffic is that demand times the
    host's mean traffic per core.

    :param promised: {node id: vCPUs that are promised now}, spread over nodes as in ``counted``
    :param counted: {node id: vCPUs of the guests that were measured}; other nodes are returned
        as they are
    :param history: the demand history of all guests
    """
    cores_per_vcpu = expected_cores(1, history)
    changes = {
        node.id: cores_per_vcpu * (promised[node.id] - counted[node.id])
        for node in host_view.nodes
        if node.id in counted
    }
    if not any(changes.values()):
        return host_view
    bytes_per_core_sec = node_traffic_per_core(host_view.nodes) or 0.0
    return host_view._replace(
        nodes=tuple(
            node._replace(
                demand_cores=_add_change(node.demand_cores, changes.get(node.id, 0)),
                bandwidth_bytes_per_sec=_add_change(
                    node.bandwidth_bytes_per_sec, bytes_per_core_sec * changes.get(node.id, 0)
                ),
            )
            for node in host_view.nodes
        )
    )


def _add_change(amount: float | None, change: float) -> float | None:
    return None if amount is None else max(0, amount + change)


def node_traffic_per_core(nodes: Sequence[model.NodeView]) -> float | None:
    """Return a host's DRAM traffic per core of demand [bytes/core-second].

    :returns: None if demand or traffic is unknown for a node, or if there is too little demand
    """
    return traffic_per_core(
        [node.demand_cores for node in nodes if node.cores],
        [node.bandwidth_bytes_per_sec for node in nodes if reports_memory(node)],
    )


def traffic_per_core(
    demands: Sequence[float | None], bandwidths: Sequence[float | None]
) -> float | None:
    """Return Σ bandwidth / Σ demand [bytes/core-second].

    :param demands: CPU demand of each node with CPUs [cores]
    :param bandwidths: DRAM traffic of each node with memory [bytes/s]
    :returns: None if a value is unknown, or if the demand is below
        :data:`TRAFFIC_DEMAND_MIN_HUNDREDTHS`
    """
    known_demands, known_bandwidths = all_known(demands), all_known(bandwidths)
    if not known_demands or not known_bandwidths:
        return None
    # In whole hundredths, so that the sum does not depend on how nodes are merged into domains.
    hundredths = round(100 * sum(known_demands))
    if hundredths < TRAFFIC_DEMAND_MIN_HUNDREDTHS:
        return None
    return 100 * sum(known_bandwidths) / hundredths


def expected_bandwidth(
    demand_cores: float, intensity: float, bytes_per_core_sec: float | None
) -> float | None:
    """Return a guest's expected traffic [bytes/s]; None if the traffic per core is unknown.

    :param intensity: the guest's traffic per core relative to the host's mean
    :param bytes_per_core_sec: the result of :func:`node_traffic_per_core`
    """
    return None if bytes_per_core_sec is None else demand_cores * bytes_per_core_sec * intensity


def request(
    guest: model.Guest,
    placement_options: model.PlacementOptions,
    device_nodes: Iterable[int] = (),
    history: model.DemandHistory = _NO_HISTORY,
) -> model.Request:
    """Return the request to place a guest.

    The guest's expected demand is ĉ = :func:`expected_cores`, and its expected traffic is
    ĉ · (host's bytes per core-second) · {low 0.3, medium 1, high 3}. Invalid values of an extra
    spec are ignored.

    :param device_nodes: node ids of the guest's host devices
    :param history: the demand history of the host's guests
    """
    demand_cores = expected_cores(guest.vcpus, history)
    return model.Request(
        guest.vcpus,
        guest.memory_bytes,
        guest.page_bytes,
        guest.limit_cpus,
        tuple(device_nodes),
        guest.policy,
        demand_cores,
        expected_bandwidth(demand_cores, intensity_of(guest), history.bytes_per_core_sec),
        eligibility.why_not(eligibility.PLACE, guest),
        guest.placed_by,
        guest.vcpus_max,
        guest.memory_max_bytes,
    )


def intensity_of(guest: model.Guest) -> float:
    """Return a guest's bandwidth per core relative to the host's mean, as its flavor states it."""
    intensity = dict(guest.extra_specs).get(INTENSITY_KEY, '')
    return INTENSITY.get(intensity, INTENSITY[DEFAULT_INTENSITY])


def expected_cores(vcpus: int, history: model.DemandHistory) -> float:
    """Return the expected demand of a guest without measurements [cores].

    ĉ = vCPUs · (5 · 0.5 + Σκ) / (5 + N)

    :param history: the demand history of N guests, which at N = 5 weighs as much as the prior
    """
    return vcpus * expected_per_vcpu(history.guests, history.cores_per_vcpu_sum)


def expected_per_vcpu(guests: float, cores_per_vcpu_sum: float) -> float:
    """Return the expected demand of one vCPU [cores], rounded to 1/64.

    :param guests, cores_per_vcpu_sum: as in :class:`model.DemandHistory`
    """
    return (
        round(
            _STEPS_PER_CORE
            * (PRIOR_GUESTS * PRIOR_CORES_PER_VCPU + cores_per_vcpu_sum)
            / (PRIOR_GUESTS + guests)
        )
        / _STEPS_PER_CORE
    )


def demand_or_prior(subject: model.NodeView | model.Request) -> float:
    """Return the demand on a node or of a request; if it is unknown, the prior [cores]."""
    if subject.demand_cores is None:
        return PRIOR_CORES_PER_VCPU * subject.vcpus
    return subject.demand_cores


def capacity_bytes(node: model.Node, placement_options: model.PlacementOptions) -> int:
    """Return the bytes of a node that may be promised in normal pages.

    They are ram_ratio · (MemTotal − huge page pools − unreclaimable − reserve), never negative.
    """
    huge_bytes = sum(pool.page_bytes * pool.total for pool in node.huge_pages)
    usable_bytes = (
        node.memory_bytes - huge_bytes - node.unreclaimable_bytes - placement_options.reserve_bytes
    )
    return max(0, int(placement_options.ram_ratio * usable_bytes))


def capacity_cores(host: model.Topology, placement_options: model.PlacementOptions) -> list[float]:
    """Return the capacity C_n of each node by position [cores].

    It is the number of the node's cores, plus the option ``smt_ratio`` for each further usable SMT
    sibling. A busy sibling adds far less than a core: when XAPI counted threads as cores, its
    guests lost more CPU time than they gained by locality.
    """
    position_of_cpu = {
        cpu: position for position, node in enumerate(host.nodes) for cpu in node.cpus
    }
    cores = [0.0] * len(host.nodes)
    for siblings in host.cores:
        counted_positions = set()
        for cpu in siblings:
            position = position_of_cpu.pop(cpu, None)
            if position is not None:
                cores[position] += (
                    placement_options.smt_ratio if position in counted_positions else 1.0
                )
                counted_positions.add(position)
    for position in position_of_cpu.values():  # CPUs of which the core is unknown
        cores[position] += 1.0
    return cores


def capacity_cores_by_node(
    host: model.Topology, placement_options: model.PlacementOptions
) -> dict[int, float]:
    """Return {node id: capacity [cores]}, as :func:`capacity_cores` computes it."""
    return dict(zip((node.id for node in host.nodes), capacity_cores(host, placement_options)))


def capacity_without_stolen(cores: float, stolen_cores: float | None) -> float:
    """Return a capacity less stolen cores, but at least :data:`_CAPACITY_MIN_RATIO` of it.

    :param stolen_cores: CPU time that went to other guests of the host's own hypervisor; None if
        it is unknown, which counts as 0
    """
    return max(_CAPACITY_MIN_RATIO * cores, cores - (stolen_cores or 0.0))


def _sum_promises(
    nodes: Sequence[model.Node], capacity: Sequence[int], promises: Sequence[model.Promise]
) -> tuple[list[int], list[dict[int, int]]]:
    """Sum up promised bytes by position.

    :returns: (bytes in normal pages, {page size: bytes in huge pages})
    """
    normal_bytes = [0] * len(nodes)
    huge_bytes: list[dict[int, int]] = [{} for _ in nodes]
    memory_positions = tuple(position for position, node in enumerate(nodes) if node.memory_bytes)
    for promise, positions in zip(
        promises,
        _positions_of(nodes, [promise.mem_nodes for promise in promises], memory_positions),
    ):
        if promise.page_bytes:
            _add_huge_promise(nodes, huge_bytes, positions, promise, promise.page_bytes)
            continue
        limits_bytes = [capacity[position] for position in positions]
        shares = _known_division(promise, positions, limits_bytes)
        if shares is None:
            shares = split_bytes(promise.memory_bytes, limits_bytes)
        for position, share in zip(positions, shares):
            normal_bytes[position] += share
    return normal_bytes, huge_bytes


def _add_huge_promise(
    nodes: Sequence[model.Node],
    huge_bytes: Sequence[dict[int, int]],
    positions: tuple[int, ...],
    promise: model.Promise,
    page_bytes: int,
) -> None:
    """Add a promise of huge pages to ``huge_bytes``."""
    pool_bytes = [
        sum(
            pool.page_bytes * pool.total
            for pool in nodes[position].huge_pages
            if pool.page_bytes == page_bytes
        )
        for position in positions
    ]
    shares = _known_division(promise, positions, pool_bytes)
    if shares is None:
        shares = split_memory(promise.memory_bytes, pool_bytes, page_bytes)
    for position, share in zip(positions, shares):
        huge_bytes[position][page_bytes] = huge_bytes[position].get(page_bytes, 0) + share


def _known_division(
    promise: model.Promise, positions: tuple[int, ...], capacity: Sequence[int]
) -> Sequence[int] | None:
    """Return the promised bytes on each position; None if their division is not known.

    What was not recorded is taken to be even, if the nodes are large enough for that: Nova gives
    each of a guest's NUMA nodes the same memory by default, and binds each to one node of the
    host.

    :param capacity: bytes that may be promised on each of the positions
    """
    if len(promise.mem_nodes) != len(positions):
        return None
    if len(promise.mem_node_bytes) == len(positions):
        return promise.mem_node_bytes
    even_shares = split_memory(promise.memory_bytes, [0] * len(positions), promise.page_bytes)
    return even_shares if all(map(int.__le__, even_shares, capacity)) else None


def _positions_of(
    nodes: Sequence[model.Node], node_ids: Iterable[tuple[int, ...]], default: tuple[int, ...] = ()
) -> list[tuple[int, ...]]:
    """Turn tuples of node ids into tuples of positions.

    :param default: the positions for a tuple without ids that the host has; empty means all
    """
    position_of = {node.id: position for position, node in enumerate(nodes)}
    default = default or tuple(range(len(nodes)))
    return [
        tuple(position_of[node] for node in ids if node in position_of) or default
        for ids in node_ids
    ]


def _huge_free(node: model.Node, promised_bytes: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """List (page size, free bytes), less what guests were promised and have yet to take."""
    return tuple(
        (
            pool.page_bytes,
            max(
                0,
                min(
                    pool.page_bytes * pool.free,
                    pool.page_bytes * pool.total - promised_bytes.get(pool.page_bytes, 0),
                ),
            ),
        )
        for pool in node.huge_pages
    )


def _count_guests(
    nodes: Sequence[model.Node], cores: Sequence[float], promises: Sequence[model.Promise]
) -> tuple[list[float], list[float]]:
    """Count guests and their vCPUs by position."""
    guests, vcpus = [0.0] * len(nodes), [0.0] * len(nodes)
    for promise, positions in zip(
        promises, _positions_of(nodes, [promise.held_nodes for promise in promises])
    ):
        shares = (
            _shares([cores[position] for position in positions]) if len(positions) > 1 else [1.0]
        )
        for position, share in zip(positions, shares):
            guests[position] += share
            vcpus[position] += share * promise.vcpus
    return guests, vcpus


def split_bytes(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide whole bytes in proportion to whole weights, or evenly if all weights are 0.

    No share exceeds its weight unless the amount exceeds their sum, so that rounding does not
    overfill a node.
    """
    if not sum(weights):
        weights = [1] * len(weights)
    total_weight, cumulative_weight, distributed_bytes, shares = sum(weights), 0, 0, []
    for weight in weights:
        cumulative_weight += weight
        shares.append(amount * cumulative_weight // total_weight - distributed_bytes)
        distributed_bytes += shares[-1]
    return shares


def split_memory(memory_bytes: int, weights: Sequence[int], page_bytes: int | None) -> list[int]:
    """Divide memory as :func:`split_bytes` does, huge pages as whole pages.

    :param page_bytes: size of the huge pages; None for normal pages, which are divided by bytes
    """
    unit_bytes = page_bytes or 1
    return [
        unit_bytes * share
        for share in split_bytes(
            -(-memory_bytes // unit_bytes), [weight // unit_bytes for weight in weights]
        )
    ]


def _shares(weights: Sequence[float]) -> list[float]:
    """Return the share of each weight in their sum, or equal shares if all weights are 0."""
    total_weight = sum(weights)
    return [weight / total_weight if total_weight else 1 / len(weights) for weight in weights]


def is_for_guests(node: model.Node, placement_options: model.PlacementOptions) -> bool:
    """Return whether a node has memory that guests may be promised.

    The memory of a node without CPUs is that of a device (a GPU), of a slower tier (CXL), or far
    from all CPUs in another way. No guest is placed on such a node and no promise is counted
    there, unless the operator has configured it.
    """
    is_withheld = node.is_far and node.id not in placement_options.guest_memory_nodes
    return bool(node.memory_bytes) and not is_withheld


def with_guest_memory_only(
    nodes: tuple[model.Node, ...], placement_options: model.PlacementOptions
) -> tuple[model.Node, ...]:
    """Return the nodes, with memory that is not for guests counted as none."""
    return tuple(
        node
        if is_for_guests(node, placement_options) or not node.memory_bytes
        else node._replace(memory_bytes=0, free_bytes=0, huge_pages=())
        for node in nodes
    )


def list_withheld(
    nodes: tuple[model.Node, ...], placement_options: model.PlacementOptions
) -> tuple[model.Node, ...]:
    """List the nodes whose memory is not for guests."""
    return tuple(
        node for node in nodes if node.memory_bytes and not is_for_guests(node, placement_options)
    )
