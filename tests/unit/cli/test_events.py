# SPDX-License-Identifier: Apache-2.0
"""An operator sees the register codes of this or another CPU's events, and which are missing."""

import contextlib
import io
import json
import unittest

from nova_numa_pmc.cmd import rebalance
from nova_numa_pmc.core import rates


def run(*arguments):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = rebalance.main(['check', '--events', *arguments])
    return code, output.getvalue()


class EventsTest(unittest.TestCase):
    def test_events_shows_the_register_code_of_the_deck_and_caveats(self):
        code, text = run('--cpu', 'westmere-dp')
        self.assertEqual(0, code)
        self.assertIn('r53100f', text)
        self.assertIn('prefetches and stores are left out', text)

    def test_each_role_of_this_machine_is_shown_with_an_event_or_as_missing(self):
        code, text = run()
        self.assertEqual(0, code)
        for role in rates.ROLES:
            self.assertIn(role, text)

    def test_json_has_the_cpus_name_and_missing_roles(self):
        code, text = run('--cpu', 'GenuineIntel-6-55-4', '--json')
        self.assertEqual(0, code)
        report = json.loads(text)
        self.assertEqual('Skylake-SP', report['known_as'])
        self.assertIn('mem_traffic', report['missing'])
