# SPDX-License-Identifier: Apache-2.0
"""Build the records of a sample from the measurements of one interval.

``None`` means unknown. Nodes are in ascending order of their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import pressure, rates
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.sample_records import Evidence, GuestSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.core.sample_records import NodeSample, RunningGuest

#: Evidence of a guest that no source has measured.
_NO_EVIDENCE = Evidence()


def complete_nodes(
    nodes: Sequence[NodeSample], guests: Sequence[GuestSample], all_traffic: bool = False
) -> tuple[NodeSample, ...]:
    """Return the samples of a host's nodes with what follows from what was measured.

    :param guests: samples of the guests, which show on which nodes they run and have memory
    :param all_traffic: whether accesses include prefetched and written lines, so that they show
        the bandwidth used on a node whose memory controllers are not counted
    """
    lines = _lines_per_sec_by_memory(nodes, guests) if all_traffic else {}
    completed = []
    for node in nodes:
        bandwidth = node.bandwidth_bytes_per_sec
        if bandwidth is None and node.id in lines:
            bandwidth = pressure.LINE_BYTES * lines[node.id]
        utilisations = pressure.node_pressure(
            rates.ratio(node.demand_cores, node.capacity_cores),
            rates.ratio(bandwidth, node.bandwidth_max_bytes_per_sec),
            node.link_ratio,
        )
        waiting_cores = None
        if node.demand_cores is not None and node.capacity_cores is not None:
            waiting_cores = max(0.0, node.demand_cores - node.capacity_cores)
        completed.append(
            node._replace(
                bandwidth_bytes_per_sec=bandwidth,
                waiting_cores=waiting_cores,
                remote_ratio=rates.remote_ratio(node.local_per_sec, node.remote_per_sec),
                **utilisations._asdict(),
            )
        )
    return tuple(completed)


def sum_by_node(
    guests: Sequence[RunningGuest], evidence: Mapping[str, Evidence], nodes: Iterable[int]
) -> dict[int, Evidence]:
    """Return the sums of guests' rates on each node, divided by where the guests ran.

    The host's own work is not included. A rate is unknown on a node where a guest ran for which it
    is unknown, and on all nodes if it is unknown where a guest ran.

    :param evidence: {uuid: evidence}
    :param nodes: ids of all nodes
    :returns: {node id: evidence}; empty if no guest runs
    """
    if not guests:
        return {}
    sums: dict[int, list[float | None]] = {node: [0.0] * 4 for node in nodes}
    for running in guests:
        if running.cores == 0:
            continue
        found = evidence.get(running.guest.uuid, _NO_EVIDENCE)
        guest_rates = (
            found.local_per_sec,
            found.remote_per_sec,
            found.cycles_per_sec,
            found.instructions_per_sec,
        )
        shares = rates.shares(running.cores_by_node)
        for node in shares or sums:
            share = shares.get(node)
            sums[node] = [
                None if share is None or total is None or rate is None else total + share * rate
                for total, rate in zip(sums[node], guest_rates)
            ]
    return {
        node: Evidence(
            local_per_sec=local,
            remote_per_sec=remote,
            cycles_per_sec=cycles,
            instructions_per_sec=instructions,
        )
        for node, (local, remote, cycles, instructions) in sums.items()
    }


def attribute_accesses_of_nodes(
    cores_by_node: Mapping[int, float],
    evidence_by_node: Mapping[int, Evidence],
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
            of_node = evidence_by_node.get(node, _NO_EVIDENCE)
            if of_node.local_per_sec is None or of_node.remote_per_sec is None:
                return None
            share = cores / busy_cores[node]
            local += share * of_node.local_per_sec
            remote += share * of_node.remote_per_sec
    return (local, remote) if cores_by_node else None


def _lines_per_sec_by_memory(
    nodes: Sequence[NodeSample], guests: Sequence[GuestSample]
) -> dict[int, float]:
    """Return {node id: accesses of its memory}; empty if they are not counted on every node.

    Counters show how many accesses of a node's CPUs were remote, but not which nodes they reached.
    They are divided by where the pages of the guests are that had remote accesses there, or
    equally if there were none.
    """
    lines = {}
    for node in nodes:
        if node.local_per_sec is None or node.remote_per_sec is None:
            return {}
        lines[node.id] = node.local_per_sec
    for node in nodes:
        amounts = {other.id: 0.0 for other in nodes if other is not node}
        for guest in guests:
            ran_here = rates.shares(guest.cores_by_node).get(node.id, 0.0)
            elsewhere = {other: size for other, size in guest.bytes_by_node if other in amounts}
            for other, share in rates.shares(elsewhere).items():
                amounts[other] += ran_here * (guest.remote_per_sec or 0.0) * share
        shares = rates.shares(amounts) or rates.shares(dict.fromkeys(amounts, 1.0))
        for other, share in shares.items():
            lines[other] += (node.remote_per_sec or 0.0) * share
    return lines


def guest_sample(running: RunningGuest, evidence: Evidence | None = None) -> GuestSample:
    """Return the :class:`GuestSample` of a guest.

    :param evidence: what a source measured of the guest; None if no source did
    """
    guest, cores = running.guest, running.cores
    measured = evidence or _NO_EVIDENCE
    source, basis = (measured.source, measured.basis) if measured.covers_memory else ('', '')
    local, remote = measured.local_per_sec, measured.remote_per_sec
    busy_ratio = None if cores is None or not guest.vcpus else cores / guest.vcpus
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
        local,
        remote,
        measured.remote_ratio if local is None else rates.remote_ratio(local, remote),
        measured.bandwidth_bytes_per_sec,
        rates.cycles_per_instruction(
            measured.cycles_per_sec, measured.instructions_per_sec, busy_ratio
        ),
        rates.accesses_per_1000_instructions(local, remote, measured.instructions_per_sec),
        measured.counted_ratio,
        rates.stalled_ratio(measured.stalled_cycles_per_sec, measured.cycles_per_sec),
    )


def bandwidth_by_guest(
    samples: Sequence[GuestSample], nodes: Sequence[NodeSample]
) -> dict[str, float]:
    """Return {uuid: DRAM traffic [bytes/s]} of the guests whose traffic is known.

    It is as counted, or else estimated from the guest's accesses, but no more than what the nodes
    of its memory served: where CPUs are not counted, the estimate includes other work.
    """
    line_bytes = _bytes_per_line(samples, nodes)
    served = {node.id: node.bandwidth_bytes_per_sec for node in nodes}
    traffic = {}
    for sample in samples:
        lines = sample.lines_per_sec
        if sample.bandwidth_bytes_per_sec is not None:
            traffic[sample.uuid] = sample.bandwidth_bytes_per_sec
        elif lines is not None and line_bytes is not None:
            limits = all_known([served.get(node) for node, size in sample.bytes_by_node if size])
            estimate = lines * line_bytes
            traffic[sample.uuid] = min(estimate, sum(limits)) if limits else estimate
    return traffic


def _bytes_per_line(samples: Sequence[GuestSample], nodes: Sequence[NodeSample]) -> float | None:
    """Return the host's DRAM traffic per counted access [bytes]; None if it is unknown.

    Events of retired loads count neither prefetches nor stores, so that a counted access stands
    for more than its own 64 bytes. The traffic that the memory controllers served is therefore
    divided over the counted accesses: those of all CPUs, which include the host's own work, or of
    the guests where CPUs are not counted.
    """
    lines = sum(sample.lines_per_sec or 0.0 for sample in samples)
    # Where traffic is measured (resctrl), the lines of nodes are of traffic, not of accesses.
    if all(sample.bandwidth_bytes_per_sec is None for sample in samples):
        lines = max(
            lines,
            sum((node.local_per_sec or 0.0) + (node.remote_per_sec or 0.0) for node in nodes),
        )
    # Memory controllers are known by the CPUs of their node; other memory is seldom for guests.
    bandwidths = all_known(
        [
            node.bandwidth_bytes_per_sec
            for node in nodes
            if node.bandwidth_bytes_per_sec is not None
            or (node.capacity_cores and node.memory_bytes != 0)
        ]
    )
    return sum(bandwidths) / lines if lines and bandwidths is not None else None
