# SPDX-License-Identifier: Apache-2.0
"""Test the order of the scenario's phases, and what follows a failed one."""

import unittest

from tests.stack import scenario
from tests.stack.timeline import TimeLine


class Session:
    """A session whose servers, known by name, are deleted on request."""

    def __init__(self, with_package=True):
        self.with_package, self.line = with_package, TimeLine()
        self.servers = {}

    def delete(self, *names):
        for name in names:
            del self.servers[name]

    def journals(self):
        return {
            'cmp1': [{'taken_s': self.line.began_s + 1, 'source': 'hook', 'message': 'placed'}]
        }


def _boots(*names):
    def phase(session, entry):
        session.servers.update(dict.fromkeys(names))
        entry['seen'] = sorted(session.servers)

    return phase


def _fails(session, entry):
    session.servers['late-1'] = None
    raise ValueError('no')


PHASES = [
    ('boot', _boots('plain-1', 'busy-1'), True),
    ('fail', _fails, True),
    ('ours', _boots('numa-1'), False),
]


class GoThroughTest(unittest.TestCase):
    def test_a_run_goes_on_after_a_failed_phase_and_keeps_plain_servers(self):
        session = Session()
        scenario.run_phases(session, phases=PHASES)
        self.assertEqual([True, False, True], [p['passed'] for p in session.line.phases])
        self.assertEqual(['numa-1', 'plain-1'], session.line.phases[2]['seen'])
        self.assertEqual(['plain-1'], list(session.servers))

    def test_phases_of_our_package_are_left_out_without_it(self):
        session = Session(with_package=False)
        scenario.run_phases(session, phases=PHASES)
        self.assertEqual(['boot', 'fail'], [p['name'] for p in session.line.phases])

    def test_phases_may_be_chosen_by_their_names(self):
        session = Session()
        scenario.run_phases(session, 'our', PHASES)
        self.assertEqual(['ours'], [p['name'] for p in session.line.phases])

    def test_journals_are_in_the_time_line(self):
        session = Session()
        scenario.run_phases(session, phases=PHASES)
        self.assertIn(
            ('cmp1 hook', 'placed'), [(e['source'], e['message']) for e in session.line.events]
        )

    def test_a_run_passes_when_its_phases_do(self):
        session = Session()
        scenario.run_phases(session, 'boot', PHASES)
        self.assertTrue(scenario.result(session.line, True, False, 'with')['passed'])
        scenario.run_phases(session, 'fail', PHASES)
        self.assertFalse(scenario.result(session.line, True, False, 'with')['passed'])
        # A scenario in which nothing was tried has not passed.
        self.assertFalse(scenario.result(TimeLine(), True, False, 'with')['passed'])
