# SPDX-License-Identifier: Apache-2.0
"""Build the records of a sample from the measurements of one interval.

Pure. ``None`` is unknown; nodes are in ascending order of their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import pressure, rates
from nova_numa_pmc.core.evidence import Evidence
from nova_numa_pmc.record import Record
from nova_numa_pmc.sample_records import COUNTED, DeviceSample, GuestSample, NodeSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.core.evidence import RunningGuest
    from nova_numa_pmc.model import Node


class NodeUse(Record):
    """Measurements of one node.

    :param demand_cores: of the CPUs that guests may use
    :param busy_cores: time for which its CPUs were busy, all of them [cores]
    :param stolen_cores: time stolen from the CPUs that guests may use [cores]
    :param incoming_per_sec: lines that its memory controllers read for other nodes
    :param link_bytes_per_sec: sent to other sockets
    """

    demand_cores: float | None = None
    busy_cores: float | None = None
    local_per_sec: float | None = None
    remote_per_sec: float | None = None
    cycles_per_sec: float | None = None
    instructions_per_sec: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    incoming_per_sec: float | None = None
    link_bytes_per_sec: float | None = None
    io_miss_ratio: float | None = None
    stolen_cores: float | None = None


class CpuRates(Record):
    """Rates on CPUs; None: unknown. ``share`` is the smallest share of time that one counted.

    The last two are counted on guests alone, in turns of their own: ``share`` is without them.
    """

    local_per_sec: float | None
    remote_per_sec: float | None
    cycles_per_sec: float | None
    instructions_per_sec: float | None
    share: float | None
    remote_cache_per_sec: float | None = None
    stalled_cycles_per_sec: float | None = None


class NodeCapacities(Record):
    """Capacities, bandwidths and latencies of a host's nodes; tuples by position.

    :param bandwidth_max, link_max: bytes per second, None in it: unknown
    :param latencies_ns: unloaded latency, rows: from; None: unknown
    :param mlp: misses that a core waits for together
    """

    capacity_cores: Sequence[float]
    bandwidth_max: Sequence[float | None]
    link_max: Sequence[float | None]
    latencies_ns: Sequence[Sequence[float]] | None
    mlp: float


#: The evidence of a guest that no source measured.
_NOTHING = Evidence('', '')


def node_samples(
    nodes: Sequence[Node],
    uses: Sequence[NodeUse],
    capacities: NodeCapacities,
    guests: Sequence[GuestSample],
    all_traffic: bool = False,
) -> tuple[tuple[NodeSample, ...], Sequence[Sequence[float]] | None]:
    """Return the nodes' samples, and which node reads whose memory; None: not counted.

    :param nodes: ascending
    :param uses: of each
    :param guests: the guests' samples, which show whose memory is reached
    :param all_traffic: the accesses include prefetched and written lines, so that they give a
        node's bandwidth where its memory controllers are not counted
    """
    traffic = _traffic(nodes, uses, guests)
    if all_traffic and traffic:
        uses = [
            use
            if use.bandwidth_bytes_per_sec is not None
            else use._replace(
                bandwidth_bytes_per_sec=pressure.LINE_BYTES * sum(row[at] for row in traffic)
            )
            for at, use in enumerate(uses)
        ]
    bandwidth_ratios = [
        rates.ratio(use.bandwidth_bytes_per_sec, maximum)
        for use, maximum in zip(uses, capacities.bandwidth_max)
    ]
    losses = pressure.losses(
        [use.demand_cores for use in uses],
        capacities.capacity_cores,
        traffic,
        capacities.latencies_ns,
        bandwidth_ratios,
        capacities.mlp,
    )
    samples = tuple(
        _node_sample(at, node, use, capacities, bandwidth_ratio, loss)
        for at, (node, use, bandwidth_ratio, loss) in enumerate(
            zip(nodes, uses, bandwidth_ratios, losses)
        )
    )
    return samples, traffic


def _node_sample(
    at: int,
    node: Node,
    use: NodeUse,
    capacities: NodeCapacities,
    bandwidth_ratio: float | None,
    loss: pressure.Loss,
) -> NodeSample:
    """Return one :class:`NodeSample`.

    :param at: position of the node
    """
    pressed = pressure.node_pressure(
        rates.ratio(use.demand_cores, capacities.capacity_cores[at]),
        bandwidth_ratio,
        rates.ratio(use.link_bytes_per_sec, capacities.link_max[at]),
    )
    threads = len(node.online_cpus or node.cpus)
    busy = None if use.busy_cores is None or not threads else use.busy_cores / threads
    return NodeSample(
        node.id,
        capacities.capacity_cores[at],
        use.demand_cores,
        pressed.cpu_ratio,
        use.bandwidth_bytes_per_sec,
        capacities.bandwidth_max[at],
        pressed.bandwidth_ratio,
        pressed.link_ratio,
        pressed.pressure,
        use.local_per_sec,
        use.remote_per_sec,
        rates.remote_ratio(use.local_per_sec, use.remote_per_sec),
        *rates.cycles_per_instruction(use.cycles_per_sec, use.instructions_per_sec, busy),
        loss.waiting_cores,
        loss.distance_cores,
        use.io_miss_ratio,
        node.memory_bytes,
        node.free_bytes,
        None,
        use.stolen_cores,
    )


def counts_of_guests(
    guests: Sequence[RunningGuest], evidence: Mapping[str, Evidence], nodes: Sequence[int]
) -> dict[int, CpuRates]:
    """Return {node id: :class:`CpuRates`}: what counted guests did, by where they ran.

    The host's own work is not included. A node is absent if a guest ran there that was not
    counted, or if it is unknown where some guest ran.

    :param evidence: by uuid
    :param nodes: ids of all nodes
    """
    sums: dict[int, list[float | None]] = {node: [0.0] * 4 for node in nodes}
    unknown: set[int] = set()
    for running in guests:
        known = evidence.get(running.guest.uuid)
        ran = running.cores
        if ran is None or not running.cores_by_node or known is None or known.basis != COUNTED:
            if ran != 0:
                unknown.update(running.cores_by_node or nodes)
            continue
        figures = (
            known.local_per_sec,
            known.remote_per_sec,
            known.cycles_per_sec,
            known.instructions_per_sec,
        )
        for node, cores in running.cores_by_node.items():
            for at, rate in enumerate(figures if cores else ()):
                so_far = sums[node][at]
                sums[node][at] = (
                    None if rate is None or so_far is None else so_far + rate * cores / ran
                )
    return (
        {
            node: CpuRates(local, remote, cycles, instructions, None)
            for node, (local, remote, cycles, instructions) in sums.items()
            if node not in unknown and local is not None
        }
        if guests
        else {}
    )


def _traffic(
    nodes: Sequence[Node], uses: Sequence[NodeUse], guests: Iterable[GuestSample]
) -> Sequence[Sequence[float]] | None:
    """Return each node's accesses by target node; None: those of a node are not counted."""
    near = [use.local_per_sec for use in uses if use.local_per_sec is not None]
    far = [use.remote_per_sec for use in uses if use.remote_per_sec is not None]
    if len(near) < len(uses) or len(far) < len(uses):
        return None
    position_of = {node.id: position for position, node in enumerate(nodes)}
    seeds = []
    for guest in guests:
        remote, memory = ([0.0] * len(nodes) for _ in range(2))
        ran = sum(cores for _, cores in guest.cores_by_node)
        for node, cores in guest.cores_by_node:
            if node in position_of and ran:
                remote[position_of[node]] = (guest.remote_per_sec or 0.0) * cores / ran
        for node, size in guest.bytes_by_node:
            if node in position_of:
                memory[position_of[node]] = size
        seeds.append((remote, memory))
    incoming = [use.incoming_per_sec for use in uses]
    return pressure.attribute(near, far, seeds, None if None in incoming else incoming)


def guest_sample(
    running: RunningGuest, evidence: Evidence | None, devices: Iterable[tuple[str, int | None]]
) -> GuestSample:
    """Return one :class:`GuestSample`.

    :param evidence: what a source measured of the guest, None: no source did
    :param devices: (address, node id or None)
    """
    guest, cores = running.guest, running.cores
    known = evidence or _NOTHING
    source, basis = (known.source, known.basis) if known.of_memory else ('', '')
    busy = None if cores is None or not guest.vcpus else cores / guest.vcpus
    cpi, reliable = rates.cycles_per_instruction(
        known.cycles_per_sec, known.instructions_per_sec, busy
    )
    # By position: names cost a fifth of a sample's time with hundreds of guests.
    return GuestSample(
        guest.uuid,
        guest.name,
        source,
        basis,
        cores,
        running.waiting_cores,
        tuple(sorted(running.cores_by_node.items())),
        tuple(sorted(running.bytes_by_node.items())),
        known.local_per_sec,
        known.remote_per_sec,
        known.remote_ratio,
        known.bandwidth_bytes_per_sec,
        cpi,
        reliable,
        rates.memory_intensity(
            known.local_per_sec, known.remote_per_sec, known.instructions_per_sec
        ),
        known.counted_share,
        tuple(
            DeviceSample(address, node, is_local(node, running.cores_by_node))
            for address, node in devices
        ),
        known.remote_cache_per_sec,
        rates.stalled_ratio(known.stalled_cycles_per_sec, known.cycles_per_sec),
    )


def is_local(node: int | None, cores_by_node: Mapping[int, float]) -> bool | None:
    """Return whether a guest ran mostly on a device's node; None: unknown."""
    ran = sum(cores_by_node.values())
    if node is None or not ran:
        return None
    return cores_by_node.get(node, 0.0) > ran / 2
