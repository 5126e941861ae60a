# SPDX-License-Identifier: Apache-2.0
"""Simulate days of a host in twelve scenarios, and compare what moving and widening guests gains.

The policies: guests are held to the nodes that they were given (off), float over all cores, are
widened and narrowed only (wide), or are moved, too, as by default (auto). Loss + cost is shown
relative to *off*. A move of memory is compared with its absence over the following hour, in which
guests are widened in either case: claimed and true gains [core-seconds]. The last line of output
is one JSON object; the exit code is 1 if auto misses one of its goals.
Usage: bench_balance.py [HOURS [SEEDS [TITLE …]]]
"""

import copy
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))

from nova_numa_pmc.core.rebalance import plan_records  # noqa: E402
from tests.fixtures.model_records import GIB  # noqa: E402
from tests.sim.days import BACK_S, DAY_S, SCENARIOS, TICK_S, TRUE_S, Day  # noqa: E402
from tests.sim.policies import NoMoves, PlannerPolicy  # noqa: E402

WIDE = plan_records.RebalanceOptions(may_move=False)
#: Goals: auto ÷ wide, and moves a day.
WIDE_RATIO_MAX, MOVES_MAX = 1.01, 10


class ComparedMoves(PlannerPolicy):
    """The default policy; after each of its moves, an hour is simulated with and without it."""

    def __init__(self, day):
        super().__init__()
        self.day, self.claimed, self.true = day, 0.0, 0.0

    def tick(self, host, now_s, elapsed_s, rng, noise):
        """Examine one interval, apply the plan, and compare."""
        before, count = copy.deepcopy(host), len(self.made)
        super().tick(host, now_s, elapsed_s, rng, noise)
        moves = [move for _, move in self.made[count:] if move.mem_nodes]
        if moves:
            after = copy.deepcopy(host)
            losses = []
            for each in (before, after):
                each.reset()
                first = int(now_s / TICK_S)
                self.day.run(PlannerPolicy(WIDE), host=each, first=first, count=TRUE_S // TICK_S)
                losses.append(each.lost + each.cost)
            self.claimed += sum(move.gain_cores * TRUE_S - move.cost_core_sec for move in moves)
            self.true += losses[0] - losses[1]


def came_back(made):
    """Count the guests that were moved to where they had come from within a day."""
    last, count = {}, 0
    for at_s, move in made:
        if move.mem_nodes and move.from_nodes != move.to_nodes:
            moved_s, from_nodes = last.get(move.uuid, (-BACK_S, ()))
            count += at_s - moved_s < BACK_S and from_nodes == move.to_nodes
            last[move.uuid] = at_s, move.from_nodes
    return count


def run(title, seed, hours):
    """Run all policies; return their figures."""
    day = Day(title, seed, hours)
    hosts = {
        name: day.run(policy, floats)
        for name, policy, floats in (
            ('off', NoMoves(), False),
            ('floating', NoMoves(), True),
            ('wide', PlannerPolicy(WIDE), False),
        )
    }
    auto = ComparedMoves(day)
    hosts['auto'] = day.run(auto)
    off = hosts['off'].lost + hosts['off'].cost or 1.0
    days = hours * 3600 / DAY_S
    return {
        **{name: (host.lost + host.cost) / off for name, host in hosts.items()},
        'moves': hosts['auto'].moves / days,
        'gib': hosts['auto'].moved_bytes / GIB / days,
        'claimed': auto.claimed,
        'true': auto.true,
        'back': came_back(auto.made),
    }


def main(hours=24.0, seeds=2, *titles):
    """Run the benchmark; return 1 if a goal was missed."""
    figures, missed = {}, []
    print(
        f'{"":24}{"floating":>9}{"wide":>7}{"auto":>7}{"moves/day":>11}{"GiB/day":>9}'
        f'{"claimed":>9}{"true":>8}{"back":>6}'
    )
    for title in titles or SCENARIOS:
        runs = [run(title, seed, float(hours)) for seed in range(1, int(seeds) + 1)]
        mean = {name: statistics.mean(each[name] for each in runs) for name in runs[0]}
        figures[title] = {name: round(value, 4) for name, value in mean.items()}
        print(
            f'{title:24}{mean["floating"]:9.3f}{mean["wide"]:7.3f}{mean["auto"]:7.3f}'
            f'{mean["moves"]:11.1f}{mean["gib"]:9.1f}{mean["claimed"]:9.0f}{mean["true"]:8.0f}'
            f'{mean["back"]:6.1f}',
            flush=True,
        )
        missed += [
            f'{title}: {name}'
            for name, is_missed in (
                ('auto over wide', mean['auto'] > WIDE_RATIO_MAX * mean['wide']),
                ('moves a day', mean['moves'] > MOVES_MAX),
                ('came back', mean['back'] > 0),
            )
            if is_missed
        ]
    print(*missed, sep='\n')
    print(
        json.dumps(
            {
                'bench': 'balance',
                'hours': float(hours),
                'seeds': int(seeds),
                'scenarios': figures,
                'missed': missed,
            }
        )
    )
    return int(bool(missed))


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
