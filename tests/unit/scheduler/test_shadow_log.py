# SPDX-License-Identifier: Apache-2.0
import json
import unittest

from hypothesis import given, strategies

from nova_numa_pmc.scheduler import shadow, shadow_log as subject
from tests.fixtures.shadow import line


def summed(*lines):
    return subject.summarise(subject.decisions(lines))


class SummedTest(unittest.TestCase):
    def test_choices_that_would_have_changed_and_how_it_went_on(self):
        found = summed(
            'something else\n',
            line(90000.0, a=0.7, b=0.3),
            line(3700.0, b=0.2, a=0.8),
            line(0.0, a=0.9, b=0.1),
        )
        self.assertEqual((3, 2, 0.0, 90000.0, 0), (*found[:4], found.unreadable))
        self.assertEqual((2, 0.8, 0.2), tuple(found.pressure))
        self.assertEqual((1, 0.8, 0.2), tuple(found.later[3600]))
        self.assertEqual((1, 0.7, 0.3), tuple(found.later[86400]))

    def test_a_line_much_later_tells_nothing_of_an_hour(self):
        found = summed(line(0.0, a=0.9, b=0.1), line(3600.0 * 1.6, b=0.2, a=0.8))
        self.assertEqual({}, found.later)

    def test_hosts_of_unknown_pressure_are_left_out(self):
        found = summed(line(0.0, a=0.9, b=None))
        self.assertEqual((1, 1, None), (found.decisions, found.changed, found.pressure))

    def test_nothing(self):
        self.assertEqual((0, 0), summed('x\n')[:2])

    @given(strategies.data())
    def test_any_line(self, data):
        good = line(5.0, a=0.9, b=0.1)
        told = json.loads(good.partition(shadow.MARK)[2])
        plain = strategies.none() | strategies.text() | strategies.floats() | strategies.integers()
        key = data.draw(strategies.sampled_from(sorted(told)))
        told[key] = data.draw(plain | strategies.lists(plain) | strategies.just({'host': 'a'}))
        odd = shadow.MARK + json.dumps(told)
        cut = data.draw(strategies.integers(0, len(odd)))
        found = summed(good, odd, odd[:cut])
        self.assertTrue(1 <= found.decisions + found.unreadable <= 3)
        json.dumps(found.decisions)
