# SPDX-License-Identifier: Apache-2.0
"""Decode a host's metrics from its compute node; :mod:`metrics_encoder` lists the keys.

This runs once for each host of a request, for up to a thousand hosts, so the usual case has a
fast path.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.compute.distances import METRIC_VALUE_MAX, read_distances, read_domains
from nova_numa_pmc.compute.metrics_encoder import (
    CURRENT,
    GUESTS_BITS,
    INTERVAL_DEFAULT_S,
    MAJOR,
    MAXIMUM,
    SENT_NODES_MAX,
    UNKNOWN,
    UUID_DIGITS,
    UUIDS,
)
from nova_numa_pmc.core.memory_domains import NEAR_DEFAULT
from nova_numa_pmc.core.scheduling.host_columns import HostColumns, to_columns
from nova_numa_pmc.json_values import integer
from nova_numa_pmc.model import MB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nova_numa_pmc import model
    from nova_numa_pmc.compute.distances import Distances

    #: One of Nova's dicts as received, with nothing checked.
    _Values = Mapping[str, Any]
    _Column = list[float | None]
    _Members = tuple[tuple[int, ...], ...]

_UUIDS_START = len(UUIDS)
_INTERVAL_MAX_S = 86400
#: Mean demand above this is implausible [cores per vCPU]: a vCPU wants at most one core, and the
#: other threads of its guest hardly more than that again.
HISTORY_MAX_CORES_PER_VCPU = 2.0
_INT_ONLY = {int}


def _getters(*parts: str) -> dict[int, Callable[[_Values], Any]]:
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


_MAXIMA = 'pmc.cN', 'pmc.tN', 'pmc.mN'
_NOW = 'pmc.at', 'pmc.vcpus', 'pmc.mb', 'pmc.pN', 'pmc.gN', 'pmc.vN', 'pmc.dN'
_HEADER = 3
#: Getters of the maxima and of the current values: for our keys only; with the bandwidths of nodes
#: 0 to N − 1; and with the links as well.
_BARE = _getters(*_MAXIMA), _getters(*_NOW)
_PLAIN = _getters(*_MAXIMA, 'N'), _getters(*_NOW, 'N')
_LINKED = _PLAIN[0], _getters(*_NOW, 'N', 'pmc.lN')


class HostMetrics:
    """A host's metrics, decoded.

    :ivar columns: the host in the form that the decision uses
    :ivar taken_s: time of the measurement [s since the epoch]
    :ivar interval_s: how often the metrics are renewed [s]
    :ivar vcpus_used, memory_mb_used: Nova's own counts when the metrics were sent, without
        instances that the agent had not seen
    :ivar sent_s: end of the second in which the metrics were sent [s since the epoch]; at a later
        save, Nova may have counted other instances. None: the counted instances are not reported
    """

    __slots__ = (
        'columns',
        'taken_s',
        'interval_s',
        'vcpus_used',
        'memory_mb_used',
        'sent_s',
        '_node_columns',
        '_current',
        '_domains',
    )

    columns: HostColumns
    taken_s: int
    interval_s: int
    vcpus_used: int
    memory_mb_used: int
    sent_s: int | None
    _node_columns: HostColumns
    _current: _Values
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
    def pinned_cpus(self) -> int:
        """Return how many of ``vcpus_used`` have a CPU of their own; 0: none, or not reported."""
        return self._count('pmc.pin') or 0

    @property
    def huge_page_mb(self) -> int | None:
        """Return how much of ``memory_mb_used`` is in huge pages; None: no pools, or unknown."""
        return self._count('pmc.huge')

    @property
    def reserved(self) -> tuple[int, int]:
        """Return how many of ``vcpus_used`` and ``memory_mb_used`` are the host's own."""
        return self._count('pmc.hcpu') or 0, self._count('pmc.hmb') or 0

    def _count(self, key: str) -> int | None:
        """Return a value that may be absent; None if it is absent or no count."""
        value = self._current.get(key)
        return _bounded(value) if type(value) is int and value >= 0 else None

    def count_departed(self, uuids: Iterable[str]) -> tuple[int, int]:
        """Return how many of the counted instances are not among these, and how many were counted.

        An instance counts as present if its digits are those of one in ``uuids``.
        """
        digits = next(iter(self._current))[_UUIDS_START:] if self.sent_s is not None else ''
        # Copied first, because other threads of Nova change the collection.
        present_prefixes = {uuid[:UUID_DIGITS] for uuid in list(uuids)}
        count = len(digits) // UUID_DIGITS
        prefixes = [
            digits[index * UUID_DIGITS : (index + 1) * UUID_DIGITS] for index in range(count)
        ]
        return sum(prefix not in present_prefixes for prefix in prefixes), len(prefixes)

    @property
    def view(self) -> model.HostView:
        """Return the host with its nodes."""
        return self._node_columns.view()._replace(domains=self._domains)


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
    try:
        getters = _LINKED if 'pmc.l0' in current else _PLAIN
        maxima, figures = getters[0][count](maximum), getters[1][count](current)
        uniform = 'pmc.i0' not in maximum
    except KeyError:
        maxima, figures, uniform = _BARE[0][count](maximum), _BARE[1][count](current), False
    if max(figures) > METRIC_VALUE_MAX:
        # It must not pass for an unknown host, which is assumed to be usual.
        figures = tuple(map(_bounded, figures))
    all_known = _are_all_known(maxima, figures, count)
    decoded = HostMetrics()
    decoded.taken_s, decoded.vcpus_used, decoded.memory_mb_used = figures[:_HEADER]
    decoded.sent_s = None
    first_key = next(iter(current))
    if first_key[:_UUIDS_START] == UUIDS:
        decoded.sent_s = sent_s = current[first_key]
        if type(sent_s) is not int:
            raise ValueError
    decoded.interval_s = (
        min(integer(current['pmc.every'], METRIC_VALUE_MAX), _INTERVAL_MAX_S)
        if 'pmc.every' in current
        else INTERVAL_DEFAULT_S
    )
    distances, nearest = read_distances(count, maximum)
    rotation = integer(current['pmc.turn'], METRIC_VALUE_MAX) if 'pmc.turn' in current else 0
    bandwidth_start = _HEADER + 4 * count
    rest: tuple[_Column, _Column, _Column | None, Distances, _Members, bool | None, int]
    if uniform and all_known:
        bandwidths: _Column = [
            value * MB
            for value in figures[bandwidth_start : bandwidth_start + count] + maxima[3 * count :]
        ]
        rest = (
            bandwidths[:count],
            bandwidths[count:],
            [value / 1000 for value in figures[bandwidth_start + count :]] or None,
            distances,
            _MEMBERS[count],
            0 not in maxima,
            rotation,
        )
    else:
        rest = (*_read_optional(current, maximum, count, distances), None, rotation)
    # Guests, vCPUs and demand in one loop: starting a loop costs more than its few steps.
    loads = [value / 100 for value in figures[_HEADER + count : bandwidth_start]]
    demand = loads[2 * count :]
    if not all_known:
        demand = [None if value < 0 else value for value in demand]
    decoded._current = current
    decoded._node_columns = decoded.columns = HostColumns(
        [value / 100 for value in maxima[:count]],
        maxima[count : 2 * count],
        maxima[2 * count : 3 * count],
        figures[_HEADER : _HEADER + count],
        loads[:count],
        loads[count : 2 * count],
        demand,
        *rest,
    )
    decoded._domains = ()
    if nearest < NEAR_DEFAULT or 'pmc.domain' in maximum or 'pmc.s0' in maximum:
        decoded._domains = read_domains(maximum, distances)
        if decoded._domains:
            decoded.columns = to_columns(decoded.view)
    return decoded


def _bounded(value: int) -> int:
    """Return a figure, however high it is, within the bound of what is sent: saturation."""
    return min(value, METRIC_VALUE_MAX)


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


_MEMBERS = [tuple((position,) for position in range(count)) for count in range(SENT_NODES_MAX + 1)]


def _read_optional(
    current: _Values, maximum: _Values, count: int, distances: Distances
) -> tuple[_Column, _Column, _Column, Distances, _Members]:
    """Read the values that may be absent: bandwidths (by plain node id), links and node ids.

    :returns: arguments of :class:`HostColumns`: bandwidths, their maxima, links, distances,
        members
    """
    members = _MEMBERS[count]
    if 'pmc.i0' in maximum:
        members = tuple(
            (integer(maximum['pmc.i%d' % position], METRIC_VALUE_MAX),)
            for position in range(count)
        )
    columns = [[values.get(str(node)) for (node,) in members] for values in (current, maximum)]
    columns[0] = [None if value is None else _bounded(value) for value in columns[0]]
    bandwidths: list[_Column] = [
        [None if value is None else integer(value, METRIC_VALUE_MAX) * MB for value in column]
        for column in columns
    ]
    links = [current.get('pmc.l%d' % position) for position in range(count)]
    links = [
        None
        if link is None or link == UNKNOWN
        else integer(_bounded(link), METRIC_VALUE_MAX) / 1000
        for link in links
    ]
    return bandwidths[0], bandwidths[1], links, distances, members
