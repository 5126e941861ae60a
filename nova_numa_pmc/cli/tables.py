# SPDX-License-Identifier: Apache-2.0
"""Lay out samples as lines of text. Unknown values are shown as ``-``."""

from __future__ import annotations

import datetime
import json
import sys
from typing import TYPE_CHECKING, TypeVar

from nova_numa_pmc.core import rates
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
    from typing import Any

    from nova_numa_pmc.core.finding import Finding
    from nova_numa_pmc.core.measurements import GuestSample, NodeSample, Sample

_T = TypeVar('_T')

UNKNOWN = '-'
#: The version of the form of all answers in JSON: it grows when a member changes or goes.
SCHEMA = 1
#: A guest that spent at least this share of its time on one node is shown as running there.
_RUNS_ON_MIN_RATIO = 0.95
#: Headings of the columns that are aligned to the left.
_LEFT = ('guest', 'source', 'runs on', 'memory', 'CPUs on', 'why')


class Table(Record):
    """Headings and texts of a table.

    :param rows: the texts of each row, as many as there are headings
    :param left: positions of the columns that are aligned to the left
    :param notes: lines to show below the table
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Container[int] = ()
    notes: tuple[str, ...] = ()


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with this many decimals, or '-' for None."""
    return UNKNOWN if value is None else '%.*f' % (digits, value)


def percent(ratio: float | None) -> str:
    """Return a ratio as a percentage such as '12.3', or '-' for None."""
    return UNKNOWN if ratio is None else '%.1f' % (100 * ratio)


def clock_time(taken_s: float) -> str:
    """Return a time as local time, such as '2026-03-01 14:03:59', or '-' if it is out of range.

    :param taken_s: the time [s since the epoch]
    """
    try:
        return datetime.datetime.fromtimestamp(taken_s).strftime('%Y-%m-%d %H:%M:%S')
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def short_number(value: float | None, base: int = 1000) -> str:
    """Return a number with a unit prefix, such as '950', '1.2k' or '34M'; '-' for None.

    :param base: 1000, or 1024 for memory
    """
    if value is None:
        return UNKNOWN
    for suffix in ('', 'k', 'M', 'G', 'T'):
        if abs(value) < (999.5 if base == 1000 else 1000) or suffix == 'T':
            break
        value /= base
    digits = 0 if abs(value) >= 9.95 or (not suffix and value == int(value)) else 1
    return '%.*f%s' % (digits, value, suffix)


def pair_text(first: str, second: str) -> str:
    """Return 'first/second', or '-' if both are unknown."""
    return UNKNOWN if first == second == UNKNOWN else '%s/%s' % (first, second)


def source_text(guest: GuestSample) -> str:
    """Return the source and the basis of a guest's accesses, with the share that was counted."""
    if not guest.source:
        return UNKNOWN
    text = '%s, %s' % (printable(guest.source), printable(guest.basis))
    if guest.counted_ratio is not None and guest.counted_ratio < 0.995:
        text += ' %.0f%%' % (100 * guest.counted_ratio)
    return text


def runs_on(guest: GuestSample) -> str:
    """Return the node that a guest ran on, such as '0', or the shares of several nodes.

    :returns: '0', '0:70% 1:30%', or '-' if the guest did not run or its nodes are unknown
    """
    shares = rates.shares(guest.cores_by_node).items()
    if not shares:
        return UNKNOWN
    busiest, share = max(shares, key=lambda pair: pair[1])
    if share >= _RUNS_ON_MIN_RATIO:
        return str(busiest)
    return ' '.join('%d:%.0f%%' % (node, 100 * share) for node, share in shares if share >= 0.005)


def memory_text(bytes_by_node: Iterable[tuple[int, int]]) -> str:
    """Return the nodes that hold memory and how much, such as '0:3.0G 1:512M'; '' if none does."""
    return ' '.join(
        '%d:%s' % (node, short_number(size, 1024)) for node, size in bytes_by_node if size
    )


def memory_line(node_id: int, size_bytes: int | None) -> str:
    """Return the line of text about a node whose memory is not for guests."""
    return 'node %d: its memory (%s) is not for guests: it has no CPUs' % (
        node_id,
        short_number(size_bytes, 1024),
    )


# The most important columns come first, because a narrow terminal cuts lines off.
NODES: tuple[tuple[str, Callable[[NodeSample], str]], ...] = (
    ('node', lambda node: str(node.id)),
    ('pressure', lambda node: number(node.pressure)),
    ('cpu', lambda node: number(node.cpu_ratio)),
    ('bw', lambda node: number(node.bandwidth_ratio)),
    ('link', lambda node: number(node.link_ratio)),
    (
        'cores',
        lambda node: pair_text(number(node.demand_cores, 1), number(node.capacity_cores, 1)),
    ),
    ('wait', lambda node: number(node.waiting_cores)),
    ('rem%', lambda node: percent(node.remote_ratio)),
    ('CPI', lambda node: number(node.cpi)),
    (
        'GB/s',
        lambda node: pair_text(
            *(
                number(rate and rate / 1e9, 1)
                for rate in (node.bandwidth_bytes_per_sec, node.bandwidth_max_bytes_per_sec)
            )
        ),
    ),
    (
        'free',
        lambda node: pair_text(
            *(short_number(size, 1024) for size in (node.free_bytes, node.memory_bytes))
        ),
    ),
    ('local/s', lambda node: short_number(node.local_per_sec)),
    ('remote/s', lambda node: short_number(node.remote_per_sec)),
    ('iomiss%', lambda node: percent(node.io_miss_ratio)),
)

_GUESTS: tuple[tuple[str, Callable[[GuestSample], str]], ...] = (
    ('guest', lambda guest: printable(guest.name)),
    ('cores', lambda guest: number(guest.cores)),
    ('wait', lambda guest: number(guest.waiting_cores)),
    ('runs on', runs_on),
    ('memory', lambda guest: memory_text(guest.bytes_by_node) or UNKNOWN),
    ('rem%', lambda guest: percent(guest.remote_ratio)),
    (
        'MB/s',
        lambda guest: number(
            guest.bandwidth_bytes_per_sec and guest.bandwidth_bytes_per_sec / 1e6, 0
        ),
    ),
    ('CPI', lambda guest: number(guest.cpi)),
    ('acc/kI', lambda guest: number(guest.accesses_per_1000_instructions)),
    ('source', source_text),
    ('stall%', lambda guest: percent(guest.stalled_ratio)),
)

#: {sort order: the value by which guests are sorted, the highest first; None: by name}
SORTS: dict[str, Callable[[GuestSample], float | None] | None] = {
    'wait': lambda guest: guest.waiting_cores,
    'cores': lambda guest: guest.cores,
    'remote': lambda guest: guest.remote_ratio,
    'accesses': lambda guest: guest.remote_per_sec,
    'bandwidth': lambda guest: guest.bandwidth_bytes_per_sec,
    'cpi': lambda guest: guest.cpi,
    'intensity': lambda guest: guest.accesses_per_1000_instructions,
    'memory': lambda guest: (
        sum(size for _node, size in guest.bytes_by_node) if guest.bytes_by_node else None
    ),
    'name': None,
}

LEGEND = (
    'pressure: highest of cpu, bw, link (1 is saturated)   cores: wanted/available   '
    'wait: cores lost to waiting',
    'rem%: remote share of DRAM accesses   CPI: where CPUs are 5 % busy or more   '
    'acc/kI: DRAM accesses per 1,000 instructions   -: unknown',
    'stall%: share of stalled cycles (see "check --events")',
)


def node_table(sample: Sample) -> Table:
    """Return a sample's nodes as a table."""
    return columns_table(NODES, sample.nodes)


def guest_table(sample: Sample, sort: str = 'wait') -> Table:
    """Return a sample's guests as a table, by name or by descending values, unknown ones last.

    Guests of equal values are sorted by their remote accesses.

    :param sort: one of :data:`SORTS`
    """
    guests, value = sorted(sample.guests, key=lambda guest: guest.name), SORTS[sort]
    if value is not None:
        guests.sort(key=lambda guest: -(guest.remote_per_sec or 0))
        guests.sort(key=lambda guest: (value(guest) is None, -(value(guest) or 0)))
    return columns_table(_GUESTS, guests)


def columns_table(
    columns: Sequence[tuple[str, Callable[[_T], str]]],
    records: Iterable[_T],
    notes: tuple[str, ...] = (),
) -> Table:
    """Return a table with a row for each record.

    :param columns: (heading, the text that it has for a record) of each column
    """
    headings = [heading for heading, _ in columns]
    return Table(
        headings,
        [[text(record) for _, text in columns] for record in records],
        [at for at, heading in enumerate(headings) if heading in _LEFT],
        notes,
    )


def to_lines(table: Table) -> list[str]:
    """Return a table as lines of plain text."""
    lines = [table.headings, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [
        '  '.join(
            text.ljust(width) if at in table.left else text.rjust(width)
            for at, (text, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ] + [*table.notes]


def problem_lines(problems: Iterable[str]) -> list[str]:
    """Return a line of text for each problem."""
    return ['problem: ' + printable(problem) for problem in problems]


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Return the findings of checks as lines of text, each with its remedy."""
    lines = []
    for finding in findings:
        lines.append('%s: %s [%s]' % (finding.severity, finding.message, finding.code))
        lines.append('  remedy: ' + finding.remedy)
        if finding.file and finding.file not in finding.message:
            lines.append('  file: ' + finding.file)
    return [printable(line) for line in lines]


def json_line(data: Mapping[str, Any]) -> str:
    """Return an answer as a line of JSON, with the version of its form."""
    return json.dumps({'schema': SCHEMA, **data})


def show(
    as_json: bool, data: Mapping[str, Any], lines: Iterable[str], problems: Iterable[str] = ()
) -> None:
    """Print an answer: as JSON on one line, or as lines of text with its problems on stderr."""
    if as_json:
        print(json_line(data), flush=True)
        return
    print('\n'.join(lines), flush=True)
    for line in problem_lines(problems):
        print(line, file=sys.stderr)


def select_guests(sample: Sample, names: Collection[str] | None) -> Sample:
    """Return a sample with only the guests in ``names``.

    :param names: names or uuids; None or empty: all guests
    """
    if not names:
        return sample
    chosen = (guest for guest in sample.guests if guest.name in names or guest.uuid in names)
    return sample._replace(guests=tuple(chosen))
