# SPDX-License-Identifier: Apache-2.0
"""Each guest is measured by the best source that works and reports on it."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core.measurements import COUNTED, INFERRED, Evidence, RunningGuest
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


def steps(*sources):
    return ladder.Ladder(sources, ladder.MeasurementRetries())


class LadderTest(unittest.TestCase):
    def test_the_best_source_is_taken_and_the_others_are_not_asked(self):
        best, other = Source('best', {'a': ratio(0.1), 'b': ratio(0.2)}), Source('other', {})
        sampled = steps(best, other).sample(TICK, [])
        self.assertEqual(({'a': ratio(0.1), 'b': ratio(0.2)}, 'best'), tuple(sampled))
        self.assertEqual(0, other.asked)

    def test_each_guest_has_the_best_source_that_reports_on_it(self):
        best, other = (
            Source('best', {'a': ratio(0.1)}),
            Source('other', {'a': ratio(0.9), 'b': ratio(0.2)}),
        )
        sampled = steps(best, other).sample(TICK, [])
        self.assertEqual({'a': ratio(0.1), 'b': ratio(0.2)}, sampled.evidence)
        self.assertEqual('best', sampled.source)

    def test_what_a_host_lacks_is_a_fact_and_no_problem(self):
        best = Source('best', SourceUnavailable('the CPU has no such counter'))
        retries = ladder.MeasurementRetries()
        both = ladder.Ladder([best, Source('other', {'a': ratio(0.1), 'b': ratio(0.2)})], retries)
        problems: list[str] = []
        for _ in range(1 + ladder.RETRY_TICKS):
            both.sample(TICK, problems)
            self.assertEqual(
                ([], ['best: the CPU has no such counter']),
                (problems, [*retries.unavailable.values()]),
            )
        best.answer = CounterRefused('not permitted')
        both.sample(TICK, problems)
        self.assertEqual((['best: not permitted'], {}), (problems, retries.unavailable))

    def test_a_failing_source_is_left_within_the_tick_and_tried_again_later(self):
        best = Source('best', CounterRefused('broken'))
        both = steps(best, Source('other', {'a': ratio(0.1), 'b': ratio(0.2)}))
        for _ in range(1 + ladder.RETRY_TICKS):
            problems: list[str] = []
            sampled = both.sample(TICK, problems)
            self.assertEqual(('other', ['best: broken']), (sampled.source, problems))
            self.assertEqual(2, len(sampled.evidence))
        self.assertEqual((1, 1), (best.asked, best.closed))
        best.answer = {'a': ratio(0.3), 'b': ratio(0.4)}
        self.assertEqual('best', both.sample(TICK, problems).source)
        self.assertEqual(['best: broken'], problems)

    def test_what_better_sources_know_stays(self):
        executed = Evidence(
            'best',
            COUNTED,
            cycles_per_sec=3.0,
            instructions_per_sec=2.0,
            counted_ratio=0.5,
            stalled_cycles_per_sec=1.0,
        )
        best = Source('best', {'a': executed})
        best.problems = ('no event for remote_dram',)
        total = Source('total', {'a': Evidence('total', COUNTED, bandwidth_bytes_per_sec=7.0)})
        problems: list[str] = []
        sampled = steps(best, total, Source('other', {'a': ratio(0.1)})).sample(TICK, problems)
        self.assertEqual(('other', ['no event for remote_dram']), (sampled.source, problems))
        self.assertEqual(
            executed._replace(
                source='x', basis=INFERRED, remote_ratio=0.1, bandwidth_bytes_per_sec=7.0
            ),
            sampled.evidence['a'],
        )
