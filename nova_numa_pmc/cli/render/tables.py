# SPDX-License-Identifier: Apache-2.0
"""Lay out samples as tables of text cells, for the code that draws them. Pure.

Unknown values are shown as ``-``. The level of a cell says how serious its value is; a screen with
colours shows it, but no information is conveyed by colour alone.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, TypeVar

from nova_numa_pmc.core import rates
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from nova_numa_pmc.sample_records import GuestSample, NodeSample, Sample

_T = TypeVar('_T')

PLAIN, WARN, BAD = '', 'warn', 'bad'
UNKNOWN = '-'
#: Text between two columns.
GAP = '  '
#: Mark after the CPI of CPUs that were nearly idle.
UNRELIABLE = '?'
#: A guest that spent at least this share of its time on one node is shown as running there.
_RUNS_ON_MIN_RATIO = 0.95


class Cell(Record):
    """A value as it is shown."""

    text: str
    level: str = PLAIN


class Table(Record):
    """Headings and cells of a table.

    :param headings: (text, whether the column is aligned to the left)
    :param rows: the cells of each row, as many as there are headings
    :param notes: lines to show below the table
    """

    title: str
    headings: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[Cell, ...], ...]
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


def cpi(value: float | None, reliable: bool) -> str:
    """Return a CPI with two decimals, marked if it is unreliable."""
    return number(value) + ('' if value is None or reliable else UNRELIABLE)


def _level(value: float | None, warn: float, bad: float) -> str:
    if value is None or value < warn:
        return PLAIN
    return BAD if value >= bad else WARN


def _utilisation_cell(ratio: float | None) -> Cell:
    return Cell(number(ratio), _level(ratio, 0.7, 1.0))


def _remote_cell(ratio: float | None) -> Cell:
    return Cell(percent(ratio), _level(ratio, 0.1, 0.5))


# The most important columns come first, because a narrow terminal cuts lines off.
_NODES: tuple[tuple[str, Callable[[NodeSample], Cell]], ...] = (
    ('node', lambda node: Cell(str(node.id))),
    ('pressure', lambda node: _utilisation_cell(node.pressure)),
    ('cpu', lambda node: _utilisation_cell(node.cpu_ratio)),
    ('bw', lambda node: _utilisation_cell(node.bandwidth_ratio)),
    ('link', lambda node: _utilisation_cell(node.link_ratio)),
    (
        'cores',
        lambda node: Cell(pair_text(number(node.demand_cores, 1), number(node.capacity_cores, 1))),
    ),
    ('wait', lambda node: Cell(number(node.waiting_cores), _level(node.waiting_cores, 0.1, 1.0))),
    (
        'dist',
        lambda node: Cell(number(node.distance_cores), _level(node.distance_cores, 0.1, 1.0)),
    ),
    ('rem%', lambda node: _remote_cell(node.remote_ratio)),
    ('CPI', lambda node: Cell(cpi(node.cpi, node.cpi_reliable))),
    (
        'GB/s',
        lambda node: Cell(
            pair_text(
                *(
                    number(rate and rate / 1e9, 1)
                    for rate in (node.bandwidth_bytes_per_sec, node.bandwidth_max_bytes_per_sec)
                )
            )
        ),
    ),
    (
        'promised',
        lambda node: Cell(
            short_number(node.promised_bytes, 1024),
            _level(rates.ratio(node.promised_bytes, node.memory_bytes), 0.95, 1.0),
        ),
    ),
    (
        'free',
        lambda node: Cell(
            pair_text(*(short_number(size, 1024) for size in (node.free_bytes, node.memory_bytes)))
        ),
    ),
    ('local/s', lambda node: Cell(short_number(node.local_per_sec))),
    ('remote/s', lambda node: Cell(short_number(node.remote_per_sec))),
    ('iomiss%', lambda node: Cell(percent(node.io_miss_ratio))),
)

_GUESTS: tuple[tuple[str, Callable[[GuestSample], Cell]], ...] = (
    ('guest', lambda guest: Cell(printable(guest.name))),
    ('cores', lambda guest: Cell(number(guest.cores))),
    (
        'wait',
        lambda guest: Cell(number(guest.waiting_cores), _level(guest.waiting_cores, 0.1, 1.0)),
    ),
    ('runs on', lambda guest: Cell(runs_on(guest))),
    ('memory', lambda guest: Cell(memory_text(guest.bytes_by_node) or UNKNOWN)),
    ('rem%', lambda guest: _remote_cell(guest.remote_ratio)),
    (
        'MB/s',
        lambda guest: Cell(
            number(guest.bandwidth_bytes_per_sec and guest.bandwidth_bytes_per_sec / 1e6, 0)
        ),
    ),
    ('CPI', lambda guest: Cell(cpi(guest.cpi, guest.cpi_reliable))),
    ('acc/kI', lambda guest: Cell(number(guest.accesses_per_1000_instructions))),
    ('source', lambda guest: Cell(source_text(guest))),
    ('stall%', lambda guest: Cell(percent(guest.stalled_ratio))),
    ('rcache/s', lambda guest: Cell(short_number(guest.remote_cache_per_sec))),
    (
        'devices',
        lambda guest: Cell(
            devices_text(guest),
            WARN if any(device.local is False for device in guest.devices) else PLAIN,
        ),
    ),
)
#: Headings of the columns that are aligned to the left.
_LEFT = ('guest', 'source', 'runs on', 'memory', 'devices')

#: {sort order: the value by which guests are sorted, the highest first; None: by name}
SORTS: dict[str, Callable[[GuestSample], float | None] | None] = {
    'name': None,
    'cores': lambda guest: guest.cores,
    'wait': lambda guest: guest.waiting_cores,
    'remote': lambda guest: guest.remote_ratio,
    'accesses': lambda guest: guest.remote_per_sec,
    'bandwidth': lambda guest: guest.bandwidth_bytes_per_sec,
    'cpi': lambda guest: guest.cpi,
    'intensity': lambda guest: guest.accesses_per_1000_instructions,
    'memory': lambda guest: (
        sum(size for _node, size in guest.bytes_by_node) if guest.bytes_by_node else None
    ),
}

LEGEND = (
    'pressure: highest of cpu, bw, link (1 is saturated)   cores: wanted/available   wait, dist: '
    'cores lost to waiting and to distance',
    'rem%: remote share of DRAM accesses   CPI?: unreliable, CPUs less than 5 % busy   '
    'acc/kI: DRAM accesses per 1,000 instructions   -: unknown',
    'stall%: share of stalled cycles (see "events")   rcache: hits in remote caches',
)


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


def devices_text(guest: GuestSample) -> str:
    """Return a guest's devices and their nodes, such as '0000:3b:00.1@1 remote'."""
    return (
        ', '.join(
            '%s@%s%s'
            % (
                printable(device.address),
                UNKNOWN if device.node is None else device.node,
                {True: ' local', False: ' remote', None: ''}[device.local],
            )
            for device in guest.devices
        )
        or UNKNOWN
    )


def node_table(sample: Sample) -> Table:
    """Return a sample's nodes as a table."""
    return _table('nodes', _NODES, sample.nodes)


def guest_table(sample: Sample, sort: str = 'name') -> Table:
    """Return a sample's guests as a table.

    :param sort: one of :data:`SORTS`
    """
    return _table('guests', _GUESTS, sort_guests(sample.guests, sort))


def sort_guests(all_guests: Iterable[GuestSample], sort: str) -> list[GuestSample]:
    """Return guests by name, or by descending values; those with an unknown value come last.

    :param sort: one of :data:`SORTS`
    """
    by_name = sorted(all_guests, key=lambda guest: guest.name)
    value = SORTS[sort]
    if value is None:
        return by_name
    return sorted(by_name, key=lambda guest: (value(guest) is None, -(value(guest) or 0)))


def _table(
    title: str, columns: Sequence[tuple[str, Callable[[_T], Cell]]], records: Iterable[_T]
) -> Table:
    rows = tuple(tuple(cell(record) for _heading, cell in columns) for record in records)
    return Table(title, tuple((heading, heading in _LEFT) for heading, _cell in columns), rows)


def text_table(
    headings: str | Sequence[str],
    rows: Iterable[Iterable[str]],
    left: Container[int] = (),
    title: str = '',
    notes: tuple[str, ...] = (),
) -> Table:
    """Return a table of plain texts.

    :param headings: the headings: a sequence, or a str in which spaces separate them
    :param rows: the texts of each row
    :param left: positions of the columns that are aligned to the left
    :param title, notes: as in :class:`Table`
    """
    if isinstance(headings, str):
        headings = headings.split()
    return Table(
        title,
        tuple((heading, column in left) for column, heading in enumerate(headings)),
        tuple(tuple(Cell(text) for text in row) for row in rows),
        notes,
    )


def align(table: Table) -> list[list[Cell]]:
    """Return the rows of a table, the headings first, with the cells padded to equal widths."""
    lines: list[Sequence[Cell]] = [
        [Cell(heading) for heading, _left in table.headings],
        *table.rows,
    ]
    widths = [max(len(cell.text) for cell in column) for column in zip(*lines)]
    return [
        [
            cell._replace(text=cell.text.ljust(width) if left else cell.text.rjust(width))
            for cell, width, (_heading, left) in zip(line, widths, table.headings)
        ]
        for line in lines
    ]


def to_lines(table: Table, width: int | None = None) -> list[str]:
    """Return a table as lines of plain text, cut off at ``width`` characters unless it is None."""
    lines = [GAP.join(cell.text for cell in line).rstrip() for line in align(table)]
    return [
        line if width is None or len(line) <= width else line[: max(0, width - 1)] + '…'
        for line in (*lines, *table.notes)
    ]
