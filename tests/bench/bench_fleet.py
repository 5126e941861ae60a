# SPDX-License-Identifier: Apache-2.0
"""Measure the duration and the quality of a fleet's plan.

1. 10,000 hosts with 150,000 guests: the CPU time of a plan, after the fetch.
2. 40 hosts whose guests want 0.92 of the capacity and leave little memory: what the plan gains,
   compared with a bound on what any plan gains within the same budgets (HiGHS).

The last line of output is one JSON object. Usage: bench_fleet.py [CASES]
"""

import json
import os
import random
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))

from nova_numa_pmc.core import fleet  # noqa: E402
from tests.bench import exact_fleet  # noqa: E402
from tests.fixtures import fleets  # noqa: E402
from tests.fixtures.model_records import GIB  # noqa: E402

HOSTS, GUESTS_PER_HOST = 10_000, 15
LARGE, SMALL = fleet.Budgets(200, 4096 * GIB), fleet.Budgets(10, 256 * GIB)


def main(cases=8):
    """Print the figures."""
    hosts = fleets.draw(random.Random(1), HOSTS, GUESTS_PER_HOST)
    count = sum(len(host.guests) for host in hosts.values())
    begun_s = time.process_time()
    plan = fleet.plan(hosts, LARGE, fleets.NOW_S)
    plan_s = time.process_time() - begun_s
    print(
        f'{HOSTS} hosts, {count} guests: {plan_s:.2f} s of CPU, {len(plan.moves)} moves gain '
        f'{sum(move.gain_cores for move in plan.moves):.0f} cores'
    )
    ratios = []
    for seed in range(cases):
        hosts = fleets.draw(random.Random(seed), 40)
        plan = fleet.plan(hosts, SMALL, fleets.NOW_S)
        gain, most = (exact_fleet.gain_of(hosts, plan.moves), exact_fleet.most_gain(hosts, SMALL))
        guests = sum(len(host.guests) for host in hosts.values())
        ratios.append((gain / most, len(plan.moves) / guests))
        print(
            f'40 hosts, {guests} guests, case {seed}: {len(plan.moves)} moves gain {gain:.2f} '
            f'cores, any plan at most {most:.2f}: {gain / most:.3f}',
            flush=True,
        )
    print(
        json.dumps(
            {
                'plan_s': round(plan_s, 2),
                'gain_to_optimum': round(statistics.mean(gain for gain, _ in ratios), 3),
                'gain_to_optimum_least': round(min(gain for gain, _ in ratios), 3),
                'moved_ratio': round(statistics.mean(moved for _, moved in ratios), 4),
            }
        )
    )


if __name__ == '__main__':
    main(*map(int, sys.argv[1:]))
