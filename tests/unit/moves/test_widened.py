# SPDX-License-Identifier: Apache-2.0
"""Test which guests are held to more nodes than they were promised."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.moves.parts import CpuMove, MovePart
from nova_numa_pmc.moves.widened import WidenedGuests
from tests.fixtures.model_records import guest

PROMISE = model.Promise('uuid-g', 'g', (0,), (0,), 2, 1 << 30)


def part(to_nodes):
    part = plan_records.PlanPart('uuid-g', 'g', (0,), to_nodes, (), 0)
    return MovePart(part, PROMISE, PROMISE, CpuMove(None, None, None, frozenset(), None), 0.0)


class WidenedTest(unittest.TestCase):
    def setUp(self):
        self.widened = WidenedGuests()
        self.widened.begin()
        self.widened.record(plan_records.WIDEN, part((0, 1)))

    def test_a_guest_is_wide_until_its_cpus_are_moved(self):
        self.assertEqual({'uuid-g': (0, 1)}, self.widened.nodes)
        self.widened.record(plan_records.FETCH, part(()))
        self.assertEqual({'uuid-g': (0, 1)}, self.widened.nodes)
        self.widened.record(plan_records.MOVE, part((1,)))
        self.assertEqual({}, self.widened.nodes)

    def test_a_guest_is_wide_again_when_its_move_is_undone(self):
        self.widened.record(plan_records.MOVE, part((1,)))
        self.widened.undo('uuid-g')
        self.assertEqual({'uuid-g': (0, 1)}, self.widened.nodes)

    def test_a_guest_is_not_wide_after_a_move_that_did_not_narrow_it(self):
        self.widened.record(plan_records.MOVE, part((1,)))
        self.widened.begin()
        self.widened.undo('uuid-g')
        self.assertEqual({}, self.widened.nodes)

    def test_a_guest_is_wide_while_its_promise_and_override_stay(self):
        one = guest('g')
        self.widened.forget_changed([one], {'uuid-g': PROMISE})
        self.assertEqual({'uuid-g': (0, 1)}, self.widened.nodes)
        for running, promised in (
            ([one._replace(override='pin')], {'uuid-g': PROMISE}),
            ([one], {'uuid-g': PROMISE._replace(since_ns=1)}),
            ([], {}),
        ):
            self.setUp()
            self.widened.forget_changed(running, promised)
            self.assertEqual({}, self.widened.nodes)
