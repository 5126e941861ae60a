# SPDX-License-Identifier: Apache-2.0
"""With three vCPUs per core, the package makes no guest do less work."""

import unittest

from tests.sim.loads import CrowdedLoad
from tests.sim.policies import NoMoves, PlannerPolicy

#: Shares of what is wanted. A change may come just before the end; floating is idealised, and the
#: package starts from the static placement.
STATIC_ERROR, FLOATING_ERROR = 0.002, 0.015


class OversubscriptionTest(unittest.TestCase):
    def test_our_planner_gets_as_much_done_as_held_or_floating_guests(self):
        for cores, guests, vcpus in ((2, 12, 1), (12, 18, 4)):
            for share, lines in ((0.6, 0.0), (1.0, 0.0), (0.4, 2e6), (1.0, 2e6)):
                for order in range(2):
                    load = CrowdedLoad(order, cores, guests, vcpus, share, lines, minutes=6)
                    floating, static, ours = (
                        host.useful / host.wanted
                        for host in (
                            load.run(NoMoves(), True),
                            load.run(NoMoves()),
                            load.run(PlannerPolicy()),
                        )
                    )
                    with self.subTest(cores=cores, share=share, lines=lines, order=order):
                        self.assertGreater(ours, static - STATIC_ERROR)
                        self.assertGreater(ours, floating - FLOATING_ERROR)

    def test_guests_that_crowd_a_node_are_levelled(self):
        load = CrowdedLoad(0, 2, 12, 1, 0.6, minutes=6)
        static, ours = load.run(NoMoves()), load.run(PlannerPolicy())
        self.assertGreater(ours.useful / ours.wanted, static.useful / static.wanted + 0.02)
