# SPDX-License-Identifier: Apache-2.0
"""Test the figures of many boots at once, and the configuration of schedulers and fake hosts."""

import contextlib
import dataclasses
import io
import json
import pathlib
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.compute import metrics_encoder
from nova_numa_pmc.state import publication
from tests.stack import __main__ as command, config, fakehosts, figures, herd, layout, progress

ONE, OTHER = (f'0000000{at}-0000-4000-8000-000000000000' for at in (1, 2))
LOG = f"""\
2026-01-01 10:00:00.250 7 DEBUG nova.scheduler.manager [None req-1] Starting to schedule for \
instances: ['{ONE}']
2026-01-01 10:00:00.500 7 DEBUG nova.scheduler.utils [None req-1] Attempting to claim resources \
in the placement API for instance {ONE}
2026-01-01 10:00:01.000 7 DEBUG nova.scheduler.manager [None req-1] [instance: {ONE}] Selected \
host: (herd-01, herd-01) ram: 261632MB disk: 8192000MB io_ops: 0 instances: 0
2026-01-01 10:00:01.100 8 DEBUG nova.scheduler.utils [None req-2] Attempting to claim resources \
in the placement API for instance {OTHER}
2026-01-01 10:00:01.200 8 DEBUG nova.scheduler.utils [None req-2] Attempting to claim resources \
in the placement API for instance {OTHER}
2026-01-01 10:00:02.500 8 DEBUG nova.scheduler.manager [None req-2] [instance: {OTHER}] Selected \
host: (herd-02, herd-02) ram: 261632MB disk: 8192000MB io_ops: 0 instances: 0
"""


class BlindTest(unittest.TestCase):
    def test_a_hundred_blind_choices_of_twenty_crowd_one_host(self):
        choice = figures.blind_choice(100, 20)
        self.assertAlmostEqual(9.6, choice['mean'], delta=0.05)
        self.assertEqual((9, 11), (choice['median'], choice['p90']))

    def test_one_host_gets_all_blind_choices(self):
        self.assertEqual(7, figures.blind_choice(7, 1, rounds=3)['mean'])


class SpreadTest(unittest.TestCase):
    def test_the_spread_of_ten_has_median_percentile_and_most(self):
        self.assertEqual(
            {'median': 5.5, 'p90': 9, 'most': 10}, figures.spread([10, *range(1, 10)])
        )

    def test_the_90th_percentile_of_five_is_the_most(self):
        self.assertEqual(9, figures.spread([7, 9, 8, 8, 7])['p90'])

    def test_the_spread_of_nothing_is_none(self):
        self.assertEqual({'median': None, 'p90': None, 'most': None}, figures.spread([]))


class DecisionsTest(unittest.TestCase):
    def test_decisions_are_read_with_time_host_and_retries(self):
        selected, retries = figures.decisions(LOG)
        self.assertEqual(['herd-01', 'herd-02'], [host for _, host in selected.values()])
        self.assertEqual(1.5, selected[OTHER][0] - selected[ONE][0])
        self.assertEqual(1, retries)

    def test_a_log_without_decisions_has_none(self):
        self.assertEqual(({}, 0), figures.decisions('started\n'))


class CountedTest(unittest.TestCase):
    CLAIMS = {'a': (1.0, 'x'), 'b': (1.2, 'x'), 'c': (1.1, 'y')}
    POLLS = [(0.0, {'x': 0, 'y': 0}), (2.0, {'x': 4, 'y': 0}), (3.0, {'x': 8, 'y': 0})]

    def test_the_first_claimed_is_the_first_counted(self):
        self.assertEqual({'a': 2.0, 'b': 3.0}, figures.counted_at(self.CLAIMS, self.POLLS, 4))

    def test_guests_decided_on_and_not_yet_counted_are_under_way(self):
        decided = {'a': 0.5, 'b': 1.5, 'c': 2.5, 'd': 9.0}
        counted = {'a': 2.0, 'b': 3.0, 'c': 4.0}
        # b finds a; c finds b; d, which is never counted, finds none.
        self.assertEqual([0, 1, 1, 0], figures.under_way(decided, counted))

    def test_a_guest_that_is_never_counted_stays_under_way(self):
        self.assertEqual([0, 1, 2], figures.under_way({'a': 1, 'b': 2, 'c': 3}, {}))

    def test_without_decisions_nothing_is_under_way(self):
        self.assertEqual([], figures.under_way({}, {}))


def _row(vcpus_used=0, guests=0, vcpus_seen=0, reported=True):
    """Return a row of compute_nodes."""
    node = model.NodeView(0, 20.0, 32, 128 << 30, 0, guests=guests, demand_cores=6.0)
    state = publication.Publication(0.0, 10.0, model.HostView((node,), ()), (None,))
    current, maximum = metrics_encoder.to_values(state, vcpus_seen, 0)
    listed = [
        {'name': metrics_encoder.CURRENT, 'numa_membw_values': current},
        {'name': metrics_encoder.MAXIMUM, 'numa_membw_values': maximum},
    ]
    return {
        'host': 'x',
        'vcpus_used': vcpus_used,
        'metrics': json.dumps(listed) if reported else '[]',
    }


class UnsettledTest(unittest.TestCase):
    def test_an_empty_host_is_settled(self):
        self.assertEqual({}, figures.hosts_not_ready([_row()], True))

    def test_each_reason_for_an_unsettled_host_is_reported(self):
        for row, reason in (
            (_row(vcpus_used=4), '4 vCPUs used'),
            (_row(reported=False), 'no NUMA metrics'),
            (_row(guests=1), 'its metrics still include guests'),
            (_row(vcpus_seen=4), 'its metrics still include guests'),
        ):
            with self.subTest(reason):
                self.assertEqual({'x': reason}, figures.hosts_not_ready([row], True))

    def test_without_our_package_only_what_nova_counts_matters(self):
        rows = [_row(reported=False), _row(guests=1)]
        self.assertEqual({}, figures.hosts_not_ready(rows, False))
        self.assertEqual(['x'], list(figures.hosts_not_ready([_row(vcpus_used=4)], False)))


class Database:
    """A database with rows that are set by a test."""

    def __init__(self):
        self.rows: tuple = ()
        self.used: dict[str, int] = {}
        self.cell0: set[str] = set()

    def servers(self):
        return [
            {'uuid': uuid, 'host': host, 'vm_state': state, 'task_state': task}
            for uuid, host, state, task in self.rows
        ]

    def hosts(self):
        return [{'host': host, 'vcpus_used': used} for host, used in self.used.items()]

    def refused(self):
        return self.cell0


class ProgressTest(unittest.TestCase):
    def setUp(self):
        self.database = Database()
        self.progress = progress.Progress(self.database, 4)

    def _poll(self, *rows, **used):
        self.database.rows, self.database.used = rows, used
        self.progress.poll()

    def test_a_herd_is_settled_when_each_server_has_a_host_and_is_counted(self):
        self._poll(('a', None, 'building', 'scheduling'), x=0)
        self.assertFalse(self.progress.is_complete({'a'}))
        self._poll(('a', 'x', 'building', None), x=0)
        self.assertFalse(self.progress.is_complete({'a'}))
        self._poll(('a', 'x', 'building', 'spawning'), x=4)
        self.assertTrue(self.progress.is_complete({'a'}))
        self.assertEqual(set(), self.progress.active)
        self._poll(('a', 'x', 'active', None), x=4)
        self.assertEqual({'a'}, self.progress.active)

    def test_servers_that_are_refused_or_fail_are_not_waited_for(self):
        self.database.cell0 = {'b'}
        self._poll(('a', None, 'error', None), x=0)
        self.assertTrue(self.progress.is_complete({'a', 'b'}))
        self.assertIn('1 refused, 1 failed', self.progress.text())

    def test_the_last_host_of_a_server_counts(self):
        self._poll(('a', 'x', 'building', None), x=4)
        self._poll(('a', None, 'building', None), x=0)
        self._poll(('a', 'y', 'building', None), y=4)
        self.assertEqual('y', self.progress.claims['a'][1])


def _round(most, **more):
    return {
        'most': most,
        **dict.fromkeys(
            ('refused', 'failed', 'not_accepted', 'retries', 'reschedules', 'unknown'), 0
        ),
        'claimed_s': [],
        'counted_s': [1.0, 2.0],
        'under_way': [0, 3],
        'requests_s': 12.0,
        'decisions_s': None,
        **more,
    }


class ReportTest(unittest.TestCase):
    def _report(self, **more):
        rounds = [_round(7), _round(8, **more), _round(12)]
        report = herd.new_report(dataclasses.replace(herd.SMOKE, without=False))
        report['variants'] = [
            {
                'schedulers': 2,
                'subset': 5,
                'package': True,
                'rounds': rounds,
                'summary': figures.summary(rounds),
            }
        ]
        return report

    def test_the_table_has_a_row_of_each_variant(self):
        lines = figures.table(self._report()).splitlines()
        expected = ['2', '5', 'with', '8', '(p90', '12)', '7', '8', '12']
        self.assertEqual(expected, lines[2].split()[:9])
        self.assertIn('blind uniform choice', lines[3])

    def test_a_brief_report_has_nothing_of_each_guest(self):
        (variant,) = json.loads(json.dumps(figures.without_guests(self._report())))['variants']
        self.assertEqual([7, 8, 12], variant['summary']['each'])
        self.assertEqual(3, variant['summary']['under_way']['most'])
        self.assertNotIn('under_way', variant['rounds'][0])

    def test_a_report_passes_when_all_servers_ran_in_every_variant(self):
        self.assertTrue(figures.passed(self._report()))
        self.assertFalse(figures.passed(self._report(refused=1)))
        self.assertFalse(figures.passed({**self._report(), 'variants': []}))
        self.assertIn('2 schedulers', figures.variant_label(2, 1, True))

    def test_a_report_without_rounds_is_printed_too(self):
        self.assertIn('blind', figures.table(herd.new_report(herd.SMOKE)))


class PlanTest(unittest.TestCase):
    def test_variants_with_and_without_our_package_take_turns(self):
        plan = herd.Plan(schedulers=(2, 16), without=True)
        self.assertEqual(
            [(2, 1, True), (2, 1, False), (16, 1, True), (16, 1, False)], plan.variants()
        )
        self.assertEqual(
            [(2, 1, True), (2, 5, True)], herd.Plan(schedulers=(2,), subsets=(1, 5)).variants()
        )
        self.assertEqual([(2, 1, True)], herd.Plan(schedulers=(2,)).variants())

    def _planned(self, *words):
        """Return the plan of a command line, and its exit code, without measuring anything."""
        plans = []
        with (
            mock.patch.object(herd, 'measure', lambda layout, plan, report: plans.append(plan)),
            mock.patch('sys.argv', ['stack', 'herd', *words]),
            mock.patch('signal.signal'),
            contextlib.redirect_stdout(io.StringIO()) as output,
        ):
            code = command.main()
        json.loads(output.getvalue().splitlines()[-1])
        return plans[0], code

    def test_the_command_says_what_differs(self):
        self.assertEqual((herd.Plan(), 1), self._planned())
        plan, _ = self._planned('--schedulers', '2,16', '--without', '--build-scale', '0.1')
        self.assertEqual(herd.Plan(schedulers=(2, 16), without=True, build_scale=0.1), plan)

    def test_options_change_the_plan_of_a_quick_try(self):
        plan, _ = self._planned('--smoke', '--boots', '7', '--json')
        self.assertEqual(dataclasses.replace(herd.SMOKE, boots=7), plan)


class ConfigurationTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.layout = layout.Layout(directory.name)
        self.layout.make()

    def test_several_schedulers_are_configured_with_the_guides_lines_or_without(self):
        files = config.schedulers(16, 5, True)
        self.assertEqual({'scheduler.conf', 'scheduler-log.conf'}, set(files))
        self.assertIn('workers = 16\n', files['scheduler.conf'])
        self.assertIn('host_subset_size = 5\n', files['scheduler.conf'])
        self.assertIn('NUMAPressureWeigher', files['scheduler.conf'])
        self.assertNotIn('NUMA', config.schedulers(16, 1, False)['scheduler.conf'])

    def test_a_fake_host_is_a_host_of_its_own(self):
        one, other = (
            config.ini(config.nova_fake_compute(self.layout, name, 30, (0.5, 18.0), 3))
            for name in fakehosts.names(2)
        )
        self.assertIn('host = herd-01\n', one)
        self.assertIn('compute_driver = fakehost.Driver\n', one)
        self.assertIn('update_resources_interval = 30\n', one)
        self.assertIn('[fakehost]\nseed = 3\nbuild_least = 0.5\nbuild_most = 18.0\n', one)
        self.assertIn(f'state_path = {self.layout.data}/herd-02\n', other)
        self.assertTrue(fakehosts.PROGRAM.exists())

    def test_fake_hosts_that_do_not_run_are_not_ended(self):
        path = pathlib.Path(self.layout.run / 'nova-compute-herd-01.pid')
        path.write_text('1 1\n')
        self.assertEqual([], fakehosts.down(self.layout))
        self.assertFalse(path.exists())


if __name__ == '__main__':
    unittest.main()
