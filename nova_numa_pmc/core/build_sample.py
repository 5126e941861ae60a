# SPDX-License-Identifier: Apache-2.0
"""Build the records of a sample from the measurements of one interval.

``None`` means unknown. Nodes are in ascending order of their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import pressure, rates
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.sample_records import (
    COUNTED,
    DeviceSample,
    Evidence,
    GuestSample,
    NodeSample,
)
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.core.sample_records import RunningGuest
    from nova_numa_pmc.model import Node


class NodeUse(Record):
    """The measurements of one node, from which its :class:`NodeSample` is built.

    :param demand_cores: demand on the CPUs that guests may use
    :param busy_cores: time for which the node's CPUs were busy, including CPUs that guests may
        not use [cores]
    :param stolen_cores: time stolen from the CPUs that guests may use [cores]
    :param incoming_per_sec: lines that the node's memory controllers read for other nodes
    :param link_ratio: utilisation of the busiest link to other sockets
    """

    demand_cores: float | None = None
    busy_cores: float | None = None
    local_per_sec: float | None = None
    remote_per_sec: float | None = None
    cycles_per_sec: float | None = None
    instructions_per_sec: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    incoming_per_sec: float | None = None
    link_ratio: float | None = None
    io_miss_ratio: float | None = None
    stolen_cores: float | None = None


class CpuRates(Record):
    """Rates of the events of some CPUs; None if unknown.

    :param counted_ratio: the smallest share of the time for which any of the counters counted. The
        counters of the last two fields are not considered: they are multiplexed separately, and
        count only guests
    """

    local_per_sec: float | None
    remote_per_sec: float | None
    cycles_per_sec: float | None
    instructions_per_sec: float | None
    counted_ratio: float | None
    remote_cache_per_sec: float | None = None
    stalled_cycles_per_sec: float | None = None


class NodeCapacities(Record):
    """Capacities, bandwidths and latencies of a host's nodes, by position.

    :param bandwidth_max_bytes_per_sec: an item is None if it is unknown
    :param latencies_ns: unloaded latencies, with a row for each node that accesses; None if they
        are unknown
    :param mlp: number of cache misses that a core waits for at the same time
    """

    capacity_cores: Sequence[float]
    bandwidth_max_bytes_per_sec: Sequence[float | None]
    latencies_ns: Sequence[Sequence[float]] | None
    mlp: float


#: Evidence of a guest that no source has measured.
_NO_EVIDENCE = Evidence('', '')


def node_samples(
    nodes: Sequence[Node],
    uses: Sequence[NodeUse],
    capacities: NodeCapacities,
    guests: Sequence[GuestSample],
    all_traffic: bool = False,
) -> tuple[NodeSample, ...]:
    """Return the samples of a host's nodes.

    :param nodes: in ascending order of their ids
    :param uses: the measurements of each node
    :param guests: samples of the guests, which show on which nodes they run and have memory
    :param all_traffic: whether accesses include prefetched and written lines, so that they show
        the bandwidth used on a node whose memory controllers are not counted
    """
    lines_per_sec = _lines_per_sec_by_target(nodes, uses, guests)
    if all_traffic and lines_per_sec:
        uses = [
            use
            if use.bandwidth_bytes_per_sec is not None
            else use._replace(
                bandwidth_bytes_per_sec=pressure.LINE_BYTES
                * sum(row[position] for row in lines_per_sec)
            )
            for position, use in enumerate(uses)
        ]
    bandwidth_ratios = [
        rates.ratio(use.bandwidth_bytes_per_sec, maximum)
        for use, maximum in zip(uses, capacities.bandwidth_max_bytes_per_sec)
    ]
    losses = pressure.losses(
        [use.demand_cores for use in uses],
        capacities.capacity_cores,
        lines_per_sec,
        capacities.latencies_ns,
        bandwidth_ratios,
        capacities.mlp,
    )
    return tuple(
        _node_sample(position, node, use, capacities, bandwidth_ratio, loss)
        for position, (node, use, bandwidth_ratio, loss) in enumerate(
            zip(nodes, uses, bandwidth_ratios, losses)
        )
    )


def _node_sample(
    position: int,
    node: Node,
    use: NodeUse,
    capacities: NodeCapacities,
    bandwidth_ratio: float | None,
    loss: pressure.Loss,
) -> NodeSample:
    """Return the :class:`NodeSample` of the node at a position."""
    utilisations = pressure.node_pressure(
        rates.ratio(use.demand_cores, capacities.capacity_cores[position]),
        bandwidth_ratio,
        use.link_ratio,
    )
    cpu_count = len(node.online_cpus or node.cpus)
    busy_ratio = None if use.busy_cores is None or not cpu_count else use.busy_cores / cpu_count
    cpi, reliable = rates.cycles_per_instruction(
        use.cycles_per_sec, use.instructions_per_sec, busy_ratio
    )
    return NodeSample(
        id=node.id,
        capacity_cores=capacities.capacity_cores[position],
        demand_cores=use.demand_cores,
        cpu_ratio=utilisations.cpu_ratio,
        bandwidth_bytes_per_sec=use.bandwidth_bytes_per_sec,
        bandwidth_max_bytes_per_sec=capacities.bandwidth_max_bytes_per_sec[position],
        bandwidth_ratio=utilisations.bandwidth_ratio,
        link_ratio=utilisations.link_ratio,
        pressure=utilisations.pressure,
        local_per_sec=use.local_per_sec,
        remote_per_sec=use.remote_per_sec,
        remote_ratio=rates.remote_ratio(use.local_per_sec, use.remote_per_sec),
        cpi=cpi,
        cpi_reliable=reliable,
        waiting_cores=loss.waiting_cores,
        distance_cores=loss.distance_cores,
        io_miss_ratio=use.io_miss_ratio,
        memory_bytes=node.memory_bytes,
        free_bytes=node.free_bytes,
        stolen_cores=use.stolen_cores,
    )


def guest_rates_by_node(
    guests: Sequence[RunningGuest], evidence: Mapping[str, Evidence], nodes: Sequence[int]
) -> dict[int, CpuRates]:
    """Return the rates of counted guests on each node, divided by where the guests ran.

    The host's own work is not included. A node is left out if a guest ran there whose events were
    not counted; all nodes are left out if it is unknown where a guest ran.

    :param evidence: {uuid: evidence}
    :param nodes: ids of all nodes
    :returns: {node id: :class:`CpuRates`}
    """
    sums: dict[int, list[float | None]] = {node: [0.0] * 4 for node in nodes}
    unknown_nodes: set[int] = set()
    for running in guests:
        guest_evidence = evidence.get(running.guest.uuid)
        guest_cores = running.cores
        if (
            guest_cores is None
            or not running.cores_by_node
            or guest_evidence is None
            or guest_evidence.basis != COUNTED
        ):
            if guest_cores != 0:
                unknown_nodes.update(running.cores_by_node or nodes)
            continue
        guest_rates = (
            guest_evidence.local_per_sec,
            guest_evidence.remote_per_sec,
            guest_evidence.cycles_per_sec,
            guest_evidence.instructions_per_sec,
        )
        for node, cores in running.cores_by_node.items():
            for index, rate in enumerate(guest_rates if cores else ()):
                total = sums[node][index]
                sums[node][index] = (
                    None if rate is None or total is None else total + rate * cores / guest_cores
                )
    return (
        {
            node: CpuRates(local, remote, cycles, instructions, None)
            for node, (local, remote, cycles, instructions) in sums.items()
            if node not in unknown_nodes and local is not None
        }
        if guests
        else {}
    )


def attribute_accesses_of_nodes(
    cores_by_node: Mapping[int, float],
    rates_by_node: Mapping[int, CpuRates],
    busy_cores: Mapping[int, float],
) -> tuple[float, float] | None:
    """Return (local, remote) rates of a guest, its share of the accesses of its nodes.

    :param cores_by_node: {node id: cores that the guest used there}
    :param busy_cores: {node id: cores that were busy there}
    :returns: None if it is unknown where the guest ran, or if a node where it ran is not counted
    """
    local = remote = 0.0
    for node, cores in cores_by_node.items():
        if cores:
            node_rates = rates_by_node.get(node)
            if (
                node_rates is None
                or node_rates.local_per_sec is None
                or node_rates.remote_per_sec is None
            ):
                return None
            share = cores / busy_cores[node]
            local += share * node_rates.local_per_sec
            remote += share * node_rates.remote_per_sec
    return (local, remote) if cores_by_node else None


def _lines_per_sec_by_target(
    nodes: Sequence[Node], uses: Sequence[NodeUse], guests: Iterable[GuestSample]
) -> Sequence[Sequence[float]] | None:
    """Return each node's accesses by target node; None if they are not counted on every node."""
    local_rates = all_known([use.local_per_sec for use in uses])
    remote_rates = all_known([use.remote_per_sec for use in uses])
    if local_rates is None or remote_rates is None:
        return None
    position_of = {node.id: position for position, node in enumerate(nodes)}
    guest_accesses = []
    for guest in guests:
        remote_by_position, bytes_by_position = ([0.0] * len(nodes) for _ in range(2))
        for node, share in rates.shares(guest.cores_by_node).items():
            if node in position_of:
                remote_by_position[position_of[node]] = share * (guest.remote_per_sec or 0.0)
        for node, size in guest.bytes_by_node:
            if node in position_of:
                bytes_by_position[position_of[node]] = size
        guest_accesses.append((remote_by_position, bytes_by_position))
    return pressure.attribute_accesses(
        local_rates, remote_rates, guest_accesses, [use.incoming_per_sec for use in uses]
    )


def guest_sample(
    running: RunningGuest, evidence: Evidence | None, devices: Iterable[tuple[str, int | None]]
) -> GuestSample:
    """Return the :class:`GuestSample` of a guest.

    :param evidence: what a source measured of the guest; None if no source did
    :param devices: (address, node id) of its host devices; the id is None if it is unknown
    """
    guest, cores = running.guest, running.cores
    measured = evidence or _NO_EVIDENCE
    source, basis = (measured.source, measured.basis) if measured.covers_memory else ('', '')
    busy_ratio = None if cores is None or not guest.vcpus else cores / guest.vcpus
    cpi, reliable = rates.cycles_per_instruction(
        measured.cycles_per_sec, measured.instructions_per_sec, busy_ratio
    )
    # Positional: with hundreds of guests, keyword arguments take a fifth of a sample's time.
    return GuestSample(
        guest.uuid,
        guest.name,
        source,
        basis,
        cores,
        running.waiting_cores,
        tuple(sorted(running.cores_by_node.items())),
        tuple(sorted(running.bytes_by_node.items())),
        measured.local_per_sec,
        measured.remote_per_sec,
        measured.remote_ratio,
        measured.bandwidth_bytes_per_sec,
        cpi,
        reliable,
        rates.accesses_per_1000_instructions(
            measured.local_per_sec, measured.remote_per_sec, measured.instructions_per_sec
        ),
        measured.counted_ratio,
        tuple(
            DeviceSample(address, node, is_local(node, running.cores_by_node))
            for address, node in devices
        ),
        measured.remote_cache_per_sec,
        rates.stalled_ratio(measured.stalled_cycles_per_sec, measured.cycles_per_sec),
    )


def is_local(node: int | None, cores_by_node: Mapping[int, float]) -> bool | None:
    """Return whether a guest ran mostly on a device's node; None if that is unknown."""
    guest_cores = sum(cores_by_node.values())
    if node is None or not guest_cores:
        return None
    return cores_by_node.get(node, 0.0) > guest_cores / 2
