# SPDX-License-Identifier: Apache-2.0
"""Test how phases and events of a run are recorded."""

import unittest

from tests.stack.timeline import TimeLine


class TimeLineTest(unittest.TestCase):
    def test_a_phase_that_passes_is_recorded_with_its_seconds(self):
        line = TimeLine()
        with line.phase('boot') as entry:
            entry['found'] = 1
        (phase,) = line.phases
        self.assertTrue(phase['passed'])
        self.assertEqual(('boot', 1), (phase['name'], phase['found']))
        self.assertGreaterEqual(phase['seconds'], 0)

    def test_a_phase_that_fails_says_why_and_raises(self):
        line = TimeLine()
        with self.assertRaises(ValueError):
            with line.phase('boot'):
                raise ValueError('no host')
        self.assertFalse(line.phases[0]['passed'])
        self.assertEqual('ValueError: no host', line.phases[0]['error'])
        self.assertIn('FAILED', line.events[-1]['message'])

    def test_events_of_a_journal_are_put_in_order_of_time(self):
        line = TimeLine()
        line.add_event('first')
        line.add_past_event(line.began_s - 5, 'before', 'cmp1')
        line.add_past_event(line.began_s + 500, 'after', 'cmp1')
        self.assertEqual(['before', 'first', 'after'], [e['message'] for e in line.events])
        self.assertEqual(-5.0, line.events[0]['at_s'])
