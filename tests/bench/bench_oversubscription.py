# SPDX-License-Identifier: Apache-2.0
"""Simulate three vCPUs for each core, and compare the work done with and without the agent.

A third of the guests want all of their vCPUs, a third half of them, a third a tenth, on average:
from second to second, their demand varies by half. They start in ten shuffled orders and are held
to the nodes that they were given then (static), float over all cores, or are rebalanced, beginning
with the static places. The useful part of the wanted cores is compared within the same order;
the time that the agent needs to settle counts. Errors are two standard errors of the mean
difference.

Floating is idealised: it levels cores from second to second without any cost, so that guests
without memory traffic suit it best. `make bench-crowded` does the same in the lab.
The last line of output is one JSON object.
Usage: bench_oversubscription.py [ORDERS [MINUTES]]
"""

import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))

from tests.sim.loads import CrowdedLoad  # noqa: E402
from tests.sim.policies import NoMoves, PlannerPolicy  # noqa: E402

#: Guests that access memory as a usual service does: 128 MB/s per core.
LINES = 2e6
SHAPES = {
    '12 guests of 1 vCPU, 2 × 2 cores': dict(guests=12, vcpus=1, cores=2),
    '18 guests of 4 vCPUs, 2 × 12 cores': dict(guests=18, vcpus=4, cores=12),
}
SHARES = (0.4, 0.6, 1.0)
#: Fraction of the wanted cores by which ours may be lower, in addition to the error.
FLOATING_SLACK = 0.01


def work_done(simulated):
    """Return useful ÷ wanted for (floating, static, ours), and our host."""
    hosts = [
        simulated.run(policy, floats)
        for policy, floats in ((NoMoves(), True), (NoMoves(), False), (PlannerPolicy(), False))
    ]
    return [host.useful / host.wanted for host in hosts], hosts[-1]


def difference(rows, at):
    """Return (mean, error, minimum) of ours − another column."""
    over = [row[2] - row[at] for row in rows]
    error = 2 * statistics.stdev(over) / len(over) ** 0.5 if len(over) > 1 else 0.0
    return statistics.mean(over), error, min(over)


def one_load(orders, minutes, share, lines, shape):
    """Run all orders of one load and print its line; return its figures."""
    rows, changes, moves = [], 0, 0
    for order in range(orders):
        row, ours = work_done(
            CrowdedLoad(order, share=share, lines=lines, minutes=minutes, **shape)
        )
        rows.append(row)
        changes, moves = changes + ours.changes / orders, moves + ours.moves / orders
    floating, static, planned = map(statistics.mean, zip(*rows))
    by_floating, by_static = difference(rows, 0), difference(rows, 1)
    print(
        f'  {1.6 * share:4.2f} of the cores wanted {"with" if lines else "no"} traffic'.ljust(45)
        + f'{floating:9.4f}{static:9.4f}{planned:9.4f}'
        + ''.join(
            f'{mean:+10.4f} ±{error:.4f} ({least:+.4f})'
            for mean, error, least in (by_floating, by_static)
        )
        + f'{changes:8.1f}{moves:7.1f}',
        flush=True,
    )
    return {
        'floating': round(floating, 5),
        'static': round(static, 5),
        'ours': round(planned, 5),
        'over_floating': [round(x, 5) for x in by_floating],
        'over_static': [round(x, 5) for x in by_static],
    }


def main(orders=10, minutes=15):
    """Run the benchmark; return 1 if ours does less than the others beyond the error."""
    orders, minutes = int(orders), int(minutes)
    by_title, below = {}, []
    for title, shape in SHAPES.items():
        print(
            f'{title:45}{"floating":>9}{"static":>9}{"ours":>9}'
            f'{"over floating (worst order)":>27}{"over static (worst)":>27}'
            f'{"changes":>9}{"moves":>7}'
        )
        for share in SHARES:
            for lines in (0.0, LINES):
                figures = one_load(orders, minutes, share, lines, shape)
                name = f'{1.6 * share:.2f} {"with" if lines else "no"} traffic'
                by_title.setdefault(title, {})[name] = figures
                for other, slack in (('static', 0.0), ('floating', FLOATING_SLACK)):
                    mean, error, _ = figures[f'over_{other}']
                    if mean < -error - slack:
                        below.append(f'{title}, {name}: below {other}')
    print(*below, sep='\n')
    print(
        json.dumps({'orders': orders, 'minutes': minutes, 'throughput': by_title, 'below': below})
    )
    return int(bool(below))


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
