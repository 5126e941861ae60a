# SPDX-License-Identifier: Apache-2.0
"""Run the arena: policies on cells and seeds, the referee, the table.

The last line of output is one JSON object, which is also written to OUT/result.json. The
environment variable ARENA_SEED, any whole number, replaces the first seed of the table. The exit
code is 1 if the referee disagrees.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time

from tests.arena import (
    cells as conditions,
    inside_comparison,
    loads,
    parameters as p,
    policies as registry,
    region,
    sampling,
    statistics,
)

NOVA_PYTHON = pathlib.Path('.venv-nova-34/bin/python')
#: Files in OUT.
RUNS, DECISIONS = 'runs.pickle', 'decisions.pickle'
#: With ``--quick``: hosts, filling time and evaluated time [s].
QUICK = 24, 1800, 1800
#: Cells of ``--quick``, by number, and policies.
QUICK_CELLS = 3, 19
#: Variants of our weigher.
LEFT_OUT = ('numa-pressure-5', 'numa-pressure-pack', registry.SPREAD_FLEET, registry.OURS_FLEET)


def arguments(args):
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog='python -m tests.arena', description=__doc__)
    parser.add_argument('--quick', action='store_true', help='run two small cells on two seeds')
    parser.add_argument('--seeds', type=int, help='number of seeds (5)')
    parser.add_argument(
        '--tuning', action='store_true', help="use seeds 1 … 100 instead of the table's"
    )
    parser.add_argument(
        '--inside', action='store_true', help='compare ways within hosts, on a few cells'
    )
    parser.add_argument('--hosts', type=int, help='number of hosts (150)')
    parser.add_argument('--hours', type=float, help='evaluated time (3.5)')
    parser.add_argument(
        '--cells', default='', help='run only these cells, given by parts of their names: a,b'
    )
    parser.add_argument('--policies', default='', help='run only these policies, comma-separated')
    parser.add_argument(
        '--deadband',
        type=float,
        metavar='PRESSURE',
        help="the compute monitor's deadband; 0: send metrics at each audit (without the referee)",
    )
    parser.add_argument('--contender', default=registry.OURS, choices=list(registry.POLICIES))
    parser.add_argument(
        '--no-referee', action='store_true', help="do not compare with Nova's own code"
    )
    parser.add_argument('--processes', type=int, default=os.cpu_count())
    parser.add_argument('--kept', action='store_true', help='report on the runs in OUT again')
    parser.add_argument('--out', default='build/arena', help='directory for the results')
    options = parser.parse_args(args)
    seed = os.environ.get('ARENA_SEED')
    if seed is not None and not seed.isdecimal():
        parser.error(f'ARENA_SEED is {seed!r}: it has to be a whole number, 0 or more')
    options.first_seed = seed and int(seed)
    if options.deadband is not None:
        p.DEADBAND, options.no_referee = options.deadband, True
        p.HEARTBEAT_S = p.HEARTBEAT_S if p.DEADBAND else 0
    return options


def seeds(options):
    """Return the seeds to run."""
    first = options.first_seed
    if first is None:
        first = (p.SEEDS_TUNING if options.tuning else p.SEEDS_TABLE)[0]
    usual = 2 if options.quick else len(p.SEEDS_TABLE)
    return range(first, first + (options.seeds or usual))


def chosen_cells(options):
    """Return the cells to run."""
    found = inside_comparison.cells() if options.inside else conditions.cells()
    found = [cell for cell in found if any(at in cell.name for at in options.cells.split(','))]
    if options.quick:
        if not options.inside:
            found = [cell for cell in found if cell.number in QUICK_CELLS]
        found = [cell.shortened(*QUICK) for cell in found]
    for cell in found:
        cell.hosts = options.hosts or cell.hosts
        cell.judged_s = 3600 * options.hours if options.hours else cell.judged_s
    return found


def chosen_policies(options):
    """Return the names of policies to run, which always include those that the figures need."""
    wanted = [name for name in options.policies.split(',') if name]
    needed = {registry.ORACLE, registry.SPREAD, registry.SPREAD_10, registry.PACK}
    needed.add(options.contender)
    return [
        name
        for name in registry.POLICIES
        if name in needed or (name in wanted if wanted else name not in LEFT_OUT)
    ]


def planned(options):
    """Return the arguments of :func:`run` for all cells and seeds."""
    names, found = chosen_policies(options), chosen_cells(options)
    pairs = [(cell, seed) for seed in seeds(options) for cell in found]
    every = 40
    if not options.quick:
        every = max(1, int(3000 * len(pairs) / p.REFEREED))  # at least 3,000 decisions a run
    return [(cell, seed, names, 0 if options.no_referee else every) for cell, seed in pairs]


def run(task):
    """Run all policies of a cell and seed on the same trace.

    :returns: (cell's name, seed, summary, records for the referee, CPU seconds)
    """
    cell, seed, names, every = task
    begun_s = time.process_time()
    shape, trace = loads.drawn(cell, seed)
    results, records = {}, []
    for turn, name in enumerate(names):
        # The referee examines one policy per run, each in turn.
        mine = every and (cell.number + seed) % len(names) == turn
        sampler = sampling.Sampler(every, seed) if mine else None
        policy = registry.POLICIES[name]
        results[name] = region.Region(
            cell, shape, trace, policy, seed, policy.way, sampler=sampler
        ).run()
        records += sampler.kept if sampler else []
    return (cell.name, seed, statistics.summary(results), records, time.process_time() - begun_s)


def run_all(tasks, processes, out, work=run):
    """Run tasks, printing a line for each; return {(cell, seed): summary}.

    Finished tasks are saved in ``out``, in case a run ends early; ``work`` is as :func:`run`.
    """
    runs, records = {}, []
    begun_s = time.monotonic()
    with multiprocessing.get_context('fork').Pool(processes) as pool:
        for done, (name, seed, found, kept, cpu_s) in enumerate(
            pool.imap_unordered(work, tasks), 1
        ):
            runs[name, seed] = found
            records += kept
            sampling.write(out / RUNS, runs)
            sampling.write(out / DECISIONS, records)
            elapsed_s = time.monotonic() - begun_s
            left_s = elapsed_s / done * (len(tasks) - done)
            print(
                f'arena: {done}/{len(tasks)} {name}, seed {seed}: {cpu_s:.0f} s of CPU; '
                f'{elapsed_s:.0f} s, {left_s:.0f} s left',
                flush=True,
            )
    return runs


def refereed(out):
    """Decide again with Nova's own code; return its figures, or None without it."""
    if not NOVA_PYTHON.exists():
        print('arena: no referee: tools/setup nova34 makes its environment')
        return None
    done = subprocess.run(
        [str(NOVA_PYTHON), '-m', 'tests.arena.referee', str(out / DECISIONS)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return json.loads(done.stdout.splitlines()[-1])


def show(table, contender):
    """Print the table of policies, and where the contender loses."""
    print(
        f'\n{"policy":22}{"loss to stock-1":>24}{"second model":>14}{"gap closed":>12}'
        f'{"p99":>8}{"p99.9":>8}{"large":>8}{"emptied":>9}{"most in 10 s":>14}'
    )
    large = table.total(registry.SPREAD, 'large_placed') or 1
    count = len(table.runs)
    for name in table.policies:
        gap = table.gap(name)
        gap = f'{"":12}' if gap is None else f'{gap:12.2f}'
        print(
            f'{name:22}{table.ratio(name, registry.SPREAD)!s:>24}'
            f'{table.ratio(name, registry.SPREAD, "loss_second").mean:14.3f}{gap}'
            f'{table.pooled(name, 0.99):8.3f}{table.pooled(name, 0.999):8.3f}'
            f'{table.total(name, "large_placed") / large:8.3f}'
            f'{table.total(name, "emptied") / count:9.2f}'
            f'{max(table.column(name, "most_new")):14}'
        )
    for name in table.policies:
        if table.total(name, 'migrated'):
            migrated = table.total(name, 'migrated') / count
            print(f'{name}: {migrated:.0f} guests moved to other hosts in a run')
    for figure, title in (('loss', 'mean loss'), ('p99', 'p99 of the loss')):
        print(f'\n{contender} loses by {title} to:')
        for (cell, rival), outcome in table.duels(contender, figure).items():
            if outcome == 'lost':
                print(f'  {cell}: {rival}, {table.ratio(contender, rival, figure, cell)}')
    print(f'\n{"cell":34}{"stock-1":>9}{"stock-10":>9}{"oracle":>9}{"ours":>9}{"gap":>7}')
    for cell in table.cells:
        means = [
            sum(column) / len(column)
            for column in (
                table.column(name, 'loss', cell)
                for name in (registry.SPREAD, registry.SPREAD_10, registry.ORACLE, contender)
            )
        ]
        gap = table.gap(contender, cell)
        gap = f'{"–":>7}' if gap is None else f'{gap:7.2f}'
        print(f'{cell:34}' + ''.join(f'{mean:9.4f}' for mean in means) + gap)


def main(args=None):
    """Run; return the exit code."""
    options = arguments(args)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    begun_s = time.monotonic()
    tasks = planned(options)
    if not tasks:
        sys.exit(f'arena: no cell to run has {options.cells!r} in its name')
    work = inside_comparison.run if options.inside else run
    kept = sampling.read(out / RUNS) if options.kept else None
    examined = None if options.kept else commit()  # now: files may change while it runs
    runs = kept or run_all(tasks, options.processes, out, work)
    table = statistics.Table(runs)
    if options.inside:
        return finished(inside_comparison.figures(table), out)
    show(table, options.contender)
    figures = table.figures(options.contender)
    referee = None if options.no_referee else refereed(out)
    figures['twin_disagreements'] = referee and referee['twin_disagreements']
    figures['twin_decisions'] = referee and referee['decisions']
    figures['deadband'] = p.DEADBAND
    figures['parameters'], figures['commit'] = p.digest(), examined
    print(f'\narena: {time.monotonic() - begun_s:.0f} s')
    return finished(figures, out)


def commit():
    """Return the commit of this checkout, with "-dirty" if files differ from it; None without."""
    try:
        done = subprocess.run(
            ['git', 'describe', '--always', '--dirty', '--exclude=*'],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def finished(figures, out):
    """Print and save the last line; return the exit code."""
    line = json.dumps(figures)
    (out / 'result.json').write_text(line + '\n')
    print('\n' + line)
    return int(bool(figures.get('twin_disagreements')))


if __name__ == '__main__':
    sys.exit(main())
