# SPDX-License-Identifier: Apache-2.0
"""Draw a recording's series as PNG files; needs matplotlib."""

from __future__ import annotations

import datetime
import math
import os
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nova_numa_pmc.cli.render.summary import MetricSeries, RecordedSeries

#: More points than a plot has pixels add nothing.
_POINTS = 1000
#: More lines than this cannot be distinguished: the guests with most CPU time are drawn.
_LINES = 10
_NODE_PANELS = (
    ('pressure', 'pressure [1: saturated]', 1),
    ('remote_ratio', 'remote share [%]', 100),
    ('bandwidth_bytes_per_sec', 'memory traffic [GB/s]', 1e-9),
    ('waiting_cores', 'lost to waiting [cores]', 1),
    ('distance_cores', 'lost to distance [cores]', 1),
)
_GUEST_PANELS = (
    ('cores', 'CPU time [cores]', 1),
    ('remote_ratio', 'remote share [%]', 100),
    ('bandwidth_bytes_per_sec', 'memory traffic [GB/s]', 1e-9),
    ('waiting_cores', 'waiting [cores]', 1),
    ('cpi', 'cycles per instruction', 1),
)


def draw(
    recorded: RecordedSeries,
    directory: str,
    windows: Sequence[tuple[float | None, float | None]] = (),
) -> list[str]:
    """Draw ``nodes.png`` and ``guests.png``; return their paths.

    :param windows: (from, to) pairs to shade [s since the epoch, None: no bound]
    """
    os.makedirs(directory, exist_ok=True)
    nodes = [series for _number, series in sorted(recorded.nodes.items())]
    guests = sorted(recorded.guests.values(), key=_cores, reverse=True)[:_LINES]
    title = (
        'the %d guests with most CPU time' % _LINES if len(recorded.guests) > _LINES else 'guests'
    )
    drawn = []
    for name, all_series, panels, heading in (
        ('nodes', nodes, _NODE_PANELS, 'nodes'),
        ('guests', guests, _GUEST_PANELS, title),
    ):
        known = [
            panel
            for panel in panels
            if any(
                not math.isnan(value) for series in all_series for value in series.values[panel[0]]
            )
        ]
        if known:
            path = os.path.join(directory, name + '.png')
            _draw(path, heading, all_series, known, recorded, windows)
            drawn.append(path)
    return drawn


def _cores(series: MetricSeries) -> float:
    return math.fsum(value for value in series.values['cores'] if not math.isnan(value))


def _moment(taken_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(taken_s)


def _draw(
    path: str,
    heading: str,
    all_series: list[MetricSeries],
    panels: Sequence[tuple[str, str, float]],
    recorded: RecordedSeries,
    windows: Iterable[tuple[float | None, float | None]],
) -> None:
    figure = Figure(figsize=(11, 2.2 * len(panels) + 1), layout='constrained')
    FigureCanvasAgg(figure)
    figure.suptitle(heading)
    for axes, (metric, label, factor) in zip(
        figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0], panels
    ):
        for series in all_series:
            times, values = thin(
                series.taken_s,
                series.values[metric],
                series.elapsed_s,
                recorded.first_s,
                recorded.last_s,
            )
            # '_' hides a label and '$' begins mathematics: a guest's name may have both.
            axes.plot(
                list(map(_moment, times)),
                [value * factor for value in values],
                linewidth=1,
                marker='.',
                markersize=2,
                label=series.name.replace('$', r'\$').lstrip('_'),
            )
        for shade, (begin, end) in zip(('tab:red', 'tab:green'), windows):
            axes.axvspan(
                _moment(recorded.first_s if begin is None else begin),
                _moment(recorded.last_s if end is None else end),
                color=shade,
                alpha=0.08,
            )
        axes.set_ylabel(label, fontsize=8)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=7, ncols=5, loc='upper left')
    figure.autofmt_xdate()
    figure.savefig(path, dpi=110)


def thin(
    times: Iterable[float],
    values: Iterable[float],
    elapsed: Iterable[float],
    first_s: float,
    last_s: float,
) -> tuple[list[float], list[float]]:
    """Return (times, means) over about 1,000 slots; a slot without samples is NaN, a gap."""
    longest = max(elapsed, default=1.0)
    width = max((last_s - first_s) / _POINTS, 1.5 * longest, 1e-3)
    slots: dict[int, list[float]] = {}
    for moment, value in zip(times, values):
        if not math.isnan(value):
            slots.setdefault(int((moment - first_s) / width), []).append(value)
    if not slots:
        return [], []
    every = range(min(slots), max(slots) + 1)
    return (
        [first_s + (slot + 0.5) * width for slot in every],
        [
            math.fsum(slots[slot]) / len(slots[slot]) if slot in slots else math.nan
            for slot in every
        ],
    )
