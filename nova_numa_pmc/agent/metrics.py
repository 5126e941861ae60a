# SPDX-License-Identifier: Apache-2.0
"""Write each tick's metrics to files that node_exporter's textfile collector reads.

The agent runs as root and opens no network socket. Guests are in a file of their own, because not
every operator wants their names, uuids and number of series in the same place as the host's.

Names and units follow Prometheus' own conventions (base units, _total, _ratio, _info). Unknown
values are absent, never 0.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import installed_version
from nova_numa_pmc.core import fleet
from nova_numa_pmc.core.finding import install_remedy
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.moves.executor import COUNTED_RESULTS
from nova_numa_pmc.problem_log import ProblemLog

#: Why no metrics are written; empty: they are.
WHY_ABSENT = ''
try:
    from prometheus_client import CollectorRegistry, ProcessCollector, core, write_to_textfile
except ImportError as error:  # it is an extra
    WHY_ABSENT = str(error)

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Iterator, Sequence

    from nova_numa_pmc import model
    from nova_numa_pmc.agent.agent import Tick
    from nova_numa_pmc.core.measurements import NodeSample
    from nova_numa_pmc.moves.executor import MoveTotals

    _Row = tuple[str, str, str | None, tuple[tuple[str | None, str], ...]]

#: The directory of the files, in the state directory.
DIRECTORY = 'metrics'
#: node_exporter reads only files whose names end in .prom.
HOST_FILE, GUESTS_FILE = 'nova-numa-pmc.prom', 'nova-numa-pmc-guests.prom'
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
        'waiting_cores',
        'Cores that guests lose to waiting for CPUs',
        None,
        ((None, 'waiting_cores'),),
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
        'cycles_per_instruction',
        'Cycles per instruction of all work on the node, where counted reliably',
        None,
        ((None, 'cpi'),),
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
    ('cpus', 'CPUs of the node that guests may use', None, ((None, 'cpu_count'),)),
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
#: Guest metrics for a plan of the fleet: (name, help, field of Relief, or else of FleetGuest).
FLEET_METRICS = (
    ('size_bytes', 'Memory that the guest was given', 'memory_bytes'),
    ('vcpus', 'vCPUs of the guest', 'vcpus'),
    ('lasting_demand_cores', 'CPU demand of the guest over a day', 'demand_cores'),
    ('movable', 'Whether the guest may be migrated to another host (1)', 'may_move'),
    (
        'lasting_loss_cores',
        'Cores that the guest loses and that moves within the host cannot relieve',
        'lost_cores',
    ),
    (
        'leaving_gain_cores',
        'Cores that the guests of the host would regain if this one left',
        'regained_cores',
    ),
)


class MetricsFile:
    """Writes ticks if prometheus_client is installed; otherwise, one line of the log says so.

    :param directory: the state directory
    """

    def __init__(self, log: logging.Logger, directory: str) -> None:
        self._directory = os.path.join(directory, DIRECTORY)
        self._problem_log = ProblemLog(log, time.monotonic)
        self._ticks = 0
        self._duration_s = 0.0
        if WHY_ABSENT:
            log.info(
                'no metrics are written: %s; %s, and restart the agent',
                WHY_ABSENT,
                install_remedy('python3-prometheus-client'),
            )

    def write(self, tick: Tick, duration_s: float) -> None:
        """Replace the files, each in one step; never raise.

        :param duration_s: how long the tick took [s]
        """
        self._ticks += 1
        self._duration_s += duration_s
        if WHY_ABSENT:
            return
        with self._problem_log.stage('writing metrics'):
            os.makedirs(self._directory, mode=0o755, exist_ok=True)
            self._replace(HOST_FILE, of_host(tick, self._ticks, self._duration_s))
            self._replace(GUESTS_FILE, of_guests(tick))

    def _replace(self, name: str, families: Iterable[core.Metric]) -> None:
        class _Registry(CollectorRegistry):
            def collect(self) -> Iterable[core.Metric]:
                return families

        write_to_textfile(os.path.join(self._directory, name), _Registry())


def of_host(tick: Tick, ticks: int, duration_s: float) -> Iterator[core.Metric]:
    """Yield the metrics of a tick, without those of guests.

    :param ticks, duration_s: number of ticks so far, and their total duration [s]
    """
    yield core.SummaryMetricFamily(
        PREFIX + 'agent_tick_seconds', 'Duration of ticks', ticks, duration_s
    )
    yield _info('agent', 'Version of the running agent', {'version': _VERSION})
    for name, text, value in _agent_gauges(tick):
        yield _family(name, text, (), [((), value)])
    # node_exporter has process_* of its own.
    yield from ProcessCollector(namespace=PREFIX + 'agent', registry=None).collect()
    yield core.CounterMetricFamily(
        PREFIX + 'starts_taken_over',
        'Guest starts finished by the agent in place of the hook',
        tick.starts_taken_over,
    )
    yield from _ended_moves(tick.totals)
    if tick.sample is not None:
        yield _info(
            'source',
            'Where evidence of memory accesses comes from',
            {'source': tick.sample.source or 'none'},
        )
        for row in NODE_METRICS:
            yield _node_family(row, tick.sample.nodes)
    if tick.publication is not None:
        for row in VIEW_METRICS:
            yield _node_family(row, tick.publication.view.nodes)


def _agent_gauges(tick: Tick) -> Iterable[tuple[str, str, float | None]]:
    """Return (name, help, value) of what has one value; None: unknown."""
    sample = tick.sample
    return (
        (
            'agent_last_tick_timestamp_seconds',
            'Time at which the last tick began',
            tick.now.realtime_s,
        ),
        (
            'agent_failing',
            'Stages of a tick that currently fail, and guests that currently cannot be held',
            tick.failing_count,
        ),
        (
            'agent_paused',
            'Whether the operator has paused the agent (1: it moves no guests)',
            int(tick.paused is not None),
        ),
        (
            'agent_moves_stopped',
            'Whether the agent moves no memory for a day because its last moves did not pay',
            int(tick.moves_stopped),
        ),
        (
            'agent_problems',
            "Problems of the last tick's measurement",
            None if sample is None else len(sample.problems),
        ),
        # The host is set along with the guests; without it, they could not be read.
        ('guests', 'Running guests', len(tick.guests) if tick.host else None),
        ('moving_guests', 'Guests being moved', tick.totals.guests_moving),
        (
            'sample_interval_seconds',
            'Time over which rates were measured',
            (sample.elapsed_s or None) if sample else None,
        ),
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
    guests = tick.sample.guests if tick.sample else ()
    for name, text, field in GUEST_METRICS:
        yield _family(
            'guest_' + name,
            text,
            ('uuid', 'name'),
            [((guest.uuid, guest.name), getattr(guest, field)) for guest in guests],
        )
    yield _family(
        'guest_memory_bytes',
        'Memory of the guest on each node',
        ('uuid', 'name', 'node'),
        [
            ((guest.uuid, guest.name, str(node)), size)
            for guest in guests
            for node, size in guest.bytes_by_node
        ],
    )
    reliefs = fleet.reliefs(tick.fleet_host) if tick.fleet_host else ()
    for name, text, field in FLEET_METRICS:
        yield _family(
            'guest_' + name,
            text,
            ('uuid', 'name'),
            [((relief.uuid, relief.name), getattr(relief, field)) for relief in reliefs],
        )


def _node_family(row: _Row, nodes: Iterable[NodeSample | model.NodeView]) -> core.Metric:
    name, text, label, parts = row
    return _family(
        'node_' + name,
        text,
        ('node', label) if label else ('node',),
        [
            ((str(node.id), part) if part else (str(node.id),), getattr(node, field))
            for node in nodes
            for part, field in parts
        ],
    )


def _family(
    name: str,
    text: str,
    labels: Sequence[str],
    values: Iterable[tuple[Sequence[str], float | None]],
) -> core.Metric:
    """Return a gauge.

    :param values: (values of the labels, value); without those that are None, unknown
    """
    family = core.GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, value in values:
        if value is not None:
            family.add_metric(label_values, value)
    return family


def _info(name: str, text: str, values: dict[str, str]) -> core.Metric:
    return core.InfoMetricFamily(PREFIX + name, text, values)
