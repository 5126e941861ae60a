# SPDX-License-Identifier: Apache-2.0
"""Test the report on runs: side by side, with phases and time lines."""

import json
import pathlib
import tempfile
import unittest
from typing import Any

from tests.stack import places, report


def _place(host, node, share=1.0, local=None, **more):
    return {'host': host, 'node': node, 'share': share, 'local': local, **more}


def _run(label, passed=True, phases=(), events=()):
    return {
        'label': label,
        'with_package': True,
        'counters': False,
        'passed': passed,
        'seconds': 12.5,
        'phases': list(phases),
        'events': list(events),
    }


EIGHT = {
    'name': 'eight',
    'seconds': 1.5,
    'passed': True,
    'places': {'a': _place('cmp1', 0, 1.0, 1.0), 'b': _place('cmp1', 1, 1.0, 0.9)},
}
FLOATING = {
    'name': 'eight',
    'seconds': 1.5,
    'passed': True,
    'places': {'a': _place('cmp1', 0, 0.9, 0.5), 'b': _place('cmp1', 0, 0.7, 0.25)},
}
MOVE = {'name': '<move>', 'seconds': 2, 'passed': False, 'error': 'Failed: no'}
RUNS = [
    _run(
        'with',
        False,
        [EIGHT, MOVE],
        [{'at_s': 0.1, 'source': 'cmp1', 'message': 'guest plain-1: placed'}],
    ),
    _run('without', True, [FLOATING]),
]


class PageTest(unittest.TestCase):
    def test_the_page_shows_phases_and_events_as_text(self):
        text = report.page(RUNS)
        self.assertIn('&lt;move&gt;', text)
        self.assertNotIn('<move>', text)
        self.assertIn('class="failed"', text)
        self.assertIn('guest plain-1: placed', text)
        self.assertIn('1 of 2', text)

    def test_the_page_says_where_nothing_was_counted(self):
        self.assertIn('not counted', report.page(RUNS))


class ComparisonTest(unittest.TestCase):
    def test_a_comparison_puts_a_phase_of_each_run_side_by_side(self):
        (compared,) = report.comparison(RUNS)
        self.assertEqual('eight', compared['phase'])
        self.assertEqual(
            'cmp1 node 0: 1, cmp1 node 1: 1', compared['figures']['with']['guests on each node']
        )
        self.assertEqual('cmp1 node 0: 2', compared['figures']['without']['guests on each node'])
        self.assertEqual(
            '70.0% at least, 80.0% on average',
            compared['figures']['without']['bytes on the home node'],
        )

    def test_a_phase_that_one_run_lacks_is_there_nevertheless(self):
        moved = {**EIGHT, 'name': 'moved'}
        text = report.page([_run('with', phases=[moved]), _run('without')])
        self.assertIn('moved', text)
        self.assertIn('not done', text)

    def test_runs_that_found_nothing_compare_nothing(self):
        self.assertEqual([], report.comparison([_run('with', phases=[MOVE])]))


class WriteTest(unittest.TestCase):
    def test_a_report_is_written_as_json_and_html(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / 'new'
            report.write(path, RUNS)
            read = json.loads((path / 'run.json').read_text())
            self.assertEqual(RUNS, read['runs'])
            self.assertEqual(report.comparison(RUNS), read['comparison'])
            self.assertTrue((path / 'run.html').exists())


class PlacesTest(unittest.TestCase):
    GUEST = {'bytes': {0: 75, 1: 25}, 'cpus': ['0-1'], 'mems': ['0-1']}

    def test_the_home_of_a_guest_has_most_of_its_bytes(self):
        place = places.place(self.GUEST)
        self.assertEqual((0, 0.75), (place['node'], place['share']))
        self.assertIsNone(place['local'])
        self.assertNotIn('accesses', place)

    def test_the_local_share_is_where_time_and_bytes_meet(self):
        self.assertEqual(0.75, places.place(self.GUEST, {'0': 10})['local'])
        self.assertEqual(0.25, places.place(self.GUEST, {'1': 10})['local'])
        self.assertEqual(0.5, places.place(self.GUEST, {'0': 5, '1': 5})['local'])

    def test_a_guest_that_did_not_run_has_no_local_share(self):
        self.assertIsNone(places.place(self.GUEST, {'0': 0})['local'])

    def test_a_guest_without_memory_yet_has_no_share_of_bytes(self):
        self.assertEqual(0, places.place({'bytes': {0: 0, 1: 0}, 'cpus': [], 'mems': []})['share'])

    def test_a_guest_where_the_hook_has_placed_it_has_no_flaw(self):
        placed = {'origin': 'placed', 'cpu_nodes': [0]}
        guest = {'bytes': {0: 99, 1: 1}, 'cpus': ['0-1'], 'mems': ['0-1']}
        self.assertEqual([], places.flaws(places.place(guest, {'0': 3}), placed, '0-1'))

    def test_each_flaw_of_a_guests_place_is_reported(self):
        cases: list[tuple[Any, dict[str, Any], dict[str, int], str]] = [
            (None, {}, {'0': 1}, 'promise is missing'),
            ({'origin': 'floating', 'cpu_nodes': []}, {}, {'0': 1}, 'promise is floating'),
            ({'origin': 'placed', 'cpu_nodes': [1]}, {}, {'0': 1}, r'promised to nodes \[1\]'),
            (
                {'origin': 'placed', 'cpu_nodes': [0]},
                {'bytes': {0: 9 << 20, 1: (1 << 20) + 1}},
                {'0': 1},
                '90.0% of its bytes',
            ),
            ({'origin': 'placed', 'cpu_nodes': [0]}, {'cpus': ['0-3']}, {'0': 1}, '0-3'),
            ({'origin': 'placed', 'cpu_nodes': [0]}, {}, {'0': 1, '1': 1}, r'\[0, 1\]'),
            # A guest that was never seen running was not seen on its node.
            ({'origin': 'placed', 'cpu_nodes': [0]}, {}, {}, r'nodes \[\]'),
        ]
        for promise, guest, ticks, words in cases:
            with self.subTest(words):
                place = places.place(
                    {'bytes': {0: 99, 1: 1}, 'cpus': ['0-1'], 'mems': ['0-1'], **guest}, ticks
                )
                self.assertRegex('; '.join(places.flaws(place, promise, '0-1')), words)

    def test_the_spread_counts_guests_by_host_and_node(self):
        self.assertEqual(
            {'cmp1 node 0': 2, 'cmp2 node 1': 1},
            places.spread(
                {'a': _place('cmp1', 0), 'b': _place('cmp2', 1), 'c': _place('cmp1', 0)}
            ),
        )

    def test_the_remote_ratio_is_of_a_nodes_guests_together(self):
        placed = {
            'a': {**places.place(self.GUEST, None, {'local': 90, 'remote': 10}), 'host': 'cmp1'},
            'b': {**places.place(self.GUEST, None, {'local': 0, 'remote': 100}), 'host': 'cmp1'},
        }
        self.assertEqual({'cmp1 node 0': 0.55}, places.remote_ratios(placed))
        self.assertEqual(
            'cmp1 node 0: 55.0%', places.figures(placed)['remote accesses by counters']
        )

    def test_an_estimate_is_the_mean_of_a_nodes_guests(self):
        placed = {
            'a': {**places.place(self.GUEST, {'0': 1}), 'host': 'cmp1'},
            'b': {**places.place(self.GUEST, {'1': 1}), 'host': 'cmp1'},
            'c': {**places.place(self.GUEST), 'host': 'cmp2'},
        }
        self.assertEqual({'cmp1 node 0': 0.5}, places.estimated_remote(placed))
        self.assertEqual(
            'cmp1 node 0: 50.0%', places.figures(placed)['remote, by bytes and CPU time']
        )

    def test_guests_that_were_not_counted_have_no_ratio(self):
        self.assertEqual({}, places.remote_ratios({'a': _place('cmp1', 0)}))
        self.assertEqual(
            {}, places.remote_ratios({'a': _place('cmp1', 0, accesses={'local': 0, 'remote': 0})})
        )
