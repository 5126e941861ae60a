# SPDX-License-Identifier: Apache-2.0
"""Measure a host: read all counters once a tick, and subtract the readings of the previous tick.

Everything that measures, such as ``top`` and the agent, uses :class:`Sampler`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from nova_numa_pmc.conf import opts
from nova_numa_pmc.core import host_view, measurements, memory_domains, pools, pressure, rates
from nova_numa_pmc.core.measurements import Evidence, NodeSample, PoolSample, Sample
from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host import allowed, firmware, guest_use, nova_conf
from nova_numa_pmc.host.guests import StatusFiles
from nova_numa_pmc.host.perf import events
from nova_numa_pmc.host.sources import counted, ladder, resctrl, uncore
from nova_numa_pmc.host.sources.ladder import SourceTick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nova_numa_pmc import model
    from nova_numa_pmc.core.measurements import RunningGuest
    from nova_numa_pmc.host.sources.ladder import Source

_T = TypeVar('_T')


class _CpuUse:
    """CPU time between two readings; unknown of a set of CPUs if it is of one of them [cores]."""

    def __init__(
        self,
        before: guest_use.CpuTimes,
        after: guest_use.CpuTimes,
        guests: Iterable[RunningGuest],
        elapsed_ns: int,
    ) -> None:
        self._busy = guest_use.cores_between(before.busy_ns, after.busy_ns, elapsed_ns)
        self._stolen = guest_use.cores_between(before.stolen_ns, after.stolen_ns, elapsed_ns)
        self._waiting: dict[int, float] = {}
        for running in guests:
            for cpu, cores in running.waiting_cores_by_cpu.items():
                self._waiting[cpu] = self._waiting.get(cpu, 0.0) + cores

    def busy(self, cpus: frozenset[int]) -> float | None:
        """Return the time for which CPUs were busy."""
        return guest_use.sum_over(self._busy, cpus)

    def stolen(self, cpus: frozenset[int]) -> float | None:
        """Return the time for which the host's own hypervisor ran others in place of CPUs."""
        return guest_use.sum_over(self._stolen, cpus)

    def demand(self, cpus: frozenset[int]) -> float | None:
        """Return the time for which CPUs were busy or guests' threads waited for them.

        Waiting of other threads does not count.
        """
        busy_cores = self.busy(cpus)
        if busy_cores is None:
            return None
        return busy_cores + sum(self._waiting.get(cpu, 0.0) for cpu in cpus)


class Sampler:
    """Measures a host; each sample covers the time since the previous one.

    :param options: the group ``[counters]``; None: the defaults
    :param root: root of the host's file system
    :ivar host: the host as last looked at, with the floating pool; None: it could not be read
    :ivar guests: the guests that ran then
    :ivar pool: the floating pool then; None: none was found yet
    :ivar mlp: the MLP that applies to the events of the last sample
    """

    def __init__(self, options: opts.CounterOptions | None = None, root: str = '/') -> None:
        self._options = options or opts.CounterOptions()
        self._root = root
        self._status_files = StatusFiles(root)
        self.host: model.Topology | None = None
        self.guests: tuple[model.Guest, ...] = ()
        self._guest_use = guest_use.GuestUseReader(root)
        self._cpu_sets = nova_conf.NovaCpuSetsReader(root)
        self.pool: pools.Pool | None = None
        self._guest_counters = counted.GuestCounters(self._select, root)
        counts_guests = opts.GUESTS in self._options.sources
        self._cpu_counters = counted.CpuCounters(
            self._select, root, counted.DRAM_ROLES if counts_guests else counted.ROLES
        )
        self._uncore = uncore.Uncore(self._select, root)
        self._resctrl = resctrl.Resctrl(root=root)
        self._retries = ladder.MeasurementRetries()
        self._ladder = ladder.Ladder(self._sources(), self._retries)
        self._before_ns: int | None = None
        self._times = guest_use.CpuTimes()
        self.mlp: float = pressure.MLP_DEMAND
        self._firmware_problems: list[str] = []
        self._dimms = self._of_firmware(firmware.read_dimms)
        self._firmware_ns = self._of_firmware(firmware.read_latencies_ns) or {}

    def sample(self, monotonic_ns: int | None = None, taken_s: float | None = None) -> Sample:
        """Return a sample of the time since the last call; the first sample has no rates.

        This neither sleeps nor raises: what cannot be read is reported in ``problems``.

        :param monotonic_ns: CLOCK_MONOTONIC [ns], by default now
        :param taken_s: CLOCK_REALTIME [s], by default now
        """
        monotonic_ns = time.monotonic_ns() if monotonic_ns is None else monotonic_ns
        taken_s = time.time() if taken_s is None else taken_s
        problems = [*self._firmware_problems, *self.look(monotonic_ns)]
        before_ns, self._before_ns = self._before_ns, monotonic_ns
        elapsed_ns = 0 if before_ns is None else max(0, monotonic_ns - before_ns)
        if self.host is None:
            self._before_ns = None  # nothing else was read, so the next sample is a first one
            return Sample(taken_s, elapsed_ns / 1e9, '', problems=tuple(problems))
        return self._measure(self.host, taken_s, before_ns, monotonic_ns, elapsed_ns, problems)

    def look(self, monotonic_ns: int) -> list[str]:
        """Find the host, its floating pool and its guests, and return problems; measure nothing.

        A sample does this, too. In between, it takes a fraction of a sample's time.

        :param monotonic_ns: CLOCK_MONOTONIC [ns]
        """
        self.host, self.guests = None, ()
        try:
            host = allowed.host_with_usable_cpus(self._root)
        except TopologyError as error:
            return [str(error)]
        listed, problems = self._status_files.read()
        # A guest with two files would be counted twice; libvirt has one file for each name.
        self.guests = tuple({guest.uuid: guest for guest in listed}.values())
        cpu_sets, more_problems = self._cpu_sets.read(monotonic_ns)
        self.pool = pools.floating_pool(host, self.guests, cpu_sets.shared, cpu_sets.dedicated)
        self.host = pools.with_floating_pool(host, self.pool)
        return [*problems, *more_problems]

    def forget_memory(self) -> None:
        """Read the memory of all guests in the next sample, because guests were moved."""
        self._guest_use.forget_memory()

    def _measure(
        self,
        host: model.Topology,
        taken_s: float,
        before_ns: int | None,
        monotonic_ns: int,
        elapsed_ns: int,
        problems: list[str],
    ) -> Sample:
        guests = self._guest_use.read(self.guests, host, monotonic_ns, elapsed_ns)
        before, self._times = self._times, guest_use.read_cpus(self._root)
        cpu_use = _CpuUse(before, self._times, guests, elapsed_ns)
        counted_nodes, of_cpus = self._count(host, elapsed_ns, problems)
        busy_cores = _busy_cores(cpu_use, host, guests)
        measured = self._ladder.sample(
            SourceTick(before_ns, monotonic_ns, host, guests, busy_cores, of_cpus), problems
        )
        guest_samples = tuple(
            measurements.guest_sample(running, measured.evidence.get(running.guest.uuid))
            for running in guests
        )
        of_resctrl = {} if of_cpus else self._resctrl.evidence_by_node_at(monotonic_ns)
        of_nodes = of_cpus or of_resctrl
        # Elsewhere, sums over guests take the place of a node that is not known.
        all_traffic = bool(of_resctrl) and all(
            node.id in of_resctrl for node in host.nodes if node.online_cpus
        )
        of_guests = measurements.sum_by_node(
            guests, measured.evidence, [node.id for node in host.nodes]
        )
        capacities = host_view.capacity_cores(host, self._options.placement_options)
        maxima_bytes_per_sec = self._bandwidth_maxima(host, counted_nodes)
        nodes = [
            _node_sample(
                node,
                counted_nodes.get(node.id, NodeSample(node.id)),
                of_nodes.get(node.id, Evidence()).completed_by(of_guests.get(node.id, Evidence())),
                cpu_use,
                capacity_cores,
                maxima_bytes_per_sec.get(node.id),
            )
            for node, capacity_cores in zip(host.nodes, capacities)
        ]
        with_prefetch = self._cpu_counters.with_prefetch or self._guest_counters.with_prefetch
        self.mlp = (
            pressure.MLP_WITH_PREFETCH if with_prefetch or all_traffic else pressure.MLP_DEMAND
        )
        return Sample(
            taken_s,
            elapsed_ns / 1e9,
            measured.source,
            measurements.complete_nodes(nodes, guest_samples, all_traffic),
            guest_samples,
            tuple(dict.fromkeys(problems)),
            tuple(
                _pool_sample(cpus, host, cpu_use) for cpus in pools.other_pools(self.guests, host)
            ),
            self.pool.source if self.pool else '',
            tuple(self._retries.unavailable.values()),
        )

    def _of_firmware(self, read: Callable[[str], _T]) -> _T | None:
        """Return what a table of the firmware has; None, and a problem, if it cannot be read."""
        try:
            return read(self._root)
        except TopologyError as error:
            self._firmware_problems.append(str(error))
            return None

    def _sources(self) -> list[Source]:
        sources: dict[str, Source] = {
            opts.GUESTS: self._guest_counters,
            opts.CPUS: ladder.CpuAttribution(),
            opts.RESCTRL: self._resctrl,
            opts.PAGES: ladder.Pages(),
        }
        return [
            sources[name]
            for name in self._options.sources
            if self._options.enabled or name not in (opts.GUESTS, opts.CPUS)
        ]

    def _select(self) -> events.EventSelection:
        """Choose the events to count on this host."""
        return events.select_events(self._root, overrides=dict(self._options.events))

    def _count(
        self, host: model.Topology, elapsed_ns: int, problems: list[str]
    ) -> tuple[dict[int, NodeSample], dict[int, Evidence]]:
        """Return {node id: what its uncore counted} and {node id: evidence of its CPUs}.

        Both are empty if nothing was counted.
        """
        if not self._options.enabled:
            return {}, {}
        uncore_samples = self._retries.sample(self._uncore, problems, host) or {}
        if self._guest_counters.crowded_out:
            self._cpu_counters.close()
            problems.append(
                'CPUs: not counted: the hardware has too few counters for CPUs and guests; the '
                'sums of the guests are used instead'
            )
            return uncore_samples, {}
        of_cpus = self._retries.sample(self._cpu_counters, problems, host, elapsed_ns)
        return uncore_samples, of_cpus or {}

    def _bandwidth_maxima(
        self, host: model.Topology, counted_nodes: Mapping[int, NodeSample]
    ) -> dict[int, float]:
        """Return {node id: maximum bandwidth [bytes/s]} of the nodes whose maximum is known."""
        return firmware.maxima_bytes_per_sec(
            dict(self._options.bandwidth_max_bytes_per_sec),
            {
                node.id: node.bandwidth_max_bytes_per_sec
                for node in counted_nodes.values()
                if node.bandwidth_max_bytes_per_sec
            },
            self._uncore.channels,
            self._dimms,
            {node.id: node.memory_bytes for node in host.nodes},
        )

    def latencies_ns(self, host: model.Topology) -> tuple[tuple[float, ...], ...]:
        """Return unloaded latencies by position, one row for the CPUs of each node [ns].

        A row is that of the firmware's HMAT if that is complete, and otherwise estimated from the
        distances that are used for placement.
        """
        ids = [node.id for node in host.nodes]
        estimates = pressure.slit_latencies_ns(
            memory_domains.distances(host), pressure.LOCAL_LATENCY_NS
        )
        rated = {domain for pair in self._firmware_ns for domain in pair}
        if not rated <= set(ids):  # the domains are not numbered like the nodes
            return estimates
        return tuple(
            tuple(self._firmware_ns[n, m] for m in ids)
            if all((n, m) in self._firmware_ns for m in ids)
            else estimate
            for n, estimate in zip(ids, estimates)
        )

    def close(self) -> None:
        """Close the counters and files."""
        self._ladder.close()
        self._cpu_counters.close()
        self._uncore.close()


def _busy_cores(
    cpu_use: _CpuUse, host: model.Topology, guests: Iterable[RunningGuest]
) -> dict[int, float]:
    """Return {node id: busy cores}, at least the cores that guests ran there.

    The host's CPU times have a resolution of 10 ms; those of guests are finer.
    """
    guest_cores = {node.id: 0.0 for node in host.nodes}
    for running_guest in guests:
        for node_id, cores in running_guest.cores_by_node.items():
            guest_cores[node_id] = guest_cores.get(node_id, 0.0) + cores
    busy = {node.id: cpu_use.busy(node.online_cpus) for node in host.nodes}
    return {
        node_id: max(cores, busy.get(node_id) or 0.0) for node_id, cores in guest_cores.items()
    }


def _node_sample(
    node: model.Node,
    counted: NodeSample,
    evidence: Evidence,
    cpu_use: _CpuUse,
    capacity_cores: float,
    bandwidth_max_bytes_per_sec: float | None,
) -> NodeSample:
    """Return what was measured of a node.

    :param counted: what its uncore counted
    :param evidence: of what ran on its CPUs
    :param capacity_cores: of the floating pool's CPUs, stolen time included
    """
    if not node.online_cpus:  # a memory-only node accesses no memory
        evidence = Evidence(local_per_sec=0.0, remote_per_sec=0.0)
    busy_cores, stolen_cores = cpu_use.busy(node.online_cpus), cpu_use.stolen(node.cpus)
    cpu_count = len(node.online_cpus or node.cpus)
    return counted._replace(
        capacity_cores=host_view.capacity_without_stolen(capacity_cores, stolen_cores),
        demand_cores=cpu_use.demand(node.cpus),
        bandwidth_max_bytes_per_sec=bandwidth_max_bytes_per_sec,
        local_per_sec=evidence.local_per_sec,
        remote_per_sec=evidence.remote_per_sec,
        cpi=rates.cycles_per_instruction(
            evidence.cycles_per_sec,
            evidence.instructions_per_sec,
            rates.ratio(busy_cores, cpu_count),
        ),
        memory_bytes=node.memory_bytes,
        free_bytes=node.free_bytes,
        stolen_cores=stolen_cores,
    )


def _pool_sample(cpus: frozenset[int], host: model.Topology, cpu_use: _CpuUse) -> PoolSample:
    """Return the sample of a pool other than the floating one."""
    return PoolSample(
        tuple(sorted(cpus)),
        tuple((node.id, cpu_use.demand(node.online_cpus & cpus)) for node in host.nodes),
        tuple((node.id, cpu_use.stolen(node.online_cpus & cpus)) for node in host.nodes),
    )
