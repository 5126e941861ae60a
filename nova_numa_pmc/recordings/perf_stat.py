# SPDX-License-Identifier: Apache-2.0
"""Parse the output of ``perf stat -x, -I``, of this host or another.

All, by CPU (``-A``), by node (``--per-node``), and each of them by control group
(``--for-each-cgroup``). Lines as in "CSV FORMAT" of perf-stat(1)::

    [time,][CPU3,|N0,4,]value,unit,event,[cgroup,]run time,share counted[,metric,its unit]

perf has scaled the values of events that took turns already.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nova_numa_pmc.core import counter_roles
from nova_numa_pmc.core.rates import Delta
from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.host.perf import events
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

HOST_SCOPE, CPU_SCOPE, NODE_SCOPE = 'host', 'cpu', 'node'
_NOT_COUNTED, _NOT_SUPPORTED = '<not counted>', '<not supported>'
_LINE_MAX = 4096
_UNIT_BYTES = {'B': 1, 'Bytes': 1, 'KiB': 1 << 10, 'MiB': 1 << 20, 'GiB': 1 << 30}
#: What perf calls events, in addition to the names of this CPU's own.
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
    """One line.

    :param scope: :data:`HOST_SCOPE`, :data:`CPU_SCOPE` or :data:`NODE_SCOPE`
    :param id: the CPU's or node's
    :param cgroup: '' none
    :param delta: what was counted, None: not counted
    """

    scope: str
    id: int | None
    cgroup: str
    event: str
    unit: str
    delta: Delta | None
    supported: bool = True


class Interval(Record):
    """Counts of an interval that ended ``at_s`` seconds after perf began."""

    at_s: float
    elapsed_s: float
    rows: tuple[PerfStatLine, ...]


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
    lines: Iterable[str], damaged: Callable[[int, str], object] | None = None
) -> Iterator[Interval]:
    """Yield the interval of each time in the lines of a file.

    :param damaged: called with the number and text of a line that perf did not write
    :raises RecordingError: lines without a time, so that no rate follows (perf's ``-I``)
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
            if damaged and not _is_metric(line):
                damaged(number, line[:80])
            continue
        if match['time'] is None:
            raise RecordingError('line %d: perf stat wrote no times: run it with -I' % number)
        at_s = float(match['time'])
        if at_s != now_s:
            if rows and now_s > before_s:
                yield Interval(now_s, now_s - before_s, tuple(rows))
            # A smaller time is another run's, appended to the file.
            before_s = now_s if now_s < at_s else 0.0
            now_s, rows = at_s, []
        rows.append(_row(match))
    if rows and now_s > before_s:
        yield Interval(now_s, now_s - before_s, tuple(rows))


def _is_metric(line: str) -> bool:
    """Return whether a line has a metric alone, as perf writes below an event with two."""
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
        delta = Delta(float(value), share)
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
    """Return {event name as perf writes it: role} of a CPU.

    :param cpu: as :func:`events.select`, None: only what is named alike everywhere
    """
    names = dict(_NAMES)
    for event in events.select(cpu=cpu).events if cpu else ():
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


def role_of(name: str, names: Mapping[str, str]) -> str | None:
    """Return the role of an event as perf writes it, None: it has none here.

    A modifier (``:GH``, ``/GH``) and the PMU of a named event are looked through.
    """
    plain = re.sub(r'(?<=[^:]):[a-zA-Z]{1,8}$', '', name)
    plain = re.sub(r'/[a-zA-Z]+$', '/', plain)
    for candidate in (plain, plain.rstrip('/').rpartition('/')[2]):
        if candidate in names:
            return names[candidate]
    return None


def amount(row: PerfStatLine, role: str) -> Delta | None:
    """Return a row's delta with data in bytes; None: unknown."""
    if row.delta is None or role not in counter_roles.UNCORE_ROLES:
        return row.delta
    scale = _UNIT_BYTES.get(row.unit, 64 if not row.unit else None)
    return None if scale is None else row.delta._replace(value=row.delta.value * scale)
