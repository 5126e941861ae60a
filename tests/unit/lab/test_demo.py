# SPDX-License-Identifier: Apache-2.0
"""Test the demo's arithmetic on figures that the lab has recorded."""

import io
import json
import pathlib
import tempfile
import unittest

from rich.console import Console

from nova_numa_pmc.model import MIB
from tests.lab.demo import report, show


def record(homes, local, remote, passes, away=0.0, windows=2):
    """Return a record of guests at home, with the same counts in each window."""
    names = [f'guest{i}' for i in range(1, len(homes) + 1)]
    window = {
        'local': local // len(homes) // windows,
        'remote': remote // len(homes) // windows,
        'passes': passes // len(homes) // windows,
    }
    return {
        'title': 'some way',
        'facts': {'kernel': '6.1'},
        'phases_s': {'start': 40.0},
        'guests': {
            name: {
                'bytes': {home: 56 * MIB * (1 - away), 1 - home: 56 * MIB * away},
                'cpus': ['0-1'],
                'mems': ['0-1'],
                'pid': 1,
                'passes': 9,
            }
            for name, home in zip(names, homes)
        },
        'windows': [
            {'seconds': 10.5, 'guests': {name: dict(window) for name in names}}
            for _ in range(windows)
        ],
    }


FLOATING = record([0, 0, 1, 1, 1, 0], local=192_000_000, remote=108_000_000, passes=600, away=0.4)
PLACED = record([0, 1, 0, 1, 0, 1], local=299_700_000, remote=300_000, passes=600)
PILED = record([1, 1, 1, 1, 1, 1], local=120_000_000, remote=120_000, passes=240)


SETTINGS = {'skew_mib': 500}
FAILED = {'title': 'our hook and agent', 'failed': 'exit 1 of: hook install\nno daemon'}


def reported(**records):
    """Return the report of those records and failures."""
    runs = {
        name: record if 'failed' in record else report.summarize(record, 2)
        for name, record in records.items()
    }
    return report.report(runs, SETTINGS, {'start': 80.0, 'count': 42.0})


class TestModelledLatency(unittest.TestCase):
    def test_the_mean_latency_is_between_local_and_remote(self):
        for local, remote, expected in (
            (10, 0, 60.0),
            (0, 10, 100.0),
            (5, 5, 80.0),
            (300, 100, 70.0),
        ):
            with self.subTest(local=local, remote=remote):
                self.assertAlmostEqual(expected, report.mean_latency_ns(local, remote))

    def test_the_latency_of_nothing_counted_is_unknown(self):
        self.assertIsNone(report.mean_latency_ns(0, 0))


class TestSummary(unittest.TestCase):
    def test_a_summary_sums_windows_and_guests(self):
        run = report.summarize(FLOATING, 2)
        self.assertEqual(
            (192_000_000, 108_000_000, 600), (run['local'], run['remote'], run['passes'])
        )
        self.assertAlmostEqual(0.36, run['remote_share'])
        self.assertAlmostEqual(74.4, run['mean_latency_ns'])
        self.assertAlmostEqual(180_000, run['remote_per_pass'])
        self.assertAlmostEqual(21.0, run['seconds'])
        self.assertEqual([54_000_000] * 2, [w['remote'] for w in run['windows']])

    def test_a_summary_has_homes_and_bytes_by_node(self):
        run = report.summarize(FLOATING, 2)
        self.assertEqual([3, 3], run['guests_per_node'])
        self.assertAlmostEqual(0.6, run['home_share_min'])
        guest = run['guests']['guest3']
        self.assertEqual(1, guest['home'])
        self.assertAlmostEqual(56 * MIB, sum(guest['bytes_per_node']))

    def test_a_node_without_guests_counts_as_zero(self):
        self.assertEqual([0, 6], report.summarize(PILED, 2)['guests_per_node'])
        self.assertEqual([0, 6, 0, 0], report.summarize(PILED, 4)['guests_per_node'])

    def test_a_summary_of_nothing_counted_has_no_shares(self):
        run = report.summarize(record([0, 1], 0, 0, 0), 2)
        self.assertEqual(
            (None, None, None),
            (run['remote_share'], run['remote_per_pass'], run['mean_latency_ns']),
        )


class TestRatio(unittest.TestCase):
    def test_ratios_are_by_time_and_by_work(self):
        report_ = reported(floating=FLOATING, numad=PILED, placed=PLACED)
        self.assertAlmostEqual(360, report_['times_fewer'])
        self.assertAlmostEqual(360, report_['times_fewer_per_pass'])
        # Fewer accesses because less work was done: only the ratio per work corrects for it.
        self.assertAlmostEqual(900, report_['ratios']['numad']['remote'])
        self.assertAlmostEqual(360, report_['ratios']['numad']['remote_per_pass'])

    def test_the_ratio_to_no_remote_access_is_a_number(self):
        report_ = reported(floating=FLOATING, placed=record([0, 1], 1000, 0, 12))
        self.assertEqual(108_000_000, report_['times_fewer'])
        self.assertAlmostEqual(180_000 * 12, report_['times_fewer_per_pass'])

    def test_without_a_floating_run_there_is_no_ratio(self):
        report_ = reported(placed=PLACED)
        self.assertIsNone(report_['times_fewer'])
        self.assertEqual([], report.missed(report_))


class TestReport(unittest.TestCase):
    def test_a_report_has_these_keys_in_json(self):
        report_ = json.loads(json.dumps(reported(floating=FLOATING, numad=PILED, placed=PLACED)))
        for name in ('floating', 'numad', 'placed'):
            for key in ('guests_per_node', 'local', 'remote', 'mean_latency_ns'):
                self.assertIn(key, report_['runs'][name])
        self.assertEqual(122.0, report_['total_s'])

    def test_a_report_fails_unless_our_run_is_even_and_local(self):
        cases = (
            ('fine', PLACED, []),
            ('piled', PILED, ['evenly']),
            ('remote', record([0, 1, 0, 1, 0, 1], 9000, 90_000_000, 60), ['remote']),
        )
        for name, ours, expected in cases:
            with self.subTest(name):
                missed = report.missed(reported(floating=FLOATING, placed=ours))
                self.assertEqual(len(expected), len(missed), missed)
                for check, word in zip(missed, expected):
                    self.assertIn(word, check['name'])

    def test_bytes_away_are_reported_but_do_not_fail(self):
        report_ = reported(
            floating=FLOATING,
            placed=record([0, 1, 0, 1, 0, 1], 299_700_000, 300_000, 600, away=0.034),
        )
        failed = [check for check in report_['checks'] if not check['passed']]
        self.assertEqual([('96.60%', False)], [(c['value'], c['required']) for c in failed])
        self.assertEqual([], report.missed(report_))

    def test_numad_is_printed_not_judged(self):
        self.assertEqual([], reported(floating=FLOATING, numad=PILED)['checks'])


class TestFailure(unittest.TestCase):
    def shown(self, findings):
        """Return the text of a report, after its picture was drawn."""
        text = io.StringIO()
        console = Console(file=text, width=150)
        with tempfile.TemporaryDirectory() as directory:
            show.picture(findings, pathlib.Path(directory, 'report.png'))
        for part in (show.summary, show.guests, show.bars, show.verdicts):
            console.print(part(findings))
        return text.getvalue()

    def test_a_report_shows_a_failed_way_and_why(self):
        for others in ({}, {'floating': FLOATING}):
            findings = reported(**others, placed=FAILED)
            self.assertRegex(self.shown(findings), r'FAILED +our hook and agent: exit 1 of: hook')
            self.assertEqual([], findings['checks'])
            self.assertIsNone(findings['times_fewer'])

    def test_a_way_that_is_run_again_joins_the_report_of_the_others(self):
        former = json.loads(json.dumps(reported(floating=FLOATING, placed=FAILED)))
        runs = report.comparable_runs(former, SETTINGS)
        runs['placed'] = report.summarize(PLACED, 2)
        findings = report.report(runs, SETTINGS, {})
        self.assertEqual(360, findings['times_fewer'])
        self.assertNotIn('FAILED', self.shown(findings))

    def test_runs_of_other_settings_cannot_be_joined(self):
        former = reported(floating=FLOATING)
        self.assertIsNone(report.comparable_runs(former, {'skew_mib': 0}))
