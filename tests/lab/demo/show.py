# SPDX-License-Identifier: Apache-2.0
"""Show a report: a table and verdicts for the terminal, a plot as PNG."""

import textwrap

from rich.table import Table
from rich.text import Text

from tests.lab.demo.report import OURS, ran

COLOURS = ('#4269d0', '#efb118', '#ff725c', '#6cc5b0', '#a463f2', '#9c6b4e')
MIB = 1 << 20
FAILURE_CHARS = 160


def count(number):
    """Shorten a count: 1234567 → '1.23 M'."""
    if number is None:
        return '–'
    for unit, size in (('G', 1e9), ('M', 1e6), ('k', 1e3)):
        if number >= size:
            return f'{number / size:.3g} {unit}'
    return f'{number:.3g}'


def _times(value):
    return '–' if value is None else f'{value:,.1f}' if value < 100 else f'{value:,.0f}'


def summary(findings):
    """Return the table of the arrangements."""
    table = Table(
        title='The same six guests, started each way',
        title_justify='left',
        title_style='bold',
        header_style='bold',
    )
    table.add_column('arrangement')
    for head in (
        'guests\nper node',
        'least bytes\nat home',
        'local\nDRAM',
        'remote\nDRAM',
        'remote\nshare',
        'passes',
        'remote\nper pass',
        'fewer than\nfloating',
        'fewer\nper pass',
    ):
        table.add_column(head, justify='right')
    for name, run in findings['runs'].items():
        if 'failed' in run:
            table.add_row(Text(run['title'], 'bold red'), 'FAILED')
            continue
        share = run['remote_share']
        table.add_row(
            Text(run['title'], 'bold green' if name in OURS else ''),
            ':'.join(map(str, run['guests_per_node'])),
            f'{run["home_share_min"]:.1%}',
            count(run['local']),
            count(run['remote']),
            '–' if share is None else f'{share:.2%}',
            str(run['passes']),
            count(run['remote_per_pass']),
            _times(findings['ratios'][name]['remote']),
            _times(findings['ratios'][name]['remote_per_pass']),
        )
    return table


def verdicts(findings):
    """Return a line for each way that failed and each check, and the figures behind them."""
    text = Text()
    for run in findings['runs'].values():
        if 'failed' in run:
            text.append(' FAILED', 'bold red')
            text.append(f'  {run["title"]}: {run["failed"]}\n')
    for check in findings['checks']:
        word, style = ('FAILED', 'bold red') if check['required'] else ('not met', 'yellow')
        if check['passed']:
            word, style = 'ok', 'green'
        text.append(f'{word:>7}', style)
        text.append(f'  {check["name"]}: {check["value"]}\n')
    for run in ran(findings['runs']).values():
        accesses = ', '.join(map(count, run['remote_by_window']))
        text.append(f'{run["title"]}: remote accesses by window: {accesses}\n', 'dim')
    times = ', '.join(f'{phase} {spent:.0f}' for phase, spent in findings['phases_s'].items())
    text.append(f'seconds: {times}, in all {sum(findings["phases_s"].values()):.0f}')
    return text


def picture(findings, path):
    """Draw bytes per node and remote accesses of each arrangement into a PNG."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    runs = findings['runs']
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(12, 4.8), layout='constrained', width_ratios=(3, 2)
    )
    _draw_bytes(left, runs)
    _draw_remote(right, runs, findings['ratios'])
    kernels = {run['facts']['kernel'] for run in ran(runs).values()}
    figure.suptitle(
        f'Six guests on two nodes, {findings["settings"]["skew_mib"]} MiB less free on '
        f'node 0 (emulated, Linux {", ".join(sorted(kernels))})',
        fontsize=12,
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_bytes(axes, runs):
    nodes = max((len(run['guests_per_node']) for run in ran(runs).values()), default=1)
    ticks, labels, legend = [], [], {}
    for at, run in enumerate(runs.values()):
        middle = at * (nodes + 0.8) + (nodes - 1) / 2
        _write(axes, middle, -0.11, _wrapped(run['title']), va='top', fontweight='bold')
        if 'failed' in run:
            reason = textwrap.fill(textwrap.shorten(run['failed'], FAILURE_CHARS), 24)
            _draw_failure(axes, middle, f'FAILED\n{reason}')
            continue
        for node in range(nodes):
            x, bottom = at * (nodes + 0.8) + node, 0
            for i, (name, guest) in enumerate(run['guests'].items()):
                height, colour = guest['bytes_per_node'][node] / MIB, COLOURS[i % len(COLOURS)]
                legend[name] = axes.bar(x, height, 0.85, bottom, color=colour, edgecolor='white')
                bottom += height
            ticks.append(x)
            labels.append(f'node {node}')
        _write(axes, middle, 1.005, ':'.join(map(str, run['guests_per_node'])), va='bottom')
    axes.set_xlim(-0.9, len(runs) * (nodes + 0.8) - 0.9)
    axes.set_xticks(ticks, labels, fontsize=8)
    axes.set_ylabel('MiB of guest memory')
    axes.set_title("Where each guest's bytes lie (guests per node above)", fontsize=11, pad=20)
    axes.legend(
        legend.values(), legend.keys(), fontsize=8, frameon=False, ncols=3, loc='upper left'
    )
    axes.set_ylim(0, axes.get_ylim()[1] * 1.18)
    axes.spines[['top', 'right']].set_visible(False)


def _write(axes, x, y, text, fontsize=10, **more):
    """Write text at a position of the axis, and a height relative to the plot's."""
    place = axes.get_xaxis_transform()
    axes.text(x, y, text, ha='center', transform=place, fontsize=fontsize, **more)


def _draw_failure(axes, at, text):
    _write(axes, at, 0.5, text, fontsize=8, va='center', color='#b3261e')


def _draw_remote(axes, runs, ratios):
    for at, (name, run) in enumerate(runs.items()):
        if 'failed' in run:
            _draw_failure(axes, at, 'FAILED')
            continue
        remote = max(1, run['remote'])
        axes.bar(at, remote, 0.7, color='#3a9d5d' if name in OURS else '#b0b4bb')
        fewer = ratios[name]['remote']
        label = count(run['remote'])
        if fewer is not None and name != 'floating':
            less = f'{_times(fewer)} × fewer' if fewer >= 1 else f'{_times(1 / fewer)} × more'
            label += f'\n{less}'
        axes.text(at, remote * 1.15, label, ha='center', va='bottom', fontsize=9)
    axes.set_xlim(-0.6, len(runs) - 0.4)
    if ran(runs):
        axes.set_yscale('log')
        low, high = axes.get_ylim()
        axes.set_ylim(max(1, low / 20), high * 4)
    titles = [_wrapped(run['title']) for run in runs.values()]
    axes.set_xticks(range(len(runs)), titles, fontsize=9)
    axes.set_title('Remote DRAM accesses in the same time (log)', fontsize=11, pad=20)
    axes.spines[['top', 'right']].set_visible(False)
    axes.yaxis.grid(True, alpha=0.3)
    axes.set_axisbelow(True)


def _wrapped(title):
    return title.replace(', ', ',\n').replace(' (', '\n(').replace(' and ', '\nand ')
