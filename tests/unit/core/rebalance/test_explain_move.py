# SPDX-License-Identifier: Apache-2.0
"""Test the explanation of a plan for an operator."""

import unittest

from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.core.rebalance.explain_move import explain_move
from tests.sim.constant import GIB, ConstantHost, guest_load


def explained(host, ticks=20, **options):
    plans, _ = host.run(plan_records.RebalanceOptions(**options), ticks)
    return [explain_move(move) for plan in plans for move in plan.moves]


class ExplainTest(unittest.TestCase):
    def test_explain_shows_what_a_move_gains_costs_and_lost_so_far(self):
        host = ConstantHost(
            (12, 12),
            (64 * GIB,) * 2,
            [guest_load(f'g{at}', 4, 0 if at < 4 else 1, 4.0, resident=GIB) for at in range(5)],
        )
        self.assertEqual(
            [
                'g0 moves from node 0 to node 1 (1.0 GiB): gains 4.6 cores (waiting for CPUs 4, '
                'unevenly crowded nodes 0.6), costs 5.0 core-seconds, 22.8 lost so far'
            ],
            explained(host),
        )
