# SPDX-License-Identifier: Apache-2.0
"""Show the means of a recording per node and guest, or compare it with a second one.

A recording is the output of `record`, of "top --json", or of "perf stat -x, -I 5000"
with --per-node and --for-each-cgroup if possible.

examples:
  nova-numa-rebalance report /var/tmp/before
  nova-numa-rebalance report /var/tmp/before /var/tmp/after
  nova-numa-rebalance report before after --html /tmp/report.html
  nova-numa-rebalance report before after --guest instance-0000002a --json
  nova-numa-rebalance report unpinned.csv pinned.csv --cpu westmere-dp

exit codes: 0 done; 1 a problem, such as a file without samples; 64 usage error
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc import recordings
from nova_numa_pmc.cli import arguments, comparison, exits, live, output
from nova_numa_pmc.cli.render import page, tables
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.json_values import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from nova_numa_pmc.sample_records import Sample

#: {metric: (its label, factor, format)}
_LABELS = {
    'ipc': ('instructions per cycle', 1, '%.2f'),
    'local_per_sec': ('local accesses/s', 1, '{:,.0f}'),
    'remote_per_sec': ('remote accesses/s', 1, '{:,.0f}'),
    'remote_ratio': ('remote share [%]', 100, '%.2f'),
    'bandwidth_bytes_per_sec': ('memory traffic [GB/s]', 1e-9, '%.2f'),
    'cores': ('cores', 1, '%.2f'),
    'waiting_cores': ('waiting [cores]', 1, '%.2f'),
    'distance_cores': ('distance [cores]', 1, '%.2f'),
    'pressure': ('pressure', 1, '%.2f'),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument('before', metavar='A', help='a recording')
    parser.add_argument('after', metavar='B', nargs='?', help='a recording to compare it with')
    parser.add_argument(
        '--guest', action='append', metavar='NAME|UUID', help='only this guest (may be repeated)'
    )
    parser.add_argument(
        '--cpu',
        metavar='MODEL',
        help='CPU on which perf counted, which determines the meaning of raw events (see '
        '"events --help")',
    )
    arguments.add_html(parser)
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report; return the exit code."""
    recorded = [_read(path, args) for path in (args.before, args.after) if path]
    compared = comparison.compare(*recorded)
    if args.html:
        output.write_page(args.html, _to_html(recorded, compared))
    if args.json:
        print(json.dumps(_to_data(recorded, compared), indent=2))
        return exits.OK
    print('\n'.join(_to_lines(recorded, compared)))
    return exits.OK


def _read(path: str, args: argparse.Namespace) -> comparison.Recorded:
    def selected() -> Iterator[Sample]:
        damaged: list[str] = []
        for sample in recordings.read(path, damaged.append, args.cpu):
            yield live.select_guests(sample, args.guest)
        if damaged:
            print(
                'report: %s%s'
                % (damaged[0], ' (and %d more)' % (len(damaged) - 1) if damaged[1:] else ''),
                file=sys.stderr,
            )

    recorded = comparison.gather(selected())
    if args.guest and not any(kind == 'guest' for kind, _ in recorded.means):
        raise NumaPmcError('%s: no guest %s was recorded' % (path, ', '.join(args.guest)))
    return recorded


def _to_data(
    recorded: Sequence[comparison.Recorded], compared: dict[comparison.Key, comparison.Compared]
) -> dict[str, object]:
    sides = ('before', 'after')[: len(recorded)]
    return {
        **{
            side: {
                'samples': one.samples,
                'seconds': one.seconds,
                'sources': one.sources,
                'problems': one.problems,
            }
            for side, one in zip(sides, recorded)
        },
        'means': [
            {
                'kind': kind,
                'id': key or None,
                'name': one.name,
                'metrics': {
                    metric: dict(zip(sides, pair)) for metric, pair in one.metrics.items()
                },
            }
            for (kind, key), one in compared.items()
        ],
    }


def _to_lines(
    recorded: Sequence[comparison.Recorded], compared: dict[comparison.Key, comparison.Compared]
) -> Iterator[str]:
    for side, one in zip(_sides(recorded), recorded):
        yield '%s: %d samples of %.4g s, source: %s' % (
            side,
            one.samples,
            one.seconds,
            ', '.join(printable(source) or 'none' for source in one.sources),
        )
    problems = [problem for one in recorded for problem in one.problems]
    yield from output.problem_lines(dict.fromkeys(problems))
    if len({source for one in recorded for source in one.sources}) > 1:
        yield 'The sources differ: accesses from different sources cannot be compared.'
    for table in _tables(recorded, compared):
        yield ''
        yield from tables.to_lines(table)


def _tables(
    recorded: Sequence[comparison.Recorded], compared: dict[comparison.Key, comparison.Compared]
) -> Iterator[tables.Table]:
    for kind in ('host', 'node', 'guest'):
        of_kind = [part for (its_kind, _), part in compared.items() if its_kind == kind]
        if kind == 'node' and len(of_kind) == 1:
            continue  # it is the host
        if recorded[1:] and kind != 'guest':
            yield from map(_comparison_table, of_kind)
        elif of_kind:
            yield _table(kind, of_kind, len(recorded))


def _sides(recorded: Sequence[comparison.Recorded]) -> tuple[str, ...]:
    return ('before', 'after') if recorded[1:] else ('recorded',)


def _to_html(
    recorded: Sequence[comparison.Recorded], compared: dict[comparison.Key, comparison.Compared]
) -> str:
    """Return a page with the last sample of each recording as a picture, and the tables."""
    pictures = [
        _picture('%s, at its end' % side.capitalize(), one.last)
        for side, one in zip(_sides(recorded), recorded)
    ]
    notes = itertools.takewhile(bool, _to_lines(recorded, compared))
    return page.to_html('Recorded', pictures, _tables(recorded, compared), notes)


def _picture(title: str, sample: Sample) -> page.Picture:
    nodes = [
        page.NodeBox(
            node.id,
            node.pressure,
            {'cpu': node.cpu_ratio, 'bandwidth': node.bandwidth_ratio, 'link': node.link_ratio},
            'cores %s/%s, remote %s %%'
            % (
                tables.number(node.demand_cores, 1),
                tables.number(node.capacity_cores, 1),
                tables.percent(node.remote_ratio),
            ),
        )
        for node in sample.nodes
    ]
    guests = [
        page.GuestBox(
            guest.name,
            # The nodes on which it ran for a twentieth of its time.
            tuple(n for n, cores in guest.cores_by_node if cores > 0.05 * (guest.cores or 0)),
            guest.demand_cores or 0.0,
            sum(size for _, size in guest.bytes_by_node),
            dict(guest.bytes_by_node),
            'remote %s %%, waiting %s cores'
            % (tables.percent(guest.remote_ratio), tables.number(guest.waiting_cores)),
        )
        for guest in sample.guests
    ]
    return page.Picture(title, nodes, guests)


def _comparison_table(compared: comparison.Compared) -> tables.Table:
    rows = [
        (_LABELS[metric][0], _amount(metric, a), _amount(metric, b), _change(a, b), ratio(a, b))
        for metric, (a, b) in compared.metrics.items()
    ]
    return tables.text_table((compared.name, 'before', 'after', 'change', 'ratio'), rows, (0,))


def _table(kind: str, compared: Sequence[comparison.Compared], count: int) -> tables.Table:
    """Return a table with a row for each node or guest, and a column for each known metric."""
    metrics = [m for m in comparison.METRICS if any(m in one.metrics for one in compared)]
    rows = []
    for one in compared:
        cells = [printable(one.name)]
        for metric in metrics:
            a, b = one.metrics.get(metric, (None, None))
            cell = _amount(metric, a)
            if count > 1:
                cell += ' → %s (%s)' % (_amount(metric, b), ratio(a, b))
            cells.append(cell)
        rows.append(tuple(cells))
    return tables.text_table((kind, *(_LABELS[m][0] for m in metrics)), rows, (0,))


def ratio(before: float | None, after: float | None) -> str:
    """Return the ratio of before to after as '56 : 1' or '1 : 1.12'; '-' if unknown or 0."""
    if not before or not after:
        return tables.UNKNOWN
    if before >= after:
        return '%.3g : 1' % (before / after)
    return '1 : %.3g' % (after / before)


def _amount(metric: str, value: float | None) -> str:
    if value is None:
        return tables.UNKNOWN
    _, factor, layout = _LABELS[metric]
    return layout.format(value) if '{' in layout else layout % (value * factor)


def _change(before: float | None, after: float | None) -> str:
    if not before or after is None:
        return tables.UNKNOWN
    return '%+.1f %%' % (100 * (after / before - 1))
