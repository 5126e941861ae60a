# SPDX-License-Identifier: Apache-2.0
"""What is told of swept cells: of how many hosts known, and of what was assumed of guests."""

from tests.arena import cells, policies as registry, statistics

#: By the options' values.
CELLS = {'known': cells.known, 'sensitivity': cells.sensitivity}


def figures(sweep, table, contender):
    """Print a line for each step of a sweep; return {step: its figures}."""
    print(f'\n{sweep}:')
    found, usual = {}, None
    for step in dict.fromkeys(cell.swept for cell in CELLS[sweep]()):
        runs = {key: run for key, run in table.runs.items() if key[0].endswith(f' {step}')}
        if not runs:
            continue
        part = statistics.Table(runs)
        row = found[step] = ratios(part, contender)
        if sweep == 'known':
            row.update(due(part, contender))
        else:
            orders = [order(part, figure) for figure in ('loss', 'loss_second')]
            usual = usual or orders
            row['order'] = ' < '.join(orders[0])
            for name, one, other in zip(('order_kept', 'order_kept_second'), orders, usual):
                row[name] = one == other
        print(f'  {step}: ' + ', '.join(f'{name} {value}' for name, value in row.items()))
    return found


def order(table, figure):
    """Return the policies by what guests lose with them, the least first."""
    return sorted(table.policies, key=lambda name: table.ratio(name, registry.SPREAD, figure).mean)


def ratios(table, contender):
    """Return what guests lose with the contender to what they lose with Nova alone."""
    return {
        f'to_{rival}{second}'.replace('-', '_'): round(
            table.ratio(contender, rival, f'loss{second}').mean, 4
        )
        for rival in (registry.SPREAD, registry.SPREAD_10)
        for second in ('', '_second')
    }


def due(table, contender):
    """Return the shares of boots of hosts without and with an agent to what is their due.

    That is their share of the hosts with no pressed node; None: there are none of them.
    """
    boots, below = (
        [sum(column) for column in zip(*table.column(contender, name))]
        for name in ('boots', 'below')
    )
    return {
        name: round(boots[at] / sum(boots) / (below[at] / sum(below)), 3)
        if below[at] and sum(boots)
        else None
        for at, name in enumerate(('unknown', 'known'))
    }
