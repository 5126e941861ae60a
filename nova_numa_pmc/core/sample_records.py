# SPDX-License-Identifier: Apache-2.0
"""Measurements of a host over one interval, per node and per guest, and what they are made from.

These records connect the code that measures (``host/``, the agent) with the code that reads
measurements (``top``, ``report``, the publication). ``None`` is unknown, never 0.
Rates are per second of the interval; accesses are DRAM accesses (cache lines).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.pressure import LINE_BYTES
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
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
        return None if traffic is None else traffic / LINE_BYTES


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
