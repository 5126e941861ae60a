# SPDX-License-Identifier: Apache-2.0
"""Test the monitor in nova-compute: what it sends, and the effects of a bad publication."""

import json
import os
import time
from unittest import mock

from nova import context, objects
from oslo_config import cfg

from nova_numa_pmc.compute import metrics_decoder, metrics_encoder, monitor
from nova_numa_pmc.state import publication
from tests.nova import base

NUMA = {metrics_encoder.CURRENT, metrics_encoder.MAXIMUM}
NOT_RENEWED = 'NUMA metrics are not renewed until this is fixed'


class MonitorTest(base.NovaTest):
    def setUp(self):
        super().setUp()
        self.start_hosts('one')

    def sent(self):
        """Return {metric name: dict} of the compute node's column."""
        return {metric['name']: metric for metric in json.loads(self.compute_node('one').metrics)}

    def warnings(self):
        return self.stdlog.logger.output.count(NOT_RENEWED)

    def test_the_column_holds_both_metrics_and_is_small(self):
        self.publish('one', 0.5, 0.9, promised_mb=(1024, 2048))
        self._run_periodics()
        column = self.compute_node('one').metrics
        self.assertLess(len(column), 1024)
        self.assertEqual(NUMA, set(self.sent()))
        decoded = metrics_decoder.decode(objects.MonitorMetricList.from_json(column))
        self.assertEqual([1.25, 2.25], [node.demand_cores for node in decoded.view.nodes])
        self.assertEqual(
            [1024 << 20, 2048 << 20], [node.promised_bytes for node in decoded.view.nodes]
        )

    def test_cpu_metrics_are_sent_as_well_if_they_are_wanted(self):
        self.flags(cpu_metrics=True, group='numa_pmc')
        self._run_periodics()
        self.assertLessEqual(NUMA | {'cpu.percent', 'cpu.frequency'}, set(self.sent()))
        self.assertLess(len(self.compute_node('one').metrics), 2048)
        self.assertIsNotNone(metrics_decoder.decode(json.loads(self.compute_node('one').metrics)))

    def test_libvirt_is_not_asked_if_cpu_metrics_are_not_wanted(self):
        asked = []
        self.stub_out(
            'nova.virt.libvirt.driver.LibvirtDriver.get_host_cpu_stats',
            lambda driver: asked.append(driver),
        )
        self.monitor('one').populate_metrics(objects.MonitorMetricList())
        self.assertEqual([], asked)

    def test_usage_is_recorded_with_the_metrics_and_not_with_later_boots(self):
        flavor = self.flavor(vcpus=2, memory_mb=1024)
        self._run_periodics()
        before = metrics_decoder.decode(json.loads(self.compute_node('one').metrics))
        self.boot(flavor)
        node = self.compute_node('one')
        unchanged = metrics_decoder.decode(json.loads(node.metrics))
        self.assertEqual(
            (before.vcpus_used, before.memory_mb_used),
            (unchanged.vcpus_used, unchanged.memory_mb_used),
        )
        self.assertEqual(
            (2, 1024),
            (node.vcpus_used - before.vcpus_used, node.memory_mb_used - before.memory_mb_used),
        )
        self.publish('one', 0.1, 0.1)
        self._run_periodics()
        node = self.compute_node('one')
        after = metrics_decoder.decode(json.loads(node.metrics))
        self.assertEqual(
            (node.vcpus_used, node.memory_mb_used), (after.vcpus_used, after.memory_mb_used)
        )

    def test_usage_by_instances_that_the_agent_has_not_seen_is_not_recorded(self):
        first, second = (self.boot(self.flavor(vcpus=vcpus))['id'] for vcpus in (3, 1))
        self._run_periodics()  # the audit reads the states
        known = self.computes['one'].manager.rt.stats['one'].states[second]
        for state, published, expected in (
            ('active', (first, second), 4),
            ('active', (first,), 2),
            ('active', (), 0),
            ('active', None, 4),
            ('paused', (first,), 2),
            ('rescued', (first,), 2),
            ('resized', (first,), 2),
            ('stopped', (first,), 4),
            ('shelved', (first,), 4),
            ('error', (first,), 4),
            ('building', (first,), 2),
            ('building', None, 2),
            ('building', (first, second), 4),
            ('shelved_offloaded', (first,), 2),
            ('shelved_offloaded', (first, second), 4),
        ):
            with self.subTest(state=state, published=published):
                known['vm_state'] = state
                self.publish('one', 0.1, 0.1, uuids=published)
                decoded = metrics_decoder.decode(self.monitor('one')._numa_metrics())
                self.assertEqual(expected, decoded.vcpus_used)

    def test_the_part_of_usage_that_is_in_huge_pages_is_recorded(self):
        servers = [self.boot(self.flavor())['id'] for _ in range(2)]
        node = self.computes['one'].manager.rt.compute_nodes['one']
        topology = objects.NUMATopology.obj_from_db_obj(node.numa_topology)
        topology.cells[0].mempages = [
            objects.NUMAPagesTopology(size_kb=4, total=1 << 20, used=1024),
            objects.NUMAPagesTopology(size_kb=2048, total=1024, used=512),
        ]
        node.numa_topology = topology._to_json()
        for published, expected in ((servers, 1024), (servers[:1], 512)):
            self.publish('one', 0.1, 0.1, uuids=tuple(published))
            decoded = metrics_decoder.decode(self.monitor('one')._numa_metrics())
            self.assertEqual(expected, decoded.huge_page_mb)

    def test_what_the_host_reserves_is_recorded_while_instances_are_built(self):
        self.flags(reserved_host_memory_mb=4096, reserved_host_cpus=1)
        server = self.boot(self.flavor(vcpus=3, memory_mb=1024))
        node = self.computes['one'].manager.rt.compute_nodes['one']
        node.vcpus_used, node.memory_mb_used = 4, 5120
        for published, expected in (((server['id'],), (4, 5120)), ((), (1, 4096))):
            self.publish('one', 0.1, 0.1, uuids=published)
            decoded = metrics_decoder.decode(self.monitor('one')._numa_metrics())
            self.assertEqual(expected, (decoded.vcpus_used, decoded.memory_mb_used))
            self.assertEqual(1, decoded.reserved_cpus)

    def test_usage_by_an_incoming_migration_is_recorded_once_its_domain_is_published(self):
        here, other = self.boot(self.flavor(vcpus=4, memory_mb=1024))['id'], 36 * '0'
        self._run_periodics()
        tracker = self.computes['one'].manager.rt
        tracker.compute_nodes['one'].vcpus_used = 8
        for uuid, destination, published, expected in (
            (other, 'one', (here,), 4),
            (other, 'one', (here, other), 8),
            (other, 'one', None, 4),
            (other, 'two', (here,), 8),
            (here, 'one', (here,), 8),
        ):
            with self.subTest(uuid=uuid, destination=destination, published=published):
                self.publish('one', 0.1, 0.1, uuids=published)
                tracker.tracked_migrations = {uuid: objects.Migration(dest_compute=destination)}
                decoded = metrics_decoder.decode(self.monitor('one')._numa_metrics())
                self.assertEqual(expected, decoded.vcpus_used)

    def test_notifications_of_both_kinds_carry_the_values(self):
        self.flags(cpu_metrics=True, group='numa_pmc')
        self.notifier.reset()
        self._run_periodics()
        (plain,) = [
            n for n in self.notifier.notifications if n.event_type == 'compute.metrics.update'
        ]
        values = {m['name']: m.get('numa_membw_values') for m in plain.payload['metrics']}
        self.assertEqual(2, values[metrics_encoder.MAXIMUM]['pmc.nodes'])
        (versioned,) = [
            n for n in self.notifier.versioned_notifications if n['event_type'] == 'metrics.update'
        ]
        values = {
            m['nova_object.data']['name']: m['nova_object.data']['numa_membw_values']
            for m in versioned['payload']['nova_object.data']['metrics']
        }
        self.assertEqual(2, values[metrics_encoder.MAXIMUM]['pmc.nodes'])
        self.assertIsNone(values['cpu.percent'])

    def test_values_by_node_id_are_megabytes_per_second_and_the_value_is_their_sum(self):
        published = publication.read(self.state_dir('one'))
        nodes = tuple(
            node._replace(
                bandwidth_bytes_per_sec=10**9 * (1 + node.id),
                bandwidth_max_bytes_per_sec=50 * 10**9,
            )
            for node in published.view.nodes
        )
        self.publish('one', 0.1, 0.1, view=published.view._replace(nodes=nodes))
        self._run_periodics()
        current, maximum = (
            self.sent()[name] for name in (metrics_encoder.CURRENT, metrics_encoder.MAXIMUM)
        )
        self.assertEqual((3000, 100000), (current['value'], maximum['value']))
        self.assertEqual(
            (1000, 2000, 50000),
            (
                current['numa_membw_values']['0'],
                current['numa_membw_values']['1'],
                maximum['numa_membw_values']['1'],
            ),
        )

    def test_a_host_of_unknown_bandwidth_does_not_look_idle(self):
        self.publish('one', 0.1, 0.1)
        self._run_periodics()
        current, maximum = (
            self.sent()[name]['value']
            for name in (metrics_encoder.CURRENT, metrics_encoder.MAXIMUM)
        )
        self.assertEqual((metrics_encoder.UNKNOWN_MB, 0), (current, maximum))

    def test_a_bad_option_is_named(self):
        with mock.patch.object(
            monitor, '_interval_s', side_effect=cfg.ConfigFileValueError('cpu_metrics: maybe')
        ):
            self._run_periodics()
        self.assertEqual(1, self.warnings())
        self.assertIn(': [numa_pmc] cpu_metrics', self.stdlog.logger.output)

    def test_a_bad_publication_causes_one_warning_and_the_last_figures_remain(self):
        self.flags(cpu_metrics=True, group='numa_pmc')
        path = os.path.join(self.state_dir('one'), publication.FILE)
        with open(path, 'rb') as file:
            good = file.read()
        for what, damage in damages(path, good):
            with self.subTest(what):
                self._run_periodics()
                before = metrics_decoder.decode(list(self.sent().values()))
                warnings = self.warnings()
                damage()
                for _ in range(2):
                    self._run_periodics()
                    after = metrics_decoder.decode(list(self.sent().values()))
                    self.assertEqual(before.view, after.view)
                    self.assertLessEqual(after.taken_s, before.taken_s)
                    self.assertIn('cpu.percent', self.sent())
                self.assertEqual(1, self.warnings() - warnings)
                remove(path)
                self.publish('one', 0.1, 0.1)
        self._run_periodics()
        self.assertLessEqual(NUMA, set(self.sent()))
        self.boot(self.flavor())

    def test_an_agent_that_is_late_makes_its_host_no_better(self):
        self.publish('one', 0.9, 0.9)
        self._run_periodics()
        before = self.sent()
        self.publish('one', 0.9, 0.9, taken_s=time.time() - 300)
        self._run_periodics()
        self.assertEqual(1, self.warnings())
        late, fresh = (
            metrics_decoder.decode(list(metrics.values())) for metrics in (self.sent(), before)
        )
        self.assertEqual(fresh.view, late.view)
        # A guest that has come since is charged, whatever the late agent knows.
        self.boot(self.flavor(vcpus=2))
        self._run_periodics()
        again = metrics_decoder.decode(list(self.sent().values()))
        self.assertEqual(late.vcpus_used, again.vcpus_used)

    def test_a_server_boots_where_no_agent_has_ever_run(self):
        remove(os.path.join(self.state_dir('one'), publication.FILE))
        self.monitor('one')._sent = None  # as after a start of nova-compute
        self._run_periodics()
        self.assertEqual(set(), NUMA & set(self.sent()))
        self.assertEqual('one', self.host_of(self.boot(self.flavor())))

    def test_a_clock_that_was_set_back_is_not_taken_for_a_stopped_agent(self):
        self.publish('one', 0.1, 0.1, taken_s=time.time() - 3600)
        self._run_periodics()
        self.publish('one', 0.1, 0.1, taken_s=time.time() + 60)
        self._run_periodics()
        self.assertEqual(2, self.warnings())
        self.assertRegex(
            self.stdlog.logger.output, r'is dated \d+ s in the future: was the clock set back\?'
        )
        self.assertEqual(1, self.stdlog.logger.output.count('is nova-numa-agent running?'))

    def test_another_kind_of_problem_causes_another_warning(self):
        path = os.path.join(self.state_dir('one'), publication.FILE)
        self.publish('one', 0.1, 0.1, taken_s=time.time() - 3600)
        self._run_periodics()
        remove(path)
        self._run_periodics()
        self.assertEqual(2, self.warnings())

    def test_another_reason_why_a_publication_is_unreadable_causes_another_warning(self):
        path = os.path.join(self.state_dir('one'), publication.FILE)
        with open(path, encoding='utf-8') as file:
            good = json.load(file)
        os.unlink(path)
        self._run_periodics()
        for interval_s, expected in ((-1.5, 2), (-2.75, 2), ('soon', 3), ('soon', 3)):
            with open(path, 'w', encoding='utf-8') as file:
                json.dump({**good, 'interval_s': interval_s}, file)
            self._run_periodics()
            self.assertEqual(expected, self.warnings())

    def test_reading_blocks_nothing_and_looks_up_no_compute_node(self):
        tracker = self.computes['one'].manager.rt
        with context.target_cell(
            context.get_admin_context(), self.host_mappings['one'].cell_mapping
        ):
            metrics = objects.MonitorMetricList()
            calls = []
            self.stub_out(
                'nova.objects.ComputeNode.get_by_host_and_nodename',
                lambda *arguments: calls.append(arguments),
            )
            tracker.monitors[0].populate_metrics(metrics)
        self.assertLessEqual(NUMA, {metric.name for metric in metrics})
        self.assertEqual([], calls)


class DeadbandTest(base.NovaTest):
    """Nova saves a compute node if it differs from what was last saved."""

    def setUp(self):
        super().setUp()
        self.start_hosts('one')
        self.publish('one', 0.5, 0.5)
        self._run_periodics()

    def saved(self, *pressures, **fields):
        """Publish and audit; return 1 if the saved metrics changed in any bit, otherwise 0."""
        before = self.compute_node('one').metrics
        self.publish('one', *pressures, **fields)
        self._run_periodics()
        return int(self.compute_node('one').metrics != before)

    def wanted(self):
        """Return the cores wanted of each node, as the scheduler reads them."""
        decoded = metrics_decoder.decode(json.loads(self.compute_node('one').metrics))
        return [node.demand_cores for node in decoded.view.nodes]

    def test_a_small_change_is_not_saved(self):
        self.assertEqual(
            [0, 0, 0], [self.saved(0.5, 0.5), self.saved(0.52, 0.48), self.saved(0.5, 0.49)]
        )
        self.assertEqual([1.25, 1.25], self.wanted())

    def test_a_slow_drift_is_saved(self):
        self.assertEqual([0, 1, 0], [self.saved(pressure, 0.5) for pressure in (0.52, 0.54, 0.56)])
        self.assertEqual([1.35, 1.25], self.wanted())

    def test_a_new_guest_is_saved_at_once(self):
        self.saved(0.5, 0.5)
        self.boot(self.flavor(vcpus=2, memory_mb=1024))
        self.assertEqual(1, self.saved(0.5, 0.5))
        decoded = metrics_decoder.decode(json.loads(self.compute_node('one').metrics))
        self.assertEqual(self.compute_node('one').vcpus_used, decoded.vcpus_used)

    def test_unchanged_metrics_are_sent_again_after_ten_minutes(self):
        now_s = time.time()
        self.assertEqual(1, self.saved(0.5, 0.5, taken_s=now_s - 615))
        self.assertEqual(0, self.saved(0.5, 0.5, taken_s=now_s - 610))
        self.assertEqual(1, self.saved(0.5, 0.5, taken_s=now_s - 10))

    def test_metrics_include_the_time_until_the_next_ones(self):
        self.saved(0.5, 0.5)
        decoded = metrics_decoder.decode(json.loads(self.compute_node('one').metrics))
        self.assertEqual(60 + 600, decoded.interval_s)


class StockWeigherTest(base.NovaTest):
    """Nova's own MetricsWeigher reads ``value`` of each metric that it is configured to weigh."""

    def test_the_stock_weigher_weighs_by_cpu_metrics_and_by_ours(self):
        self.flags(cpu_metrics=True, group='numa_pmc')
        for weight in ('cpu.percent=-1.0', 'numa.membw.current=-1.0'):
            with self.subTest(weight):
                self.flags(weight_setting=[weight], required=True, group='metrics')
                if not self.computes:
                    self.start_hosts('one', 'two')
                self.send(one=(0.1, 0.1), two=(0.1, 0.1))
                self.boot(self.flavor())


def damages(path, good):
    """Yield (description, function that applies it to the file at path)."""

    def write(data):
        def damage():
            with open(path, 'wb') as file:
                file.write(data)

        return damage

    def replace(make):
        def damage():
            remove(path)
            make(path)

        return damage

    def stale():
        state = json.loads(good)
        write(json.dumps(dict(state, taken_s=time.time() - 3600)).encode())()

    yield 'missing', lambda: remove(path)
    yield 'empty', write(b'')
    yield 'truncated', write(good[: len(good) // 2])
    yield 'of a later schema', write(json.dumps(dict(json.loads(good), schema='9.0')).encode())
    yield 'stale', stale
    yield (
        'from the future',
        write(json.dumps(dict(json.loads(good), taken_s=time.time() + 86400)).encode()),
    )
    yield 'no JSON', write(os.urandom(4096))
    yield 'nested without end', write(b'[' * 100000)
    yield 'a FIFO that no process writes', replace(os.mkfifo)
    yield 'a directory', replace(os.mkdir)
    yield 'a link elsewhere', replace(lambda at: os.symlink('/dev/zero', at))
    yield 'too large', lambda: os.truncate(path, 1 << 33)
    yield 'written by others', lambda: os.chmod(path, 0o666)


def remove(path):
    if os.path.isdir(path):
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)
