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

#: Points of a line, about as many as a plot has pixels.
_POINTS_MAX = 1000
#: Guests that are drawn, those with the most CPU time: more lines could not be distinguished.
_LINES_MAX = 10
#: (metric, label of its axis, factor by which its values are multiplied).
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
    """Draw ``nodes.png`` and ``guests.png``; return the paths of those that have values.

    :param directory: where to put the files; it is created if need be
    :param windows: (from, to) of the two windows to shade [s since the epoch]; None: unbounded
    """
    os.makedirs(directory, exist_ok=True)
    nodes = [series for _number, series in sorted(recorded.nodes.items())]
    guests = sorted(
        recorded.guests.values(),
        key=lambda series: math.fsum(x for x in series.values['cores'] if not math.isnan(x)),
        reverse=True,
    )[:_LINES_MAX]
    title = (
        'the %d guests with most CPU time' % _LINES_MAX
        if len(recorded.guests) > _LINES_MAX
        else 'guests'
    )
    paths = []
    for name, all_series, panels, heading in (
        ('nodes', nodes, _NODE_PANELS, 'nodes'),
        ('guests', guests, _GUEST_PANELS, title),
    ):
        known_panels = [
            panel
            for panel in panels
            if any(
                not math.isnan(value) for series in all_series for value in series.values[panel[0]]
            )
        ]
        if known_panels:
            path = os.path.join(directory, name + '.png')
            _draw_file(path, heading, all_series, known_panels, recorded, windows)
            paths.append(path)
    return paths


def _draw_file(
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
            # A leading '_' hides a label and '$' begins a formula; a guest's name may have both.
            axes.plot(
                list(map(datetime.datetime.fromtimestamp, times)),
                [value * factor for value in values],
                linewidth=1,
                marker='.',
                markersize=2,
                label=series.name.replace('$', r'\$').lstrip('_'),
            )
        for shade, (begin, end) in zip(('tab:red', 'tab:green'), windows):
            axes.axvspan(
                datetime.datetime.fromtimestamp(recorded.first_s if begin is None else begin),
                datetime.datetime.fromtimestamp(recorded.last_s if end is None else end),
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
    """Return the mean values over at most about 1,000 equal slots of time.

    :param elapsed: lengths of the samples [s]
    :param first_s, last_s: beginning and end of the recording [s since the epoch]
    :returns: (middles of the slots [s since the epoch], means); a slot without a known value is
        NaN, which is drawn as a gap
    """
    longest_s = max(elapsed, default=1.0)
    slot_s = max((last_s - first_s) / _POINTS_MAX, 1.5 * longest_s, 1e-3)
    values_by_slot: dict[int, list[float]] = {}
    for taken_s, value in zip(times, values):
        if not math.isnan(value):
            values_by_slot.setdefault(int((taken_s - first_s) / slot_s), []).append(value)
    if not values_by_slot:
        return [], []
    slots = range(min(values_by_slot), max(values_by_slot) + 1)
    return (
        [first_s + (slot + 0.5) * slot_s for slot in slots],
        [
            math.fsum(values_by_slot[slot]) / len(values_by_slot[slot])
            if slot in values_by_slot
            else math.nan
            for slot in slots
        ],
    )
