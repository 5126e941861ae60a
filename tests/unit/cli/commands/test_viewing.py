# SPDX-License-Identifier: Apache-2.0
"""Test top, record and report with a sampler and a clock that the test controls."""

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from nova_numa_pmc.cli import exits, live, parse, render
from nova_numa_pmc.cli.commands import record, report, top
from nova_numa_pmc.cli.guest_lookup import UnknownGuest
from nova_numa_pmc.cli.render import report as rendered, tables
from nova_numa_pmc.cmd import rebalance
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.recordings import recording
from tests.fixtures import samples
from tests.fixtures.checkout import TOP
from tests.fixtures.clock import Clock

try:
    import matplotlib
except ImportError:
    matplotlib = None

BASE_S = 1700000000.0


class Sampler:
    """Return one prepared sample per call; the caller that sets the pace discards the first."""

    def __init__(self, prepared):
        self._prepared = iter(prepared)
        self.closed = False

    def sample(self):
        return next(self._prepared)

    def close(self):
        self.closed = True


class ViewingCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.path = os.path.join(self.directory, 'samples')

    def record(self, *all_samples):
        writer = recording.RecordingWriter(self.path, 1 << 20, 4)
        self.addCleanup(writer.close)
        for sample in all_samples:
            writer.append(sample)

    @staticmethod
    def run_command(module, *arguments, **injected):
        """Run a command; return (exit code, stdout, stderr)."""
        parser = argparse.ArgumentParser()
        module.configure(parser)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = module.run(parser.parse_args(arguments), **injected)
        return code, out.getvalue(), err.getvalue()


class TopTest(ViewingCase):
    def top(self, *arguments):
        return self.run_command(top, '--replay', self.path, '--interval', '0.1', *arguments)

    def test_top_once_shows_the_last_sample(self):
        self.record(samples.sample(BASE_S, guests=()), samples.sample(BASE_S + 5))
        code, text, err = self.top('--once')
        self.assertEqual((0, ''), (code, err))
        self.assertIn('over 5 s   source: guests by thread   guests: 2', text)
        self.assertIn('0000:3b:00.1@1 remote', text)
        self.assertEqual(1, text.count('pressure   '))

    def test_top_prints_one_json_object_for_each_sample(self):
        self.record(samples.sample(BASE_S), samples.sample(BASE_S + 5))
        _code, text, _err = self.top('--json', '--guest', 'instance-00000002')
        first, second = map(json.loads, text.splitlines())
        self.assertEqual((BASE_S, BASE_S + 5), (first['taken_s'], second['taken_s']))
        self.assertEqual(['instance-00000002'], [g['name'] for g in first['guests']])
        self.assertEqual(2, len(first['nodes']))

    def test_top_shows_one_guest_by_its_uuid(self):
        uuid = samples.guest_sample(2).uuid
        self.assertEqual(
            [uuid], [g.uuid for g in live.select_guests(samples.sample(), [uuid]).guests]
        )

    def test_top_reports_a_guest_that_is_not_running(self):
        self.record(samples.sample(BASE_S))
        code, text, err = self.top('--guest', 'instance-00000002', '--guest', 'no-such')
        self.assertEqual((0, "problem: no guest 'no-such' is running\n"), (code, err))
        self.assertIn('instance-00000002', text)

    def test_top_reports_a_problem_once(self):
        no_pmu = 'no PMU: load the driver\x1b[2J'
        self.record(*(samples.sample(BASE_S + at, problems=(no_pmu,)) for at in range(3)))
        _code, text, err = self.top()
        self.assertEqual('problem: no PMU: load the driver?[2J\n', err)
        self.assertNotIn('no PMU', text)

    def test_top_never_overfills_a_screen(self):
        many = samples.sample(
            guests=tuple(samples.guest_sample(n) for n in range(50)), problems=('p',)
        )
        for height in (12, 24, 70):
            lines = sum(
                1 if isinstance(part, str) else 1 + len(part.rows) + len(part.notes)
                for part in top.to_parts(many, 'name', height)
            )
            self.assertLessEqual(lines, max(height, 14))

    def test_top_of_an_empty_recording_is_an_error(self):
        self.record()
        with self.assertRaisesRegex(NumaPmcError, 'contains no samples yet'):
            self.top('--once')

    def test_intervals_are_above_0_and_at_most_a_day(self):
        self.assertEqual(120.0, parse.option_duration_s('2m'))
        for text in ('0', '-1', 'x', '2d', 'nan'):
            with self.assertRaises(argparse.ArgumentTypeError):
                parse.option_duration_s(text)

    def test_top_ends_cleanly_when_interrupted(self):
        self.record(samples.sample(BASE_S), samples.sample(BASE_S + 5))
        process = subprocess.Popen(
            [
                sys.executable,
                '-c',
                'import sys; from nova_numa_pmc.cmd import rebalance\n'
                'sys.exit(rebalance.main(sys.argv[1:]))',
                'top',
                '--replay',
                self.path,
                '--interval',
                '600',
            ],
            cwd=TOP,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell makes commands that it runs in the background ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=60)
        self.assertEqual((0, ''), (process.returncode, err))


class RecordTest(ViewingCase):
    def record_it(self, sampler, clock, *arguments, wait=None):
        return self.run_command(
            record,
            '--out',
            self.path,
            '--interval',
            '10',
            *arguments,
            open_sampler=lambda: sampler,
            wait=wait or clock.wait,
            clock=clock,
        )

    def prepared(self, number, **changes):
        return [samples.sample(BASE_S + 10 * at, 10.0, **changes) for at in range(number)]

    def test_record_ends_after_the_duration_asked_for(self):
        clock, sampler = Clock(), Sampler(self.prepared(100))
        code, out, err = self.record_it(sampler, clock, '--duration', '1m')
        self.assertEqual((0, '', True), (code, out, sampler.closed))
        self.assertEqual(
            [BASE_S + 10 * at for at in range(1, 7)],
            [sample.taken_s for sample in recording.read(self.path)],
        )
        self.assertIn('6 samples', err)

    def test_record_keeps_what_was_taken_before_an_interruption(self):
        clock = Clock()

        def wait(seconds):
            if clock.now_s > 140:
                signal.raise_signal(signal.SIGTERM)
            clock.wait(seconds)

        former = signal.getsignal(signal.SIGTERM)
        code, _out, err = self.record_it(Sampler(self.prepared(100)), clock, wait=wait)
        self.assertEqual(0, code)
        self.assertIn('5 samples', err)
        self.assertEqual(5, len(list(recording.read(self.path))))
        self.assertEqual(former, signal.getsignal(signal.SIGTERM))

    def test_record_says_what_it_cut_and_each_problem_once(self):
        with open(self.path, 'wb') as file:
            file.write(recording.encode(samples.sample(BASE_S - 10)) + recording.MARKER)
        clock = Clock()
        _code, _out, err = self.record_it(
            Sampler(self.prepared(100, problems=('no PMU',))), clock, '--duration', '30s'
        )
        self.assertIn('removed 3 bytes', err)
        self.assertEqual(1, err.count('no PMU'))

    def test_record_loses_the_last_sample_at_most_when_killed(self):
        script = (
            'import itertools, sys\n'
            'from nova_numa_pmc.recordings import recording\n'
            'from tests.fixtures import samples\n'
            'writer = recording.RecordingWriter(sys.argv[1], 1 << 20, 3)\n'
            'for at in itertools.count():\n'
            '    writer.append(samples.sample(float(at)))\n'
            '    print(at, flush=True)\n'
        )
        process = subprocess.Popen(
            [sys.executable, '-c', script, self.path], cwd=TOP, stdout=subprocess.PIPE, text=True
        )
        for _ in range(40):
            process.stdout.readline()
        process.kill()
        bytes_read = 39 + len(process.communicate(timeout=60)[0].split())
        read = [sample.taken_s for sample in recording.read(self.path)]
        self.assertEqual([float(at) for at in range(len(read))], read)
        self.assertGreaterEqual(len(read), bytes_read)
        recording.RecordingWriter(self.path, 1 << 20, 3).close()

    def test_record_refuses_wrong_options_and_writes_nothing(self):
        for arguments in (('--duration', '0'), ('--max-size', '0'), ('--keep', 'x')):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                self.run_command(record, '--out', self.path, *arguments)
        self.assertFalse(os.path.exists(self.path))


class ReportTest(ViewingCase):
    def setUp(self):
        super().setUp()
        before = dict(local_per_sec=5e6, remote_per_sec=5e6, remote_ratio=0.5, cpi=2.5)
        after = dict(local_per_sec=9.9e6, remote_per_sec=1e5, remote_ratio=0.01, cpi=2.0)
        self.record(
            *(
                samples.sample(
                    BASE_S + 10 * at,
                    10.0,
                    nodes=tuple(
                        samples.node_sample(n, **(before if at < 10 else after)) for n in (0, 1)
                    ),
                    guests=(
                        samples.guest_sample(1, **(before if at < 10 else after)),
                        samples.guest_sample(2, remote_ratio=None, local_per_sec=None),
                    ),
                )
                for at in range(20)
            )
        )
        self.windows = ('--before', '..+95s', '--after', '+95s..')

    def report(self, *arguments):
        return self.run_command(report, self.path, *arguments)

    def test_report_shows_medians_and_percentiles(self):
        code, text, err = self.report()
        self.assertEqual((0, ''), (code, err))
        self.assertIn('20 samples, source: guests by thread (20)', text)
        self.assertIn('25.50 / 50.00', text)
        self.assertIn('instance-00000001', text)
        self.assertNotIn('link', text)

    def test_report_compares_before_and_after(self):
        _code, text, _err = self.report(*self.windows)
        rows = {
            tuple(line.split('  ')[0].split()): line.split()
            for line in text.splitlines()
            if ' : ' in line
        }
        self.assertEqual(['50', ':', '1'], rows['remote', 'accesses/s'][-3:])
        self.assertIn('+25.0', rows['instructions', 'per', 'cycle'])
        self.assertIn('50.00 → 1.00', text)

    def test_report_in_json_has_samples_nodes_and_comparison(self):
        _code, text, _err = self.report('--json', *self.windows)
        data = json.loads(text)
        self.assertEqual(
            (20, BASE_S, BASE_S + 190), (data['samples'], data['from_s'], data['to_s'])
        )
        self.assertEqual(20, data['nodes'][0]['pressure']['samples'])
        self.assertEqual(20, data['guests'][0]['intensity']['samples'])
        host = data['comparison'][0]
        self.assertEqual('host', host['kind'])
        self.assertAlmostEqual(0.4, host['metrics']['ipc']['before'], places=6)
        self.assertEqual(
            ['host', 'node', 'node', 'guest', 'guest'],
            [compared['kind'] for compared in data['comparison']],
        )

    def test_report_takes_a_part_of_the_recording_and_one_guest(self):
        _code, text, _err = self.report(
            '--from',
            '+100s',
            '--to',
            '@%f' % (BASE_S + 140),
            '--guest',
            'instance-00000002',
            '--json',
        )
        data = json.loads(text)
        self.assertEqual(5, data['samples'])
        self.assertEqual(['instance-00000002'], [guest['name'] for guest in data['guests']])

    def test_report_of_guests_that_were_not_recorded_is_an_error(self):
        with self.assertRaisesRegex(
            UnknownGuest, "no guest 'instance-0000001' was recorded; similar names: instance-0"
        ):
            self.report('--guest', 'instance-0000001')
        code, text, err = self.report('--guest', samples.guest_sample(2).uuid, '--guest', 'zz')
        self.assertEqual((0, "report: no guest 'zz' was recorded\n"), (code, err))
        self.assertIn('instance-00000002', text)

    def test_report_of_a_window_without_samples_says_what_there_is(self):
        with self.assertRaisesRegex(NumaPmcError, 'the window .* contains no samples'):
            self.report('--before', '@0..@5', '--after', '..')
        with self.assertRaisesRegex(
            NumaPmcError, 'the recording spans %s' % tables.clock_time(BASE_S)
        ):
            self.report('--to', '@5')

    def test_report_of_one_window_only_is_a_usage_error(self):
        for option in ('--before', '--after'):
            err = io.StringIO()
            with self.subTest(option), contextlib.redirect_stderr(err):
                with self.assertRaises(SystemExit) as ended:
                    rebalance.main(['report', self.path, option, '..'])
                self.assertEqual(exits.USAGE, ended.exception.code)
                self.assertIn('go together', err.getvalue())

    def test_report_of_an_empty_recording_is_an_error(self):
        open(self.path + '0', 'wb').close()
        for arguments in ((), self.windows):
            with self.assertRaisesRegex(NumaPmcError, 'contains no samples yet'):
                self.run_command(report, self.path + '0', *arguments)

    def test_report_shows_that_sources_changed(self):
        self.record_more = recording.RecordingWriter(self.path + '2', 1 << 20, 2)
        self.addCleanup(self.record_more.close)
        for at, source in enumerate(('guests by thread', 'page residency')):
            self.record_more.append(samples.sample(BASE_S + at, source=source))
        _code, text, _err = self.run_command(
            report, self.path + '2', '--before', '..+0.5s', '--after', '+0.5s..'
        )
        self.assertIn('cannot be compared', text)

    def test_report_names_the_damage_and_reports_the_rest(self):
        with open(self.path, 'r+b') as file:
            file.seek(20)
            file.write(b'damage')
        code, text, err = self.report()
        self.assertEqual(0, code)
        self.assertIn('19 samples', text)
        self.assertIn('contain no complete sample', err)

    def test_a_ratio_has_1_on_its_smaller_side_or_is_a_dash(self):
        self.assertEqual(
            ('56 : 1', '1 : 1.12', '-', '-', '1 : 1'),
            (
                rendered.ratio_text(56, 1),
                rendered.ratio_text(1, 1.12),
                rendered.ratio_text(None, 1),
                rendered.ratio_text(1, 0),
                rendered.ratio_text(3, 3),
            ),
        )

    @unittest.skipUnless(matplotlib, 'matplotlib is not installed')
    def test_report_plots_nodes_and_guests_into_files(self):
        target = os.path.join(self.directory, 'plots')
        _code, text, _err = self.report('--plot', target, *self.windows)
        for name in ('nodes.png', 'guests.png'):
            self.assertIn(name, text)
            with open(os.path.join(target, name), 'rb') as file:
                self.assertEqual(b'\x89PNG', file.read(4))

    @unittest.skipUnless(matplotlib, 'matplotlib is not installed')
    def test_a_plot_has_few_points_and_keeps_gaps(self):
        from nova_numa_pmc.cli.render import plots

        times = [*range(0, 50000, 10), *range(80000, 100000, 10)]
        points, values = plots.thin(times, [2.0] * len(times), [10.0], 0, 100000)
        self.assertLessEqual(len(points), 1001)
        gap = [value for moment, value in zip(points, values) if 51000 < moment < 79000]
        self.assertTrue(gap and all(value != value for value in gap))
        self.assertEqual({2.0}, {value for value in values if value == value})

    def test_report_without_matplotlib_says_what_to_install(self):
        hidden = {'matplotlib': None, 'matplotlib.backends.backend_agg': None}
        with unittest.mock.patch.dict(sys.modules, hidden), unittest.mock.patch.dict(vars(render)):
            sys.modules.pop('nova_numa_pmc.cli.render.plots', None)
            vars(render).pop('plots', None)
            with self.assertRaisesRegex(NumaPmcError, r'pip install "nova-numa-pmc\[plots\]"'):
                self.report('--plot', self.directory)
