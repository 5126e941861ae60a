# SPDX-License-Identifier: Apache-2.0
"""Decode a host's metrics from its compute node; :mod:`nova_metrics` lists the keys.

This runs once per host and request, for a thousand hosts, so the usual case has a fast path.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nova_numa_pmc import model
from nova_numa_pmc.compute.distances import AMOUNT_MAX, integer, read_distances, read_domains
from nova_numa_pmc.compute.nova_metrics import (
    CURRENT,
    DEFAULT_LIMITS,
    GUESTS_BITS,
    INTERVAL_DEFAULT_S,
    LIMITS,
    MAJOR,
    MAXIMUM,
    NODES_MAX,
    UNKNOWN,
    UUID_DIGITS,
    UUIDS,
)
from nova_numa_pmc.core.host_view import MB
from nova_numa_pmc.core.memory_domains import NEAR_DEFAULT
from nova_numa_pmc.core.scheduling.aggregates import Aggregates, aggregate
from nova_numa_pmc.exceptions import require_major

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nova_numa_pmc.compute.distances import Distances

    #: One of Nova's dicts, as it came: nothing in it is checked.
    _Values = Mapping[str, Any]
    _Column = list[float | None]
    _Members = tuple[tuple[int, ...], ...]

_UUIDS_AT = len(UUIDS)
_INTERVAL_MAX_S = 86400
_INT_ONLY = {int}


def _getters(*parts: str) -> dict[int, Callable[[_Values], Any]]:
    """Return {number of nodes: itemgetter of all keys}, as a loop in C is several times faster.

    :param parts: the keys; one that ends in N stands for one key per node
    """
    return {
        count: itemgetter(
            *(
                key
                for part in parts
                for key in (
                    ['%s%d' % (part[:-1], at) for at in range(count)]
                    if part[-1] == 'N'
                    else [part]
                )
            )
        )
        for count in range(1, NODES_MAX + 1)
    }


_MAXIMA = 'pmc.cN', 'pmc.tN', 'pmc.mN'
_NOW = 'pmc.at', 'pmc.vcpus', 'pmc.mb', 'pmc.pN', 'pmc.gN', 'pmc.vN', 'pmc.dN'
_HEADER = 3
#: Getters of the maxima and of the current values: of our keys alone, with the bandwidths of nodes
#: 0 to N − 1, and with the links as well.
_BARE = _getters(*_MAXIMA), _getters(*_NOW)
_PLAIN = _getters(*_MAXIMA, 'N'), _getters(*_NOW, 'N')
_LINKED = _PLAIN[0], _getters(*_NOW, 'N', 'pmc.lN')


class HostMetrics:
    """A host's metrics, decoded.

    :ivar aggregates: the host, as the decision takes it
    :ivar limits: limits with the host's floor and step
    :ivar taken_s: time of the measurement [s since the epoch]
    :ivar interval_s: how often the metrics are renewed [s]
    :ivar vcpus_used, memory_mb_used: Nova's own count when it was recorded, without instances
        that were being built: these the agent has not seen
    :ivar sent_s: the second in which the metrics were sent [s since the epoch]: a later save of
        Nova's may count other instances. None: it is not reported which were counted
    """

    __slots__ = (
        'aggregates',
        'limits',
        'taken_s',
        'interval_s',
        'vcpus_used',
        'memory_mb_used',
        'sent_s',
        '_columns',
        '_current',
        '_domains',
    )

    aggregates: Aggregates
    limits: model.PlacementOptions
    taken_s: int
    interval_s: int
    vcpus_used: int
    memory_mb_used: int
    sent_s: int | None
    _columns: Aggregates
    _current: _Values
    _domains: tuple[int, ...]

    @property
    def history(self) -> tuple[int, float] | None:
        """Return (guests, sum of their cores per vCPU), None: nothing is known."""
        packed = self._current.get('pmc.k')
        if type(packed) is not int or not 0 < packed <= AMOUNT_MAX:
            return None
        return packed & (1 << GUESTS_BITS) - 1, (packed >> GUESTS_BITS) / 100

    @property
    def pinned_cpus(self) -> int:
        """Return the number of ``vcpus_used`` with a CPU of their own; 0: none or not reported."""
        return integer(self._current.get('pmc.pin', 0))

    def count_departed(self, uuids: Iterable[str]) -> tuple[int, int]:
        """Return (the number of counted instances that are not among these, that of all counted).

        An instance whose digits are those of one in ``uuids`` is taken to be there.
        """
        digits = next(iter(self._current))[_UUIDS_AT:] if self.sent_s is not None else ''
        there = {uuid[:UUID_DIGITS] for uuid in list(uuids)}  # Nova's other threads change it
        count = len(digits) // UUID_DIGITS
        counted = [digits[at * UUID_DIGITS : (at + 1) * UUID_DIGITS] for at in range(count)]
        return sum(prefix not in there for prefix in counted), len(counted)

    @property
    def view(self) -> model.HostView:
        """Return the host by node."""
        return self._columns.view()._replace(domains=self._domains)

    @property
    def remote_ratios(self) -> tuple[float | None, ...]:
        """Return each node's remote share, None: unknown."""
        shares = [self._current.get('pmc.r%d' % at) for at in range(len(self._columns.cores))]
        return tuple(
            share / 1000 if type(share) is int and 0 <= share <= 1000 else None for share in shares
        )


def decode(metrics: object) -> HostMetrics | None:
    """Decode a host's metrics; return None if anything is wrong with them.

    :param metrics: Nova's MonitorMetricList, or a list of dicts as in the column's JSON
    """
    try:
        return _decode(metrics)
    except Exception:  # the metrics come from other hosts: nothing in them may fail a boot
        return None


def _decode(metrics: object) -> HostMetrics | None:
    """Decode the two metrics; None: an impossible number of nodes."""
    current, maximum = _values(metrics)
    require_major(current['pmc'] // 100, MAJOR)
    count = maximum['pmc.nodes']
    if type(count) is not int or not 0 < count <= NODES_MAX:
        return None
    try:
        getters = _LINKED if 'pmc.l0' in current else _PLAIN
        maxima, now = getters[0][count](maximum), getters[1][count](current)
        uniform = 'pmc.i0' not in maximum
    except KeyError:
        maxima, now, uniform = _BARE[0][count](maximum), _BARE[1][count](current), False
    known = _are_all_known(maxima, now, count)
    decoded = HostMetrics()
    decoded.taken_s, decoded.vcpus_used, decoded.memory_mb_used = now[:_HEADER]
    decoded.sent_s = None
    first = next(iter(current))
    if first[:_UUIDS_AT] == UUIDS:
        decoded.sent_s = sent_s = current[first]
        if type(sent_s) is not int:
            raise ValueError
    decoded.interval_s = (
        min(integer(current['pmc.every']), _INTERVAL_MAX_S)
        if 'pmc.every' in current
        else INTERVAL_DEFAULT_S
    )
    decoded.limits = _limits(maximum)
    distances, nearest = read_distances(count, maximum)
    rotation = integer(current['pmc.turn']) if 'pmc.turn' in current else 0
    at = _HEADER + 4 * count
    rest: tuple[_Column, _Column, _Column | None, Distances, _Members, bool | None, int]
    if uniform and known:
        bandwidths: _Column = [value * MB for value in now[at : at + count] + maxima[3 * count :]]
        rest = (
            bandwidths[:count],
            bandwidths[count:],
            [value / 1000 for value in now[at + count :]] or None,
            distances,
            _MEMBERS[count],
            0 not in maxima,
            rotation,
        )
    else:
        rest = (*_read_optional(current, maximum, count, distances), None, rotation)
    # Guests, vCPUs, demand: in one go, as each loop costs more than its few steps.
    live = [value / 100 for value in now[_HEADER + count : at]]
    demand = live[2 * count :]
    if not known:
        demand = [None if value < 0 else value for value in demand]
    decoded._current = current
    decoded._columns = decoded.aggregates = Aggregates(
        [value / 100 for value in maxima[:count]],
        maxima[count : 2 * count],
        maxima[2 * count : 3 * count],
        now[_HEADER : _HEADER + count],
        live[:count],
        live[count : 2 * count],
        demand,
        *rest,
    )
    decoded._domains = ()
    if nearest < NEAR_DEFAULT or 'pmc.domain' in maximum or 'pmc.s0' in maximum:
        decoded._domains = read_domains(maximum, distances)
        if decoded._domains:
            decoded.aggregates = aggregate(decoded.view)
    return decoded


def _are_all_known(maxima: tuple[int, ...], now: tuple[int, ...], count: int) -> bool:
    """Return whether all the numbers are known; none is a marker of an unknown value.

    :raises ValueError: they are not all whole numbers in range
    """
    raw = maxima + now
    if set(map(type, raw)) != _INT_ONLY or max(raw) > AMOUNT_MAX:
        raise ValueError
    if min(raw) >= 0:
        return True
    first = _HEADER + 3 * count
    if min(maxima + now[:first]) < 0 or min(now[first:]) < UNKNOWN:
        raise ValueError
    return False


def _values(metrics: object) -> tuple[_Values, _Values]:
    """Return the two dicts (current, maximum); the monitor appends its metrics last.

    :raises Exception: of any kind, unless both are there
    """
    listed: Any = getattr(metrics, 'objects', metrics)
    try:  # each look at a field of Nova's objects costs as much as a step of the decision
        current, maximum = listed[-2].numa_membw_values, listed[-1].numa_membw_values
        if 'pmc' in current and 'pmc.nodes' in maximum:
            return current, maximum
    except Exception:  # others' metrics, which have none, or plain dicts
        pass
    current = maximum = None
    for metric in reversed(listed):
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


_MEMBERS = [tuple((at,) for at in range(count)) for count in range(NODES_MAX + 1)]


def _read_optional(
    current: _Values, maximum: _Values, count: int, distances: Distances
) -> tuple[_Column, _Column, _Column, Distances, _Members]:
    """Read the optional values: bandwidths by plain node ids, links, and the ids themselves.

    :returns: the last arguments of Aggregates
    """
    members = _MEMBERS[count]
    if 'pmc.i0' in maximum:
        members = tuple((integer(maximum['pmc.i%d' % at]),) for at in range(count))
    columns = [[values.get(str(node)) for (node,) in members] for values in (current, maximum)]
    bandwidths: list[_Column] = [
        [None if value is None else integer(value) * MB for value in column] for column in columns
    ]
    links = [current.get('pmc.l%d' % at) for at in range(count)]
    links = [None if link is None or link == UNKNOWN else integer(link) / 1000 for link in links]
    return bandwidths[0], bandwidths[1], links, distances, members


def _limits(maximum: _Values) -> model.PlacementOptions:
    if 'pmc.floor' in maximum or 'pmc.step' in maximum:
        return DEFAULT_LIMITS._replace(
            **{  # type: ignore[arg-type]  # of all fields' types
                field: max(1, integer(maximum[key])) / scale
                for key, field, scale in LIMITS
                if key in maximum
            }
        )
    return DEFAULT_LIMITS
