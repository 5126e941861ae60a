# SPDX-License-Identifier: Apache-2.0
"""Lay out the summary of a recording, and the comparison of two windows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.cli.render import summary, tables
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record
from nova_numa_pmc.sample_records import JSON_NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any, Optional

    #: (from, to) [s since the epoch]; None: unbounded.
    Window = tuple[Optional[float], Optional[float]]

#: {metric: (heading of its column, factor by which its values are multiplied)}
_DISTRIBUTION_COLUMNS: dict[str, tuple[str, float]] = {
    'pressure': ('pressure', 1),
    'cpu_ratio': ('cpu', 1),
    'bandwidth_ratio': ('bw', 1),
    'link_ratio': ('link', 1),
    'demand_cores': ('cores', 1),
    'cores': ('cores', 1),
    'waiting_cores': ('wait', 1),
    'distance_cores': ('dist', 1),
    'remote_ratio': ('rem%', 100),
    'bandwidth_bytes_per_sec': ('GB/s', 1e-9),
    'cpi': ('CPI', 1),
    'io_miss_ratio': ('iomiss%', 100),
    'accesses_per_1000_instructions': ('acc/kI', 1),
    'stalled_ratio': ('stall%', 100),
    'remote_cache_per_sec': ('rcache/s [M]', 1e-6),
}
#: {metric: its label in a comparison}
_LABELS = {
    'ipc': 'instructions per cycle',
    'local_per_sec': 'local accesses/s',
    'remote_per_sec': 'remote accesses/s',
    'remote_ratio': 'remote share [%]',
    'bandwidth_bytes_per_sec': 'memory traffic [GB/s]',
    'cores': 'cores',
    'waiting_cores': 'waiting [cores]',
    'distance_cores': 'distance [cores]',
    'pressure': 'pressure',
}


class WindowComparison(Record):
    """The host, a node or a guest in two windows.

    :param kind: 'host', 'node' or 'guest'
    :param id: None for the host, the number of a node, or the uuid of a guest
    :param metrics: {metric: (before, after)} of the metrics that are known in either window
    """

    kind: str
    id: int | str | None
    name: str
    metrics: dict[str, tuple[float | None, float | None]]


def compare(
    recorded: summary.RecordedSeries, before: Window, after: Window
) -> tuple[WindowComparison, ...]:
    """Compare the host, its nodes and its guests between two windows.

    :raises NumaPmcError: a window contains no sample
    """
    for window in (before, after):
        if not any(
            len(series.taken_s[series.between(*window)]) for series in recorded.nodes.values()
        ):
            raise NumaPmcError(
                'the window %s to %s contains no samples; the recording spans '
                '%s to %s'
                % tuple(
                    '…' if time_s is None else tables.clock_time(time_s)
                    for time_s in (*window, recorded.first_s, recorded.last_s)
                )
            )
    host = WindowComparison(
        'host', None, 'host', _compare_means(recorded.nodes.values(), before, after)
    )
    nodes = (
        WindowComparison('node', node_id, series.name, _compare_means([series], before, after))
        for node_id, series in sorted(recorded.nodes.items())
    )
    guests = (
        WindowComparison('guest', uuid, series.name, _compare_means([series], before, after))
        for uuid, series in _guests_by_name(recorded)
    )
    return (host, *nodes, *guests)


def _compare_means(
    parts: Collection[summary.MetricSeries], before: Window, after: Window
) -> dict[str, tuple[float | None, float | None]]:
    """Return {metric: (mean before, mean after)} of the metrics known in either window."""
    means_before, means_after = summary.summarise(parts, *before), summary.summarise(parts, *after)
    return {
        metric: (means_before[metric], means_after[metric])
        for metric in summary.COMPARED
        if means_before[metric] is not None or means_after[metric] is not None
    }


def ratio_text(before: float | None, after: float | None) -> str:
    """Return the ratio of before to after as '56.0 : 1' or '1 : 1.12'.

    :returns: the ratio as text; '-' if either value is unknown or 0
    """
    if not before or not after:
        return tables.UNKNOWN
    if before >= after:
        return '%.3g : 1' % (before / after)
    return '1 : %.3g' % (after / before)


def to_data(
    recorded: summary.RecordedSeries,
    comparison: Iterable[WindowComparison] | None,
    plot_paths: list[str],
) -> dict[str, Any]:
    """Return the report as plain data.

    :param plot_paths: paths of the plots
    """
    data: dict[str, Any] = {
        'from_s': recorded.first_s,
        'to_s': recorded.last_s,
        'samples': recorded.samples,
        'left_out': recorded.repeated,
        'sources': recorded.sources,
        'problems': recorded.problems,
        'plots': plot_paths,
        'nodes': [
            dict(_distributions(series), id=node_id)
            for node_id, series in sorted(recorded.nodes.items())
        ],
        'guests': [
            dict(_distributions(series), uuid=uuid, name=series.name)
            for uuid, series in _guests_by_name(recorded)
        ],
    }
    if comparison:
        data['comparison'] = [
            dict(
                compared._asdict(),
                metrics={
                    metric: {'before': before, 'after': after}
                    for metric, (before, after) in compared.metrics.items()
                },
            )
            for compared in comparison
        ]
    return data


def _guests_by_name(recorded: summary.RecordedSeries) -> list[tuple[str, summary.MetricSeries]]:
    return sorted(recorded.guests.items(), key=lambda item: item[1].name)


def _distributions(series: summary.MetricSeries) -> dict[str, Any]:
    return {
        JSON_NAMES.get(metric, metric): summary.distribution(values)._asdict()
        for metric, values in series.values.items()
    }


def to_lines(
    recorded: summary.RecordedSeries, comparison: Sequence[WindowComparison] | None
) -> list[str]:
    """Return the report as lines of text."""
    lines = [
        '%s to %s, %d samples, source: %s'
        % (
            tables.clock_time(recorded.first_s),
            tables.clock_time(recorded.last_s),
            recorded.samples,
            _sources_text(recorded),
        )
    ]
    if recorded.repeated:
        lines.append(
            'left out %d samples whose times had already been recorded: the clock was set back'
            % recorded.repeated
        )
    lines += [
        'problem (in %d samples): %s' % (count, printable(problem))
        for problem, count in recorded.problems.items()
    ]
    lines += ['', 'median / 95th percentile', '']
    nodes = [series for _number, series in sorted(recorded.nodes.items())]
    if nodes:
        lines += tables.to_lines(_distribution_table('node', nodes))
    if recorded.guests:
        lines += [
            '',
            *tables.to_lines(
                _distribution_table(
                    'guest', [series for _uuid, series in _guests_by_name(recorded)]
                )
            ),
        ]
    if comparison:
        lines += _comparison_lines(comparison)
    if comparison and len(recorded.sources) > 1:
        lines += [
            '',
            'The sources changed during the recording: accesses from different sources cannot '
            'be compared.',
        ]
    return lines


def _comparison_lines(comparison: Sequence[WindowComparison]) -> list[str]:
    lines: list[str] = []
    for compared in comparison:
        if compared.kind != 'guest':
            lines += ['', *tables.to_lines(comparison_table(compared.name, compared.metrics))]
    guests = [compared for compared in comparison if compared.kind == 'guest']
    return lines + (['', *tables.to_lines(_guests_table(guests))] if guests else [])


def _guests_table(guests: Sequence[WindowComparison]) -> tables.Table:
    """Return a table with a row for each guest and 'before → after' of each known metric."""
    metrics = [
        metric for metric in summary.COMPARED if any(metric in guest.metrics for guest in guests)
    ]
    rows = [
        (
            printable(guest.name),
            *(
                ' → '.join(
                    _amount_text(metric, value)
                    for value in guest.metrics.get(metric, (None, None))
                )
                for metric in metrics
            ),
        )
        for guest in guests
    ]
    headings = ('guest', *(_LABELS[metric] for metric in metrics))
    return tables.text_table(headings, rows, (0,), 'guests')


def _sources_text(recorded: summary.RecordedSeries) -> str:
    return ', '.join(
        '%s (%d)' % (printable(source) or 'no source', count)
        for source, count in recorded.sources.items()
    )


def _distribution_table(title: str, all_series: Sequence[summary.MetricSeries]) -> tables.Table:
    """Return a table of medians and percentiles, with a column for each known metric."""
    distributions = [
        {
            metric: summary.distribution(series.values[metric])
            for metric in _DISTRIBUTION_COLUMNS
            if metric in series.values
        }
        for series in all_series
    ]
    metrics = [
        metric
        for metric in distributions[0]
        if any(distribution[metric].samples for distribution in distributions)
    ]
    rows = [
        (
            printable(series.name),
            *(_distribution_text(metric, distribution[metric]) for metric in metrics),
        )
        for series, distribution in zip(all_series, distributions)
    ]
    headings = (title, *(_DISTRIBUTION_COLUMNS[metric][0] for metric in metrics))
    return tables.text_table(headings, rows, (0,), title)


def _distribution_text(metric: str, distribution: summary.Distribution) -> str:
    if distribution.median is None or distribution.p95 is None:
        return tables.UNKNOWN
    factor = _DISTRIBUTION_COLUMNS[metric][1]
    return ' / '.join(
        '%.2f' % (value * factor) for value in (distribution.median, distribution.p95)
    )


def comparison_table(
    title: str, rows: dict[str, tuple[float | None, float | None]]
) -> tables.Table:
    """Return a table with the values before and after, the change and the ratio of each metric.

    :param title: the title, which is also the heading of the first column
    :param rows: {metric: (before, after)}
    """
    texts = [
        (
            _LABELS[metric],
            _amount_text(metric, before),
            _amount_text(metric, after),
            _change_text(before, after),
            ratio_text(before, after),
        )
        for metric, (before, after) in rows.items()
    ]
    headings = (printable(title), 'before', 'after', 'change', 'ratio')
    return tables.text_table(headings, texts, (0,), title)


def _amount_text(metric: str, value: float | None) -> str:
    if value is None:
        return tables.UNKNOWN
    if metric in ('local_per_sec', 'remote_per_sec'):
        return format(value, ',.0f')
    factor = {'remote_ratio': 100, 'bandwidth_bytes_per_sec': 1e-9}.get(metric, 1)
    return '%.2f' % (value * factor)


def _change_text(before: float | None, after: float | None) -> str:
    if not before or after is None:
        return tables.UNKNOWN
    return '%+.1f %%' % (100 * (after / before - 1))
