# SPDX-License-Identifier: Apache-2.0
"""The ladder of evidence: sources for how local the guests' memory accesses are, best first.

``guest_counters``   ``guests``: counters on each guest's vCPU threads, or on its control group
``cpu_counters``     ``cpus``: counters on each CPU, attributed to guests by where they ran
``resctrl``          memory bandwidth monitoring: total traffic and traffic to local memory
``numa_faults``      the kernel's NUMA balancing: the nodes of the pages that threads accessed
``pages``            the nodes of a guest's pages, compared with those where its vCPUs ran
``uncore``           not a source: memory controllers, links and I/O of each node
``owner_counters``   shared by the counter sources: counts of owners that have several targets
``ladder``           tries the sources in order, and skips one that failed for some ticks

A source has ``name``, as in the option ``sources``, ``problems``, ``sample(tick)``, which returns
{uuid: :class:`evidence.Evidence`}, and ``close()`` (:class:`ladder.Source`). While it cannot be
used on this host, ``sample()`` raises :class:`SourceUnavailable` with the remedy. A guest without
evidence in a tick is absent from the result, and the next source is tried for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.core.build_sample import CpuRates
    from nova_numa_pmc.core.evidence import RunningGuest
    from nova_numa_pmc.model import Topology


class SourceTick(Record):
    """One reading of a host, as it is given to the sources.

    :param before_ns: CLOCK_MONOTONIC of the previous tick; None in the first
    :param monotonic_ns: CLOCK_MONOTONIC of this tick
    :param busy_cores: {node id: cores for which its CPUs were busy}, at least what guests used
    :param cpu_rates: {node id: rates [lines/s] of all that ran on its CPUs}; empty if nothing was
        counted
    """

    before_ns: int | None
    monotonic_ns: int
    host: Topology
    guests: tuple[RunningGuest, ...]
    busy_cores: dict[int, float]
    cpu_rates: dict[int, CpuRates]

    @property
    def elapsed_ns(self) -> int:
        """Return the time since the previous tick; 0 in the first."""
        return 0 if self.before_ns is None else max(0, self.monotonic_ns - self.before_ns)
