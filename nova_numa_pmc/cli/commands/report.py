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
import math
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, page, recordings, tables
from nova_numa_pmc.core import rates
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Optional, Union

    from nova_numa_pmc.core.sample_records import GuestSample, NodeSample, Sample

    _Part = Union[GuestSample, NodeSample]
    #: ('host', ''), ('node', its id) or ('guest', its uuid)
    Key = tuple[str, Union[int, str]]
    #: {metric: (sum of its values times their weights, sum of the weights)}
    _Totals = dict[str, tuple[float, float]]
    #: (name of the host, node or guest, {metric: (mean before, mean after)} where one is known)
    Compared = tuple[str, dict[str, tuple[Optional[float], Optional[float]]]]

#: {metric: (its label, factor, format)}, in their order
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
#: Metrics of a host that are the sum over its nodes.
_SUMMED = tuple(name for name in _LABELS if name not in ('ipc', 'remote_ratio', 'pressure'))
#: A guest is drawn at the nodes on which it ran for at least this share of its time.
_RAN_ON_MIN_RATIO = 0.05


class Recorded(Record):
    """What a recording adds up to.

    :param totals: {the host, a node or a guest: (its name, its totals)}
    :param sources: sources of the host's samples
    :param last: the last sample
    """

    totals: dict[Key, tuple[str, _Totals]]
    sources: tuple[str, ...]
    problems: tuple[str, ...]
    samples: int
    seconds: float
    last: Sample


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
    compared = compare(*recorded)
    if args.html:
        page.write(args.html, _to_html(recorded, compared))
    if args.json:
        print(json.dumps(_to_data(recorded, compared), indent=2))
        return arguments.OK
    print('\n'.join(_to_lines(recorded, compared)))
    return arguments.OK


def _read(path: str, args: argparse.Namespace) -> Recorded:
    def selected() -> Iterator[Sample]:
        damaged: list[str] = []
        for sample in recordings.read(path, damaged.append, args.cpu):
            yield tables.select_guests(sample, args.guest)
        if damaged:
            print(
                'report: %s%s'
                % (damaged[0], ' (and %d more)' % (len(damaged) - 1) if damaged[1:] else ''),
                file=sys.stderr,
            )

    recorded = gather(selected())
    if args.guest and not any(kind == 'guest' for kind, _ in recorded.totals):
        raise NumaPmcError('%s: no guest %s was recorded' % (path, ', '.join(args.guest)))
    return recorded


def gather(samples: Iterable[Sample]) -> Recorded:
    """Add up samples, of which there is at least one."""
    totals: dict[Key, tuple[str, _Totals]] = {}
    sources: dict[str, None] = {}
    problems: dict[str, None] = {}
    count, elapsed_s = 0, 0.0
    for sample in samples:
        count, elapsed_s = count + 1, elapsed_s + sample.elapsed_s
        sources[sample.source] = None
        problems.update(dict.fromkeys(sample.problems))
        parts: list[tuple[Key, str, Sequence[_Part]]] = [
            (('host', ''), 'host', sample.nodes),
            *((('node', node.id), 'node %d' % node.id, (node,)) for node in sample.nodes),
            *((('guest', guest.uuid), guest.name, (guest,)) for guest in sample.guests),
        ]
        for key, name, records in parts:
            _, of_part = totals.setdefault(key, (name, {}))
            for metric, value, weight in _figures(records, sample.elapsed_s):
                if value is not None:
                    total, weights = of_part.get(metric, (0.0, 0.0))
                    of_part[metric] = total + value * weight, weights + weight
    return Recorded(totals, tuple(sources), tuple(problems), count, elapsed_s, sample)


def _figures(parts: Sequence[_Part], seconds: float) -> Iterator[tuple[str, float | None, float]]:
    """Yield (metric, value, weight) of one node or guest, or of all nodes of the host.

    Means are over the time for which a value was known. Amounts of a host are the sums over its
    nodes, unknown while that of any node is unknown; its pressure is that of the node with the
    highest. Samples have CPI but no cycles: with core-seconds c in their place, which assumes
    equal clock rates, IPC = Σ (c ÷ CPI) ÷ Σ c. Where the CPU time is unknown, c is the time.
    """
    cores = [getattr(part, 'cores', part.demand_cores) for part in parts]
    for metric in _SUMMED:
        values = cores if metric == 'cores' else [getattr(part, metric, None) for part in parts]
        known = all_known(values)
        yield metric, math.fsum(known) if known else None, seconds
    pressures = [getattr(part, 'pressure', None) for part in parts]
    yield 'pressure', max((p for p in pressures if p is not None), default=None), seconds
    for part, used_cores in zip(parts, cores):
        weight = seconds * (1.0 if used_cores is None else used_cores)
        yield 'remote_ratio', part.remote_ratio, weight
        yield 'ipc', 1 / part.cpi if part.cpi and part.cpi_reliable else None, weight


def mean(recorded: Recorded | None, key: Key, metric: str) -> float | None:
    """Return a mean; None: unknown.

    The remote share is Σ remote ÷ Σ (local + remote) or, if the source has only ratios, their
    mean.
    """
    totals = recorded.totals[key][1] if recorded and key in recorded.totals else {}
    local, remote = (totals.get(name, (0.0, 0.0)) for name in _SUMMED[:2])
    if metric == 'remote_ratio' and local[1] and remote[1]:
        local_per_sec, remote_per_sec = local[0] / local[1], remote[0] / remote[1]
        return rates.remote_ratio(local_per_sec, remote_per_sec)
    total, weight = totals.get(metric, (0.0, 0.0))
    return total / weight if weight else None


def compare(before: Recorded, after: Recorded | None = None) -> dict[Key, Compared]:
    """Return the host, nodes and guests of one or two recordings, guests by name."""
    recorded = [one for one in (before, after) if one]
    names = {key: name for one in recorded for key, (name, _) in one.totals.items()}
    kinds = ('host', 'node', 'guest')
    ordered = sorted(
        names, key=lambda key: (kinds.index(key[0]), names[key] if key[0] == 'guest' else key[1])
    )
    compared = {}
    for key in ordered:
        pairs = {m: (mean(before, key, m), mean(after, key, m)) for m in _LABELS}
        known = {metric: pair for metric, pair in pairs.items() if pair != (None, None)}
        compared[key] = names[key], known
    return compared


def _to_data(recorded: Sequence[Recorded], compared: dict[Key, Compared]) -> dict[str, object]:
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
                'name': name,
                'metrics': {metric: dict(zip(sides, pair)) for metric, pair in metrics.items()},
            }
            for (kind, key), (name, metrics) in compared.items()
        ],
    }


def _to_lines(recorded: Sequence[Recorded], compared: dict[Key, Compared]) -> Iterator[str]:
    for side, one in zip(_sides(recorded), recorded):
        yield '%s: %d samples of %.4g s, source: %s' % (
            side,
            one.samples,
            one.seconds,
            ', '.join(printable(source) or 'none' for source in one.sources),
        )
    problems = [problem for one in recorded for problem in one.problems]
    yield from tables.problem_lines(dict.fromkeys(problems))
    if len({source for one in recorded for source in one.sources}) > 1:
        yield 'The sources differ: accesses from different sources cannot be compared.'
    for table in _tables(recorded, compared):
        yield ''
        yield from tables.to_lines(table)


def _tables(recorded: Sequence[Recorded], compared: dict[Key, Compared]) -> Iterator[tables.Table]:
    for kind in ('host', 'node', 'guest'):
        of_kind = [part for (its_kind, _), part in compared.items() if its_kind == kind]
        if kind == 'node' and len(of_kind) == 1:
            continue  # it is the host
        if recorded[1:] and kind != 'guest':
            yield from map(_comparison_table, of_kind)
        elif of_kind:
            yield _table(kind, of_kind, len(recorded) > 1)


def _sides(recorded: Sequence[Recorded]) -> tuple[str, ...]:
    return ('before', 'after') if recorded[1:] else ('recorded',)


def _to_html(recorded: Sequence[Recorded], compared: dict[Key, Compared]) -> str:
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
            tuple(
                n
                for n, cores in guest.cores_by_node
                if cores > _RAN_ON_MIN_RATIO * (guest.cores or 0)
            ),
            guest.demand_cores or 0.0,
            sum(size for _, size in guest.bytes_by_node),
            dict(guest.bytes_by_node),
            'remote %s %%, waiting %s cores'
            % (tables.percent(guest.remote_ratio), tables.number(guest.waiting_cores)),
        )
        for guest in sample.guests
    ]
    return page.Picture(title, nodes, guests)


def _comparison_table(compared: Compared) -> tables.Table:
    name, metrics = compared
    rows = [
        (_LABELS[metric][0], _amount(metric, a), _amount(metric, b), _change(a, b), ratio(a, b))
        for metric, (a, b) in metrics.items()
    ]
    return tables.Table((printable(name), 'before', 'after', 'change', 'ratio'), rows, (0,))


def _table(kind: str, compared: Sequence[Compared], is_comparison: bool) -> tables.Table:
    """Return a table with a row for each node or guest, and a column for each known metric."""
    known = [metric for metric in _LABELS if any(metric in metrics for _, metrics in compared)]
    rows = []
    for name, metrics in compared:
        pairs = [(metric, *metrics.get(metric, (None, None))) for metric in known]
        if is_comparison:
            cells = [
                '%s → %s (%s)' % (_amount(metric, a), _amount(metric, b), ratio(a, b))
                for metric, a, b in pairs
            ]
        else:
            cells = [_amount(metric, a) for metric, a, _ in pairs]
        rows.append([printable(name), *cells])
    return tables.Table((kind, *(_LABELS[metric][0] for metric in known)), rows, (0,))


def ratio(before: float | None, after: float | None) -> str:
    """Return the ratio of before to after as '56 : 1' or '1 : 1.12'; '-' if unknown or 0."""
    if not before or not after:
        return tables.UNKNOWN
    quotient = before / after
    return '%.3g : 1' % quotient if quotient >= 1 else '1 : %.3g' % (1 / quotient)


def _amount(metric: str, value: float | None) -> str:
    if value is None:
        return tables.UNKNOWN
    _, factor, layout = _LABELS[metric]
    return layout.format(value) if '{' in layout else layout % (value * factor)


def _change(before: float | None, after: float | None) -> str:
    if not before or after is None:
        return tables.UNKNOWN
    return '%+.1f %%' % (100 * (after / before - 1))
