# SPDX-License-Identifier: Apache-2.0
"""Test the explanation of a plan for an operator."""

import unittest

from nova_numa_pmc.core.rebalance import plan_records, planner
from nova_numa_pmc.core.rebalance.plan_records import explain_move, explain_remark
from nova_numa_pmc.core.rebalance.planner_state import PlannerState
from nova_numa_pmc.model import Reason
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
                'unevenly crowded nodes 0.6), costs 5.0 core-seconds, 276.2 lost so far'
            ],
            explained(host, measured_min_s=0.0),
        )

    def test_each_remark_on_a_plan_has_words(self):
        host = ConstantHost((4, 4), (GIB,) * 2, [])
        plan, _ = planner.plan(
            host.situation(), PlannerState(), plan_records.RebalanceOptions(), 5.0, 0.0
        )
        self.assertEqual(
            ['bandwidth left out: traffic or maximum is unknown on some nodes'],
            [explain_remark(remark) for remark in plan.remarks],
        )
        self.assertEqual(
            'held back: 20.0 GiB of memory were moved within a day (moved_percent_per_day)',
            explain_remark(Reason('budget', (('used', 20 * GIB),))),
        )
        self.assertIn('nodes 0,2', explain_remark(Reason('demand_unknown', (('nodes', (0, 2)),))))

    def test_a_remark_of_a_later_release_is_its_code(self):
        self.assertEqual('moon_phase', explain_remark(Reason('moon_phase', ())))
