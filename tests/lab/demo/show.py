# SPDX-License-Identifier: Apache-2.0
"""Show a report: tables and bars for the terminal, a plot as PNG."""

import math
import textwrap

from rich.table import Table
from rich.text import Text

from tests.lab.demo.report import ran

COLOURS = ('#4269d0', '#efb118', '#ff725c', '#6cc5b0', '#a463f2', '#9c6b4e')
MIB = 1 << 20
BAR_CELLS = 44
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
        'modelled at\n60/100 ns',
        'passes',
        'remote\nper pass',
        'fewer than\nfloating',
        'fewer\nper pass',
    ):
        table.add_column(head, justify='right')
    for name, run in findings['runs'].items():
        ours = name in ('placed', 'bound')
        if 'failed' in run:
            table.add_row(Text(run['title'], 'bold red'), 'FAILED')
            continue
        spread = ':'.join(map(str, run['guests_per_node']))
        share = run['remote_share']
        latency = run['mean_latency_ns']
        table.add_row(
            Text(run['title'], 'bold green' if ours else ''),
            spread,
            f'{run["home_share_min"]:.1%}',
            count(run['local']),
            count(run['remote']),
            '–' if share is None else f'{share:.2%}',
            '–' if latency is None else f'{latency:.1f} ns',
            str(run['passes']),
            count(run['remote_per_pass']),
            _times(findings['ratios'][name]['remote']),
            _times(findings['ratios'][name]['remote_per_pass']),
        )
    return table


def guests(findings):
    """Return the table of each guest's bytes per node, one column for each arrangement."""
    table = Table(
        title='MiB on each node (from the kernel), by guest',
        title_justify='left',
        title_style='bold',
        header_style='bold',
    )
    table.add_column('guest')
    runs = ran(findings['runs']).values()
    for run in runs:
        table.add_column(run['title'], justify='right')
    for name in sorted({name for run in runs for name in run['guests']}):
        cells = []
        for run in runs:
            guest = run['guests'].get(name)
            cells.append(
                '–'
                if guest is None
                else ' + '.join(f'{b / MIB:.1f}' for b in guest['bytes_per_node'])
            )
        table.add_row(name, *cells)
    return table


def bars(findings):
    """Return remote accesses as bars on a log axis, one line for each arrangement."""
    runs = ran(findings['runs'])
    highest = max((math.log10(max(1, run['remote'])) for run in runs.values()), default=0)
    width = max((len(run['title']) for run in runs.values()), default=0)
    text = Text('Remote DRAM accesses (log axis)\n', 'bold')
    for name, run in runs.items():
        cells = round(BAR_CELLS * math.log10(max(1, run['remote'])) / highest) if highest else 0
        style = 'green' if name in ('placed', 'bound') else 'red'
        text.append(f'{run["title"]:>{width}} ', '')
        text.append('█' * cells, style)
        text.append(f' {count(run["remote"])}\n', '')
    return text


def verdicts(findings):
    """Return a line for each way that failed and each check, and the figures behind them."""
    text = Text()
    for run in findings['runs'].values():
        if 'failed' in run:
            text.append(' FAILED', 'bold red')
            text.append(f'  {run["title"]}: {run["failed"]}\n')
    for check in findings['checks']:
        word = (
            ('ok', 'green')
            if check['passed']
            else (('FAILED', 'bold red') if check['required'] else ('not met', 'yellow'))
        )
        text.append(f'{word[0]:>7}', word[1])
        text.append(f'  {check["name"]}: {check["value"]}\n')
    for run in ran(findings['runs']).values():
        accesses = ', '.join(count(window['remote']) for window in run['windows'])
        text.append(f'{run["title"]}: remote accesses by window: {accesses}\n', 'dim')
    return text


def notes(findings):
    """Return an explanation of the figures."""
    return Text(
        "Counts are those of the emulated counters (perf), bytes are the kernel's. The latency "
        'is modelled: 60 ns + 40 ns × remote share. "Fewer than floating" compares the same '
        'time, "fewer per pass" the same work, which is fairer: guests that get less CPU also '
        'access less. Floating guests wander, so their counts differ from window to window.',
        'dim',
    )


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
        f'Six guests on two nodes, {findings["machine"]["skew_mib"]} MiB less free on '
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
        axes.text(
            middle,
            -0.11,
            _wrapped(run['title']),
            ha='center',
            va='top',
            transform=axes.get_xaxis_transform(),
            fontsize=10,
            fontweight='bold',
        )
        if 'failed' in run:
            reason = textwrap.fill(textwrap.shorten(run['failed'], FAILURE_CHARS), 24)
            _draw_failure(axes, middle, f'FAILED\n{reason}')
            continue
        for node in range(nodes):
            x, bottom = at * (nodes + 0.8) + node, 0
            for i, (name, guest) in enumerate(run['guests'].items()):
                height = guest['bytes_per_node'][node] / MIB
                legend[name] = axes.bar(
                    x,
                    height,
                    0.85,
                    bottom,
                    color=COLOURS[i % len(COLOURS)],
                    edgecolor='white',
                    linewidth=0.6,
                )
                bottom += height
            ticks.append(x)
            labels.append(f'node {node}')
        axes.text(
            middle,
            1.005,
            ':'.join(map(str, run['guests_per_node'])),
            ha='center',
            va='bottom',
            transform=axes.get_xaxis_transform(),
            fontsize=11,
        )
    axes.set_xlim(-0.9, len(runs) * (nodes + 0.8) - 0.9)
    axes.set_xticks(ticks, labels, fontsize=8)
    axes.set_ylabel('MiB of guest memory')
    axes.set_title("Where each guest's bytes lie (guests per node above)", fontsize=11, pad=20)
    axes.legend(
        legend.values(), legend.keys(), fontsize=8, frameon=False, ncols=3, loc='upper left'
    )
    axes.set_ylim(0, axes.get_ylim()[1] * 1.18)
    axes.spines[['top', 'right']].set_visible(False)


def _draw_failure(axes, at, text):
    axes.text(
        at,
        0.5,
        text,
        ha='center',
        va='center',
        transform=axes.get_xaxis_transform(),
        fontsize=8,
        color='#b3261e',
    )


def _draw_remote(axes, runs, ratios):
    for at, (name, run) in enumerate(runs.items()):
        if 'failed' in run:
            _draw_failure(axes, at, 'FAILED')
            continue
        ours = name in ('placed', 'bound')
        remote = max(1, run['remote'])
        axes.bar(at, remote, 0.7, color='#3a9d5d' if ours else '#b0b4bb')
        fewer = ratios[name]['remote']
        label = count(run['remote'])
        if fewer is not None and name != 'floating':
            label += (
                f'\n{_times(fewer)} × fewer' if fewer >= 1 else f'\n{_times(1 / fewer)} × more'
            )
        axes.text(at, remote * 1.15, label, ha='center', va='bottom', fontsize=9)
    axes.set_xlim(-0.6, len(runs) - 0.4)
    if ran(runs):
        axes.set_yscale('log')
        low, high = axes.get_ylim()
        axes.set_ylim(max(1, low / 20), high * 4)
    axes.set_xticks(
        range(len(runs)), [_wrapped(run['title']) for run in runs.values()], fontsize=9
    )
    axes.set_title('Remote DRAM accesses in the same time (log)', fontsize=11, pad=20)
    axes.spines[['top', 'right']].set_visible(False)
    axes.yaxis.grid(True, alpha=0.3)
    axes.set_axisbelow(True)


def _wrapped(title):
    return title.replace(', ', ',\n').replace(' (', '\n(').replace(' and ', '\nand ')
