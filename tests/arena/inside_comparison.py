# SPDX-License-Identifier: Apache-2.0
"""Compare ways of placing guests within hosts, on hosts chosen by Nova's defaults; and the whole
product with stock Nova.
"""

import time

from tests.arena import (
    cells as conditions,
    inside,
    loads,
    parameters as p,
    policies as registry,
    region,
    statistics,
)

CELLS = (
    'equal mixed other',
    'equal hot allocation',
    'generations mixed other',
    'subnuma hot other',
)
PLACED, FLOATING = inside.placed.name, inside.floating.name
#: The whole product, and what it is compared with in addition to the ways: (policy, way), by name.
OURS, STOCK_10 = '%s + %s' % (registry.OURS, PLACED), '%s + %s' % (registry.SPREAD_10, FLOATING)
WHOLE = {OURS: (registry.OURS, PLACED), STOCK_10: (registry.SPREAD_10, FLOATING)}
#: The weigher alone, on hosts without the hook.
WEIGHER = '%s + %s' % (registry.OURS, FLOATING)
#: All runs of a cell and seed: each way on hosts that Nova chooses by its defaults, and the whole.
RUNS = {name: (registry.SPREAD, name) for name in inside.WAYS} | WHOLE
RUNS[WEIGHER] = (registry.OURS, FLOATING)
RIVALS = [name for name in inside.WAYS if name != PLACED]


def cells():
    """Return the cells on which ways are compared."""
    return [cell for cell in conditions.cells() if cell.name in CELLS]


def run(task):
    """Run all ways of a cell and seed on the same trace.

    :returns: as :func:`tests.arena.__main__.run`, without records
    """
    cell, seed, *_ = task
    begun_s = time.process_time()
    shape, trace = loads.drawn(cell, seed)
    results, moves = {}, {}
    for name, (policy, way) in RUNS.items():
        ran = region.Region(cell, shape, trace, registry.POLICIES[policy], seed, inside.WAYS[way])
        results[name] = ran.run()
        moves[name] = ran.fleet.moves * 3600 / (cell.fill_s + cell.judged_s) / cell.hosts
    summary = statistics.summary(results)
    for name, row in summary.items():
        row['moves'] = moves[name]
    return cell.name, seed, summary, [], time.process_time() - begun_s


def figures(table):
    """Print the runs; return the figures of the last line.

    :param table: a :class:`tests.arena.statistics.Table` of what :func:`run` returned
    """
    duels = [
        {
            (cell, way): table.duel(cell, PLACED, way, figure)
            for cell in table.cells
            for way in RIVALS
        }
        for figure in ('loss', 'loss_second')
    ]
    _show(table, duels[0])
    return {
        'cells': len(table.cells),
        'runs': len(table.runs),
        'ways': {way: _way(table, way) for way in inside.WAYS},
        **{
            f'inside_{outcome}{suffix}': list(outcomes.values()).count(outcome)
            for suffix, outcomes in zip(('', '_second'), duels)
            for outcome in ('won', 'lost', 'undecided')
        },
        'whole': {'to_stock_1': _ratio(table, OURS, FLOATING)}
        | {'to_stock_1_second': _ratio(table, OURS, FLOATING, '_second')}
        | {'to_stock_10': _ratio(table, OURS, STOCK_10)}
        | {'to_stock_10_second': _ratio(table, OURS, STOCK_10, '_second')},
        'weigher_alone': {
            'to_stock_1%s' % second: _ratio(table, WEIGHER, FLOATING, second)
            for second in ('', '_second')
        },
        'parameters': p.digest(),
    }


def _way(table, way):
    """Return the loss with a way relative to ours and to floating, and the number of moves."""
    ratios = {
        'to_%s%s' % (other, second): _ratio(table, way, other, second)
        for other in (PLACED, FLOATING)
        for second in ('', '_second')
    }
    return ratios | {'moves_per_host_hour': round(_mean(table.column(way, 'moves')), 3)}


def _ratio(table, one, other, second=''):
    return round(table.ratio(one, other, 'loss' + second).mean, 4)


def _mean(column):
    return sum(column) / len(column)


def _show(table, duels):
    print(
        '\n%-24s%24s%24s%24s%8s%10s'
        % ('hosts by stock-1', 'loss to placed', 'second model', 'to floating', 'p99', 'moves')
    )
    for name in RUNS:
        if name == OURS:
            print('\nhosts and nodes')
        ratios = [
            table.ratio(name, other, figure)
            for other, figure in ((PLACED, 'loss'), (PLACED, 'loss_second'), (FLOATING, 'loss'))
        ]
        print(
            '%-24s%24s%24s%24s%8.3f%10.2f'
            % (name, *ratios, table.pooled(name, 0.99), _mean(table.column(name, 'moves')))
        )
    for other in (FLOATING, STOCK_10):
        print(
            '%s to %s: %s, second model %s'
            % (
                OURS,
                other if other in WHOLE else '%s + %s' % (registry.SPREAD, other),
                table.ratio(OURS, other),
                table.ratio(OURS, other, 'loss_second'),
            )
        )
    print('\n%-28s' % 'loss to placed' + ''.join('%16s' % way for way in RIVALS))
    for cell in table.cells:
        ratios = [table.ratio(way, PLACED, cell=cell).mean for way in RIVALS]
        print('%-28s' % cell + ''.join('%16.3f' % ratio for ratio in ratios))
    print('\n%s loses to:' % PLACED)
    for (cell, way), outcome in duels.items():
        if outcome == 'lost':
            print('  %s: %s, %s' % (cell, way, table.ratio(PLACED, way, cell=cell)))
