# SPDX-License-Identifier: Apache-2.0
"""The arena's command repeats itself for the same seeds, and compares what it has to."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest
import unittest.mock

import numpy as np

from tests.arena import (
    __main__ as subject,
    fits,
    fleet as fleets,
    hosts,
    inside,
    inside_comparison,
    loads,
    parameters as p,
    plots,
    policies,
    statistics,
    sweeps,
    tuning,
)

QUICK = '--quick', '--no-referee', '--policies', 'best-fit', '--processes', '1'
MEMBERS = (
    'cells duels duels_not_lost duels_not_lost_p99 gap_closed gap_closed_worst loss_to_spread '
    'large_to_stock emptied_to_pack saves_to_audits twin_disagreements parameters commit'
).split()


def last_line(*args):
    """Run the command; return its last line."""
    with tempfile.TemporaryDirectory() as out, io.StringIO() as text:
        with contextlib.redirect_stdout(text):
            subject.main([*QUICK, *args, '--out', out])
        line = text.getvalue().splitlines()[-1]
        assert line == pathlib.Path(out, 'result.json').read_text().strip()
    return line


class CommandTest(unittest.TestCase):
    def test_the_last_line_is_the_same_for_the_same_seeds(self):
        with unittest.mock.patch.object(subject, 'QUICK', (10, 900, 900)):
            one, other = last_line('--seeds', '1'), last_line('--seeds', '1')
        self.assertEqual(one, other)
        results = json.loads(one)
        self.assertEqual([], [name for name in MEMBERS if name not in results])
        self.assertEqual(p.digest(), results['parameters'])
        self.assertIsNone(results['twin_disagreements'])

    def test_the_result_is_drawn_on_request(self):
        with (
            unittest.mock.patch.object(subject, 'QUICK', (10, 900, 900)),
            tempfile.TemporaryDirectory() as directory,
        ):
            last_line('--seeds', '2', '--plot', f'{directory}/new')
            drawn = {
                path.name: path.read_bytes()[:4] for path in pathlib.Path(directory).rglob('*.png')
            }
        self.assertEqual({plots.POLICIES: b'\x89PNG', plots.CELLS: b'\x89PNG'}, drawn)

    def test_policies_that_the_figures_need_always_run(self):
        options = subject.arguments(['--policies', 'best-fit', '--contender', 'numa-pressure-5'])
        expected = {'oracle', 'stock-1', 'stock-10', 'pack', 'best-fit', 'numa-pressure-5'}
        self.assertEqual(expected, set(subject.chosen_policies(options)))

    def test_the_table_has_enough_cells_duels_and_decisions(self):
        options = subject.arguments([])
        tasks = subject.planned(options)
        self.assertGreaterEqual(len({cell.name for cell, *_ in tasks}), 24)
        rivals = [name for name in policies.POLICIES if name not in (*policies.VARIANTS, 'oracle')]
        self.assertGreaterEqual(len({cell.name for cell, *_ in tasks}) * len(rivals), 200)
        self.assertEqual(set(p.SEEDS_TABLE), {seed for _, seed, *_ in tasks})

    def test_factors_for_sensitivity_change_the_cells(self):
        options = subject.arguments(['--want', '1.5', '--build', '0.5', '--cells', 'long builds'])
        (cell,) = subject.chosen_cells(options)
        self.assertEqual((1.5, 1.0, 2.0), (cell.want_factor, cell.burst_factor, cell.build_factor))

    def test_the_environment_sets_the_first_seed(self):
        with unittest.mock.patch.dict('os.environ', ARENA_SEED='2000'):
            self.assertEqual(range(2000, 2005), subject.seeds(subject.arguments([])))

    def test_a_first_seed_that_is_negative_or_not_a_number_is_refused(self):
        with unittest.mock.patch.dict('os.environ', ARENA_SEED=str(2**70)):
            self.assertEqual(2**70, subject.seeds(subject.arguments([]))[0])
        for wrong in ('-1', 'x', ''):
            with (
                self.subTest(wrong),
                unittest.mock.patch.dict('os.environ', ARENA_SEED=wrong),
                contextlib.redirect_stderr(io.StringIO()) as text,
                self.assertRaises(SystemExit),
            ):
                subject.arguments([])
            self.assertIn('ARENA_SEED', text.getvalue())

    def test_sweeps_run_the_policies_that_they_compare(self):
        options = subject.arguments(['--sweep', 'known'])
        self.assertEqual(
            {'oracle', 'stock-1', 'stock-10', 'pack', 'numa-pressure'},
            set(subject.chosen_policies(options)),
        )
        shares = [1 - cell.without_agent for cell in subject.chosen_cells(options)]
        np.testing.assert_allclose(p.KNOWN, shares)

    def test_sensitivity_varies_one_thing_at_a_time(self):
        options = subject.arguments(['--sensitivity', '--cells', 'generations'])
        factors = {
            (cell.want_factor, cell.burst_factor, cell.build_factor)
            for cell in subject.chosen_cells(options)
        }
        one = [(0.5, 1, 1), (1.5, 1, 1), (1, 0.5, 1), (1, 1.5, 1), (1, 1, 0.5), (1, 1, 1.5)]
        self.assertEqual({(1, 1, 1), *one}, factors)

    def test_tuning_never_sees_the_tables_seeds(self):
        self.assertFalse(set(p.SEEDS_TUNING) & set(p.SEEDS_TABLE))


class TuningTest(unittest.TestCase):
    def test_the_last_line_of_tuning_has_settings_and_ratios(self):
        with unittest.mock.patch.object(subject, 'QUICK', (6, 900, 900)):
            last = json.loads(last_line('--tune', '--seeds', '1', '--cells', 'equal hot'))
        self.assertEqual([1, 1], [last['cells'], last['runs']])
        self.assertEqual(list(tuning.SETTINGS), list(last['settings']))
        self.assertEqual(1.0, last['settings']['metrics']['multiplier 1'])
        self.assertEqual([], last['better'])  # a single run is not decisive

    def test_each_policy_is_tuned_with_three_settings_the_first_as_usual(self):
        self.assertEqual({3}, {len(settings) for settings in tuning.SETTINGS.values()})
        rng = np.random.default_rng(3)
        cell = next(cell for cell in subject.chosen_cells(subject.arguments(['--quick'])))
        shape = hosts.Hosts(cell.shape, 6, rng, cell.without_agent)
        trace = loads.Trace(cell.shortened(6, 900, 900), shape, 1)
        fleet = fleets.Fleet(shape, trace, inside.placed)
        view = fleets.View(fleet, np.arange(6), 0.0)
        for name, (first, *_) in (
            (name, [*row.values()]) for name, row in tuning.SETTINGS.items()
        ):
            usual = policies.POLICIES[name]
            self.assertEqual((usual.subset, usual.ties), (first.subset, first.ties), name)
            one, other = (policy.scores(view, trace, 0) for policy in (usual, first))
            self.assertEqual(one.tolist(), other.tolist(), name)

    def test_tuning_takes_seeds_of_its_own(self):
        options = subject.arguments(['--tune'])
        self.assertEqual(range(1, 1 + tuning.SEEDS), subject.seeds(options))


class InsideTest(unittest.TestCase):
    def test_the_last_line_of_inside_has_ways_and_duels(self):
        with unittest.mock.patch.object(subject, 'QUICK', (6, 900, 900)):
            args = '--inside', '--seeds', '1', '--cells', 'equal hot,subnuma'
            last = json.loads(last_line(*args))
        self.assertEqual(
            [2, 2, 2 * (len(inside.WAYS) - 1)],
            [last[name] for name in ('cells', 'runs', 'inside_duels')],
        )
        self.assertEqual(list(inside.WAYS), list(last['ways']))
        self.assertEqual(1.0, last['ways']['placed']['to_placed'])
        self.assertEqual(1.0, last['ways']['floating']['to_floating_second'])
        self.assertEqual(0.0, last['ways']['xen']['moves_per_host_hour'])
        self.assertTrue(0 <= last['inside_not_lost'] <= last['inside_duels'])
        self.assertEqual(
            {'to_stock_1', 'to_stock_1_second', 'to_stock_10', 'to_stock_10_second'},
            {*last['whole']},
        )
        self.assertEqual(p.digest(), last['parameters'])

    def test_cells_are_chosen_by_parts_of_their_names(self):
        options = subject.arguments(['--inside'])
        self.assertEqual(
            [*inside_comparison.CELLS], [cell.name for cell in subject.chosen_cells(options)]
        )
        options = subject.arguments(['--inside', '--cells', 'hot allocation,generations'])
        self.assertEqual(
            ['equal hot allocation', 'generations mixed other'],
            [cell.name for cell in subject.chosen_cells(options)],
        )

    def test_hosts_are_chosen_alike_for_all_ways(self):
        (cell,) = (cell for cell in inside_comparison.cells() if cell.name == 'equal mixed other')
        summary = inside_comparison.run((cell.shortened(6, 900, 900), 1))[2]
        chosen = [summary[way]['boots'] for way in inside.WAYS]
        self.assertEqual([chosen[0]] * len(chosen), chosen)


class SweepTest(unittest.TestCase):
    def test_a_sweep_varies_how_many_hosts_are_known(self):
        with unittest.mock.patch.object(subject, 'QUICK', (10, 900, 900)):
            results = json.loads(last_line('--seeds', '1', '--sweep', 'known', '--cells', '0%'))
        results = results['known']
        self.assertEqual(['known 0%', 'known 10%', 'known 50%', 'known 90%'], list(results))
        self.assertIsNone(results['known 0%']['known'])
        self.assertEqual(1.0, results['known 0%']['unknown'])
        self.assertLess(0, results['known 50%']['to_stock_1'])

    def test_sensitivity_reports_its_seven_variations(self):
        with unittest.mock.patch.object(subject, 'QUICK', (10, 900, 900)):
            args = '--seeds', '1', '--sensitivity', '--cells', 'generations'
            results = json.loads(last_line(*args))['sensitivity']
        self.assertEqual(7, len(results))
        self.assertTrue(results['as it is']['order_kept_second'])
        self.assertNotEqual(results['want 0.5']['to_stock_1'], results['want 1.5']['to_stock_1'])

    def test_a_sweep_shows_what_is_due_to_unknown_hosts(self):
        run = {'numa-pressure': {'boots': [30, 30], 'below': [100, 300]}}
        table = statistics.Table({('c known 50%', 1): run})
        self.assertEqual({'unknown': 2.0, 'known': 0.667}, sweeps.due(table, 'numa-pressure'))


class RegionTest(unittest.TestCase):
    def test_the_last_line_of_a_region_is_the_same_for_the_same_seed(self):
        with (
            unittest.mock.patch.object(subject, 'QUICK', (40, 900, 900)),
            unittest.mock.patch.object(p, 'CANDIDATES', 8),
        ):
            first, again = (json.loads(last_line('--region')) for _ in range(2))
            drawn = json.loads(last_line('--region', '--randomize'))
        self.assertEqual(first['policies'], again['policies'])
        self.assertEqual({'oracle', 'stock-1', 'stock-10', 'numa-pressure'}, {*first['policies']})
        self.assertEqual(
            (40, 20, 8), tuple(first[n] for n in ('hosts', 'nova_cells', 'candidates'))
        )
        self.assertEqual(1.0, first['policies']['stock-1']['to_stock_1'])
        for name, row in first['policies'].items():
            self.assertNotEqual(row['loss'], drawn['policies'][name]['loss'])


class FitsTest(unittest.TestCase):
    def test_use_of_guests_is_the_mean_of_cores_per_vcpu(self):
        rows = [{'id': 1, 'duration': 600000, 'cpu_usage': 500.0}] * 600
        rows += [{'id': 2, 'duration': 300000, 'cpu_usage': 50.0}] * 600
        series = fits.series(rows, [{'id': at, 'cpu_capacity': 1000.0} for at in (1, 2)])
        self.assertEqual([1200, 600], [len(series[at]) for at in (1, 2)])
        self.assertAlmostEqual(0.275, fits.use(series)['mean cores per vCPU'])

    def test_arrivals_one_at_a_time_vary_little(self):
        draws = np.random.default_rng(1).poisson(5, 20000)
        self.assertAlmostEqual(1.0, fits.arrivals(draws)['variance / mean'], places=1)

    def test_fits_contain_sizes_batches_and_lifetimes(self):
        files = {
            'flav_map.txt': '1,2 a\n4,8 b\n',
            'v1.train.txt': '300 a,|,b,b,b,|,\n600 a,|,\n',
            'v1.interval_map.txt': '0 0\n3600 1\n90000 2\n',
            'v1.test.c2591400.txt': '300 U0,|,U1,C1\n600 U2,|,\n',
        }
        with tempfile.TemporaryDirectory() as directory:
            for name, text in files.items():
                pathlib.Path(directory, name).write_text(text)
            fitted = fits.azure(pathlib.Path(directory))
        self.assertEqual(0.6, fitted['4 vCPUs, 8 GiB'])
        self.assertEqual(3, fitted['guests of those, mean'])
        self.assertEqual(0.5, fitted['lifetimes below 1 h'])
