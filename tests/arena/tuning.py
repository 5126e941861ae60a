# SPDX-License-Identifier: Apache-2.0
"""The policies' own settings, tried on tuning seeds: the same number for each policy with any."""

import functools
import time

from tests.arena import (
    cells as conditions,
    loads,
    parameters as p,
    policies as registry,
    region,
    statistics,
)
from tests.arena.policies import Policy, former_weigher, nova_weights, others, our_weigher

#: Number of tuning seeds if none is given.
SEEDS = 4


def _named(name, function, ties='first', **settings):
    """Return three settings of a function: {setting: policy}, the table's first."""
    ((setting, values),) = settings.items()
    found = {}
    for value in values:
        label, set_so = f'{setting} {value:g}', functools.partial(function, **{setting: value})
        found[label] = Policy(f'{name}, {label}', set_so, ties=ties)
    return found


def _subsets(name, function, *subsets):
    return {
        f'host_subset_size {subset}': Policy(f'{name}, {subset}', function, subset)
        for subset in subsets
    }


#: {policy: {setting: policy}}. The first setting is that of the table: the published one or, if
#: there is none, an assumed one, or the one that such a comparison found better than that.
#: ``stock-1`` and ``best-fit`` have none, and ``pack`` does not aim at less loss.
SETTINGS = {
    'stock-10': _subsets('stock', nova_weights.stock, 10, 5, 20),
    'metrics': _named('metrics', nova_weights.metrics, multiplier=(1, 3, 10)),
    'random-of-20': _subsets('random', others.least_pressed, p.LEAST_PRESSED, 5, 10),
    'target-load-packing': _named(
        'target', others.target_load_packing, 'random', target=(p.TARGET_PERCENT, 40, 60)
    ),
    'load-variation': _named(
        'variation', others.load_variation_risk_balancing, 'random', margin=(1, 0.3, 3)
    ),
    'ovirt-even': _named(
        'ovirt', others.ovirt_evenly_distributed, 'random', consumption=(20, 10, 50)
    ),
    'ranked': _subsets('ranked', former_weigher.ranked, 1, 5, 10),
    registry.OURS: _named('ours', our_weigher.numa_pressure, jitter=(0.02, 0.005, 0.05)),
}


def cells():
    """Return the cells on which settings are compared."""
    return [cell for cell in conditions.cells() if cell.name in p.SENSITIVITY_CELLS]


def run(task):
    """Run all settings of a cell and seed on the same trace.

    :returns: as :func:`tests.arena.__main__.run`, without records
    """
    cell, seed, *_ = task
    begun_s = time.process_time()
    shape, trace = loads.drawn(cell, seed)
    results = {
        policy.name: region.Region(cell, shape, trace, policy, seed).run()
        for settings in SETTINGS.values()
        for policy in settings.values()
    }
    return cell.name, seed, statistics.summary(results), [], time.process_time() - begun_s


def figures(table):
    """Print the runs; return the figures of the last line.

    :param table: a :class:`tests.arena.statistics.Table` of what :func:`run` returned
    """
    found, better = {}, []
    print(f'\n{"policy":22}{"setting":24}{"loss to its setting in the table":>34}')
    for name, settings in SETTINGS.items():
        (first, usual), *rest = settings.items()
        print(f'{name:22}{first:24}{1:34}')
        found[name] = {first: 1.0}
        for setting, policy in rest:
            ratio = table.ratio(policy.name, usual.name)
            print(f'{"":22}{setting:24}{ratio!s:>34}')
            found[name][setting] = round(ratio.mean, 4)
            if ratio.high < 1:
                better.append(f'{name}: {setting}')
    return {
        'cells': len(table.cells),
        'runs': len(table.runs),
        'settings': found,
        'better': better,
        'parameters': p.digest(),
    }
