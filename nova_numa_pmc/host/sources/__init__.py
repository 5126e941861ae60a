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

A source has a ``name``, ``sample(tick)`` → {uuid: :class:`evidence.Evidence`}, ``problems`` and
``close()`` (:class:`ladder.Source`). While it cannot be used on this host, ``sample()`` raises
:class:`SourceUnavailable`, with the remedy. A guest without evidence in a tick is absent from
the result, and the next source is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.core.build_sample import CpuRates
    from nova_numa_pmc.core.evidence import RunningGuest
    from nova_numa_pmc.model import Topology


class SourceTick(Record):
    """One reading of a host, as the sources get it.

    :param before_ns: CLOCK_MONOTONIC of the tick before, None: this is the first
    :param busy_cores: {node id: cores its CPUs were busy}, at least what the guests ran there
    :param counts: {node id: counts} of all that ran on its CPUs, {}: uncounted
    """

    before_ns: int | None
    now_ns: int
    host: Topology
    guests: tuple[RunningGuest, ...]
    busy_cores: dict[int, float]
    counts: dict[int, CpuRates]

    @property
    def elapsed_ns(self) -> int:
        """Return the time since the tick before; 0 in the first."""
        return 0 if self.before_ns is None else max(0, self.now_ns - self.before_ns)
