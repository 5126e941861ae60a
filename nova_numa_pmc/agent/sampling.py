# SPDX-License-Identifier: Apache-2.0
"""Measure a host: read all counters once a tick, and subtract the readings of the previous tick.

Everything that measures, such as ``top``, ``record`` and the agent, uses :class:`Sampler`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from nova_numa_pmc.conf import counters as counters_conf, host_options
from nova_numa_pmc.core import build_sample, host_view, memory_domains, pools, pressure
from nova_numa_pmc.core.sample_records import PoolSample, Sample
from nova_numa_pmc.exceptions import StateError, TopologyError
from nova_numa_pmc.host import (
    allowed,
    files,
    firmware,
    guest_use,
    host_devices,
    nova_conf,
    run_times,
)
from nova_numa_pmc.host.guests import StatusFiles
from nova_numa_pmc.host.perf import events
from nova_numa_pmc.host.sources import counted, inferred, ladder, resctrl, uncore
from nova_numa_pmc.host.sources.ladder import SourceTick
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nova_numa_pmc import model
    from nova_numa_pmc.core.build_sample import CpuRates
    from nova_numa_pmc.core.sample_records import Evidence, GuestSample, NodeSample, RunningGuest
    from nova_numa_pmc.host.sources.ladder import Source

_T = TypeVar('_T')


class CpuUse(Record):
    """The CPU time that was used, wanted and stolen, {node id: cores}; None: unknown.

    :param busy_cores: time for which CPUs of the node were busy
    :param demand_cores: time for which CPUs of the floating pool were busy or guests' threads
        waited for them; waiting of other threads does not count
    :param stolen_cores: time stolen from CPUs of the floating pool
    :param other_pools: the samples of all other pools
    """

    busy_cores: dict[int, float | None]
    demand_cores: dict[int, float | None]
    stolen_cores: dict[int, float | None]
    other_pools: tuple[PoolSample, ...]


class Sampler:
    """Measures a host; each sample covers the time since the previous one.

    :param options: the group ``[counters]``; None: the defaults
    :param root: root of the host's file system
    :param read_guests: returns the running guests and problems; None: from their status files
    :param with_promises: whether samples have the promised memory of nodes; the agent, which
        reads the promises itself, does without
    :ivar host: the host of the last sample, with the floating pool; None: it could not be read
    :ivar guests: the running guests of the last sample
    :ivar pool: the floating pool of the last sample; None: there was no sample
    :ivar mlp: the MLP that applies to the events of the last sample
    """

    def __init__(
        self,
        options: counters_conf.CounterOptions | None = None,
        root: str = '/',
        read_guests: Callable[[], tuple[list[model.Guest], list[str]]] | None = None,
        with_promises: bool = True,
    ) -> None:
        self._options = options or counters_conf.CounterOptions()
        self._root = root
        self._read_guests = read_guests or StatusFiles(root).read
        self._with_promises = with_promises
        self.host: model.Topology | None = None
        self.guests: tuple[model.Guest, ...] = ()
        self._guest_use = guest_use.GuestUseReader(root)
        self._cpu_sets = nova_conf.NovaCpuSetsReader(root)
        self.pool: pools.Pool | None = None
        self._cpu_counters = counted.CpuCounters(self._select, root)
        self._guest_counters = counted.GuestCounters(self._select, root=root)
        self._uncore = uncore.Uncore(self._select, root)
        self._resctrl = resctrl.Resctrl(root=root)
        self._retries = ladder.MeasurementRetries()
        self._ladder = ladder.Ladder(self._sources())
        self._before_ns: int | None = None
        self._times = run_times.CpuTimes()
        self._devices = host_devices.DeviceNodeReader(root)
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
        before_ns, self._before_ns = self._before_ns, monotonic_ns
        elapsed_ns = 0 if before_ns is None else max(0, monotonic_ns - before_ns)
        self.host, self.guests = None, ()
        try:
            host = allowed.host_with_usable_cpus(self._root)
        except TopologyError as error:
            self._before_ns = None  # nothing else was read, so the next sample is a first one
            return Sample(taken_s, elapsed_ns / 1e9, '', problems=(str(error),))
        return self._measure(host, taken_s, before_ns, monotonic_ns, elapsed_ns)

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
    ) -> Sample:
        running, guest_problems = self._read_guests()
        # A guest with two files would be counted twice; libvirt has one file for each name.
        self.guests = tuple({guest.uuid: guest for guest in running}.values())
        problems = [*self._firmware_problems, *guest_problems, *host.problems]
        self.pool = self._find_floating_pool(host, monotonic_ns, problems)
        self.host = host = pools.with_floating_pool(host, self.pool)
        guests = self._guest_use.read(self.guests, host, monotonic_ns, elapsed_ns)
        cpu_use = self._cpu_use(host, guests, elapsed_ns)
        cpu_rates, traffic = self._count(host, elapsed_ns, problems)
        busy_cores = _busy_cores(cpu_use.busy_cores, guests)
        ladder_result = self._ladder.sample(
            SourceTick(before_ns, monotonic_ns, host, guests, busy_cores, cpu_rates)
        )
        problems += ladder_result.problems
        guest_samples = self._guest_samples(guests, ladder_result.evidence, problems)
        resctrl_rates = {} if cpu_rates else self._resctrl.rates_by_node_at(monotonic_ns)
        node_rates = (
            cpu_rates
            or resctrl_rates
            or build_sample.guest_rates_by_node(
                guests, ladder_result.evidence, [node.id for node in host.nodes]
            )
        )
        uses = [
            _node_use(node, cpu_use, node_rates.get(node.id), traffic.get(node.id))
            for node in host.nodes
        ]
        capacities = self._capacities(host, cpu_use.stolen_cores, traffic, bool(resctrl_rates))
        self.mlp = capacities.mlp
        nodes = build_sample.node_samples(
            host.nodes, uses, capacities, guest_samples, bool(resctrl_rates)
        )
        if self._with_promises:
            with_guests = bool(guests or guest_problems)
            nodes = self._with_promised_bytes(host, nodes, with_guests, problems)
        return Sample(
            taken_s,
            elapsed_ns / 1e9,
            ladder_result.source,
            nodes,
            guest_samples,
            tuple(dict.fromkeys(problems)),
            cpu_use.other_pools,
            self.pool.source,
            (*self._retries.unavailable.values(), *ladder_result.unavailable),
        )

    def _of_firmware(self, read: Callable[[str], _T]) -> _T | None:
        """Return what a table of the firmware has; None, and a problem, if it cannot be read."""
        try:
            return read(self._root)
        except TopologyError as error:
            self._firmware_problems.append(str(error))
            return None

    def _sources(self) -> list[Source]:
        factories: dict[str, Callable[[], Source]] = {
            counters_conf.GUESTS: lambda: self._guest_counters,
            counters_conf.CPUS: counted.CpuAttribution,
            counters_conf.RESCTRL: lambda: self._resctrl,
            counters_conf.NUMA_FAULTS: lambda: inferred.NumaFaults(self._root),
            counters_conf.PAGES: inferred.Pages,
        }
        return [
            factories[name]()
            for name in self._options.sources
            if self._options.enabled or name not in (counters_conf.GUESTS, counters_conf.CPUS)
        ]

    def _select(self) -> events.EventSelection:
        """Choose the events to count on this host."""
        return events.select_events(self._root, overrides=dict(self._options.events))

    def _find_floating_pool(
        self, host: model.Topology, monotonic_ns: int, problems: list[str]
    ) -> pools.Pool:
        """Return the floating pool; add a problem if Nova's CPU sets cannot be read."""
        cpu_sets, read_problems = self._cpu_sets.read(monotonic_ns)
        problems += read_problems
        return pools.floating_pool(host, self.guests, cpu_sets.shared, cpu_sets.dedicated)

    def _cpu_use(
        self, host: model.Topology, guests: Sequence[RunningGuest], elapsed_ns: int
    ) -> CpuUse:
        """Return the CPU time of each node and pool since the last sample."""
        before, self._times = self._times, run_times.read_cpus(self._root)
        busy = run_times.cores_between(before.busy_ns, self._times.busy_ns, elapsed_ns)
        stolen = run_times.cores_between(before.stolen_ns, self._times.stolen_ns, elapsed_ns)
        waiting: dict[int, float] = {}
        for running_guest in guests:
            for cpu, cores in running_guest.waiting_cores_by_cpu.items():
                waiting[cpu] = waiting.get(cpu, 0.0) + cores

        def demand(cpus: frozenset[int]) -> float | None:
            busy_cores = run_times.sum_over(busy, cpus)
            if busy_cores is None or not elapsed_ns:
                return None
            return busy_cores + sum(waiting.get(cpu, 0.0) for cpu in cpus)

        other_pools = tuple(
            PoolSample(
                tuple(sorted(cpus)),
                tuple((node.id, demand(node.online_cpus & cpus)) for node in host.nodes),
                tuple(
                    (node.id, run_times.sum_over(stolen, node.online_cpus & cpus))
                    for node in host.nodes
                ),
            )
            for cpus in pools.other_pools(self.guests, host)
        )
        return CpuUse(
            {node.id: run_times.sum_over(busy, node.online_cpus) for node in host.nodes},
            {node.id: demand(node.cpus) for node in host.nodes},
            {node.id: run_times.sum_over(stolen, node.cpus) for node in host.nodes},
            other_pools,
        )

    def _count(
        self, host: model.Topology, elapsed_ns: int, problems: list[str]
    ) -> tuple[dict[int, CpuRates], dict[int, uncore.UncoreUse]]:
        """Return {node id: rates} of CPUs and of memory controllers; {}: not counted."""
        if not self._options.enabled:
            return {}, {}
        uses = self._retries.sample(self._uncore, problems, host) or {}
        if counters_conf.GUESTS in self._options.sources:
            self._cpu_counters.count_only(
                self._guest_counters.cpu_roles_that_fit(min(host.cores[0]))
            )
        if not self._cpu_counters.roles:
            problems.append(
                'CPUs: not counted: the hardware has too few counters for CPUs and guests; the '
                'sums of the guests are used instead'
            )
            return {}, uses
        return self._retries.sample(self._cpu_counters, problems, host, elapsed_ns) or {}, uses

    def _guest_samples(
        self, guests: Sequence[RunningGuest], evidence: Mapping[str, Evidence], problems: list[str]
    ) -> tuple[GuestSample, ...]:
        nodes, device_problems = self._devices.read(self.guests)
        problems += device_problems
        return tuple(
            build_sample.guest_sample(
                running_guest,
                evidence.get(running_guest.guest.uuid),
                [
                    (device.name.removeprefix('/dev/'), nodes[device])
                    for device in running_guest.guest.devices
                    if device.name
                ],
            )
            for running_guest in guests
        )

    def _with_promised_bytes(
        self,
        host: model.Topology,
        nodes: tuple[NodeSample, ...],
        with_guests: bool,
        problems: list[str],
    ) -> tuple[NodeSample, ...]:
        directory = host_options.path_under_root(self._root, self._options.state_dir)
        try:
            host_promises = promises_file.read_optional(directory, files.read_boot_id(self._root))
        except StateError as error:
            problems.append(str(error))
            return nodes
        if host_promises is None and with_guests:  # they were not placed, or the file was lost
            return nodes
        view = host_view.view(
            host,
            host_promises.promises.values() if host_promises else (),
            self._options.placement_options,
        )
        return tuple(
            node._replace(promised_bytes=node_view.promised_bytes)
            for node, node_view in zip(nodes, view.nodes)
        )

    def _capacities(
        self,
        host: model.Topology,
        stolen: Mapping[int, float | None],
        traffic: Mapping[int, uncore.UncoreUse],
        all_traffic: bool,
    ) -> build_sample.NodeCapacities:
        sources = self._cpu_counters, self._guest_counters
        with_prefetch = all_traffic or any(source.with_prefetch for source in sources)
        options = self._options
        maxima_bytes_per_sec = firmware.maxima_bytes_per_sec(
            dict(options.bandwidth_max_bytes_per_sec),
            {
                node: use.clock_max_bytes_per_sec
                for node, use in traffic.items()
                if use.clock_max_bytes_per_sec
            },
            self._uncore.channels,
            self._dimms,
            {node.id: node.memory_bytes for node in host.nodes},
        )
        return build_sample.NodeCapacities(
            [
                host_view.capacity_without_stolen(cores, stolen[node.id])
                for node, cores in zip(
                    host.nodes, host_view.capacity_cores(host, options.placement_options)
                )
            ],
            [maxima_bytes_per_sec.get(node.id) for node in host.nodes],
            self.latencies_ns(host),
            pressure.MLP_WITH_PREFETCH if with_prefetch else pressure.MLP_DEMAND,
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
        self._guest_use.close()


def _busy_cores(
    busy: Mapping[int, float | None], guests: Iterable[RunningGuest]
) -> dict[int, float]:
    """Return {node id: busy cores}, at least the cores that guests ran there.

    The host's CPU times have a resolution of 10 ms; those of guests are finer.
    """
    guest_cores = {node: 0.0 for node in busy}
    for running_guest in guests:
        for node, cores in running_guest.cores_by_node.items():
            guest_cores[node] = guest_cores.get(node, 0.0) + cores
    return {node: max(cores, busy.get(node) or 0.0) for node, cores in guest_cores.items()}


def _node_use(
    node: model.Node, cpu_use: CpuUse, node_rates: CpuRates | None, use: uncore.UncoreUse | None
) -> build_sample.NodeUse:
    """Combine the measurements of a node."""
    if node_rates is None:
        # A memory-only node accesses no memory.
        no_accesses = None if node.online_cpus else 0.0
        node_rates = build_sample.CpuRates(no_accesses, no_accesses, None, None, None)
    if use is None:
        use = uncore.UncoreUse()
    incoming_per_sec = None
    if use.read_lines_per_sec is not None and node_rates.local_per_sec is not None:
        incoming_per_sec = max(0.0, use.read_lines_per_sec - node_rates.local_per_sec)
    return build_sample.NodeUse(
        demand_cores=cpu_use.demand_cores[node.id],
        busy_cores=cpu_use.busy_cores[node.id],
        local_per_sec=node_rates.local_per_sec,
        remote_per_sec=node_rates.remote_per_sec,
        cycles_per_sec=node_rates.cycles_per_sec,
        instructions_per_sec=node_rates.instructions_per_sec,
        bandwidth_bytes_per_sec=use.bandwidth_bytes_per_sec,
        incoming_per_sec=incoming_per_sec,
        link_ratio=use.link_ratio,
        io_miss_ratio=use.io_miss_ratio,
        stolen_cores=cpu_use.stolen_cores[node.id],
    )
