# SPDX-License-Identifier: Apache-2.0
"""Reports on swept cells: on the number of known hosts, and on assumptions about guests."""

from tests.arena import cells, policies as registry, statistics

#: By the values of the options.
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
    """Return the policies in the order of what guests lose with them, the least first."""
    return sorted(table.policies, key=lambda name: table.ratio(name, registry.SPREAD, figure).mean)


def ratios(table, contender):
    """Return the ratios of what guests lose with the contender and with Nova alone."""
    return {
        f'to_{rival}{second}'.replace('-', '_'): round(
            table.ratio(contender, rival, f'loss{second}').mean, 4
        )
        for rival in (registry.SPREAD, registry.SPREAD_10)
        for second in ('', '_second')
    }


def due(table, contender):
    """Return the shares of boots on hosts without and with an agent, relative to their fair share.

    The fair share is their share of the hosts without a pressed node; None if there are none.
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
