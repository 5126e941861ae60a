# SPDX-License-Identifier: Apache-2.0
"""Each guest is measured by the best source that works and reports on it."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core.sample_records import COUNTED, INFERRED, Evidence, RunningGuest
from nova_numa_pmc.exceptions import CounterRefused, SourceUnavailable
from nova_numa_pmc.host.sources import ladder
from nova_numa_pmc.host.sources.ladder import SourceTick

TICK = SourceTick(
    0,
    10**9,
    None,
    tuple(RunningGuest(model.Guest(uuid, uuid, 1, 1), {}, 1.0, 0.0, {}, {}) for uuid in 'ab'),
    {},
    {},
)


class Source:
    """A source that returns what a test says, or fails with a text."""

    def __init__(self, name, answer):
        self.name, self.answer = name, answer
        self.problems: tuple[str, ...] = ()
        self.asked = self.closed = 0

    def sample(self, tick):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self):
        self.closed += 1


def ratio(value, source='x', basis=INFERRED):
    return Evidence(source, basis, remote_ratio=value)


class LadderTest(unittest.TestCase):
    def test_the_best_source_is_taken_and_the_others_are_not_asked(self):
        best, other = Source('best', {'a': ratio(0.1), 'b': ratio(0.2)}), Source('other', {})
        sampled = ladder.Ladder([best, other]).sample(TICK)
        self.assertEqual(({'a': ratio(0.1), 'b': ratio(0.2)}, (), 'best', ()), tuple(sampled))
        self.assertEqual(0, other.asked)

    def test_each_guest_has_the_best_source_that_reports_on_it(self):
        best, other = (
            Source('best', {'a': ratio(0.1)}),
            Source('other', {'a': ratio(0.9), 'b': ratio(0.2)}),
        )
        sampled = ladder.Ladder([best, other]).sample(TICK)
        self.assertEqual({'a': ratio(0.1), 'b': ratio(0.2)}, sampled.evidence)
        self.assertEqual('best', sampled.source)

    def test_what_a_host_lacks_is_a_fact_and_no_problem(self):
        best = Source('best', SourceUnavailable('the CPU has no such counter'))
        steps = ladder.Ladder([best, Source('other', {'a': ratio(0.1), 'b': ratio(0.2)})])
        for _ in range(1 + ladder.RETRY_TICKS):
            sampled = steps.sample(TICK)
            self.assertEqual(
                ((), ('best: the CPU has no such counter',)),
                (sampled.problems, sampled.unavailable),
            )
        best.answer = CounterRefused('not permitted')
        sampled = steps.sample(TICK)
        self.assertEqual((('best: not permitted',), ()), (sampled.problems, sampled.unavailable))

    def test_a_failing_source_is_left_within_the_tick_and_tried_again_later(self):
        broken = CounterRefused('broken')
        best, other = Source('best', broken), Source('other', {'a': ratio(0.1), 'b': ratio(0.2)})
        steps = ladder.Ladder([best, other])
        for _ in range(1 + ladder.RETRY_TICKS):
            sampled = steps.sample(TICK)
            self.assertEqual(('other', ('best: broken',)), (sampled.source, sampled.problems))
            self.assertEqual(2, len(sampled.evidence))
        self.assertEqual((1, 1), (best.asked, best.closed))
        best.answer = {'a': ratio(0.3), 'b': ratio(0.4)}
        self.assertEqual(('best', ()), (steps.sample(TICK).source, steps.sample(TICK).problems))

    def test_execution_of_a_better_source_stays(self):
        best = Source(
            'best',
            {
                'a': Evidence(
                    'best',
                    COUNTED,
                    cycles_per_sec=3.0,
                    instructions_per_sec=2.0,
                    counted_ratio=0.5,
                    remote_cache_per_sec=4.0,
                    stalled_cycles_per_sec=1.0,
                )
            },
        )
        best.problems = ('no event for remote_dram',)
        sampled = ladder.Ladder([best, Source('other', {'a': ratio(0.1)})]).sample(TICK)
        self.assertEqual(
            ('other', ('no event for remote_dram',)), (sampled.source, sampled.problems)
        )
        self.assertEqual(
            ratio(0.1)._replace(
                cycles_per_sec=3.0,
                instructions_per_sec=2.0,
                counted_ratio=0.5,
                remote_cache_per_sec=4.0,
                stalled_cycles_per_sec=1.0,
            ),
            sampled.evidence['a'],
        )
