# SPDX-License-Identifier: Apache-2.0
"""A host's state as two of Nova's compute metrics; the only place that knows their keys.

Nova carries ``numa_membw_values``, a dict of str to int, of the metrics ``numa.membw.current``
and ``numa.membw.max`` from a compute monitor to the scheduler, as JSON in the column
``compute_nodes.metrics`` of at most 65,535 bytes. Plain node ids keep Nova's meaning: MB/s of
that node. Ours begin with ``pmc``; N below is a node's position, by ascending id:

======================  =========================================================
``numa.membw.current``
======================  =========================================================
``pmc``                 schema, 100 · major + minor; a reader takes its own major
``pmc.at``              time of the measurement [s since the epoch]
``pmc.every``           how often it is renewed [s]; absent: 60
``pmc.vcpus``           Nova's vcpus_used when it was recorded, without what is being built
``pmc.mb``              Nova's memory_mb_used when it was recorded, without what is being built
``pmc.pin``             of ``pmc.vcpus``, those with a CPU of their own; absent: 0, or unknown
                        without the next
``pmc.uU``              the first key: U is the first four digits of the uuid of each instance
                        that was counted, ascending; the value the end of the second in which
                        the metrics were sent [s since the epoch]; absent: unknown
``pmc.turn``            placements that came before, modulo the number of memory
                        domains: breaks ties as on the host; absent: 0
``pmc.k``               what new guests are expected by: guests known, in the lowest ten
                        bits, and above them the sum over these of the cores that each
                        wanted per vCPU [0.01]; absent: none
``pmc.dN``              CPU wanted [0.01 cores]; -1: unknown
``pmc.pN``              memory promised [MiB]
``pmc.gN``, ``pmc.vN``  guests, their vCPUs [0.01]
``pmc.lN``              utilisation of the busiest socket link [0.001]; -1: unknown,
                        absent: unknown on all nodes
``pmc.rN``              remote share of DRAM accesses [0.001]; absent: unknown
======================  =========================================================

======================  =========================================================
``numa.membw.max``
======================  =========================================================
``pmc.nodes``           number of nodes
``pmc.cN``, ``pmc.tN``  capacity [0.01 cores], usable CPUs
``pmc.mN``              memory that may be promised [MiB]
``pmc.iN``              node id; absent: N
``pmc.far``             the distance between any two nodes [SLIT]; absent: see below
``pmc.xK``              distances where they differ: row by row without the diagonal,
                        six to a value, each a byte, the first in the lowest
``pmc.floor``           pressure_floor [0.001]; absent: the default
``pmc.step``            pressure_step [0.001]; absent: the default
``pmc.domain``          nodes nearer than this share their memory channels [SLIT];
                        absent: 12
``pmc.sK``              where no distance shows which do: the lowest position of the
                        nodes that share theirs with this one, six nodes to a value,
                        each a byte, the first in the lowest; absent: see above
======================  =========================================================

Short, because the metrics of a host of two nodes are to stay below 2 KB: each change of them is a
database save.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nova_numa_pmc import model
from nova_numa_pmc.core.memory_domains import (
    LOCAL_DISTANCE,
    NEAR_DEFAULT,
    distance,
    labelled,
    merge,
    near,
    threshold,
)
from nova_numa_pmc.core.scheduling.aggregates import MIB, Aggregates, aggregate
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nova_numa_pmc.state.host_state import HostState

    #: One of Nova's dicts, as it came: nothing in it is checked.
    _Values = Mapping[str, Any]
    _Column = list[float | None]
    _Distances = tuple[tuple[int, ...], ...]
    _Members = tuple[tuple[int, ...], ...]

CURRENT, MAXIMUM = 'numa.membw.current', 'numa.membw.max'
SCHEMA, _MAJOR = 102, 1
#: Digits of an instance's uuid: with four, one of 50 instances is mistaken for another in one of a
#: thousand cases. More instances than this are not reported.
_UUID_DIGITS, _UUIDS_MAX = 4, 1000
_UUIDS = 'pmc.u'
_UUIDS_AT = len(_UUIDS)
#: More would not fit into the column.
NODES_MAX = 64
INTERVAL_DEFAULT_S = 60
MB = 10**6
#: The value of ``numa.membw.current`` where no node's traffic is known: Nova wants a number, and
#: 0 would make MetricsWeigher take the host for an idle one. More than any host's, but not so much
#: that the others become equal when Nova stretches what is between the least and the most.
UNKNOWN_MB = 10**6

_AMOUNT_MAX = 2**50
_INTERVAL_MAX_S = 86400
_DISTANCES_PER_VALUE = _DOMAINS_PER_VALUE = 6
_UNKNOWN = -1
_GUESTS_BITS = 10
_LIMITS = ('pmc.floor', 'pressure_floor', 1000), ('pmc.step', 'pressure_step', 1000)
_DEFAULT_LIMITS = model.Limits()
_INT_ONLY = {int}


def _getters(*parts: str) -> dict[int, Callable[[_Values], Any]]:
    """Make a getter of all keys for each number of nodes: the loop over them is then C's.

    :param parts: keys; one that ends in N stands for one of each node
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
#: Of the maxima and of the current values: alone, with the bandwidths of nodes 0 to N − 1, and
#: with links as well.
_BARE = _getters(*_MAXIMA), _getters(*_NOW)
_PLAIN = _getters(*_MAXIMA, 'N'), _getters(*_NOW, 'N')
_LINKED = _PLAIN[0], _getters(*_NOW, 'N', 'pmc.lN')


class Counted(Record):
    """What Nova counted on the host when metrics were sent, beside vCPUs and memory.

    :param sent_s: when that was [s since the epoch]
    :param uuids: of the instances that the agent can have seen
    :param pinned_cpus: their vCPUs with a CPU of their own
    """

    sent_s: float
    uuids: tuple[str, ...]
    pinned_cpus: int = 0


class HostMetrics:
    """A host's metrics, decoded.

    :ivar aggregates: what the decision reads
    :ivar limits: with the host's floor and step
    :ivar taken_s, interval_s: when it was measured and how often it is renewed [s]
    :ivar vcpus_used, memory_mb_used: Nova's own count when it was recorded, without instances
        that were being built: these the agent has not seen
    :ivar sent_s: what Nova saves after this second may be of instances that came or left later
        [s since the epoch]; None: which instances were counted is not reported
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
    limits: model.Limits
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
        if type(packed) is not int or not 0 < packed <= _AMOUNT_MAX:
            return None
        return packed & (1 << _GUESTS_BITS) - 1, (packed >> _GUESTS_BITS) / 100

    @property
    def pinned_cpus(self) -> int:
        """Return the number of ``vcpus_used`` with a CPU of their own; 0: none or not reported."""
        return _whole(self._current.get('pmc.pin', 0))

    def count_departed(self, uuids: Iterable[str]) -> tuple[int, int]:
        """Return (the number of counted instances that are not among these, that of all counted).

        One with the digits of another is taken to be there.
        """
        digits = next(iter(self._current))[_UUIDS_AT:] if self.sent_s is not None else ''
        there = {uuid[:_UUID_DIGITS] for uuid in list(uuids)}  # Nova's other threads change it
        count = len(digits) // _UUID_DIGITS
        counted = [digits[at * _UUID_DIGITS : (at + 1) * _UUID_DIGITS] for at in range(count)]
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


def to_values(
    host_state: HostState,
    vcpus_used: int,
    memory_mb_used: int,
    interval_s: float | None = None,
    counted: Counted | None = None,
) -> tuple[dict[str, int], dict[str, int]]:
    """Turn a host's state into the values of Nova's two metrics.

    :param vcpus_used, memory_mb_used: Nova's own count now, without instances that are being
        built, so that the scheduler knows what the host state doesn't show yet
    :param interval_s: how often nova-compute sends metrics, if that is slower than the agent [s]
    :param counted: what else Nova counted, None: not reported
    :returns: (current, maximum); plain node ids are there where known
    :raises StateError: more nodes than fit
    """
    view = host_state.view
    if len(view.nodes) > NODES_MAX:
        raise StateError("%d nodes: Nova's metrics hold %d at most" % (len(view.nodes), NODES_MAX))
    current: dict[str, int] = {}
    if counted is not None and len(counted.uuids) <= _UUIDS_MAX:
        digits = ''.join(sorted(uuid[:_UUID_DIGITS] for uuid in counted.uuids))
        current[_UUIDS + digits] = int(counted.sent_s) + 1
        if counted.pinned_cpus:
            current['pmc.pin'] = counted.pinned_cpus
    current['pmc'] = SCHEMA
    current['pmc.at'] = int(host_state.taken_s)
    current['pmc.vcpus'] = int(vcpus_used)
    current['pmc.mb'] = int(memory_mb_used)
    maximum = {'pmc.nodes': len(view.nodes)}
    rotation = view.rotation % max(1, len(merge(view)[1]))
    if rotation:
        current['pmc.turn'] = rotation
    guests = min(int(host_state.history.guests), (1 << _GUESTS_BITS) - 1)
    if guests:
        current['pmc.k'] = (
            guests | round(100 * host_state.history.cores_per_vcpu_sum) << _GUESTS_BITS
        )
    every = round(max(host_state.interval_s, interval_s or 0))
    if every != INTERVAL_DEFAULT_S:
        current['pmc.every'] = every
    renamed = [node.id for node in view.nodes] != list(range(len(view.nodes)))
    linked = any(node.link_ratio is not None for node in view.nodes)
    for at, (node, remote) in enumerate(zip(view.nodes, host_state.remote_ratios)):
        _add(current, str(node.id), node.bandwidth_bytes_per_sec, MB)
        _add(maximum, str(node.id), node.bandwidth_max_bytes_per_sec, MB)
        _add(current, 'pmc.d%d' % at, node.demand_cores, 0.01, _UNKNOWN)
        current['pmc.p%d' % at] = -(-node.promised_bytes // MIB)
        current['pmc.g%d' % at] = round(100 * node.guests)
        current['pmc.v%d' % at] = round(100 * node.vcpus)
        _add(current, 'pmc.l%d' % at, node.link_ratio, 0.001, _UNKNOWN if linked else None)
        _add(current, 'pmc.r%d' % at, remote, 0.001)
        maximum['pmc.c%d' % at] = round(100 * node.cores)
        maximum['pmc.t%d' % at] = node.threads
        maximum['pmc.m%d' % at] = node.capacity_bytes // MIB
        if renamed:
            maximum['pmc.i%d' % at] = node.id
    _add_distances(maximum, view)
    _add_domains(maximum, view)
    for key, field, scale in _LIMITS:
        value = getattr(host_state.limits, field)
        if value != getattr(_DEFAULT_LIMITS, field):
            maximum[key] = round(value * scale)
    return current, maximum


def total(values: Mapping[str, int], ids: list[str], unknown: int) -> int:
    """Return the sum over nodes [MB/s], or ``unknown`` where none of them is known."""
    known = [values[node] for node in ids if node in values]
    return sum(known) if known else unknown


def decode(metrics: object) -> HostMetrics | None:
    """Read a host's metrics; whatever is wrong with them, None.

    :param metrics: Nova's MonitorMetricList, or a list of dicts as in the column's JSON
    """
    try:
        return _decode(metrics)
    except Exception:  # they come from elsewhere: nothing in them may stop a boot
        return None


def _decode(metrics: object) -> HostMetrics | None:
    current, maximum = _values(metrics)
    count = maximum['pmc.nodes']
    if current['pmc'] // 100 != _MAJOR or type(count) is not int or not 0 < count <= NODES_MAX:
        return None
    try:
        getters = _LINKED if 'pmc.l0' in current else _PLAIN
        maxima, now = getters[0][count](maximum), getters[1][count](current)
        usual = 'pmc.i0' not in maximum
    except KeyError:
        maxima, now, usual = _BARE[0][count](maximum), _BARE[1][count](current), False
    known = _are_all_known(maxima, now, count)
    decoded = HostMetrics()
    decoded.taken_s, decoded.vcpus_used, decoded.memory_mb_used = now[:_HEADER]
    decoded.sent_s = None
    first = next(iter(current))
    if first[:_UUIDS_AT] == _UUIDS:
        decoded.sent_s = sent_s = current[first]
        if type(sent_s) is not int:
            raise ValueError
    decoded.interval_s = (
        min(_whole(current['pmc.every']), _INTERVAL_MAX_S)
        if 'pmc.every' in current
        else INTERVAL_DEFAULT_S
    )
    decoded.limits = _limits(maximum)
    distances, nearest = _distances(count, maximum)
    rotation = _whole(current['pmc.turn']) if 'pmc.turn' in current else 0
    at = _HEADER + 4 * count
    rest: tuple[_Column, _Column, _Column | None, _Distances, _Members, bool | None, int]
    if usual and known:
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
        decoded._domains = _domains(maximum, distances)
        if decoded._domains:
            decoded.aggregates = aggregate(decoded.view)
    return decoded


def _are_all_known(maxima: tuple[int, ...], now: tuple[int, ...], count: int) -> bool:
    """Return whether none of the numbers stands for an unknown one.

    :raises ValueError: they aren't all whole numbers in range
    """
    raw = maxima + now
    if set(map(type, raw)) != _INT_ONLY or max(raw) > _AMOUNT_MAX:
        raise ValueError
    if min(raw) >= 0:
        return True
    first = _HEADER + 3 * count
    if min(maxima + now[:first]) < 0 or min(now[first:]) < _UNKNOWN:
        raise ValueError
    return False


def _values(metrics: object) -> tuple[_Values, _Values]:
    """Find both dicts; the monitor adds its metrics last.

    :raises Exception: of any kind where they are not both there
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
    current: _Values, maximum: _Values, count: int, distances: _Distances
) -> tuple[_Column, _Column, _Column, _Distances, _Members]:
    """Read the optional values: bandwidths by plain node ids, links, and the ids themselves.

    :returns: the last arguments of Aggregates
    """
    members = _MEMBERS[count]
    if 'pmc.i0' in maximum:
        members = tuple((_whole(maximum['pmc.i%d' % at]),) for at in range(count))
    columns = [[values.get(str(node)) for (node,) in members] for values in (current, maximum)]
    bandwidths: list[_Column] = [
        [None if value is None else _whole(value) * MB for value in column] for column in columns
    ]
    links = [current.get('pmc.l%d' % at) for at in range(count)]
    links = [None if link is None or link == _UNKNOWN else _whole(link) / 1000 for link in links]
    return bandwidths[0], bandwidths[1], links, distances, members


def _limits(maximum: _Values) -> model.Limits:
    if 'pmc.floor' in maximum or 'pmc.step' in maximum:
        return _DEFAULT_LIMITS._replace(
            **{  # type: ignore[arg-type]  # of all fields' types
                field: max(1, _whole(maximum[key])) / scale
                for key, field, scale in _LIMITS
                if key in maximum
            }
        )
    return _DEFAULT_LIMITS


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _AMOUNT_MAX:
        raise ValueError
    return value


def _add(
    values: dict[str, int], key: str, amount: float | None, unit: float, unknown: int | None = None
) -> None:
    value = unknown if amount is None else round(amount / unit)
    if value is not None:
        values[key] = value


def _add_distances(maximum: dict[str, int], view: model.HostView) -> None:
    count = len(view.nodes)
    pairs = [
        min(255, max(0, round(distance(view, a, b))))
        for a in range(count)
        for b in range(count)
        if a != b
    ]
    if len(set(pairs)) <= 1:
        maximum['pmc.far'] = pairs[0] if pairs else LOCAL_DISTANCE
        return
    for at in range(0, len(pairs), _DISTANCES_PER_VALUE):
        maximum['pmc.x%d' % (at // _DISTANCES_PER_VALUE)] = int.from_bytes(
            pairs[at : at + _DISTANCES_PER_VALUE], 'little'
        )


def _add_domains(maximum: dict[str, int], view: model.HostView) -> None:
    near_distance, whole = threshold(view)
    if near_distance != NEAR_DEFAULT:
        maximum['pmc.domain'] = round(near_distance)
    for at in range(0, 0 if whole else len(view.domains), _DOMAINS_PER_VALUE):
        maximum['pmc.s%d' % (at // _DOMAINS_PER_VALUE)] = int.from_bytes(
            view.domains[at : at + _DOMAINS_PER_VALUE], 'little'
        )


def _domains(maximum: _Values, distances: _Distances) -> tuple[int, ...]:
    """Return the nodes that share memory channels, as in :class:`model.HostView`."""
    if 'pmc.s0' not in maximum:
        return near(distances, _whole(maximum.get('pmc.domain', NEAR_DEFAULT)))
    count = len(distances)
    labels = b''.join(
        (_whole(maximum['pmc.s%d' % at]) % 256**_DOMAINS_PER_VALUE).to_bytes(
            _DOMAINS_PER_VALUE, 'little'
        )
        for at in range(-(-count // _DOMAINS_PER_VALUE))
    )
    return labelled(labels[:count])


def _distances(count: int, maximum: _Values) -> tuple[_Distances, int]:
    """Return the distances and the smallest between two nodes."""
    far = maximum.get('pmc.far')
    if far is not None:
        return _square(count, (_whole(far),), 1)
    values = -(-count * (count - 1) // _DISTANCES_PER_VALUE)
    return _square(
        count, tuple(_whole(maximum['pmc.x%d' % at]) for at in range(values)), _DISTANCES_PER_VALUE
    )


@lru_cache(maxsize=256)  # machines of one make have the same
def _square(count: int, values: tuple[int, ...], width: int) -> tuple[_Distances, int]:
    packed = b''.join((value % 256**width).to_bytes(width, 'little') for value in values)
    if width == 1:
        packed *= count * (count - 1)
    rows = []
    for at in range(count):
        row = list(packed[at * (count - 1) : (at + 1) * (count - 1)])
        row.insert(at, LOCAL_DISTANCE)
        rows.append(tuple(row))
    nearest = min(packed[: count * (count - 1)], default=255)
    return tuple(rows), nearest if count > 1 else 255
