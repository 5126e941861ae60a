# SPDX-License-Identifier: Apache-2.0
"""Test top, record and report with a sampler and a clock that the test controls."""

import argparse
import contextlib
import io
import json
import os
import signal
import stat
import sys
import tempfile
import unittest
from unittest import mock

import rich.console
import rich.live

from nova_numa_pmc.cli import arguments, context, recordings
from nova_numa_pmc.cli.commands import record, report, top
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.json_values import to_json
from tests.fixtures import samples
from tests.fixtures.clock import Clock

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

    def write(self, *all_samples, name='samples'):
        path = os.path.join(self.directory, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.writelines(json.dumps(to_json(sample)) + '\n' for sample in all_samples)
        return path

    @staticmethod
    def run_command(module, *argv, **injected):
        """Run a command; return (exit code, stdout, stderr)."""
        parser = argparse.ArgumentParser()
        arguments.add(parser, module.OPTIONS)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = module.run(parser.parse_args(argv), **injected)
        return code, out.getvalue(), err.getvalue()


class TopTest(ViewingCase):
    def top(self, *arguments, **changes):
        taken = Sampler([samples.sample(BASE_S), samples.sample(BASE_S + 5, **changes)])
        with mock.patch.object(context, 'open_sampler', lambda *_: taken):
            return self.run_command(top, '--once', '--interval', '0.1', *arguments)

    def test_top_prints_a_sample_as_one_json_object(self):
        _code, text, _err = self.top('--json', '--guest', 'instance-00000002')
        [data] = map(json.loads, text.splitlines())
        self.assertEqual(BASE_S + 5, data['taken_s'])
        self.assertEqual(['instance-00000002'], [g['name'] for g in data['guests']])
        self.assertEqual(2, len(data['nodes']))

    def test_top_reports_a_guest_that_is_not_running(self):
        code, text, err = self.top('--guest', 'instance-00000002', '--guest', 'no-such')
        self.assertEqual((0, "problem: no guest 'no-such' is running\n"), (code, err))
        self.assertIn('instance-00000002', text)

    def test_top_pages_and_sorts_on_a_terminal_by_keys(self):
        guests = tuple(
            samples.guest_sample(number, waiting_cores=number / 100) for number in range(1, 61)
        )
        taken = Sampler([samples.sample(), samples.sample(guests=guests, problems=('no PMU',))])
        screens = self.play(taken, b' ', b'b', b's', b'q')
        self.assertIn('measuring', screens[0])
        for screen in screens[1:]:
            lines = screen.splitlines()
            self.assertLessEqual(len(lines), 24)
            self.assertEqual('problem: no PMU', lines[0])
            self.assertIn('q: end', lines[-1])
        first, second, back, by_cores = screens[1:]
        self.assertIn('sorted by wait', first)
        self.assertIn('instance-0000003c', first)  # the one that waits most
        self.assertNotIn('instance-0000003c', second)
        self.assertEqual(first, back)
        self.assertIn('sorted by cores', by_cores)

    def test_names_are_not_read_as_markup_on_a_terminal(self):
        stream = io.StringIO()
        console = rich.console.Console(
            file=stream, width=80, height=30, force_terminal=True, _environ={'TERM': 'xterm'}
        )
        with rich.live.Live(console=console, screen=True, auto_refresh=False) as live:
            top.Screen(live, 'wait', stream).show(lambda _: (['[red]x[/nonsense]'], ['y']))
        self.assertIn('[red]x[/nonsense]', stream.getvalue())

    @staticmethod
    def play(taken, *keys):
        """Run top on a terminal of 80 x 24 with these keys; return what it has shown."""
        shown = []
        live = mock.Mock(console=mock.Mock(height=24))
        live.update = lambda text, refresh: shown.append(text.plain)
        reader, writer = os.pipe()
        with open(reader) as keyboard, open(writer, 'wb', buffering=0) as typed:
            screen = top.Screen(live, 'wait', keyboard)

            def one_sample(take, *_):
                take()
                yield take()
                for key in keys:
                    typed.write(key)
                    screen.wait(0.0)

            with (
                mock.patch.object(context, 'open_sampler', lambda *_: taken),
                mock.patch.object(context, 'sample_every', one_sample),
                mock.patch.object(sys, 'stdin', mock.Mock(isatty=lambda: True)),
                mock.patch.multiple(
                    top,
                    can_draw=lambda _: True,
                    open_screen=lambda _: contextlib.nullcontext(screen),
                ),
            ):
                ViewingCase.run_command(top)
        return shown


class RecordTest(ViewingCase):
    def record_it(self, sampler, clock, *arguments, wait=None):
        with mock.patch.object(context, 'open_sampler', lambda _: sampler):
            return self.run_command(
                record,
                '--out',
                self.path,
                '--interval',
                '10',
                *arguments,
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
            [sample.taken_s for sample in recordings.read(self.path, self.fail)],
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
        self.assertEqual(5, len(list(recordings.read(self.path, self.fail))))
        self.assertEqual(former, signal.getsignal(signal.SIGTERM))

    def test_record_continues_a_file_whose_last_line_is_torn(self):
        with open(self.path, 'w', encoding='utf-8') as file:
            file.write(json.dumps(to_json(samples.sample(BASE_S - 10)))[:-40])
        clock = Clock()
        _code, _out, err = self.record_it(
            Sampler(self.prepared(100, problems=('no PMU',))), clock, '--duration', '30s'
        )
        self.assertEqual(1, err.count('no PMU'))
        damaged = []
        taken = [sample.taken_s for sample in recordings.read(self.path, damaged.append)]
        self.assertEqual([BASE_S + 10 * at for at in (1, 2, 3)], taken)
        self.assertEqual(1, len(damaged))

    def test_a_recording_is_not_for_all_users(self):
        self.record_it(Sampler(self.prepared(100)), Clock(), '--duration', '10s')
        self.assertEqual(0, stat.S_IMODE(os.stat(self.path).st_mode) & 0o007)


class ReportTest(ViewingCase):
    def setUp(self):
        super().setUp()
        for name, rates in (
            ('before', dict(local_per_sec=5e6, remote_per_sec=5e6, remote_ratio=0.5, cpi=2.5)),
            ('after', dict(local_per_sec=9.9e6, remote_per_sec=1e5, remote_ratio=0.01, cpi=2.0)),
        ):
            self.write(
                *(
                    samples.sample(
                        BASE_S + 10 * at,
                        10.0,
                        nodes=tuple(samples.node_sample(n, **rates) for n in (0, 1)),
                        guests=(
                            samples.guest_sample(1, **rates),
                            samples.guest_sample(2, remote_ratio=None, local_per_sec=None),
                        ),
                    )
                    for at in range(10)
                ),
                name=name,
            )
        self.both = tuple(os.path.join(self.directory, name) for name in ('before', 'after'))

    def report(self, *arguments):
        return self.run_command(report, *arguments)

    def test_report_compares_two_recordings_by_host_node_and_guest(self):
        _code, text, _err = self.report(*self.both)
        rows = {
            tuple(line.split('  ')[0].split()): line.split()
            for line in text.splitlines()
            if ' : ' in line
        }
        self.assertEqual(['50', ':', '1'], rows['remote', 'accesses/s'][-3:])
        self.assertEqual(['1', ':', '1.25'], rows['instructions', 'per', 'cycle'][-3:])
        self.assertIn('50.00 → 1.00', text)

    def test_report_of_one_guest_leaves_out_the_others(self):
        _code, text, _err = self.report(*self.both, '--guest', 'instance-00000002')
        self.assertIn('instance-00000002', text)
        self.assertNotIn('instance-00000001', text)
        with self.assertRaisesRegex(NumaPmcError, 'no guest no-such was recorded'):
            self.report(*self.both, '--guest', 'no-such')

    def test_report_writes_a_page_with_both_recordings_and_the_tables(self):
        path = os.path.join(self.directory, 'report.html')
        self.report(*self.both, '--html', path)
        with open(path, encoding='utf-8') as file:
            html = file.read()
        for text in ('before, at its end', 'after, at its end', 'instance-00000001', '50 : 1'):
            self.assertIn(text, html)

    def test_report_in_json_has_the_means_of_both(self):
        _code, text, _err = self.report('--json', *self.both)
        data = json.loads(text)
        self.assertEqual((10, 10), (data['before']['samples'], data['after']['samples']))
        host = data['means'][0]
        self.assertAlmostEqual(0.4, host['metrics']['ipc']['before'])
        self.assertEqual(
            ['host', 'node', 'node', 'guest', 'guest'], [part['kind'] for part in data['means']]
        )
        self.assertNotIn('local_per_sec', data['means'][-1]['metrics'])
