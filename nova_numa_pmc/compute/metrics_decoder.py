# SPDX-License-Identifier: Apache-2.0
"""Decode a host's metrics from its compute node; :mod:`metrics_encoder` lists the keys.

This runs once for each host of a request, for up to a thousand hosts, so the usual case has a
fast path.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nova_numa_pmc import model
from nova_numa_pmc.compute.metrics_encoder import (
    BYTES_PER_VALUE,
    CURRENT,
    GUESTS_BITS,
    MAJOR,
    MAXIMUM,
    METRIC_VALUE_MAX,
    SENT_NODES_MAX,
    UNKNOWN,
    packed_keys,
)
from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import TRAFFIC_DEMAND_MIN_HUNDREDTHS
from nova_numa_pmc.core.memory_domains import (
    LOCAL_DISTANCE,
    distance,
    domains_from_labels,
    first_touch_positions,
    merge,
)
from nova_numa_pmc.json_values import integer
from nova_numa_pmc.model import MB, MIB
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Distances = tuple[tuple[int, ...], ...]
    #: One of Nova's dicts as received, with nothing checked.
    _Values = Mapping[str, Any]
    _Optional = Sequence[int | None]
    #: By position: ids; CPU and memory maxima; promises, guests, vCPUs and demand; bandwidths;
    #: their maxima; links. The second and the third have several columns, one after the other.
    _NodeValues = tuple[
        Sequence[int], tuple[int, ...], tuple[int, ...], _Optional, _Optional, _Optional
    ]

_INTERVAL_MAX_S = 86400
#: Mean demand above this is implausible [cores per vCPU]: a vCPU wants at most one core, and the
#: other threads of its guest hardly more than that again.
HISTORY_MAX_CORES_PER_VCPU = 2.0
_INT_ONLY = {int}


def _getters(*parts: str) -> dict[int, Callable[[_Values], tuple[Any, ...]]]:
    """Return {number of nodes: itemgetter of all keys}: a loop in C is several times faster.

    :param parts: the keys; a key that ends in N stands for one key per node
    """
    return {
        count: itemgetter(
            *(
                key
                for part in parts
                for key in (
                    ['%s%d' % (part[:-1], position) for position in range(count)]
                    if part[-1] == 'N'
                    else [part]
                )
            )
        )
        for count in range(1, SENT_NODES_MAX + 1)
    }


_MAXIMA = _getters('pmc.cN', 'pmc.tN', 'pmc.mN')
#: The values of the whole host, and how many they are.
_OF_HOST = 'pmc.at', 'pmc.every', 'pmc.vcpus', 'pmc.mb'
_HEADER = len(_OF_HOST)
_NOW = _getters(*_OF_HOST, 'pmc.pN', 'pmc.gN', 'pmc.vN', 'pmc.dN')
#: The keys of nodes' bandwidths, if their ids have no gaps, and of their links.
_IDS = [str(node) for node in range(SENT_NODES_MAX)]
_LINKS = ['pmc.l%d' % position for position in range(SENT_NODES_MAX)]


class HostFigures(Record):
    """A host's figures over all of its memory domains (:func:`memory_domains.merge`) with CPUs.

    :param nodes: number of these domains
    :param cores: their capacity [cores]
    :param vcpus: promised vCPUs
    :param demand_cores: CPU demand [cores]; None if it is not measured
    :param bandwidth_bytes_per_sec, bandwidth_max_bytes_per_sec: DRAM traffic and its maximum;
        None if it is not known, the maximum also if only the traffic is not
    :param rooms: for each domain, (usable CPUs, capacity [cores], memory that may still be
        promised to what runs there [MiB], CPU demand [cores]; None if it is not measured)
    :param distances: between the domains, by position
    :param capacity_mib: memory that may be promised on all nodes [MiB]
    """

    nodes: int
    cores: float
    vcpus: float
    demand_cores: float | None
    bandwidth_bytes_per_sec: float | None
    bandwidth_max_bytes_per_sec: float | None
    rooms: Sequence[tuple[int, float, float, float | None]]
    distances: tuple[tuple[float, ...], ...]
    capacity_mib: float


class HostMetrics:
    """A host's metrics, decoded.

    :ivar figures: those over the whole host
    :ivar taken_s: time of the measurement [s since the epoch]
    :ivar interval_s: how often the metrics are renewed [s]
    :ivar vcpus_used, memory_mb_used: Nova's own counts when the metrics were sent, without
        instances that the agent had not seen
    """

    __slots__ = (
        'figures',
        'taken_s',
        'interval_s',
        'vcpus_used',
        'memory_mb_used',
        '_current',
        '_nodes',
        '_rotation',
        '_distances',
        '_domains',
    )

    figures: HostFigures
    taken_s: int
    interval_s: int
    vcpus_used: int
    memory_mb_used: int
    _current: _Values
    _nodes: _NodeValues
    _rotation: int
    _distances: Distances
    _domains: tuple[int, ...]

    @property
    def history(self) -> tuple[int, float] | None:
        """Return (number of guests, sum of their cores per vCPU).

        :returns: None if they are unknown or implausible
        """
        packed = self._current.get('pmc.k')
        if type(packed) is not int or not 0 < packed <= METRIC_VALUE_MAX:
            return None
        guests, cores_per_vcpu_sum = packed & (1 << GUESTS_BITS) - 1, (packed >> GUESTS_BITS) / 100
        if cores_per_vcpu_sum > HISTORY_MAX_CORES_PER_VCPU * guests:
            return None
        return guests, cores_per_vcpu_sum

    @property
    def reserved_cpus(self) -> int:
        """Return how many of ``vcpus_used`` are the host's own."""
        return self._count('pmc.hcpu') or 0

    @property
    def pinned_cpus(self) -> int:
        """Return how many of ``vcpus_used`` have a CPU of their own; 0: none, or not reported."""
        return self._count('pmc.pin') or 0

    @property
    def huge_page_mb(self) -> int | None:
        """Return how much of ``memory_mb_used`` is in huge pages; None: no pools, or unknown."""
        return self._count('pmc.huge')

    def _count(self, key: str) -> int | None:
        """Return a value that may be absent; None if it is absent or no count."""
        value = self._current.get(key)
        return min(value, METRIC_VALUE_MAX) if type(value) is int and value >= 0 else None

    @property
    def view(self) -> model.HostView:
        """Return the host with its nodes."""
        ids, maxima, figures, bandwidths, bandwidths_max, links = self._nodes
        count = len(ids)
        nodes = tuple(
            model.NodeView(
                ids[position],
                maxima[position] / 100,
                maxima[count + position],
                maxima[2 * count + position] * MIB,
                figures[position] * MIB,
                figures[count + position] / 100,
                figures[2 * count + position] / 100,
                _per(figures[3 * count + position], 100),
                _megabytes(bandwidths[position]),
                _megabytes(bandwidths_max[position]),
                _per(links[position], 1000),
            )
            for position in range(count)
        )
        return model.HostView(nodes, self._distances, self._rotation, self._domains)


def decode(metrics: object) -> HostMetrics | None:
    """Decode a host's metrics; return None if anything is wrong with them.

    :param metrics: Nova's MonitorMetricList, or a list of dicts as in the column's JSON
    """
    try:
        return _decode(metrics)
    except Exception:  # metrics come from other hosts: nothing in them may make a boot fail
        return None


def _decode(metrics: object) -> HostMetrics | None:
    """Decode the two metrics; return None for another major version or number of nodes."""
    current, maximum = _values(metrics)
    count = maximum['pmc.nodes']
    if current['pmc'] // 100 != MAJOR or type(count) is not int or not 0 < count <= SENT_NODES_MAX:
        return None
    maxima, figures = _MAXIMA[count](maximum), _NOW[count](current)
    if max(figures) > METRIC_VALUE_MAX:
        # A host must not pass for unknown, and be assumed to be usual, because of high figures.
        figures = tuple([min(value, METRIC_VALUE_MAX) for value in figures])
    all_known = _are_all_known(maxima, figures, count)
    decoded = HostMetrics()
    decoded.taken_s, interval_s, decoded.vcpus_used, decoded.memory_mb_used = figures[:_HEADER]
    decoded.interval_s = min(interval_s, _INTERVAL_MAX_S)
    decoded._current = current
    decoded._rotation = integer(current.get('pmc.turn', 0), METRIC_VALUE_MAX)
    keys = packed_keys('pmc.x', count * (count - 1))
    decoded._distances = _square(count, tuple([maximum[key] for key in keys]))
    ids: Sequence[int] = range(count)
    if 'pmc.i0' in maximum:
        ids = [integer(maximum['pmc.i%d' % at], METRIC_VALUE_MAX) for at in ids]
        names = [str(node) for node in ids]
    else:
        names = _IDS[:count]
    decoded._nodes = (
        ids,
        maxima,
        figures[_HEADER:],
        _optional(current, names, METRIC_VALUE_MAX),
        _optional(maximum, names, None),
        _optional(current, _LINKS[:count], METRIC_VALUE_MAX)
        if 'pmc.l0' in current
        else [None] * count,
    )
    decoded._domains = ()
    if 'pmc.s0' in maximum:
        decoded._domains = domains_from_labels(
            _unpack([maximum[key] for key in packed_keys('pmc.s', count)], count)
        )
    if all_known and 0 not in maxima and not decoded._domains:
        decoded.figures = _sums(decoded)
    else:
        decoded.figures = figures_of(decoded.view)
    return decoded


def _are_all_known(maxima: tuple[int, ...], figures: tuple[int, ...], count: int) -> bool:
    """Return whether all values are known, that is, none of them is :data:`UNKNOWN`.

    :param figures: the current values
    :raises ValueError: they are not all whole numbers in range, or a node has CPUs but no cores
    """
    values = maxima + figures
    if set(map(type, values)) != _INT_ONLY or max(maxima) > METRIC_VALUE_MAX:
        raise ValueError
    if 0 in maxima[:count] and any(
        cpus and not cores for cores, cpus in zip(maxima[:count], maxima[count:])
    ):
        raise ValueError
    if min(values) >= 0:
        return True
    demand_start = _HEADER + 3 * count
    if min(maxima + figures[:demand_start]) < 0 or min(figures[demand_start:]) < UNKNOWN:
        raise ValueError
    return False


def _values(metrics: object) -> tuple[_Values, _Values]:
    """Return the values of the two metrics, current and maximum.

    :raises Exception: of any type, unless both are present
    """
    metric_list: Any = getattr(metrics, 'objects', metrics)
    # The monitor appends its metrics last. Each access to a field of Nova's objects costs as much
    # as a step of the decision.
    try:
        current, maximum = metric_list[-2].numa_membw_values, metric_list[-1].numa_membw_values
        if 'pmc' in current and 'pmc.nodes' in maximum:
            return current, maximum
    except Exception:  # other monitors' metrics, which have no such values, or plain dicts
        pass
    current = maximum = None
    for metric in reversed(metric_list):
        if type(metric) is dict:
            name, values = metric['name'], metric.get('numa_membw_values')
        else:
            name = metric.name
            values = metric.numa_membw_values if name in (CURRENT, MAXIMUM) else None
        if name == MAXIMUM:
            maximum = values
        elif name == CURRENT:
            current = values
        if current is not None and maximum is not None:
            return current, maximum
    raise ValueError('no metrics from nova-numa-pmc')


def _optional(values: _Values, keys: Sequence[str], above: int | None) -> list[int | None]:
    """Return values that may be absent, as None if they are absent or unknown.

    :param above: what counts in place of a value above :data:`METRIC_VALUE_MAX`
    :raises ValueError: one is no whole number, or a negative one
    """
    found: list[int | None] = []
    for value in map(values.get, keys):
        if value is None or value == UNKNOWN:
            found.append(None)
        elif type(value) is not int or value < 0:
            raise ValueError
        else:
            found.append(value if value <= METRIC_VALUE_MAX else above)
    return found


def _sums(decoded: HostMetrics) -> HostFigures:
    """Return :func:`figures_of` a host of the usual kind, without records of its nodes.

    Each of its nodes has CPUs, cores and memory, and is a memory domain.
    """
    ids, maxima, figures, bandwidths, bandwidths_max, _ = decoded._nodes
    count = len(ids)
    demand_cores = sum(figures[3 * count :]) / 100
    served, most = missing.all_known(bandwidths), missing.all_known(bandwidths_max)
    if served is None or most is None:
        return figures_of(decoded.view)
    bandwidth, bandwidth_max = _believed(demand_cores, sum(served) * MB, sum(most) * MB)
    return HostFigures._make(
        (
            count,
            sum(maxima[:count]) / 100,
            sum(figures[2 * count : 3 * count]) / 100,
            demand_cores,
            bandwidth,
            bandwidth_max,
            [
                (
                    maxima[count + at],
                    maxima[at] / 100,
                    maxima[2 * count + at] - figures[at],
                    figures[3 * count + at] / 100,
                )
                for at in range(count)
            ],
            decoded._distances,
            sum(maxima[2 * count :]),
        )
    )


def figures_of(view: model.HostView) -> HostFigures:
    """Return a host's figures over all of its memory domains.

    What is unknown for some of its nodes is filled in (:func:`missing.fill_in`).
    """
    merged, _ = merge(view)
    nodes, _ = missing.fill_in(merged.nodes)
    with_cpus = [position for position, node in enumerate(nodes) if node.cores]
    memory_positions = first_touch_positions(merged)
    demands = missing.all_known([nodes[position].demand_cores for position in with_cpus])
    demand_cores = sum(demands) if demands else None
    with_memory = [node for node in nodes if missing.reports_memory(node)]
    served = missing.all_known([node.bandwidth_bytes_per_sec for node in with_memory])
    most = missing.all_known([node.bandwidth_max_bytes_per_sec for node in with_memory])
    bandwidth, bandwidth_max = _believed(
        demand_cores, sum(served) if served else None, sum(most) if most else None
    )
    rooms = []
    for position in with_cpus:
        node, memory_position = nodes[position], memory_positions[position]
        free_mib = 0.0
        if memory_position is not None:
            memory = nodes[memory_position]
            free_mib = (memory.capacity_bytes - memory.promised_bytes) / MIB
        rooms.append((node.cpu_count, node.cores, free_mib, node.demand_cores))
    return HostFigures(
        len(rooms),
        sum([cores for _, cores, _, _ in rooms]),
        sum([node.vcpus for node in nodes]),
        demand_cores,
        bandwidth,
        bandwidth_max,
        rooms,
        tuple(tuple(distance(merged, row, column) for column in with_cpus) for row in with_cpus),
        sum([node.capacity_bytes // MIB for node in nodes]),
    )


def _believed(
    demand_cores: float | None, bandwidth: float | None, bandwidth_max: float | None
) -> tuple[float | None, float | None]:
    """Return a host's bandwidth and its maximum, None where they show nothing.

    A bandwidth of 0 beside a demand is not believed.
    """
    has_demand = 100 * (demand_cores or 0.0) >= TRAFFIC_DEMAND_MIN_HUNDREDTHS
    if bandwidth is None or (not bandwidth and has_demand):
        return None, None
    return bandwidth, bandwidth_max or None


def _per(value: int | None, parts: int) -> float | None:
    """Return a figure that was sent in parts of its unit; None if it is unknown."""
    return None if value is None or value == UNKNOWN else value / parts


def _megabytes(value: int | None) -> int | None:
    """Return a figure in bytes; None if it is unknown."""
    return None if value is None else value * MB


@lru_cache(maxsize=256)  # hosts of the same model share their distances
def _square(count: int, values: tuple[int, ...]) -> Distances:
    """Return the rows of a matrix from its packed entries row by row without the diagonal."""
    entries, rows = _unpack(values, count * (count - 1)), []
    for position in range(count):
        row = list(entries[position * (count - 1) : (position + 1) * (count - 1)])
        row.insert(position, LOCAL_DISTANCE)
        rows.append(tuple(row))
    return tuple(rows)


def _unpack(values: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the numbers that the encoder has packed.

    :raises ValueError, OverflowError: the values are malformed
    """
    parts = [
        integer(value, METRIC_VALUE_MAX).to_bytes(BYTES_PER_VALUE, 'little') for value in values
    ]
    return tuple(b''.join(parts)[:count])
