# SPDX-License-Identifier: Apache-2.0
"""A region so large that Placement does not offer all hosts: a run for each of a few policies.

Its Nova cells are modelled by name only, because they change no decision while all of them
answer: a request reads the candidates' counts from all of them at once and lists their hosts in
the same order each time (nova.context.scatter_gather_cells in Nova 34).
"""

import multiprocessing
import time

import numpy as np

from tests.arena import loads, parameters as p, policies as registry, region

#: Those that take longest come first.
POLICIES = registry.OURS, registry.ORACLE, registry.SPREAD_10, registry.SPREAD


def run(task):
    """Run a policy.

    :returns: (policy, result, CPU seconds)
    """
    cell, seed, name = task
    begun_s = time.process_time()
    shape, trace = loads.drawn(cell, seed)
    result = region.Region(cell, shape, trace, registry.POLICIES[name], seed).run()
    return name, result, time.process_time() - begun_s


def compare(cell, seed, processes):
    """Run the policies, printing a line for each; return the figures of the last line."""
    begun_s = time.monotonic()
    results = {}
    tasks = [(cell, seed, name) for name in POLICIES]
    with multiprocessing.get_context('fork').Pool(processes) as pool:
        for name, result, cpu_s in pool.imap_unordered(run, tasks):
            results[name] = result
            print(
                f'arena: {len(results)}/{len(tasks)} {name}: {result.decisions} decisions, '
                f'{cpu_s:.0f} s of CPU, {time.monotonic() - begun_s:.0f} s',
                flush=True,
            )
    return {
        'hosts': cell.hosts,
        'nova_cells': p.REGION_CELLS,
        'candidates': p.CANDIDATES,
        'randomized': cell.randomized,
        'hours': cell.judged_s / 3600,
        'seed': seed,
        'policies': figures(results, cell.hosts),
        'parameters': p.digest(),
        'seconds': round(time.monotonic() - begun_s),
    }


def figures(results, hosts_count):
    """Return {policy: its figures}; losses are those of guests that all policies placed."""
    common = np.logical_and.reduce([result.wanted > 0 for result in results.values()])
    lost = {
        name: (result.lost[common].sum(), result.lost_second[common].sum())
        for name, result in results.items()
    }
    found = {}
    for name in POLICIES:
        result = results[name]
        given = np.flatnonzero(result.given)
        found[name] = {
            'loss': _rounded(lost[name][0] / result.wanted[common].sum()),
            'to_stock_1': _rounded(lost[name][0] / lost[registry.SPREAD][0]),
            'to_stock_1_second': _rounded(lost[name][1] / lost[registry.SPREAD][1]),
            'to_stock_10': _rounded(lost[name][0] / lost[registry.SPREAD_10][0]),
            'to_stock_10_second': _rounded(lost[name][1] / lost[registry.SPREAD_10][1]),
            'most_new': result.most_new,
            'emptied': round(result.emptied, 1),
            'large': int(result.large),
            'large_placed': int(result.large_placed),
            'refused': result.refused,
            # Hosts that were given guests at all: others may have room that is never offered.
            'hosts_given': len(given),
            'nova_cells_given': len(np.unique(given * p.REGION_CELLS // hosts_count)),
        }
    return found


def show(found):
    """Print a line for each policy."""
    print(
        f'\n{"policy":16}{"loss":>9}{"to stock-1":>12}{"second":>9}'
        f'{"to stock-10":>13}{"second":>9}'
        f'{"most in 10 s":>14}{"emptied":>10}{"large":>8}{"hosts given":>13}'
    )
    for name, row in found['policies'].items():
        print(
            f'{name:16}{row["loss"]:9.4f}{row["to_stock_1"]:12.3f}{row["to_stock_1_second"]:9.3f}'
            f'{row["to_stock_10"]:13.3f}{row["to_stock_10_second"]:9.3f}{row["most_new"]:14}'
            f'{row["emptied"]:10.1f}{row["large_placed"]:8}{row["hosts_given"]:13}'
        )


def _rounded(value):
    return round(float(value), 4)
