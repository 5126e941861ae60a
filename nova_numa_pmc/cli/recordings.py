# SPDX-License-Identifier: Apache-2.0
"""Read samples from a file: output of ``record``, ``top --json`` or ``perf stat -x, -I``.

perf's counts may be of the whole host, by CPU (``-A``) or by node (``--per-node``), and each of
these also by control group (``--for-each-cgroup``), on this host or another. The format is in "CSV
FORMAT" of perf-stat(1)::

    [time,][CPU3,|N0,4,]value,unit,event,[cgroup,]run time,share counted[,metric,its unit]

perf has already scaled the counts of multiplexed events.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, TypeVar

from nova_numa_pmc import json_values
from nova_numa_pmc.core import pressure, rates
from nova_numa_pmc.core.measurements import COUNTED, GuestSample, NodeSample, Sample
from nova_numa_pmc.core.rates import CounterDelta
from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.host.perf import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    #: {role: deltas of its events}
    _Counts = dict[str, list[CounterDelta | None]]

_T = TypeVar('_T', NodeSample, GuestSample)
#: 10,000 guests take 8 MB.
_LINE_MAX_BYTES = 32 << 20
SOURCE = 'perf stat'
_UNIT_BYTES = {
    '': pressure.LINE_BYTES,
    'B': 1,
    'Bytes': 1,
    'KiB': 1 << 10,
    'MiB': 1 << 20,
    'GiB': 1 << 30,
}
#: Names of events in perf that mean the same on every CPU, in addition to those of the CPU's own
#: events.
_NAMES = {
    'cycles': rates.CYCLES,
    'cpu-cycles': rates.CYCLES,
    'cpu_cycles': rates.CYCLES,
    'instructions': rates.INSTRUCTIONS,
    'inst_retired': rates.INSTRUCTIONS,
    'local_dram': rates.LOCAL_DRAM,
    'remote_dram': rates.REMOTE_DRAM,
    'remote_access': rates.REMOTE_DRAM,
    'cas_count_read': rates.MEM_READ,
    'cas_reads': rates.MEM_READ,
    'cas_count_write': rates.MEM_WRITE,
    'cas_writes': rates.MEM_WRITE,
}
#: perf's own names of retired loads (Intel) and of data cache fills (AMD), by where the data came
#: from (tools/perf/pmu-events/arch/x86). Those of demand fills are left out, because they are part
#: of all fills.
_BY_ORIGIN = re.compile(
    r'(?:mem_load(?:_uops)?_(?:llc|l3)_miss_retired|mem_load_retired|mem_uncore_retired'
    r'|ls_any_fills_from_sys|ls_refills_from_sys)\.(\w+)'
)
_ORIGINS = {
    'local_dram': rates.LOCAL_DRAM,
    'local_dram_and_remote_cache_hit': rates.LOCAL_DRAM,
    'mem_io_local': rates.LOCAL_DRAM,
    'dram_io_near': rates.LOCAL_DRAM,
    'ls_mabresp_lcl_dram': rates.LOCAL_DRAM,
    'remote_dram': rates.REMOTE_DRAM,
    'mem_io_remote': rates.REMOTE_DRAM,
    'dram_io_far': rates.REMOTE_DRAM,
    'ls_mabresp_rmt_dram': rates.REMOTE_DRAM,
    # CXL memory is a node of its own, so that it is remote to every CPU.
    'alternate_memories': rates.REMOTE_DRAM,
    'local_cxl_mem': rates.REMOTE_DRAM,
    'remote_cxl_mem': rates.REMOTE_DRAM,
}
#: A line of perf's output.
_ROW = re.compile(
    r'\s*(?:(?P<time>\d{1,12}\.\d+),)?'
    r'(?:(?P<kind>CPU|N|[A-Z])(?P<id>\d{1,6})(?P<parts>(?:-[A-Z]\d+)*),'
    r'(?:\d+,(?=[\d<.]+[^,]*,[A-Za-z/%]*,))?)?'
    r'(?P<value>\d{1,20}(?:\.\d+)?|<not counted>|<not supported>),'
    r'(?P<unit>[A-Za-z/%]*),'
    r'(?P<event>[^,/]+(?:/[^/]*/\w*)?),'
    r'(?:(?P<cgroup>[^,]*),)?'
    r'(?P<run>\d+),(?P<share>\d{1,3}\.\d+)(?:,.*)?'
)
#: A comment, or the second metric of an event, which is on a line of its own.
_NO_COUNT = re.compile(r'#.*|[^,]*,[^,]*,{3,}[^,]*,[^,]*')


def read(
    path: str, on_damage: Callable[[str], object], cpu: str | None = None
) -> Iterator[Sample]:
    """Yield the samples of a file, which may be a pipe.

    :param on_damage: function that is called with a line of text for each line that is no sample,
        such as the last one if it was written only in part
    :param cpu: CPU on which perf counted ('westmere-dp', 'GenuineIntel-6-2C-2'), which determines
        the meaning of raw events
    :raises RecordingError: the file contains no sample
    """
    with open(path, encoding='utf-8', errors='replace') as file:
        whole = filter(str.strip, iter(lambda: file.readline(_LINE_MAX_BYTES), ''))
        first = next(whole, '')
        lines = itertools.chain([first], whole)
        is_json = first.lstrip().startswith('{')
        sample = None
        for sample in (
            _from_json(path, lines, on_damage)
            if is_json
            else from_perf(path, lines, on_damage, cpu)
        ):
            yield sample
    if sample is None:
        raise RecordingError(
            '%s: contains no sample: nova-numa-rebalance record --out FILE and perf stat -x, -I '
            'write such files' % path
        )


def _from_json(
    path: str, lines: Iterable[str], on_damage: Callable[[str], object]
) -> Iterator[Sample]:
    for number, line in enumerate(lines, 1):
        try:
            yield json_values.from_json(Sample, json.loads(line))
        except (ValueError, RecursionError) as error:
            on_damage('%s: sample %d is left out: %.80s' % (path, number, error))


def from_perf(
    path: str, lines: Iterable[str], on_damage: Callable[[str], object], cpu: str | None = None
) -> Iterator[Sample]:
    """Yield a sample for each interval of perf's.

    :param path, on_damage, cpu: as for :func:`read`
    :raises RecordingError: the lines give no rates, or no event is one whose meaning is known
    """
    names, minus = meanings(cpu)
    roles: dict[str, str | None] = {}
    before_s = 0.0
    rows = _rows(path, lines, on_damage)
    for at_s, group in itertools.groupby(rows, lambda row: float(row['time'])):
        of_interval = list(group)
        roles.update({row['event']: role_of(row['event'], names) for row in of_interval})
        # If the time is smaller, another run of perf was appended to the file.
        elapsed_s = at_s - before_s if at_s > before_s else at_s
        before_s = at_s
        if elapsed_s > 0:
            yield _to_sample(at_s, elapsed_s, of_interval, roles, minus)
    if roles and not any(roles.values()):
        raise RecordingError(
            '%s: the meaning of these events is unknown: %s; count local_dram and remote_dram, or '
            "perf's own events of the CPU (nova-numa-rebalance check --events lists them), and "
            'name the CPU by --cpu if they are raw' % (path, ', '.join(list(roles)[:4]))
        )


def _rows(
    path: str, lines: Iterable[str], on_damage: Callable[[str], object]
) -> Iterator[re.Match[str]]:
    """Yield the lines with counts.

    :raises RecordingError: the counts are not of intervals, or of neither CPUs nor nodes
    """
    for number, line in enumerate(map(str.strip, lines), 1):
        row = _ROW.fullmatch(line)
        if row is None:
            if line and not _NO_COUNT.fullmatch(line):
                on_damage('%s: line %d is not from perf stat -x: %.80r' % (path, number, line))
            continue
        if row['time'] is None:
            raise RecordingError(
                '%s: line %d: perf stat wrote no times: run it with -I' % (path, number)
            )
        if row['kind'] not in ('CPU', 'N', None) or row['parts']:
            raise RecordingError(
                '%s: %s%s%s: only counts by node (--per-node), by CPU (-A) or of the whole host '
                'are supported' % (path, row['kind'], row['id'], row['parts'])
            )
        yield row


def meanings(cpu: str | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the meanings of the events of a CPU.

    :param cpu: as for :func:`events.select_events`; None: only what all CPUs have
    :returns: ({event name as perf writes it: role}, {role: role whose count is to be subtracted})
    """
    selected = events.select_events(cpu=cpu).events if cpu else ()
    names = dict(_NAMES)
    for event in selected:
        if event.config is not None:
            codes = 'r%x' % events.register_code(event), 'r%x' % event.config
            in_pmu = '%s/%s/' % (event.pmu, event.name)
            names.update(dict.fromkeys((*codes, event.name, in_pmu), event.role))
    return names, {event.role: event.minus for event in selected if event.minus is not None}


def role_of(name: str, names: Mapping[str, str]) -> str | None:
    """Return the role of an event; None if it has no role.

    Modifiers (``:GH``, ``/GH``) and the PMU of a named event are ignored.

    :param name: name of the event, as perf writes it
    :param names: names of the CPU, from :func:`meanings`
    """
    plain = re.sub(r'(?<=[^:]):[a-zA-Z]{1,8}$', '', name)
    plain = re.sub(r'/[a-zA-Z]+$', '/', plain)
    bare = plain.rstrip('/').rpartition('/')[2]
    by_origin = _BY_ORIGIN.fullmatch(bare)
    if by_origin:
        return _ORIGINS.get(by_origin[1])
    return names.get(plain) or names.get(bare)


def _to_sample(
    at_s: float,
    elapsed_s: float,
    rows: Iterable[re.Match[str]],
    roles: Mapping[str, str | None],
    minus: Mapping[str, str],
) -> Sample:
    """Return a sample from an interval of perf's counts.

    Counts without a control group, or of the root group '/', are those of nodes. Counts of the
    other groups are those of guests, which are named by the paths of their groups. Counts of the
    whole host or of a CPU are attributed to node 0, and this is reported.

    :param roles: {event: its role, None: unknown}
    """
    nodes: dict[int, _Counts] = {}
    guests: dict[str, _Counts] = {}
    problems: dict[str, None] = {}
    for row in rows:
        role, kind, group = roles[row['event']], row['kind'], (row['cgroup'] or '/')
        if row['value'] == '<not supported>':
            problems['perf stat: %s is not supported there' % row['event']] = None
        if role is None:
            problems['perf stat: the meaning of %s is unknown' % row['event']] = None
            continue
        if kind != 'N' and group == '/':
            problems[
                'perf stat: nodes are not distinguished: everything is attributed to node 0'
            ] = None
        counts = (
            nodes.setdefault(int(row['id']) if kind == 'N' else 0, {})
            if group == '/'
            else guests.setdefault(group, {})
        )
        counts.setdefault(role, []).append(_delta(row, role))
    return Sample(
        at_s,
        elapsed_s,
        SOURCE,
        tuple(_part(NodeSample(node), nodes[node], minus, elapsed_s) for node in sorted(nodes)),
        tuple(
            _part(GuestSample(path, path.rpartition('/')[2]), guests[path], minus, elapsed_s)
            for path in sorted(guests)
        ),
        tuple(problems),
    )


def _delta(row: re.Match[str], role: str) -> CounterDelta | None:
    """Return what a line counts, with amounts of data in bytes; None: not counted, or unknown."""
    share = min(1.0, float(row['share']) / 100)
    scale = _UNIT_BYTES.get(row['unit']) if role in rates.UNCORE_ROLES else 1
    if row['value'].startswith('<') or not share or scale is None:
        return None
    return CounterDelta(float(row['value']) * scale, share)


def _part(empty: _T, counts: _Counts, minus: Mapping[str, str], elapsed_s: float) -> _T:
    """Return the sample of a node or of a guest from its counts.

    :param empty: the sample without measurements
    :param minus: as :func:`meanings` returns it
    """
    totals = {role: rates.add(deltas) for role, deltas in counts.items()}
    for role in totals.keys() & minus.keys():
        totals[role] = rates.subtract(totals[role], totals.get(minus[role]))
    per_sec = {role: rates.per_sec(total, elapsed_s * 1e9) for role, total in totals.items()}
    local, remote = per_sec.get(rates.LOCAL_DRAM), per_sec.get(rates.REMOTE_DRAM)
    cycles = per_sec.get(rates.CYCLES)
    instructions = per_sec.get(rates.INSTRUCTIONS)
    read, written = per_sec.get(rates.MEM_READ), per_sec.get(rates.MEM_WRITE)
    is_known = None not in (local, remote)
    figures: dict[str, Any] = {
        'source': SOURCE if is_known else '',
        'basis': COUNTED if is_known else '',
        'local_per_sec': local,
        'remote_per_sec': remote,
        'remote_ratio': rates.remote_ratio(local, remote),
        'cpi': rates.ratio(cycles, instructions),
        'bandwidth_bytes_per_sec': None if read is None or written is None else read + written,
        'accesses_per_1000_instructions': rates.accesses_per_1000_instructions(
            local, remote, instructions
        ),
        'counted_ratio': min(
            (delta.share for deltas in counts.values() for delta in deltas if delta), default=None
        ),
        'stalled_ratio': rates.stalled_ratio(per_sec.get(rates.STALLED_CYCLES), cycles),
    }
    return empty._replace(
        **{name: value for name, value in figures.items() if name in empty._fields}
    )
