# SPDX-License-Identifier: Apache-2.0
"""Measurements of a host over one interval, per node and per guest: records, and what follows.

These records connect the code that measures (``host/``, the agent) with the code that reads
measurements (``top``, ``report``, the publication). ``None`` is unknown, never 0. Rates are per
second of the interval; accesses are DRAM accesses (cache lines). Nodes are in ascending order of
their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import pressure, rates
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.model import Guest

#: The basis of a guest's figures: its own accesses were counted; counts of CPUs were divided among
#: the guests; or the figures were inferred from where pages are and vCPUs ran.
COUNTED, ATTRIBUTED, INFERRED = 'counted', 'attributed', 'inferred'


class NodeSample(Record):
    """Measurements of one node.

    :param id: the kernel's node id
    :param capacity_cores, demand_cores: capacity of the floating pool's CPUs, and demand for them
        [cores] (``core/pressure.py``)
    :param cpu_ratio, bandwidth_ratio, link_ratio: utilisations; 1 is saturated
    :param pressure: the highest of the known utilisations
    :param local_per_sec, remote_per_sec: DRAM accesses of the node's CPUs
    :param remote_ratio: remote share of these accesses, 0 to 1
    :param cpi: cycles per instruction (:func:`rates.cycles_per_instruction`)
    :param waiting_cores: demand beyond the capacity [cores]
    :param io_miss_ratio: share of requests of devices that missed the cache (DDIO), 0 to 1
    :param memory_bytes, free_bytes: MemTotal and MemFree
    :param stolen_cores: CPU time that the host's own hypervisor gave to others, which is not
        included in ``capacity_cores``
    """

    id: int
    capacity_cores: float | None = None
    demand_cores: float | None = None
    cpu_ratio: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    bandwidth_max_bytes_per_sec: float | None = None
    bandwidth_ratio: float | None = None
    link_ratio: float | None = None
    pressure: float | None = None
    local_per_sec: float | None = None
    remote_per_sec: float | None = None
    remote_ratio: float | None = None
    cpi: float | None = None
    waiting_cores: float | None = None
    io_miss_ratio: float | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    stolen_cores: float | None = None


class GuestSample(Record):
    """Measurements of one guest.

    :param source: source of the evidence of its memory accesses; empty: none
    :param basis: :data:`COUNTED`, :data:`ATTRIBUTED` or :data:`INFERRED`; empty: no source
    :param cores: CPU time that all its threads got, vCPUs and others [cores]
    :param waiting_cores: CPU time that they wanted, were allowed, and did not get [cores]
    :param cores_by_node: (node id, cores that it ran there), by ascending id; empty: unknown
    :param bytes_by_node: (node id, bytes of its memory there); empty: unknown
    :param local_per_sec, remote_per_sec: DRAM accesses; None: the source has only a ratio
    :param remote_ratio: remote share of its accesses, 0 to 1
    :param bandwidth_bytes_per_sec: DRAM traffic, if the source counts bytes
    :param accesses_per_1000_instructions: DRAM accesses, local and remote
    :param counted_ratio: smallest share of the interval for which one of its counters ran; 1: no
        multiplexing; None: no counters
    :param stalled_ratio: share of cycles in which it waited, 0 to 1 (on most CPUs for memory:
        ``events`` lists them); None: not counted. The event is multiplexed apart from the others
    """

    uuid: str
    name: str
    source: str = ''
    basis: str = ''
    cores: float | None = None
    waiting_cores: float | None = None
    cores_by_node: tuple[tuple[int, float], ...] = ()
    bytes_by_node: tuple[tuple[int, int], ...] = ()
    local_per_sec: float | None = None
    remote_per_sec: float | None = None
    remote_ratio: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    cpi: float | None = None
    accesses_per_1000_instructions: float | None = None
    counted_ratio: float | None = None
    stalled_ratio: float | None = None

    @property
    def demand_cores(self) -> float | None:
        """Return the CPU time that the guest's threads wanted [cores]; None: unknown."""
        return None if self.cores is None else self.cores + (self.waiting_cores or 0.0)

    @property
    def lines_per_sec(self) -> float | None:
        """Return the guest's DRAM accesses; from its traffic if the source counts only that."""
        if self.local_per_sec is not None and self.remote_per_sec is not None:
            return self.local_per_sec + self.remote_per_sec
        traffic = self.bandwidth_bytes_per_sec
        return None if traffic is None else traffic / pressure.LINE_BYTES


class PoolSample(Record):
    """Measurements of a pool other than the floating one (:mod:`nova_numa_pmc.core.pools`).

    :param cpus: the pool's CPUs, ascending
    :param demand_by_node: (node id, cores wanted of the pool's CPUs there; None: unknown)
    :param stolen_by_node: (node id, CPU time of the pool's CPUs there that the host's own
        hypervisor gave to others [cores]; None: unknown)
    """

    cpus: tuple[int, ...]
    demand_by_node: tuple[tuple[int, float | None], ...]
    stolen_by_node: tuple[tuple[int, float | None], ...]


class Sample(Record):
    """Measurements of a host over one interval.

    :param taken_s: CLOCK_REALTIME at the end of the interval [s since the epoch]
    :param elapsed_s: length of the interval [s]; 0 in a first sample, which has no rates
    :param source: the best source in use; empty: none
    :param nodes: in the order of their ids
    :param guests: in the order of their names
    :param problems: what could not be measured, each with its remedy
    :param pools: the pools other than the floating one, which ``nodes`` describe
    :param pool_source: source of the floating pool's CPUs: 'nova.conf', 'guests' or 'kernel';
        empty: not reported
    :param unavailable: the measurements that the host lacks something for, with what it lacks
    """

    taken_s: float
    elapsed_s: float
    source: str
    nodes: tuple[NodeSample, ...] = ()
    guests: tuple[GuestSample, ...] = ()
    problems: tuple[str, ...] = ()
    pools: tuple[PoolSample, ...] = ()
    pool_source: str = ''
    unavailable: tuple[str, ...] = ()


class ThreadTimes(Record):
    """Cumulative times of a thread.

    :param run_ns: time on a CPU
    :param wait_ns: time waiting for a CPU
    :param cpu: the CPU that it ran on last
    :param start_ticks: its start time [ticks since boot], which distinguishes threads that have
        had the same id
    """

    run_ns: int
    wait_ns: int
    cpu: int
    start_ticks: int


class Evidence(Record):
    """Evidence of a guest, or of all that ran on a node's CPUs; fields as in :class:`GuestSample`.

    If there are neither accesses nor a ratio, the evidence is only of execution or of traffic that
    may be local or remote.

    :param remote_ratio: only of a source that has no rates
    :param counted_ratio: the rate after it is not considered, which is multiplexed apart
    """

    source: str = ''
    basis: str = ''
    local_per_sec: float | None = None
    remote_per_sec: float | None = None
    remote_ratio: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    cycles_per_sec: float | None = None
    instructions_per_sec: float | None = None
    counted_ratio: float | None = None
    stalled_cycles_per_sec: float | None = None

    @property
    def covers_memory(self) -> bool:
        """Return whether the evidence covers memory accesses."""
        return self.local_per_sec is not None or self.remote_ratio is not None

    def completed_by(self, other: Evidence) -> Evidence:
        """Return the evidence with figures of other evidence where it has none."""
        return Evidence._make([theirs if own is None else own for own, theirs in zip(self, other)])


class RunningGuest(Record):
    """A guest in one tick.

    :param threads: {thread id: its times} of the vCPUs
    :param cores, waiting_cores: CPU time that all threads of the guest (vCPUs, emulator, I/O,
        vhost) used and waited for; None if unknown, as in a first tick
    :param cores_by_node: {node id: cores that it used there}; empty if unknown
    :param bytes_by_node: {node id: bytes of its memory there}; empty if unknown
    :param waiting_cores_by_cpu: {CPU: cores that its threads waited for there}; empty if they
        waited nowhere
    """

    guest: Guest
    threads: dict[int, ThreadTimes]
    cores: float | None
    waiting_cores: float | None
    cores_by_node: dict[int, float]
    bytes_by_node: dict[int, int]
    waiting_cores_by_cpu: dict[int, float] = {}


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
