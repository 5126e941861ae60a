# SPDX-License-Identifier: Apache-2.0
"""Show the means of a recording per node and guest, or compare it with a second one.

A recording is what "record" writes and "top --json" prints, or the output of "perf stat
-x, -I 5000" with --per-node and --for-each-cgroup if possible.

examples:
  nova-numa-rebalance report /var/tmp/before
  nova-numa-rebalance report /var/tmp/before /var/tmp/after
  nova-numa-rebalance report before after --html /tmp/report.html
  nova-numa-rebalance report before after --guest instance-0000002a --json
  nova-numa-rebalance report unpinned.csv pinned.csv --cpu westmere-dp

exit codes: 0 done; 1 a problem, such as a file without samples; 64 usage error
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, page, recordings, tables
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Optional, Union

    from nova_numa_pmc.core.measurements import GuestSample, NodeSample, Sample

    _Part = Union[GuestSample, NodeSample]
    #: ('host', ''), ('node', its id) or ('guest', its uuid)
    Key = tuple[str, Union[int, str]]
    #: The host, a node or a guest: its name, and {metric: its mean in each recording}
    Compared = tuple[Key, str, dict[str, tuple[Optional[float], ...]]]

#: {metric: (its label, factor, format)}, in their order
_LABELS = {
    'ipc': ('instructions per cycle', 1, '{:.2f}'),
    'local_per_sec': ('local accesses/s', 1, '{:,.0f}'),
    'remote_per_sec': ('remote accesses/s', 1, '{:,.0f}'),
    'remote_ratio': ('remote share [%]', 100, '{:.2f}'),
    'bandwidth_bytes_per_sec': ('memory traffic [GB/s]', 1e-9, '{:.2f}'),
    'cores': ('cores', 1, '{:.2f}'),
    'waiting_cores': ('waiting [cores]', 1, '{:.2f}'),
    'pressure': ('pressure', 1, '{:.2f}'),
}
#: Metrics of a host that are the sum over its nodes.
_SUMMED = tuple(name for name in _LABELS if name not in ('ipc', 'remote_ratio', 'pressure'))
_KINDS = ('host', 'node', 'guest')
_SIDES = ('before', 'after')
#: A guest is drawn at the nodes on which it ran for at least this share of its time.
_RAN_ON_MIN_RATIO = 0.05


class Recorded(Record):
    """What a recording adds up to.

    :param names: {the host, a node or a guest: its name}
    :param means: {(the host, a node or a guest; metric): mean over the time when it was known}
    :param sources: sources of the host's samples
    :param last: the last sample
    """

    path: str
    names: dict[Key, str]
    means: dict[tuple[Key, str], float]
    sources: tuple[str, ...]
    problems: tuple[str, ...]
    samples: int
    seconds: float
    last: Sample


OPTIONS = (
    arguments.option('before', metavar='A', help='a recording'),
    arguments.option('after', metavar='B', nargs='?', help='a recording to compare it with'),
    arguments.option(
        '--guest', action='append', metavar='NAME|UUID', help='only this guest (may be repeated)'
    ),
    arguments.option(
        '--cpu',
        metavar='MODEL',
        help='CPU on which perf counted, which determines the meaning of raw events (see '
        '"check --help")',
    ),
    arguments.option('--html', metavar='FILE', help='also write a page with pictures'),
    arguments.JSON,
)


def run(args: argparse.Namespace) -> int:
    """Print the report; return the exit code."""
    recorded = [_read(path, args) for path in (args.before, args.after) if path]
    compared = compare(recorded)
    all_tables = list(_tables(compared, len(recorded)))
    lines = list(_to_lines(recorded))
    if args.html:
        pictures = [_picture('%s, at its end' % one.path, one.last) for one in recorded]
        page.write(args.html, page.to_html('Recorded', pictures, all_tables, lines))
    texts = [*lines, *(line for table in all_tables for line in ('', *tables.to_lines(table)))]
    tables.show(args.json, _to_data(recorded, compared), texts)
    return arguments.OK


def _read(path: str, args: argparse.Namespace) -> Recorded:
    damaged: list[str] = []
    samples = recordings.read(path, damaged.append, args.cpu)
    recorded = gather(path, (tables.select_guests(sample, args.guest) for sample in samples))
    if damaged:
        more = ' (and %d more)' % (len(damaged) - 1) if damaged[1:] else ''
        print('report: %s%s' % (damaged[0], more), file=sys.stderr)
    if args.guest and not any(kind == 'guest' for kind, _ in recorded.names):
        raise NumaPmcError('%s: no guest %s was recorded' % (path, ', '.join(args.guest)))
    return recorded


def gather(path: str, samples: Iterable[Sample]) -> Recorded:
    """Add up samples, of which there is at least one."""
    names: dict[Key, str] = {}
    sums: dict[tuple[Key, str], tuple[float, float]] = {}  # of values times weights, of weights
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
            names.setdefault(key, name)
            for metric, value, weight in _figures(records):
                if value is not None:
                    total, weights = sums.get((key, metric), (0.0, 0.0))
                    weight *= sample.elapsed_s
                    sums[key, metric] = total + value * weight, weights + weight
    means = {at: total / weights for at, (total, weights) in sums.items() if weights}
    return Recorded(path, names, means, tuple(sources), tuple(problems), count, elapsed_s, sample)


def _figures(parts: Sequence[_Part]) -> Iterator[tuple[str, float | None, float]]:
    """Yield (metric, value, weight per second) of one node or guest, or of all nodes of a host.

    Amounts of a host are the sums over its nodes, unknown while that of any node is unknown; its
    pressure is that of the node with the highest. Remote shares are weighted by the accesses, or
    if the source has only ratios, by the CPU time. Samples have CPI but no cycles: with
    core-seconds c in their place, which assumes equal clock rates, IPC = Σ (c ÷ CPI) ÷ Σ c. Where
    the CPU time is unknown, c is the time.
    """
    cores = [getattr(part, 'cores', part.demand_cores) for part in parts]
    for metric in _SUMMED:
        values = cores if metric == 'cores' else [getattr(part, metric, None) for part in parts]
        known = all_known(values)
        yield metric, math.fsum(known) if known else None, 1.0
    pressures = [getattr(part, 'pressure', None) for part in parts]
    yield 'pressure', max((p for p in pressures if p is not None), default=None), 1.0
    for part, used_cores in zip(parts, cores):
        weight = 1.0 if used_cores is None else used_cores
        accesses = all_known((part.local_per_sec, part.remote_per_sec))
        yield 'remote_ratio', part.remote_ratio, math.fsum(accesses) if accesses else weight
        yield 'ipc', 1 / part.cpi if part.cpi else None, weight


def compare(recorded: Sequence[Recorded]) -> list[Compared]:
    """Return the host, the nodes by id and the guests by name of one or two recordings.

    Each has the metrics that are known in one of them.
    """
    names = {key: name for one in recorded for key, name in one.names.items()}
    # Ids of nodes are numbers, and are compared only with each other.
    keys = sorted(names, key=lambda k: (_KINDS.index(k[0]), k[1] if k[0] == 'node' else names[k]))
    compared = []
    for key in keys:
        means = {m: tuple(one.means.get((key, m)) for one in recorded) for m in _LABELS}
        known = {metric: each for metric, each in means.items() if set(each) != {None}}
        compared.append((key, names[key], known))
    return compared


def _to_data(recorded: Sequence[Recorded], compared: Sequence[Compared]) -> dict[str, object]:
    data: dict[str, object] = {
        side: {
            'samples': one.samples,
            'seconds': one.seconds,
            'sources': one.sources,
            'problems': one.problems,
        }
        for side, one in zip(_SIDES, recorded)
    }
    data['means'] = [
        {
            'kind': kind,
            'id': identifier or None,
            'name': name,
            'metrics': {metric: dict(zip(_SIDES, means)) for metric, means in metrics.items()},
        }
        for (kind, identifier), name, metrics in compared
    ]
    return data


def _to_lines(recorded: Sequence[Recorded]) -> Iterator[str]:
    """Yield what the recordings are, and what could not be measured."""
    for one in recorded:
        sources = ', '.join(printable(source) or 'none' for source in one.sources)
        yield '%s: %d samples of %.4g s, source: %s' % (
            printable(one.path),
            one.samples,
            one.seconds,
            sources,
        )
    problems = [problem for one in recorded for problem in one.problems]
    yield from tables.problem_lines(dict.fromkeys(problems))
    if len({source for one in recorded for source in one.sources}) > 1:
        yield 'The sources differ: accesses from different sources cannot be compared.'


def _tables(compared: Sequence[Compared], recordings: int) -> Iterator[tables.Table]:
    """Yield the host's table, with a row for each metric, and those of nodes and guests."""
    [(_, _, of_host), *_] = compared
    sides = _SIDES if recordings > 1 else ('mean',)
    rows = [
        (_LABELS[metric][0], *_texts(metric, means), *([ratio(*means)] if means[1:] else ()))
        for metric, means in of_host.items()
    ]
    yield tables.Table(('host', *sides, *(['ratio'] if recordings > 1 else ())), rows, (0,))
    for kind in ('node', 'guest'):
        parts = [(name, means) for key, name, means in compared if key[0] == kind]
        known = [metric for metric in _LABELS if any(metric in means for _, means in parts)]
        if parts[kind == 'node' :]:  # a single node is the host
            rows = [
                (printable(name), *(' → '.join(_texts(m, means.get(m, (None,)))) for m in known))
                for name, means in parts
            ]
            yield tables.Table((kind, *(_LABELS[metric][0] for metric in known)), rows, (0,))


def _texts(metric: str, means: Sequence[float | None]) -> list[str]:
    _, factor, layout = _LABELS[metric]
    return [tables.UNKNOWN if mean is None else layout.format(mean * factor) for mean in means]


def ratio(before: float | None, after: float | None) -> str:
    """Return the ratio of before to after as '56 : 1' or '1 : 1.12'; '-' if unknown or 0."""
    if not before or not after:
        return tables.UNKNOWN
    quotient = before / after
    return '%.3g : 1' % quotient if quotient >= 1 else '1 : %.3g' % (1 / quotient)


def _picture(title: str, sample: Sample) -> page.Picture:
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
    return page.Picture(title, sample.nodes, guests)
