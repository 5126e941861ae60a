# SPDX-License-Identifier: Apache-2.0
"""Draw the table of policies and the gap of each cell as PNG files."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.arena import policies as registry

POLICIES, CELLS = 'arena-policies.png', 'arena-cells.png'
WIDTH_INCHES, ROW_INCHES = 8.0, 0.28


def draw(table, contender, directory):
    """Draw both pictures of a :class:`statistics.Table`; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    return [
        _save(_policies(table, contender), directory / POLICIES),
        _save(_cells(table, contender), directory / CELLS),
    ]


def _figure(rows):
    figure = Figure(figsize=(WIDTH_INCHES, 1.2 + ROW_INCHES * rows), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(axis='x', alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    return figure, axes


def _save(figure, path):
    figure.savefig(path, dpi=100, metadata={'Software': None})
    return path


def _policies(table, contender):
    """Draw what guests lose with each policy relative to stock-1, by both models of loss."""
    ratios = sorted(
        ((table.ratio(name, registry.SPREAD), name) for name in table.policies),
        key=lambda pair: -pair[0].mean,
    )
    figure, axes = _figure(len(ratios))
    for row, (ratio, name) in enumerate(ratios):
        colour = 'tab:red' if name == contender else 'tab:blue'
        high = min(ratio.high, 2.0 * ratio.mean)  # that of a single run is infinite
        axes.plot((ratio.low, high), (row, row), color=colour, linewidth=2)
        axes.plot(ratio.mean, row, 'o', color=colour)
        second = table.ratio(name, registry.SPREAD, 'loss_second').mean
        axes.plot(second, row, 'x', color='black', markersize=5)
    axes.axvline(1.0, color='grey', linewidth=1)
    axes.set_yticks(range(len(ratios)), [name for _, name in ratios])
    axes.set_xlabel(
        "guests' loss relative to stock-1, with its 95 % interval (×: by the second model)"
    )
    return figure


def _cells(table, contender):
    """Draw the share of the gap that the contender closes in each cell."""
    gaps = sorted(table.gaps(contender).items(), key=lambda pair: pair[1])
    figure, axes = _figure(len(gaps))
    axes.barh(range(len(gaps)), [gap for _, gap in gaps], color='tab:blue')
    axes.axvline(1.0, color='grey', linewidth=1)
    axes.set_yticks(range(len(gaps)), [cell for cell, _ in gaps])
    axes.set_xlabel(f'share of the gap from stock-10 (0) to the oracle (1) closed by {contender}')
    return figure
