# SPDX-License-Identifier: Apache-2.0
"""Sets of events take turns on the counters of a benchmark."""

import os
import unittest

from nova_numa_pmc.exceptions import CounterUnsupported
from nova_numa_pmc.host.perf import perf_event
from tests.bench import rotation
from tests.cases.counting import CountingCase
from tests.fixtures.software_events import ABSENT, CYCLES, INSTRUCTIONS, LOCAL
from tests.fixtures.working_child import touch


class RotationTest(CountingCase):
    def test_sets_of_events_take_turns(self):
        child = self.start_child(lambda: touch(500))
        rotating = rotation.Rotation(
            ((LOCAL, CYCLES), (INSTRUCTIONS, CYCLES)), perf_event.thread(child.pid)
        )
        self.addCleanup(rotating.close)
        faults = int(child.field(7))
        rotating.step()
        child.run()
        seen = int(child.field(7)) - faults
        rotating.step()
        child.run()
        rotating.stop()
        child.run()
        counts = rotating.read(10**9)
        self.assertEqual(seen, counts[LOCAL].value)
        self.assertEqual(10**9, counts[CYCLES].enabled_ns)
        self.assertEqual(
            counts[LOCAL].running_ns + counts[INSTRUCTIONS].running_ns, counts[CYCLES].running_ns
        )

    def test_an_absent_event_leaves_nothing_open(self):
        before = len(os.listdir('/proc/self/fd'))
        with self.assertRaises(CounterUnsupported):
            rotation.Rotation(((CYCLES,), (ABSENT,)), perf_event.on_cpu(0))
        self.assertEqual(before, len(os.listdir('/proc/self/fd')))


class PlanSetsTest(unittest.TestCase):
    def sets(self, events, room, in_each=()):
        """Plan sets, with letters for events."""
        return rotation.plan_sets(events, room, in_each)

    def test_events_that_fit_at_once_are_one_set(self):
        self.assertEqual((('a', 'b'),), self.sets('ab', 4))

    def test_the_common_events_are_in_each_set(self):
        self.assertEqual((('i', 'a', 'b'), ('i', 'c')), self.sets('iabc', 3, 'i'))

    def test_sets_without_room_beside_the_common_events_are_an_error(self):
        with self.assertRaises(ValueError):
            self.sets('iabc', 1, 'i')

    def test_nothing_to_count_gives_no_set(self):
        self.assertEqual((), self.sets('', 4))
