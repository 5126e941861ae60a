# SPDX-License-Identifier: Apache-2.0
"""Decisions in a log of shadow mode are summed up with the pressures that followed them."""

import json
import unittest

from hypothesis import given, strategies

from nova_numa_pmc.scheduler import shadow, shadow_log as subject
from tests.fixtures.shadow_log_lines import log_line


def summed(*lines):
    return subject.summarise(subject.decisions(lines))


class SummedTest(unittest.TestCase):
    def test_changed_choices_are_summed_with_later_pressures(self):
        totals = summed(
            'something else\n',
            log_line(90000.0, a=0.7, b=0.3),
            log_line(3700.0, b=0.2, a=0.8),
            log_line(0.0, a=0.9, b=0.1),
        )
        self.assertEqual((3, 2, 0.0, 90000.0, 0), (*totals[:4], totals.unreadable))
        self.assertEqual((2, 0.8, 0.2), tuple(totals.pressure))
        self.assertEqual((1, 0.8, 0.2), tuple(totals.later[3600]))
        self.assertEqual((1, 0.7, 0.3), tuple(totals.later[86400]))

    def test_a_line_much_later_shows_nothing_of_an_hour(self):
        totals = summed(log_line(0.0, a=0.9, b=0.1), log_line(3600.0 * 1.6, b=0.2, a=0.8))
        self.assertEqual({}, totals.later)

    def test_hosts_that_nova_weighs_again_for_alternates_are_not_a_decision(self):
        totals = summed(
            log_line(0.0, 'first', a=0.9, b=0.1),
            log_line(1.0, 'last', a=0.9, b=0.2),
            log_line(4.0, 'last', b=0.4, a=0.9),  # it is weighed once more
            log_line(5.0, None, a=0.9, b=0.1),
            log_line(5.0, None, a=0.9, b=0.1),
        )
        self.assertEqual((4, 4), (totals.decisions, totals.changed))

    def test_a_later_resize_is_a_decision_of_its_own(self):
        totals = summed(log_line(0.0, a=0.9, b=0.1), log_line(60.0, a=0.9, b=0.1))
        self.assertEqual(2, totals.decisions)

    def test_hosts_of_unknown_pressure_are_left_out(self):
        totals = summed(log_line(0.0, a=0.9, b=None))
        self.assertEqual((1, 1, None), (totals.decisions, totals.changed, totals.pressure))

    def test_decisions_in_logs_of_json_are_read(self):
        plain = log_line(0.0, a=0.9, b=0.1)
        oslo = json.dumps({'message': plain.strip(), 'levelname': 'INFO'}) + '\n'
        docker = json.dumps({'log': plain, 'stream': 'stderr'}) + '\n'
        both = json.dumps({'log': oslo, 'stream': 'stderr'}) + '\n'
        for line in (oslo, docker, both, '{req-1} ' + plain, '{"log":{}} ' + plain):
            with self.subTest(line):
                totals = summed(line)
                self.assertEqual((1, 1, 0), (*totals[:2], totals.unreadable))

    def test_a_decision_is_read_although_the_log_has_colours(self):
        plain = log_line(0.0, a=0.9, b=0.1)
        # The message of DevStack's format, and of oslo.log's ColorHandler, ends with a reset.
        coloured = '\x1b[00;36m' + plain.rstrip('\n') + '\x1b[00m\n'
        for line in (coloured, json.dumps({'log': coloured}) + '\n'):
            with self.subTest(line):
                totals = summed(line)
                self.assertEqual((1, 1, 0), (*totals[:2], totals.unreadable))

    def test_a_decision_that_is_cut_is_unreadable(self):
        cut = log_line(0.0, a=0.9, b=0.1).rstrip('\n')[:-1]
        for line in (cut + '\n', cut + '\x1b[00m\n'):
            with self.subTest(line):
                totals = summed(line)
                self.assertEqual((0, 1), (totals.decisions, totals.unreadable))

    def test_decisions_in_other_json_are_unreadable(self):
        line = json.dumps({'text': log_line(0.0, a=0.9, b=0.1)})
        self.assertEqual((0, 1), (summed(line).decisions, summed(line).unreadable))

    def test_a_log_without_decisions_sums_to_zero(self):
        self.assertEqual((0, 0), summed('x\n')[:2])

    @given(strategies.data())
    def test_any_line_is_counted_or_unreadable(self, data):
        good = log_line(5.0, a=0.9, b=0.1)
        record = json.loads(good.partition(shadow.MARK)[2])
        plain = strategies.none() | strategies.text() | strategies.floats() | strategies.integers()
        key = data.draw(strategies.sampled_from(sorted(record)))
        record[key] = data.draw(plain | strategies.lists(plain) | strategies.just({'host': 'a'}))
        odd = shadow.MARK + json.dumps(record)
        cut = data.draw(strategies.integers(0, len(odd)))
        totals = summed(good, odd, odd[:cut])
        self.assertTrue(1 <= totals.decisions + totals.unreadable <= 3)
        json.dumps(totals.decisions)
