# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import json
import pathlib
import tempfile
import unittest
import unittest.mock

import numpy as np

from tests.arena import __main__ as subject, fits, parameters as p, policies

QUICK = '--quick', '--no-referee', '--policies', 'best-fit', '--processes', '1'
MEMBERS = (
    'cells duels duels_not_lost gap_closed gap_closed_worst loss_to_spread large_to_stock '
    'emptied_to_pack saves_to_audits twin_disagreements parameters'
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
        found = json.loads(one)
        self.assertEqual([], [name for name in MEMBERS if name not in found])
        self.assertEqual(p.digest(), found['parameters'])
        self.assertIsNone(found['twin_disagreements'])

    def test_what_the_figures_need_always_runs(self):
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

    def test_factors_for_sensitivity(self):
        options = subject.arguments(['--want', '1.5', '--build', '0.5', '--cells', 'long builds'])
        (cell,) = subject.chosen_cells(options)
        self.assertEqual((1.5, 1.0, 2.0), (cell.want_factor, cell.burst_factor, cell.build_factor))

    def test_another_first_seed(self):
        with unittest.mock.patch.dict('os.environ', ARENA_SEED='2000'):
            self.assertEqual(range(2000, 2005), subject.seeds(subject.arguments([])))

    def test_tuning_never_sees_the_tables_seeds(self):
        self.assertFalse(set(p.SEEDS_TUNING) & set(p.SEEDS_TABLE))


class FitsTest(unittest.TestCase):
    def test_use_of_guests(self):
        rows = [{'id': 1, 'duration': 600000, 'cpu_usage': 500.0}] * 600
        rows += [{'id': 2, 'duration': 300000, 'cpu_usage': 50.0}] * 600
        found = fits.series(rows, [{'id': at, 'cpu_capacity': 1000.0} for at in (1, 2)])
        self.assertEqual([1200, 600], [len(found[at]) for at in (1, 2)])
        self.assertAlmostEqual(0.275, fits.use(found)['mean cores per vCPU'])

    def test_arrivals_one_at_a_time_vary_little(self):
        draws = np.random.default_rng(1).poisson(5, 20000)
        self.assertAlmostEqual(1.0, fits.arrivals(draws)['variance / mean'], places=1)

    def test_sizes_batches_and_lifetimes(self):
        files = {
            'flav_map.txt': '1,2 a\n4,8 b\n',
            'v1.train.txt': '300 a,|,b,b,b,|,\n600 a,|,\n',
            'v1.interval_map.txt': '0 0\n3600 1\n90000 2\n',
            'v1.test.c2591400.txt': '300 U0,|,U1,C1\n600 U2,|,\n',
        }
        with tempfile.TemporaryDirectory() as directory:
            for name, text in files.items():
                pathlib.Path(directory, name).write_text(text)
            found = fits.azure(pathlib.Path(directory))
        self.assertEqual(0.6, found['4 vCPUs, 8 GiB'])
        self.assertEqual(3, found['guests of those, mean'])
        self.assertEqual(0.5, found['lifetimes below 1 h'])
