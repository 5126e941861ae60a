# SPDX-License-Identifier: Apache-2.0
"""A report on cells that differ in how many hosts have an agent."""

from tests.arena import cells, policies as registry, statistics


def figures(table, contender):
    """Print a line for each step of the sweep; return {step: its figures}."""
    print('\nhosts with an agent:')
    found = {}
    for step in dict.fromkeys(cell.swept for cell in cells.known()):
        runs = {key: run for key, run in table.runs.items() if key[0].endswith(f' {step}')}
        if not runs:
            continue
        part = statistics.Table(runs)
        row = found[step] = {**ratios(part, contender), **due(part, contender)}
        print(f'  {step}: ' + ', '.join(f'{name} {value}' for name, value in row.items()))
    return found


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
