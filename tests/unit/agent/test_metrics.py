# SPDX-License-Identifier: Apache-2.0
"""Metrics are written for node_exporter, and served by an unprivileged unit where it is absent."""

import json
import logging
import os
import re
import stat
import tempfile
import unittest

from nova_numa_pmc.agent.agent import Tick
from nova_numa_pmc.agent.metrics import GUESTS_FILE, HOST_FILE, MetricsFile
from nova_numa_pmc.core import measurements
from tests.fixtures import full_tick
from tests.fixtures.checkout import TOP
from tests.fixtures.full_tick import FULL, NODES

try:
    import prometheus_client  # noqa: F401 -- an extra
except ImportError:
    raise unittest.SkipTest('prometheus_client is not installed')

LOG = logging.getLogger('nova_numa_pmc.agent')
DASHBOARDS = sorted((TOP / 'etc/grafana').glob('*.json'))
RULES = TOP / 'etc/prometheus/nova-numa-pmc.rules.yml'
ENGINES = TOP / 'doc/source/admin/fleet.rst'
GUIDE = TOP / 'doc/source/admin/metrics.rst'
EMPTY = Tick(full_tick.NOW)


def values(text):
    """Parse Prometheus' text format into {name with labels: value}."""
    return {
        line.rpartition(' ')[0]: float(line.rpartition(' ')[2])
        for line in text.splitlines()
        if not line.startswith('#')
    }


def names(text):
    """List the metrics that have values."""
    return {name.partition('{')[0] for name in values(text)}


class MetricsCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def open_metrics(self, tick=FULL):
        metrics = MetricsFile(LOG, self.directory)
        metrics.write(tick, 0.25)
        return metrics

    def path(self, name=HOST_FILE):
        return os.path.join(self.directory, 'metrics', name)

    def text(self, name=HOST_FILE):
        with open(self.path(name), encoding='utf-8') as file:
            return file.read()

    def all_text(self):
        self.open_metrics()
        return self.text() + self.text(GUESTS_FILE)


class ContentTest(MetricsCase):
    def test_a_plan_of_the_fleet_has_at_most_six_figures_of_each_guest(self):
        self.open_metrics()
        exported = values(self.text(GUESTS_FILE))
        at = '{name="instance-1",uuid="e4a1"}'
        names = (
            'size_bytes vcpus lasting_demand_cores movable lasting_loss_cores leaving_gain_cores'
        )
        found = [exported['nova_numa_guest_' + name + at] for name in names.split()]
        self.assertEqual([1 << 30, 2, 1.5, 0], found[:4])
        self.assertLess(0, found[4])
        self.assertLess(found[4], found[5])

    def test_the_file_shows_what_the_tick_has_found(self):
        self.open_metrics().write(FULL, 0.5)
        exported = values(self.text())
        for name, value in (
            ('node_capacity_cores{node="0"}', 4.5),
            ('node_demand_cores{node="1"}', 3.25),
            ('node_pressure_ratio{node="0",part="cpu"}', 0.72),
            ('node_pressure_ratio{node="0",part="bandwidth"}', 0.1),
            ('node_waiting_cores{node="1"}', 0.5),
            ('node_dram_accesses_per_second{node="1",target="remote"}', 2e5),
            ('node_promised_bytes{node="0"}', 1 << 31),
            ('node_promisable_bytes{node="0"}', 1 << 34),
            ('node_guests{node="0"}', 1.5),
            ('source_info{source="guests"}', 1),
            ('sample_interval_seconds', 5),
            ('guests', 1),
            ('moving_guests', 1),
            ('agent_failing', 2),
            ('agent_problems', 1),
            ('agent_tick_seconds_count', 2),
            ('agent_tick_seconds_sum', 0.75),
            ('agent_last_tick_timestamp_seconds', 1700000000),
            ('moves_total{kind="move",result="made"}', 3),
            ('moves_total{kind="fetch",result="made"}', 0),
            ('moved_bytes_total', 1 << 30),
        ):
            with self.subTest(name):
                self.assertEqual(value, exported['nova_numa_' + name])
        self.assertIn('nova_numa_agent_process_resident_memory_bytes', exported)

    def test_a_figure_that_is_unknown_is_absent(self):
        self.open_metrics(EMPTY)
        exported = names(self.text())
        self.assertEqual(
            {
                'agent_info',
                'agent_tick_seconds_count',
                'agent_tick_seconds_sum',
                'agent_failing',
                'agent_paused',
                'agent_moves_stopped',
                'agent_last_tick_timestamp_seconds',
                'moving_guests',
                'moves_total',
                'moved_bytes_total',
                'starts_taken_over_total',
            },
            {name[len('nova_numa_') :] for name in exported if 'agent_process_' not in name},
        )
        unknown = FULL._replace(
            sample=FULL.sample._replace(
                nodes=(measurements.NodeSample(0, capacity_cores=4.0), NODES[1])
            ),
            publication=None,
        )
        self.open_metrics(unknown)
        exported = values(self.text())
        self.assertEqual(
            ['nova_numa_node_capacity_cores{node="0"}'],
            [
                name
                for name in exported
                if 'node="0"' in name
                and re.search('cores|ratio|per_second|instruction|node_memory', name)
            ],
        )

    def test_guests_are_named_in_a_file_of_their_own(self):
        self.open_metrics()
        self.assertNotRegex(self.text(), 'e4a1|instance-1|guest_')
        exported = values(self.text(GUESTS_FILE))
        self.assertEqual(
            {'nova_numa_guest_'}, {re.match('nova_numa_guest_', n).group() for n in exported}
        )
        labels = '{name="instance-1",uuid="e4a1"}'
        self.assertEqual(
            (1.5, 0.25),
            (
                exported['nova_numa_guest_cores' + labels],
                exported['nova_numa_guest_waiting_cores' + labels],
            ),
        )
        self.assertEqual(
            8192, exported['nova_numa_guest_memory_bytes{name="instance-1",node="1",uuid="e4a1"}']
        )

    def test_files_are_replaced_whole_and_all_users_may_read_them(self):
        metrics = self.open_metrics()
        with open(self.path(), encoding='utf-8') as former:
            metrics.write(EMPTY, 0.1)
            self.assertIn('nova_numa_node_demand_cores{', former.read())
        self.assertNotIn('nova_numa_node_demand_cores{', self.text())
        self.assertEqual(
            sorted((HOST_FILE, GUESTS_FILE)), sorted(os.listdir(os.path.dirname(self.path())))
        )
        self.assertEqual(0o644, stat.S_IMODE(os.stat(self.path()).st_mode) | 0o044)

    def test_a_tick_that_cannot_be_written_is_logged_once_and_keeps_the_file(self):
        metrics = self.open_metrics()
        before = self.text()
        with self.assertLogs(LOG, 'WARNING') as logs:
            for _ in range(2):
                metrics.write(FULL._replace(sample='nonsense'), 0.1)  # type: ignore[arg-type]
        self.assertEqual((1, before), (len(logs.records), self.text()))
        with self.assertLogs(LOG, 'INFO') as logs:
            metrics.write(FULL, 0.1)
        self.assertIn('succeeded again', logs.output[0])


class QueriesTest(MetricsCase):
    """Dashboards, rules and guides ask for what is served, and nothing else."""

    #: Served but on no dashboard, because the interval is an option and CPUs change rarely; and
    #: those that only a plan of the fleet and its rules need.
    ABSENT = {
        'nova_numa_sample_interval_seconds',
        'nova_numa_node_cpus',
        'nova_numa_node_lasting_bandwidth_bytes_per_second',
        'nova_numa_guest_size_bytes',
        'nova_numa_guest_vcpus',
        'nova_numa_guest_lasting_demand_cores',
        'nova_numa_guest_lasting_loss_cores',
        'nova_numa_guest_leaving_gain_cores',
        'nova_numa_guest_movable',
    }

    @staticmethod
    def metrics_in(text):
        # What is recorded has a colon before its name, or behind it.
        return set(re.findall(r'(?<![\w:])nova_numa_\w+\b(?!:)', text))

    def test_dashboards_show_only_metrics_that_are_served_and_nearly_all_of_them(self):
        served = names(self.all_text())
        shown = set()
        for path in DASHBOARDS:
            for panel in json.loads(path.read_text(encoding='utf-8'))['panels']:
                for target in panel.get('targets', ()):
                    metrics = self.metrics_in(target['expr'])
                    self.assertTrue(metrics, target)
                    shown |= metrics
        self.assertEqual(set(), shown - served)
        self.assertEqual(
            self.ABSENT, {name for name in served - shown if 'agent_process_' not in name}
        )

    def test_no_panel_of_a_fleet_has_a_line_for_each_host_or_node(self):
        few = r'(sum|count) by \((version|source|kind, result)\)'
        outermost = r'^(topk\(\d+, |(sum|count|max|quantile)\(|%s)' % few
        fleet = json.loads((TOP / 'etc/grafana/nova-numa-pmc-fleet.json').read_text())
        for panel in fleet['panels']:
            for target in panel.get('targets', ()):
                self.assertRegex(target['expr'], outermost, panel['title'])

    def test_rules_and_the_guide_for_engines_use_only_metrics_that_are_served(self):
        served = names(self.all_text())
        for path in (RULES, ENGINES):
            used = self.metrics_in(path.read_text(encoding='utf-8'))
            self.assertTrue(used)
            self.assertEqual(set(), used - served, path)

    def test_the_operators_guide_names_each_metric_and_each_alert(self):
        text = GUIDE.read_text(encoding='utf-8')
        metrics = set(re.findall('``([a-z_]+)``', text))
        for name in names(self.all_text()):
            if 'agent_process_' not in name:
                self.assertIn(re.sub('^nova_numa_|_(?:sum|count)$', '', name), metrics)
        alerts = re.findall(r'(?m)^ +- alert: (\w+)', RULES.read_text(encoding='utf-8'))
        self.assertEqual(sorted(alerts), sorted(set(re.findall(r'``(NovaNuma\w+)``', text))))
