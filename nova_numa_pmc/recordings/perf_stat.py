# SPDX-License-Identifier: Apache-2.0
"""Parse the output of ``perf stat -x, -I``, from this host or another.

Counts may be of the whole host, by CPU (``-A``) or by node (``--per-node``), and each of these
also by control group (``--for-each-cgroup``). The format is in "CSV FORMAT" of perf-stat(1)::

    [time,][CPU3,|N0,4,]value,unit,event,[cgroup,]run time,share counted[,metric,its unit]

perf has already scaled the counts of multiplexed events.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nova_numa_pmc.core import counter_roles, pressure
from nova_numa_pmc.core.rates import CounterDelta
from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.host.perf import events
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

HOST_SCOPE, CPU_SCOPE, NODE_SCOPE = 'host', 'cpu', 'node'
_NOT_COUNTED, _NOT_SUPPORTED = '<not counted>', '<not supported>'
_LINE_MAX = 4096
_UNIT_BYTES = {'B': 1, 'Bytes': 1, 'KiB': 1 << 10, 'MiB': 1 << 20, 'GiB': 1 << 30}
#: Names of events in perf, in addition to those of the CPU's own events.
_NAMES = {
    'cycles': counter_roles.CYCLES,
    'cpu-cycles': counter_roles.CYCLES,
    'instructions': counter_roles.INSTRUCTIONS,
    'local_dram': counter_roles.LOCAL_DRAM,
    'remote_dram': counter_roles.REMOTE_DRAM,
    'cas_count_read': counter_roles.MEM_READ,
    'cas_reads': counter_roles.MEM_READ,
    'cas_count_write': counter_roles.MEM_WRITE,
    'cas_writes': counter_roles.MEM_WRITE,
}


class PerfStatLine(Record):
    """One line of the output.

    :param scope: :data:`HOST_SCOPE`, :data:`CPU_SCOPE` or :data:`NODE_SCOPE`
    :param id: id of the CPU or node; None for the whole host
    :param cgroup: path of the control group, or '' if there is none
    :param delta: what was counted; None if the event was not counted
    :param supported: whether the CPU supports the event
    """

    scope: str
    id: int | None
    cgroup: str
    event: str
    unit: str
    delta: CounterDelta | None
    supported: bool = True


class IntervalCounts(Record):
    """Counts of one interval.

    :param at_s: end of the interval, from the start of perf [s]
    """

    at_s: float
    elapsed_s: float
    lines: tuple[PerfStatLine, ...]


def _pattern(separator: str) -> re.Pattern[str]:
    cut = re.escape(separator)
    return re.compile(
        r'\s*(?:(?P<time>\d{1,12}\.\d+)%(cut)s)?'
        r'(?:(?P<kind>CPU|N|[A-Z])(?P<id>\d{1,6})(?P<parts>(?:-[A-Z]\d+)*)%(cut)s'
        r'(?:\d+%(cut)s(?=[\d<.]+[^%(cut)s]*%(cut)s[A-Za-z/%%]*%(cut)s))?)?'
        r'(?P<value>\d{1,20}(?:\.\d+)?|<not counted>|<not supported>)%(cut)s'
        r'(?P<unit>[A-Za-z/%%]*)%(cut)s'
        r'(?P<event>[^%(cut)s/]+(?:/[^/]*/\w*)?)%(cut)s'
        r'(?:(?P<cgroup>[^%(cut)s]*)%(cut)s)?'
        r'(?P<run>\d+)%(cut)s(?P<share>\d{1,3}\.\d+)(?:%(cut)s.*)?' % {'cut': cut}
    )


def parse(
    lines: Iterable[str], on_damage: Callable[[int, str], object] | None = None
) -> Iterator[IntervalCounts]:
    """Yield an interval for each time that occurs in the lines of a file.

    :param on_damage: function that is called with the number and text of each malformed line
    :raises RecordingError: a line has no time (perf was run without ``-I``), so that rates are
        unknown, or it has counts by something other than CPU, node or host
    """
    pattern: re.Pattern[str] | None = None
    rows: list[PerfStatLine] = []
    before_s = now_s = 0.0
    for number, line in enumerate(lines, 1):
        line = line.rstrip('\r\n')
        if not line.strip() or line.startswith('#'):
            continue
        pattern = pattern or _pattern(';' if line.count(';') > line.count(',') else ',')
        match = pattern.fullmatch(line) if len(line) <= _LINE_MAX else None
        if match is None:
            if on_damage and not _is_metric(line):
                on_damage(number, line[:80])
            continue
        if match['time'] is None:
            raise RecordingError('line %d: perf stat wrote no times: run it with -I' % number)
        at_s = float(match['time'])
        if at_s != now_s:
            if rows and now_s > before_s:
                yield IntervalCounts(now_s, now_s - before_s, tuple(rows))
            # If the time is smaller, another run of perf was appended to the file.
            before_s = now_s if now_s < at_s else 0.0
            now_s, rows = at_s, []
        rows.append(_row(match))
    if rows and now_s > before_s:
        yield IntervalCounts(now_s, now_s - before_s, tuple(rows))


def _is_metric(line: str) -> bool:
    """Return whether a line only has a metric, such as the second metric of an event."""
    return re.fullmatch(r'[^,;]*[,;][^,;]*[,;]{3,}[^,;]*[,;][^,;]*', line) is not None


def _row(match: re.Match[str]) -> PerfStatLine:
    kind, number = match['kind'], match['id']
    scope = {'CPU': CPU_SCOPE, 'N': NODE_SCOPE, None: HOST_SCOPE}.get(kind)
    if scope is None or match['parts']:
        raise RecordingError(
            '%s%s%s: only counts by node (--per-node), by CPU (-A) or of the whole host are '
            'supported' % (kind, number, match['parts'])
        )
    value, delta = match['value'], None
    share = min(1.0, float(match['share']) / 100)
    if value not in (_NOT_COUNTED, _NOT_SUPPORTED) and share > 0:
        delta = CounterDelta(float(value), share)
    return PerfStatLine(
        scope,
        None if number is None else int(number),
        match['cgroup'] or '',
        match['event'],
        match['unit'],
        delta,
        value != _NOT_SUPPORTED,
    )


def role_names(cpu: str | None = None) -> dict[str, str]:
    """Return {event name as perf writes it: role} for a CPU.

    :param cpu: as for :func:`events.select_events`; None for only the names that all CPUs have
    """
    names = dict(_NAMES)
    for event in events.select_events(cpu=cpu).events if cpu else ():
        if event.config is None:
            continue
        for name in (
            'r%x' % events.register_code(event),
            'r%x' % event.config,
            event.name,
            '%s/%s/' % (event.pmu, event.name),
        ):
            names[name] = event.role
    return names


def subtracted_roles(cpu: str | None = None) -> dict[str, str]:
    """Return {role: role whose count is to be subtracted from its own} for a CPU.

    :param cpu: as for :func:`role_names`
    """
    selected = events.select_events(cpu=cpu).events if cpu else ()
    return {event.role: event.minus for event in selected if event.minus is not None}


def role_of(name: str, names: Mapping[str, str]) -> str | None:
    """Return the role of an event; None if it has no role.

    Modifiers (``:GH``, ``/GH``) and the PMU of a named event are ignored.

    :param name: name of the event, as perf writes it
    :param names: names of the CPU, from :func:`role_names`
    """
    plain = re.sub(r'(?<=[^:]):[a-zA-Z]{1,8}$', '', name)
    plain = re.sub(r'/[a-zA-Z]+$', '/', plain)
    for candidate in (plain, plain.rstrip('/').rpartition('/')[2]):
        if candidate in names:
            return names[candidate]
    return None


def amount(row: PerfStatLine, role: str) -> CounterDelta | None:
    """Return a row's delta, with amounts of data in bytes; None if unknown."""
    if row.delta is None or role not in counter_roles.UNCORE_ROLES:
        return row.delta
    scale = _UNIT_BYTES.get(row.unit, pressure.LINE_BYTES if not row.unit else None)
    return None if scale is None else row.delta._replace(value=row.delta.value * scale)
