# SPDX-License-Identifier: Apache-2.0
"""Test how logs and journals are parsed."""

import json
import unittest

from tests.stack import logs

SCHEDULER = """\
2026-01-01 10:00:00.000 7 DEBUG nova.filters [None req-1] Filter ComputeFilter returned 2 hosts
2026-01-01 10:00:01.000 7 DEBUG nova_numa_pmc.scheduler.weigher [None req-1] NUMA pressure of \
(cmp1, cmp1): penalty 0.25: node 1: pressure 0.35 there, 0.15 elsewhere (on one node) _weigh
2026-01-01 10:00:01.000 7 DEBUG nova_numa_pmc.scheduler.weigher [None req-1] NUMA pressure of \
(cmp2, cmp2): penalty 0.25: unknown: no metrics from nova-numa-pmc _weigh
"""


def _line(message, priority='6', **more):
    return json.dumps(
        {
            'MESSAGE': message,
            'PRIORITY': priority,
            'SYSLOG_IDENTIFIER': 'it',
            '__REALTIME_TIMESTAMP': '1700000000500000',
            **more,
        }
    )


class WeighedTest(unittest.TestCase):
    def test_each_weighed_host_is_read_with_its_reason(self):
        one, other = logs.weighings(SCHEDULER)
        self.assertEqual(('cmp1', 0.25), (one['host'], one['penalty']))
        self.assertTrue(one['why'].startswith('node 1: pressure 0.35 there'))
        self.assertTrue(other['why'].startswith('unknown: '))

    def test_other_lines_of_the_log_give_no_host(self):
        self.assertEqual([], logs.weighings('NUMA pressure of nothing\n'))


class JournalTest(unittest.TestCase):
    def test_servers_are_named_in_lines_of_a_journal(self):
        (entry,) = logs.journal_entries(
            _line('guest instance-0000000a: start: ok'), {'instance-0000000a': 'plain-1'}
        )
        self.assertEqual(
            {
                'taken_s': 1700000000.5,
                'source': 'it',
                'severity': 6,
                'message': 'guest plain-1: start: ok',
            },
            entry,
        )

    def test_unknown_guests_keep_their_names(self):
        (entry,) = logs.journal_entries(_line('instance-0000000b'), {})
        self.assertEqual('instance-0000000b', entry['message'])

    def test_messages_that_are_not_text_are_converted_to_text(self):
        text = '\n'.join([_line([104, 105, 255]), _line(None)])
        self.assertEqual(
            ['hi\ufffd', 'None'], [entry['message'] for entry in logs.journal_entries(text, {})]
        )


class OurErrorsTest(unittest.TestCase):
    LOG = {
        'nova-scheduler.log': 'x ERROR nova_numa_pmc.scheduler.weigher it broke\n'
        'x INFO nova_numa_pmc.compute.monitor fine\n'
        '  File "/a/nova_numa_pmc/hook.py", line 1\n'
        'x ERROR nova.compute.manager no business of ours\n'
    }

    def test_errors_and_tracebacks_of_our_package_are_reported(self):
        self.assertEqual(2, len(logs.our_errors(self.LOG, {})))

    def test_errors_of_a_journal_are_reported(self):
        entries = logs.journal_entries('\n'.join([_line('guest a: bad', '3'), _line('fine')]), {})
        self.assertEqual(['cmp1: it: guest a: bad'], logs.our_errors({}, {'cmp1': entries}))

    def test_a_critical_line_is_reported(self):
        log = {'a': 'x CRITICAL nova_numa_pmc.compute.monitor it broke'}
        self.assertEqual(1, len(logs.our_errors(log, {})))

    def test_an_agent_that_died_and_came_again_is_reported(self):
        for what in (
            'nova-numa-agent.service: Main process exited, code=killed, status=9/KILL',
            "nova-numa-agent.service: Failed with result 'watchdog'.",
        ):
            entries = logs.journal_entries(_line(what, '5'), {})
            self.assertEqual(1, len(logs.our_errors({}, {'cmp1': entries})), what)
        entries = logs.journal_entries(
            _line('nova-numa-agent.service: Deactivated successfully.'), {}
        )
        self.assertEqual([], logs.our_errors({}, {'cmp1': entries}))

    def test_provoked_errors_are_not_reported(self):
        entries = logs.journal_entries(_line('guest a: bad', '3'), {})
        self.assertEqual([], logs.our_errors({}, {'cmp1': entries}, ['guest a: bad']))
