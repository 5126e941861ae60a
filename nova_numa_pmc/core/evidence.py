# SPDX-License-Identifier: Apache-2.0
"""Records of a guest in one tick, and of a source's evidence of its execution and accesses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.model import Guest


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
    """Evidence of one guest from a source, with fields as in :class:`sample_records.GuestSample`.

    An idle guest has rates of 0 and no ratio. If there are neither rates nor a ratio, the evidence
    is only of execution or of traffic that may be local or remote.
    """

    source: str
    basis: str
    local_per_sec: float | None = None
    remote_per_sec: float | None = None
    remote_ratio: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    cycles_per_sec: float | None = None
    instructions_per_sec: float | None = None
    counted_ratio: float | None = None
    remote_cache_per_sec: float | None = None
    stalled_cycles_per_sec: float | None = None

    @property
    def covers_memory(self) -> bool:
        """Return whether the evidence covers memory accesses."""
        return self.local_per_sec is not None or self.remote_ratio is not None


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
