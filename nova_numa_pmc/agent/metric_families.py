# SPDX-License-Identifier: Apache-2.0
"""Turn a tick into families of metrics.

This module needs prometheus_client. Names and units follow Prometheus' own conventions (base
units, _total, _ratio, _info). Unknown values are absent, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, core, write_to_textfile

from nova_numa_pmc import installed_version
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.moves.executor import COUNTED_RESULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nova_numa_pmc import model
    from nova_numa_pmc.agent.tick import Tick
    from nova_numa_pmc.core.sample_records import NodeSample
    from nova_numa_pmc.moves.executor import MoveTotals

    _Row = tuple[str, str, str | None, tuple[tuple[str | None, str], ...]]

PREFIX = 'nova_numa_'
_VERSION = installed_version()  # slow to find out
#: Node metrics: (name, help, second label, (value of that label, field of NodeSample)…).
NODE_METRICS: tuple[_Row, ...] = (
    (
        'capacity_cores',
        'CPU capacity; SMT siblings count at their fraction',
        None,
        ((None, 'capacity_cores'),),
    ),
    (
        'demand_cores',
        'CPU demand: time running and time waiting, per second',
        None,
        ((None, 'demand_cores'),),
    ),
    (
        'pressure_ratio',
        "Utilisation by part (1 is saturated); the highest is the node's pressure",
        'part',
        (('cpu', 'cpu_ratio'), ('bandwidth', 'bandwidth_ratio'), ('link', 'link_ratio')),
    ),
    (
        'loss_cores',
        'Cores that guests lose to waiting for CPUs and to memory distance and queueing',
        'part',
        (('waiting', 'waiting_cores'), ('distance', 'distance_cores')),
    ),
    (
        'bandwidth_bytes_per_second',
        "DRAM traffic of the node's memory",
        None,
        ((None, 'bandwidth_bytes_per_sec'),),
    ),
    (
        'bandwidth_max_bytes_per_second',
        "Maximum bandwidth of the node's memory",
        None,
        ((None, 'bandwidth_max_bytes_per_sec'),),
    ),
    (
        'dram_accesses_per_second',
        "DRAM accesses of the node's CPUs",
        'target',
        (('local', 'local_per_sec'), ('remote', 'remote_per_sec')),
    ),
    (
        'remote_ratio',
        "Remote share of the DRAM accesses of the node's CPUs",
        None,
        ((None, 'remote_ratio'),),
    ),
    (
        'io_miss_ratio',
        'Share of requests of devices that missed the L3 cache',
        None,
        ((None, 'io_miss_ratio'),),
    ),
    ('memory_bytes', 'MemTotal of the node', None, ((None, 'memory_bytes'),)),
    ('memory_free_bytes', 'MemFree of the node', None, ((None, 'free_bytes'),)),
)
#: Node metrics as the decision sees them, in rows as in NODE_METRICS but with fields of NodeView.
VIEW_METRICS: tuple[_Row, ...] = (
    (
        'promisable_bytes',
        'Memory of the node that may be promised to guests',
        None,
        ((None, 'capacity_bytes'),),
    ),
    (
        'promised_bytes',
        'Memory promised to the guests of the node',
        None,
        ((None, 'promised_bytes'),),
    ),
    (
        'guests',
        'Guests placed on the node; a guest on several nodes is split among them',
        None,
        ((None, 'guests'),),
    ),
    ('vcpus', 'vCPUs of the guests placed on the node', None, ((None, 'vcpus'),)),
    (
        'lasting_demand_cores',
        'CPU demand over the longer horizon, used to place new guests',
        None,
        ((None, 'demand_cores'),),
    ),
    (
        'lasting_bandwidth_bytes_per_second',
        'DRAM traffic over the longer horizon, used to place new guests',
        None,
        ((None, 'bandwidth_bytes_per_sec'),),
    ),
)
#: Guest metrics: (name, help, field of GuestSample).
GUEST_METRICS = (
    ('cores', 'CPU time used by the guest, per second', 'cores'),
    ('waiting_cores', 'Time that the guest waited for CPUs, per second', 'waiting_cores'),
    ('bandwidth_bytes_per_second', 'DRAM traffic of the guest', 'bandwidth_bytes_per_sec'),
    ('remote_ratio', "Remote share of the guest's DRAM accesses", 'remote_ratio'),
)


def write(path: str, families: Iterable[core.Metric]) -> None:
    """Replace a file by one with these metrics, in one step."""

    class _Registry(CollectorRegistry):
        def collect(self) -> Iterable[core.Metric]:
            return families

    write_to_textfile(path, _Registry())


def of_host(tick: Tick, ticks: int, duration_s: float) -> Iterator[core.Metric]:
    """Yield the metrics of a tick, without those of guests.

    :param ticks, duration_s: number of ticks so far, and their total duration [s]
    """
    yield from _agent(tick, ticks, duration_s)
    # node_exporter has process_* of its own.
    yield from ProcessCollector(namespace=PREFIX + 'agent', registry=None).collect()
    yield from _ended_moves(tick.totals)
    sample = tick.sample
    if sample is not None:
        yield _info(
            'source',
            'Where evidence of memory accesses comes from',
            {'source': sample.source or 'none'},
        )
        yield _gauge(
            'sample_interval_seconds',
            'Time over which rates were measured',
            sample.elapsed_s or None,
        )
        for row in NODE_METRICS:
            yield _node_family(row, sample.nodes)
        with_reliable_cpi = [
            node._replace(cpi=node.cpi if node.cpi_reliable else None) for node in sample.nodes
        ]
        yield _node_family(
            (
                'cycles_per_instruction',
                'Cycles per instruction of all work on the node, where counted reliably',
                None,
                ((None, 'cpi'),),
            ),
            with_reliable_cpi,
        )
    if tick.publication is not None:
        for row in VIEW_METRICS:
            yield _node_family(row, tick.publication.view.nodes)


def _agent(tick: Tick, ticks: int, duration_s: float) -> Iterator[core.Metric]:
    """Yield the metrics of the agent itself."""
    yield _info('agent', 'Version of the running agent', {'version': _VERSION})
    yield core.SummaryMetricFamily(
        PREFIX + 'agent_tick_seconds', 'Duration of ticks', ticks, duration_s
    )
    yield _gauge(
        'agent_last_tick_timestamp_seconds',
        'Time at which the last tick began',
        tick.now.realtime_s,
    )
    yield _gauge(
        'agent_failing',
        'Stages of a tick that currently fail, and guests that currently cannot be held',
        tick.failing_count,
    )
    yield _gauge(
        'agent_paused',
        'Whether the operator has paused the agent (1: it moves no guests)',
        int(tick.paused is not None),
    )
    yield _gauge(
        'agent_moves_stopped',
        'Whether the agent moves no memory for a day because its last moves did not pay',
        int(tick.moves_stopped),
    )
    yield _gauge(
        'agent_problems',
        "Problems of the last tick's measurement",
        None if tick.sample is None else len(tick.sample.problems),
    )
    yield _gauge(
        'agent_libvirt_connected',
        'Whether the agent receives libvirt events (0: it reads status files at each tick)',
        int(tick.events_source == 'libvirt') if tick.events_source else None,
    )
    # The source is set along with the guests; without it, they could not be read.
    yield _gauge('guests', 'Running guests', len(tick.guests) if tick.events_source else None)
    yield _gauge('moving_guests', 'Guests being moved', tick.totals.guests_moving)
    yield core.CounterMetricFamily(
        PREFIX + 'starts_taken_over',
        'Guest starts finished by the agent in place of the hook',
        tick.starts_taken_over,
    )


def _ended_moves(totals: MoveTotals) -> Iterator[core.Metric]:
    moves = core.CounterMetricFamily(
        PREFIX + 'moves', 'Moves that have ended, by kind and result', labels=('kind', 'result')
    )
    for kind in plan_records.KINDS:
        for result in COUNTED_RESULTS:
            moves.add_metric((kind, result), totals.ended.get((kind, result), 0))
    yield moves
    yield core.CounterMetricFamily(
        PREFIX + 'moved_bytes', 'Guest memory moved by moves that have ended', totals.moved_bytes
    )


def of_guests(tick: Tick) -> Iterator[core.Metric]:
    """Yield the metrics of the guests of a tick."""
    samples = tick.sample.guests if tick.sample else ()
    for name, text, field in GUEST_METRICS:
        family = core.GaugeMetricFamily(PREFIX + 'guest_' + name, text, labels=('uuid', 'name'))
        for guest in samples:
            value = getattr(guest, field)
            if value is not None:
                family.add_metric((guest.uuid, guest.name), value)
        yield family
    family = core.GaugeMetricFamily(
        PREFIX + 'guest_memory_bytes',
        'Memory of the guest on each node',
        labels=('uuid', 'name', 'node'),
    )
    for guest in samples:
        for node, size in guest.bytes_by_node:
            family.add_metric((guest.uuid, guest.name, str(node)), size)
    yield family


def _node_family(row: _Row, nodes: Iterable[NodeSample | model.NodeView]) -> core.Metric:
    name, text, label, parts = row
    family = core.GaugeMetricFamily(
        PREFIX + 'node_' + name, text, labels=('node', label) if label else ('node',)
    )
    for node in nodes:
        for part, field in parts:
            value = getattr(node, field)
            if value is not None:
                family.add_metric((str(node.id), part) if part else (str(node.id),), value)
    return family


def _gauge(name: str, text: str, value: float | None) -> core.Metric:
    family = core.GaugeMetricFamily(PREFIX + name, text)
    if value is not None:
        family.add_metric((), value)
    return family


def _info(name: str, text: str, values: dict[str, str]) -> core.Metric:
    return core.InfoMetricFamily(PREFIX + name, text, values)
