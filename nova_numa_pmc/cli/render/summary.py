# SPDX-License-Identifier: Apache-2.0
"""Sum up many samples per node and per guest, over a whole recording or a window of it.

Pure. In a :class:`Distribution`, each sample counts once, whatever its length; the other means are
weighted by time. A value that is unknown in a sample is left out.
"""

from __future__ import annotations

import math
import statistics
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, TypeVar

from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nova_numa_pmc.sample_records import GuestSample, NodeSample, Sample

_Key = TypeVar('_Key', int, str)

NODE_METRICS = (
    'pressure',
    'cpu_ratio',
    'bandwidth_ratio',
    'link_ratio',
    'demand_cores',
    'waiting_cores',
    'distance_cores',
    'local_per_sec',
    'remote_per_sec',
    'remote_ratio',
    'bandwidth_bytes_per_sec',
    'cpi',
    'io_miss_ratio',
)
GUEST_METRICS = (
    'cores',
    'waiting_cores',
    'local_per_sec',
    'remote_per_sec',
    'remote_ratio',
    'bandwidth_bytes_per_sec',
    'cpi',
    'accesses_per_1000_instructions',
    'stalled_ratio',
    'remote_cache_per_sec',
)
#: Metrics that are compared between windows.
COMPARED = (
    'ipc',
    'local_per_sec',
    'remote_per_sec',
    'remote_ratio',
    'bandwidth_bytes_per_sec',
    'cores',
    'waiting_cores',
    'distance_cores',
    'pressure',
)


class Distribution(Record):
    """Distribution of a value over the samples in which it is known; None if it is known in none.

    :param p95: 95th percentile
    :param samples: number of samples in which the value is known
    """

    median: float | None
    p95: float | None
    mean: float | None
    samples: int


class MetricSeries:
    """Values of one node or guest, in a column for each metric; NaN if unknown.

    :ivar taken_s: ends of the samples [s since the epoch]
    :ivar elapsed_s: lengths of the samples [s]
    :ivar values: {metric: its value in each sample}
    """

    def __init__(self, name: str, metrics: Iterable[str]) -> None:
        self.name = name
        self.taken_s = array('d')
        self.elapsed_s = array('f')
        # Single precision is enough for the six digits that a recording has.
        self.values = {metric: array('f') for metric in metrics}

    def add(self, sample: Sample, record: NodeSample | GuestSample) -> None:
        """Add the values of one sample."""
        self.taken_s.append(sample.taken_s)
        self.elapsed_s.append(sample.elapsed_s)
        for metric, column in self.values.items():
            value = getattr(record, metric)
            if metric == 'cpi' and not record.cpi_reliable:
                value = None
            column.append(math.nan if value is None else value)

    def between(self, from_s: float | None, to_s: float | None) -> slice:
        """Return the slice of the samples that ended between two times; None: unbounded."""
        begin = 0 if from_s is None else bisect_left(self.taken_s, from_s)
        end = len(self.taken_s) if to_s is None else bisect_right(self.taken_s, to_s)
        return slice(begin, max(begin, end))


class RecordedSeries:
    """Series of all nodes and guests of a recording.

    :ivar nodes: {node id: series}
    :ivar guests: {uuid: series}
    :ivar sources: {source of the host's samples: number of samples}
    :ivar problems: {problem: number of samples}
    :ivar samples: number of samples
    :ivar repeated: number of samples that were left out because the clock had been set back
    :ivar first_s, last_s: ends of the first and the last sample [s since the epoch]; NaN if there
        is no sample
    """

    def __init__(self) -> None:
        self.nodes: dict[int, MetricSeries] = {}
        self.guests: dict[str, MetricSeries] = {}
        self.sources: dict[str, int] = {}
        self.problems: dict[str, int] = {}
        self.samples = self.repeated = 0
        self.first_s = self.last_s = math.nan

    def add(self, sample: Sample) -> None:
        """Add one sample, unless it is not later than the last one."""
        if sample.taken_s <= self.last_s:
            self.repeated += 1
            return
        self.first_s = self.first_s if self.samples else sample.taken_s
        self.samples += 1
        self.last_s = sample.taken_s
        self.sources[sample.source] = self.sources.get(sample.source, 0) + 1
        for problem in sample.problems:
            self.problems[problem] = self.problems.get(problem, 0) + 1
        for node in sample.nodes:
            self._series(self.nodes, node.id, 'node %d' % node.id, NODE_METRICS).add(sample, node)
        for guest in sample.guests:
            self._series(self.guests, guest.uuid, guest.name, GUEST_METRICS).add(sample, guest)

    @staticmethod
    def _series(
        series_by_key: dict[_Key, MetricSeries], key: _Key, name: str, metrics: Iterable[str]
    ) -> MetricSeries:
        if key not in series_by_key:
            series_by_key[key] = MetricSeries(name, metrics)
        return series_by_key[key]


def gather(
    samples: Iterable[Sample], from_s: float | None = None, to_s: float | None = None
) -> RecordedSeries:
    """Return the series of the samples that ended in a window.

    :param from_s, to_s: bounds of the window [s since the epoch]; None: unbounded
    """
    recorded = RecordedSeries()
    for sample in samples:
        if (from_s is None or sample.taken_s >= from_s) and (
            to_s is None or sample.taken_s <= to_s
        ):
            recorded.add(sample)
    return recorded


def distribution(values: Iterable[float]) -> Distribution:
    """Return the distribution of the values that are not NaN; quantiles are interpolated."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return Distribution(None, None, None, 0)
    p95 = statistics.quantiles(known, n=20, method='inclusive')[-1] if known[1:] else known[0]
    return Distribution(statistics.median(known), p95, statistics.fmean(known), len(known))


def summarise(
    parts: Iterable[MetricSeries], from_s: float | None = None, to_s: float | None = None
) -> dict[str, float | None]:
    """Return {metric: mean over time, or None} in a window, for :data:`COMPARED`.

    Amounts are the sums of the parts' means, and the pressure is the highest mean of a part.
    Samples have CPI but no instructions. With core-seconds c in place of cycles, which assumes
    equal clock rates, IPC = Σ c/CPI ÷ Σ c. The remote ratio is Σ remote ÷ Σ (local + remote) or,
    if the source has only ratios, their mean weighted by c.

    :param parts: the series of a node, of a guest, or of all nodes of a host
    """
    columns = [_columns(series, series.between(from_s, to_s)) for series in parts]
    means = {
        metric: _sum_if_known([_mean(part[metric], part['elapsed_s']) for part in columns])
        for metric in (
            'local_per_sec',
            'remote_per_sec',
            'bandwidth_bytes_per_sec',
            'cores',
            'waiting_cores',
            'distance_cores',
        )
    }
    pressures = [_mean(part['pressure'], part['elapsed_s']) for part in columns]
    means['pressure'] = max(
        (pressure for pressure in pressures if pressure is not None), default=None
    )
    instructions, cycles = _weighted_total(
        columns, 'cpi', lambda cpi: 1 / cpi if cpi > 0 else math.nan
    )
    means['ipc'] = instructions / cycles if cycles else None
    local, remote = means['local_per_sec'], means['remote_per_sec']
    if local is not None and remote is not None:
        means['remote_ratio'] = remote / (local + remote) if local + remote else None
    else:
        total, weight = _weighted_total(columns, 'remote_ratio', lambda ratio: ratio)
        means['remote_ratio'] = total / weight if weight else None
    return {metric: means[metric] for metric in COMPARED}


def _columns(series: MetricSeries, window: slice) -> dict[str, array[float]]:
    unknown = array('f', [math.nan]) * len(series.taken_s)
    columns = {
        metric: series.values.get(metric, unknown)[window]
        for metric in COMPARED
        if metric != 'ipc'
    }
    return dict(
        columns,
        elapsed_s=series.elapsed_s[window],
        cores=series.values['cores' if 'cores' in series.values else 'demand_cores'][window],
        cpi=series.values['cpi'][window],
    )


def _mean(values: Iterable[float], weights: Iterable[float]) -> float | None:
    total = weight = 0.0
    for value, seconds in zip(values, weights):
        if not math.isnan(value):
            total += value * seconds
            weight += seconds
    return total / weight if weight else None


def _sum_if_known(values: list[float | None]) -> float | None:
    """Return the sum of the values, or None if one is unknown or there are none."""
    known = all_known(values)
    return math.fsum(known) if known else None


def _weighted_total(
    parts: Iterable[dict[str, array[float]]], metric: str, function: Callable[[float], float]
) -> tuple[float, float]:
    """Return (Σ c·f(value), Σ c) over the samples in which the value is known; c: core-seconds."""
    total = weight = 0.0
    for part in parts:
        for value, cores, seconds in zip(part[metric], part['cores'], part['elapsed_s']):
            term = function(value) if not math.isnan(value) else math.nan
            if not math.isnan(term) and not math.isnan(cores):
                total += term * cores * seconds
                weight += cores * seconds
    return total, weight
