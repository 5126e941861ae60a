# SPDX-License-Identifier: Apache-2.0
"""Lay out samples as tables of text cells, for the code that draws them.

Pure. ``-`` is unknown. A cell's level says how serious its value is; a screen with colours
shows it, but nothing is conveyed by colour alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from nova_numa_pmc.core import rates
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from nova_numa_pmc.sample_records import GuestSample, NodeSample, Sample

_T = TypeVar('_T')

PLAIN, WARN, BAD = '', 'warn', 'bad'
UNKNOWN = '-'
#: Between columns.
GAP = '  '
#: Appended to the CPI of CPUs that were nearly idle.
UNRELIABLE = '?'
#: A guest that spent at least this share of its time on one node is shown as running there.
_MOSTLY = 0.95


class Cell(Record):
    """One value as it is shown."""

    text: str
    level: str = PLAIN


class Table(Record):
    """Headings and cells of one table.

    :param headings: (text, whether it is aligned to the left)
    :param rows: tuple of tuples of :class:`Cell`, as many as headings
    :param notes: lines below the table
    """

    title: str
    headings: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def number(value: float | None, digits: int = 2) -> str:
    """Return a number in this many decimals, or '-'."""
    return UNKNOWN if value is None else '%.*f' % (digits, value)


def percent(ratio: float | None) -> str:
    """Return a ratio as '12.3', or '-'."""
    return UNKNOWN if ratio is None else '%.1f' % (100 * ratio)


def short_number(value: float | None, base: int = 1000) -> str:
    """Return '950', '1.2k', '34M' … with three digits at most; base 1024 for memory."""
    if value is None:
        return UNKNOWN
    for suffix in ('', 'k', 'M', 'G', 'T'):
        if abs(value) < (999.5 if base == 1000 else 1000) or suffix == 'T':
            break
        value /= base
    digits = 0 if abs(value) >= 9.95 or (not suffix and value == int(value)) else 1
    return '%.*f%s' % (digits, value, suffix)


def printable(text: str) -> str:
    """Return text without characters that could control a terminal."""
    return ''.join(char if char.isprintable() else '?' for char in text)


def cpi(value: float | None, reliable: bool) -> str:
    """Return a CPI, marked if it is unreliable."""
    return number(value) + ('' if value is None or reliable else UNRELIABLE)


def _level(value: float | None, warn: float, bad: float) -> str:
    if value is None or value < warn:
        return PLAIN
    return BAD if value >= bad else WARN


def _utilisation_cell(ratio: float | None) -> Cell:
    return Cell(number(ratio), _level(ratio, 0.7, 1.0))


def _remote_cell(ratio: float | None) -> Cell:
    return Cell(percent(ratio), _level(ratio, 0.1, 0.5))


# A narrow terminal cuts lines off: what matters most comes first.
_NODES: tuple[tuple[str, Callable[[NodeSample], Cell]], ...] = (
    ('node', lambda n: Cell(str(n.id))),
    ('pressure', lambda n: _utilisation_cell(n.pressure)),
    ('cpu', lambda n: _utilisation_cell(n.cpu_ratio)),
    ('bw', lambda n: _utilisation_cell(n.bandwidth_ratio)),
    ('link', lambda n: _utilisation_cell(n.link_ratio)),
    ('cores', lambda n: Cell(pair_text(number(n.demand_cores, 1), number(n.capacity_cores, 1)))),
    ('wait', lambda n: Cell(number(n.waiting_cores), _level(n.waiting_cores, 0.1, 1.0))),
    ('dist', lambda n: Cell(number(n.distance_cores), _level(n.distance_cores, 0.1, 1.0))),
    ('rem%', lambda n: _remote_cell(n.remote_ratio)),
    ('CPI', lambda n: Cell(cpi(n.cpi, n.cpi_reliable))),
    (
        'GB/s',
        lambda n: Cell(
            pair_text(
                *(
                    number(v and v / 1e9, 1)
                    for v in (n.bandwidth_bytes_per_sec, n.bandwidth_max_bytes_per_sec)
                )
            )
        ),
    ),
    (
        'promised',
        lambda n: Cell(
            short_number(n.promised_bytes, 1024),
            _level(rates.ratio(n.promised_bytes, n.memory_bytes), 0.95, 1.0),
        ),
    ),
    (
        'free',
        lambda n: Cell(
            pair_text(*(short_number(v, 1024) for v in (n.free_bytes, n.memory_bytes)))
        ),
    ),
    ('local/s', lambda n: Cell(short_number(n.local_per_sec))),
    ('remote/s', lambda n: Cell(short_number(n.remote_per_sec))),
    ('iomiss%', lambda n: Cell(percent(n.io_miss_ratio))),
)

_GUESTS: tuple[tuple[str, Callable[[GuestSample], Cell]], ...] = (
    ('guest', lambda g: Cell(printable(g.name))),
    ('cores', lambda g: Cell(number(g.cores))),
    ('wait', lambda g: Cell(number(g.waiting_cores), _level(g.waiting_cores, 0.1, 1.0))),
    ('runs on', lambda g: Cell(runs_on(g))),
    ('memory', lambda g: Cell(memory_text(g))),
    ('rem%', lambda g: _remote_cell(g.remote_ratio)),
    (
        'MB/s',
        lambda g: Cell(number(g.bandwidth_bytes_per_sec and g.bandwidth_bytes_per_sec / 1e6, 0)),
    ),
    ('CPI', lambda g: Cell(cpi(g.cpi, g.cpi_reliable))),
    ('acc/kI', lambda g: Cell(number(g.intensity))),
    ('source', lambda g: Cell(source_text(g))),
    ('stall%', lambda g: Cell(percent(g.stalled_ratio))),
    ('rcache/s', lambda g: Cell(short_number(g.remote_cache_per_sec))),
    (
        'devices',
        lambda g: Cell(
            devices_text(g), WARN if any(device.local is False for device in g.devices) else PLAIN
        ),
    ),
)
_LEFT = ('guest', 'source', 'runs on', 'memory', 'devices')

#: Sort order → the value that guests are sorted by, the highest first.
SORTS: dict[str, Callable[[GuestSample], float | None] | None] = {
    'name': None,
    'cores': lambda g: g.cores,
    'wait': lambda g: g.waiting_cores,
    'remote': lambda g: g.remote_ratio,
    'accesses': lambda g: g.remote_per_sec,
    'bandwidth': lambda g: g.bandwidth_bytes_per_sec,
    'cpi': lambda g: g.cpi,
    'intensity': lambda g: g.intensity,
    'memory': lambda g: sum(size for _node, size in g.bytes_by_node) if g.bytes_by_node else None,
}

LEGEND = (
    'pressure: highest of cpu, bw, link (1 is saturated)   cores: wanted/available   wait, dist: '
    'cores lost to waiting and to distance',
    'rem%: remote share of DRAM accesses   CPI?: unreliable, CPUs less than 5 % busy   '
    'acc/kI: DRAM accesses per 1,000 instructions   -: unknown',
    'stall%: share of stalled cycles (see "events")   rcache: hits in remote caches',
)


def pair_text(first: str, second: str) -> str:
    """Return 'first/second', or '-' where both are unknown."""
    return UNKNOWN if first == second == UNKNOWN else '%s/%s' % (first, second)


def source_text(guest: GuestSample) -> str:
    """Return the source of a guest's accesses and their basis."""
    if not guest.source:
        return UNKNOWN
    text = '%s, %s' % (printable(guest.source), printable(guest.basis))
    if guest.counted_share is not None and guest.counted_share < 0.995:
        text += ' %.0f%%' % (100 * guest.counted_share)
    return text


def runs_on(guest: GuestSample) -> str:
    """Return '0', or '0:70% 1:30%' of a guest that ran on several nodes."""
    total = sum(cores for _node, cores in guest.cores_by_node)
    if total <= 0:
        return UNKNOWN
    shares = [(node, cores / total) for node, cores in guest.cores_by_node if cores > 0]
    busiest, share = max(shares, key=lambda pair: pair[1])
    if share >= _MOSTLY:
        return str(busiest)
    return ' '.join('%d:%.0f%%' % (node, 100 * share) for node, share in shares if share >= 0.005)


def memory_text(guest: GuestSample) -> str:
    """Return '0:3.0G 1:512M', the nodes that hold any of it."""
    return (
        ' '.join(
            '%d:%s' % (node, short_number(size, 1024))
            for node, size in guest.bytes_by_node
            if size
        )
        or UNKNOWN
    )


def devices_text(guest: GuestSample) -> str:
    """Return '0000:3b:00.1@1 remote', each device with its node."""
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
    """Return a sample's guests as a table; unknown values come last."""
    return _table('guests', _GUESTS, sort_guests(sample.guests, sort))


def sort_guests(all_guests: Iterable[GuestSample], sort: str) -> list[GuestSample]:
    """Return guests by name, or by one of :data:`SORTS`, the highest first."""
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


def of_texts(headings: str, rows: Iterable[Iterable[str]], left: Container[int] = ()) -> Table:
    """Return a table of plain texts.

    :param headings: the headings, separated by spaces
    :param left: positions of the columns that are aligned to the left
    """
    return Table(
        '',
        tuple((heading, column in left) for column, heading in enumerate(headings.split())),
        tuple(tuple(Cell(text) for text in row) for row in rows),
    )


def align(table: Table) -> list[list[Cell]]:
    """Return a table's lines, the headings first, each a list of padded cells."""
    lines: list[Sequence[Cell]] = [
        [Cell(heading) for heading, _left in table.headings],
        *table.rows,
    ]
    widths = [max(len(cell.text) for cell in column) for column in zip(*lines)]
    return [
        [
            cell._replace(text=cell.text.ljust(wide) if left else cell.text.rjust(wide))
            for cell, wide, (_heading, left) in zip(line, widths, table.headings)
        ]
        for line in lines
    ]


def text(table: Table, width: int | None = None) -> list[str]:
    """Return a table as lines of plain text, cut at ``width`` columns; None: not cut."""
    lines = [GAP.join(cell.text for cell in line).rstrip() for line in align(table)]
    return [
        line if width is None or len(line) <= width else line[: max(0, width - 1)] + '…'
        for line in (*lines, *table.notes)
    ]
