# SPDX-License-Identifier: Apache-2.0
"""An unknown value never makes a node look better, unless the node is among the worst."""

import os
import random
import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import missing
from nova_numa_pmc.core.placement import candidates, placement
from tests.fixtures.model_records import GIB, MIB, PLACEMENT_OPTIONS, node_view, view_of_nodes

#: `NUMA_PMC_CASES=20000` for the long run.
CASES = int(os.environ.get('NUMA_PMC_CASES', '2000'))
HIDDEN = {
    'demand': {'demand_cores': None},
    'link': {'link_ratio': None},
    'bandwidth': {'bandwidth_max_bytes_per_sec': None},
}


class CompletedTest(unittest.TestCase):
    def test_each_part_that_a_node_lacks_is_filled_in(self):
        nodes = (
            node_view(
                0,
                demand_cores=2.0,
                bandwidth_bytes_per_sec=30,
                bandwidth_max_bytes_per_sec=100,
                link_ratio=0.5,
            ),
            node_view(1, 8),
        )
        nodes_filled, filled = missing.fill_in(nodes)
        self.assertEqual(
            (missing.CPU_ASSUMED, missing.BANDWIDTH_ASSUMED, missing.LINK_ASSUMED), filled
        )
        self.assertEqual(
            (4.0, 30, 100, 0.5),
            (
                nodes_filled[1].demand_cores,
                nodes_filled[1].bandwidth_bytes_per_sec,
                nodes_filled[1].bandwidth_max_bytes_per_sec,
                nodes_filled[1].link_ratio,
            ),
        )


class HidingTest(unittest.TestCase):
    def order(self, view):
        """List the positions of the nodes, best first."""
        inputs = candidates.PlacementInput(view, model.Request(1, MIB, policy=model.ONE_NODE))
        return [
            rank.candidate.cpu_positions[0]
            for rank in placement.decide_place(inputs, PLACEMENT_OPTIONS).ranks
        ]

    def drawn(self, rng):
        return view_of_nodes(
            *(
                node_view(
                    at,
                    rng.choice((4, 8)),
                    capacity=8 * GIB,
                    demand_cores=rng.uniform(0, 8),
                    bandwidth_bytes_per_sec=rng.randrange(100),
                    bandwidth_max_bytes_per_sec=100,
                    link_ratio=rng.uniform(0, 1.2),
                    vcpus=rng.randrange(9),
                )
                for at in range(rng.randint(2, 6))
            )
        )

    def test_hiding_a_part_never_raises_a_nodes_rank(self):
        rng, raised, above = random.Random(16), 0, 0
        for _ in range(CASES):
            view, part = self.drawn(rng), rng.choice(list(HIDDEN))
            at = rng.randrange(len(view.nodes))
            others = view.nodes[:at] + view.nodes[at + 1 :]
            blind = view._replace(
                nodes=(
                    *view.nodes[:at],
                    view.nodes[at]._replace(**HIDDEN[part]),
                    *view.nodes[at + 1 :],
                )
            )
            least = missing.upper_quartile([self.ratio(part, one) for one in others])
            if self.ratio(part, view.nodes[at]) > least:
                above += 1
                assumed = missing.fill_in(blind.nodes)[0][at]
                self.assertAlmostEqual(least, self.ratio(part, assumed))
            else:
                raised += self.order(blind).index(at) < self.order(view).index(at)
        self.assertEqual(0, raised)
        self.assertGreater(above, CASES / 10)

    def ratio(self, part, one):
        return {
            'demand': lambda: one.demand_cores / one.cores,
            'link': lambda: one.link_ratio,
            'bandwidth': lambda: one.bandwidth_bytes_per_sec / one.bandwidth_max_bytes_per_sec,
        }[part]()
