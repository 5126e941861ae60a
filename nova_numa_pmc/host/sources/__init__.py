# SPDX-License-Identifier: Apache-2.0
"""The ladder of evidence: sources that show how local guests' memory accesses are, best first.

``guest_counters``   counters on each guest's vCPU threads, or on its control group
``cpu_counters``     counters on each CPU, shared out by where the guests ran
``resctrl``          memory bandwidth monitoring: all traffic and that to local memory
``numa_faults``      the kernel's NUMA balancing: on which nodes threads hit pages
``pages``            on which nodes pages lie, by where the vCPUs ran
``uncore``           not a source: memory controllers, links and I/O of each node
``owner_counters``   what the counter sources share: counts of owners made of several targets
``ladder``           tries the sources in order, leaves one that fails, comes back to it

A source has a ``name``, ``sample(tick)`` → {uuid: :class:`Evidence`}, ``problems`` and
``close()`` (:class:`ladder.Source`). While it can't be used on this host, ``sample()`` raises
:class:`SourceUnavailable`, with the remedy. A guest without evidence in a tick is absent from
the result, and the next source is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.core.build_sample import CpuRates
    from nova_numa_pmc.host.threads import ThreadTimes
    from nova_numa_pmc.model import Guest, Topology


class Evidence(Record):
    """Evidence of one guest by a source; fields as :class:`sample_records.GuestSample`.

    An idle guest has rates of 0 and no ratio. Without either, the evidence is of execution only.
    """

    source: str
    basis: str
    local_per_sec: float | None = None
    remote_per_sec: float | None = None
    remote_ratio: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    cycles_per_sec: float | None = None
    instructions_per_sec: float | None = None
    counted_share: float | None = None
    remote_cache_per_sec: float | None = None
    stalled_cycles_per_sec: float | None = None

    @property
    def of_memory(self) -> bool:
        """Return whether it covers memory accesses."""
        return self.local_per_sec is not None or self.remote_ratio is not None


class RunningGuest(Record):
    """A guest in one tick.

    :param threads: {tid: its times} of its vCPUs
    :param cores, waiting_cores: of all its threads: vCPUs, emulator, I/O, vhost. None: unknown,
        as in a first tick
    :param cores_by_node: {node id: cores}; empty: unknown
    :param bytes_by_node: {node id: bytes}; empty: unknown
    :param waiting_by_cpu: {CPU: cores}, what its threads waited for there; empty: nothing
    """

    guest: Guest
    threads: dict[int, ThreadTimes]
    cores: float | None
    waiting_cores: float | None
    cores_by_node: dict[int, float]
    bytes_by_node: dict[int, int]
    waiting_by_cpu: dict[int, float] = {}


class SourceTick(Record):
    """One reading of a host, as the sources get it.

    :param before_ns: CLOCK_MONOTONIC of the tick before, None: this is the first
    :param busy_cores: {node id: cores its CPUs were busy}, at least what the guests ran there
    :param counts: {node id: counts} of all that ran on its CPUs, {}: uncounted
    """

    before_ns: int | None
    now_ns: int
    topology: Topology
    guests: tuple[RunningGuest, ...]
    busy_cores: dict[int, float]
    counts: dict[int, CpuRates]

    @property
    def elapsed_ns(self) -> int:
        """Return the time since the tick before; 0 in the first."""
        return 0 if self.before_ns is None else max(0, self.now_ns - self.before_ns)
