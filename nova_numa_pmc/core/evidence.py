# SPDX-License-Identifier: Apache-2.0
"""A guest in one tick, and what a source knows of its execution and memory accesses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.model import Guest


class ThreadTimes(Record):
    """A thread's times so far.

    :param run_ns, wait_ns: on a CPU, and waiting for one, cumulative
    :param cpu: where it ran last
    :param since: its start time, which distinguishes two threads that had one id
    """

    run_ns: int
    wait_ns: int
    cpu: int
    since: int


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
