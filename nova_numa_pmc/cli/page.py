# SPDX-License-Identifier: Apache-2.0
"""Draw nodes with their guests as one self-contained HTML page: SVG, no script. Pure.

Names of guests come from users of the cloud; every text is escaped.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from nova_numa_pmc.cli.tables import NODES, UNKNOWN, short_number
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.cli.tables import Table
    from nova_numa_pmc.core.measurements import NodeSample

#: Colours of nodes, by position; those of more nodes repeat.
_COLOURS = ('#8ab4e0', '#f3b26b', '#93c98b', '#c9a3d8', '#e8d36a', '#7fc8c2', '#e98f8f', '#c2a58b')
_UNKNOWN_COLOUR = '#cfcfcf'
#: A pressure above this is shown as high, and above 1 as saturated.
_HIGH_PRESSURE = 0.7
_WIDTH, _BOX_HEIGHT_MAX, _BOX_HEIGHT_MIN, _BOX_WIDTH_MIN = 420, 110, 34, 16
#: The pressure at the right end of its bar.
_PRESSURE_MAX = 1.5
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px; color: #222; background: #fff }
h1 { font-size: 20px } h2 { font-size: 16px; margin-top: 28px }
.nodes { display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start }
svg text { font: 12px system-ui, sans-serif; fill: #222 } svg .head { font-weight: bold }
svg .small { font-size: 11px; fill: #555 }
table { border-collapse: collapse; margin: 12px 0 } td, th { padding: 2px 10px; text-align: right }
th { border-bottom: 1px solid #999; font-weight: 600 }
tr:nth-child(even) td { background: #f5f5f5 }
.left { text-align: left } .key { display: inline-block; width: 12px; height: 12px; margin: 0 5px }
"""


class GuestBox(Record):
    """A guest.

    :param nodes: ids of the nodes that it runs on; empty: any
    :param cores: its vCPUs, or the cores that it wants
    :param bytes_by_node: its memory; empty: unknown
    :param why: why it is there
    """

    name: str
    nodes: tuple[int, ...]
    cores: float
    memory_bytes: int
    bytes_by_node: Mapping[int, int]
    why: str


class Picture(Record):
    """A host at one time."""

    title: str
    nodes: Sequence[NodeSample]
    guests: Sequence[GuestBox]


def to_html(
    title: str, pictures: Sequence[Picture], tables: Iterable[Table], notes: Iterable[str] = ()
) -> str:
    """Return the page.

    :param tables: tables to show below the pictures
    :param notes: lines to show below the title
    """
    ids = sorted({node.id for picture in pictures for node in picture.nodes})
    colours = {node: _COLOURS[at % len(_COLOURS)] for at, node in enumerate(ids)}
    guests = [guest for picture in pictures for guest in picture.guests]
    cores_max = max((guest.cores for guest in guests), default=1.0) or 1.0
    bytes_max = max((guest.memory_bytes for guest in guests), default=1) or 1
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>%s</title>' % _text(title),
        '<style>%s</style>\n<h1>%s</h1>' % (_STYLE, _text(title)),
        *('<p>%s</p>' % _text(note) for note in notes),
        '<p>A guest is as wide as its CPUs and as high as its memory; its colours show where its '
        'memory is:%s<span class="key" style="background:%s"></span>unknown</p>'
        % (
            ''.join(
                '<span class="key" style="background:%s"></span>node %d' % (colours[node], node)
                for node in ids
            ),
            _UNKNOWN_COLOUR,
        ),
    ]
    for picture in pictures:
        parts += ['<h2>%s</h2>' % _text(picture.title), '<div class="nodes">']
        nodes: dict[tuple[int, ...], NodeSample] = {(n.id,): n for n in picture.nodes}
        panels: dict[tuple[int, ...], list[GuestBox]] = {where: [] for where in nodes}
        for guest in picture.guests:
            panels.setdefault(guest.nodes, []).append(guest)
        for where, boxes in panels.items():
            parts.append(_panel(where, nodes.get(where), boxes, colours, cores_max, bytes_max))
        parts.append('</div>')
    return '\n'.join([*parts, *map(_table, tables), '</html>', ''])


def _text(text: str) -> str:
    return escape(printable(text))


def _panel(
    where: tuple[int, ...],
    node: NodeSample | None,
    guests: Iterable[GuestBox],
    colours: Mapping[int, str],
    cores_max: float,
    bytes_max: int,
) -> str:
    """Return the picture of a node, or of the guests on several nodes."""
    title = name_nodes(where) if where else 'any node'
    shapes = ['<text x="10" y="20" class="head">%s</text>' % title]
    y = 32.0
    if node is not None:
        shapes += _pressure(node)
        y = 78.0
    for guest in sorted(guests, key=lambda guest: -guest.memory_bytes):
        height = max(_BOX_HEIGHT_MIN, _BOX_HEIGHT_MAX * guest.memory_bytes / bytes_max)
        width = max(_BOX_WIDTH_MIN, (_WIDTH - 20) * guest.cores / cores_max)
        shapes.append(_guest(guest, y, width, height, colours))
        y += height + 6
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" role="img">'
        '<rect x="0.5" y="0.5" width="%d" height="%.0f" rx="6" fill="#fafafa" stroke="#999"/>'
        '%s</svg>' % (_WIDTH, y + 6, _WIDTH - 1, y + 5, ''.join(shapes))
    )


def _pressure(node: NodeSample) -> list[str]:
    level = node.pressure or 0.0
    used = min(level, _PRESSURE_MAX) / _PRESSURE_MAX
    colour = '#c0392b' if level > 1 else '#d98e04' if level > _HIGH_PRESSURE else '#4c9a52'
    texts = {heading: text(node) for heading, text in NODES}
    parts = ', '.join('%s %s' % (name, texts[name]) for name in ('cpu', 'bw', 'link'))
    below = ', '.join('%s %s' % (name, texts[name]) for name in ('cores', 'rem%', 'free'))
    full = _WIDTH - 20
    return [
        '<text x="%d" y="20" text-anchor="end">pressure %s%s</text>'
        % (_WIDTH - 10, texts['pressure'], _text(' (%s)' % parts)),
        '<rect x="10" y="28" width="%d" height="10" fill="#e6e6e6"/>' % full,
        '<rect x="10" y="28" width="%.1f" height="10" fill="%s"/>' % (full * used, colour),
        '<path d="M%.1f 25v16" stroke="#222"/>' % (10 + full / _PRESSURE_MAX),  # saturated
        '<text x="10" y="58" class="small">%s</text>' % _text(below),
    ]


def _guest(
    guest: GuestBox, y: float, width: float, height: float, colours: Mapping[int, str]
) -> str:
    """Return a guest's box, divided by where its memory is."""
    total = sum(guest.bytes_by_node.values())
    shares = [
        (size / total, colours.get(node, _UNKNOWN_COLOUR), 'node %d' % node)
        for node, size in sorted(guest.bytes_by_node.items())
        if size
    ] or [(1.0, _UNKNOWN_COLOUR, 'unknown')]
    places = ', '.join('%.0f %% on %s' % (100 * share, place) for share, _, place in shares)
    size = '%.3g CPUs, %s' % (guest.cores, short_number(guest.memory_bytes, 1024))
    shapes, x = [], 10.0
    for share, colour, _ in shares:
        shapes.append(
            '<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>'
            % (x, y, width * share, height, colour)
        )
        x += width * share
    return (
        '<g><title>%s: %s; %s</title>%s<rect x="10" y="%.1f" width="%.1f" height="%.1f" '
        'fill="none" stroke="#555"/>%s</g>'
        % (
            _text(guest.name),
            _text('%s, memory %s' % (size, places if total else UNKNOWN)),
            _text(guest.why),
            ''.join(shapes),
            y,
            width,
            height,
            ''.join(
                '<text x="16" y="%.1f" class="%s">%s</text>' % (y + offset, kind, _text(text))
                for offset, kind, text in (
                    (14, '', '%s  %s' % (guest.name, size)),
                    (29, 'small', guest.why),
                )
            ),
        )
    )


def _table(table: Table) -> str:
    rows = [
        ''.join(
            '<%s%s>%s</%s>' % (tag, ' class="left"' if at in table.left else '', _text(text), tag)
            for at, text in enumerate(texts)
        )
        for tag, texts in (('th', table.headings), *(('td', row) for row in table.rows))
    ]
    return '<table>%s</table>' % '\n'.join('<tr>%s</tr>' % row for row in rows)


def write(path: str, html: str) -> None:
    """Write a page to a file; an existing one is replaced."""
    with open(path, 'w', encoding='utf-8', errors='replace') as file:
        file.write(html)
