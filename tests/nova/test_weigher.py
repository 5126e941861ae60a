# SPDX-License-Identifier: Apache-2.0
"""Test the weigher and the filter on Nova's own objects, without Nova's services."""

import collections
import datetime
import json
import math
import os
import random
import time
import uuid

import fixtures
import nova.conf
from nova import objects, test
from nova.scheduler import weights
from oslo_config import fixture as config_fixture

from nova_numa_pmc import problem_log
from nova_numa_pmc.compute import metrics_decoder
from nova_numa_pmc.conf import compute as compute_conf, scheduler as scheduler_conf
from nova_numa_pmc.scheduler import filter as pressure_filter, losses, shadow, weigher
from tests.bench import bench_promises, nova_hosts
from tests.fixtures.expected_losses import cpu_loss
from tests.fixtures.metrics import build_publication, metric_list, mutate
from tests.fixtures.scheduler_options import DEFAULTS

CONF = nova.conf.CONF
JITTER = losses.JITTER
MULTIPLIER = DEFAULTS['weight_multiplier']
#: Least significant difference of weights; the hosts' bandwidth of 0.01 causes less.
BANDWIDTH_WEIGHT = 0.0012 * MULTIPLIER
#: `NUMA_PMC_FUZZ=100000` for the long run.
MUTATIONS = int(os.environ.get('NUMA_PMC_FUZZ', '500'))


def host_state(name, *pressures, vcpus_used=16, memory_mb_used=16384, aggregates=(), **fields):
    """Build Nova's HostState of a host with these pressures on its nodes."""
    (row,) = nova_hosts.compute_nodes(1)
    row.host = row.hypervisor_hostname = name
    row.vcpus_used = vcpus_used
    row.memory_mb_used, row.free_ram_mb = memory_mb_used, row.memory_mb - memory_mb_used
    row.metrics = json.dumps(
        metric_list(
            build_publication(*pressures, taken_s=int(time.time()), **fields),
            vcpus_used,
            memory_mb_used,
        )
    )
    (host,) = nova_hosts.host_states([row], instances=2)
    host.aggregates = [objects.Aggregate(metadata=metadata) for metadata in aggregates]
    return host


def share(*pressures, cores=10.0):
    """Return how much the guest of SchedulerTest lowers the weight of a host by waiting for CPUs.

    It wants a core.
    """
    wanted = [pressure * cores for pressure in pressures]
    return -MULTIPLIER * cpu_loss(wanted, 1.0, cores)


def unknown(name, **fields):
    host = host_state(name, 0.1, 0.1, **fields)
    host.metrics = objects.MonitorMetricList(objects=[])
    return host


class SchedulerTest(test.NoDBTestCase):
    def setUp(self):
        super().setUp()
        self.weigher, self.filter = (
            weigher.NUMAPressureWeigher(),
            pressure_filter.NUMAPressureFilter(),
        )
        self.spec = nova_hosts.request_spec(vcpus=2, memory_mb=2048)
        self.useFixture(fixtures.MockPatchObject(losses, 'JITTER', 0.0))

    def weigh(self, *host_states, spec=None):
        """Return the hosts' names, best first, as Nova sorts them, and their weights."""
        weighed_hosts = weights.HostWeightHandler().get_weighed_objects(
            [self.weigher], host_states, spec or self.spec
        )
        return [one.obj.host for one in weighed_hosts], {
            one.obj.host: one.weight for one in weighed_hosts
        }

    def configure(self, text):
        """Read this text as the group [numa_pmc] of nova.conf."""
        path = self.useFixture(fixtures.TempDir()).join('nova.conf')
        with open(path, 'w') as file:
            file.write('[numa_pmc]\n%s\n' % text)
        self.useFixture(config_fixture.Config(CONF)).set_config_files([path])

    def assert_near(self, expected, values):
        """Assert that weights are as expected, except for the effect of memory bandwidth."""
        self.assertEqual(len(expected), len(values))
        for one, other in zip(expected, values):
            self.assertAlmostEqual(one, other, delta=BANDWIDTH_WEIGHT)

    def passing(self, *host_states, spec=None):
        return [one.host for one in self.filter.filter_all(host_states, spec or self.spec)]


class WeigherTest(SchedulerTest):
    def test_nova_loads_the_weigher_beside_its_own(self):
        handler = weights.HostWeightHandler()
        classes = handler.get_matching_classes(
            [
                'nova.scheduler.weights.all_weighers',
                'nova_numa_pmc.scheduler.weigher.NUMAPressureWeigher',
            ]
        )
        self.assertIn(weigher.NUMAPressureWeigher, classes)

    def test_the_host_of_the_least_loss_is_the_best(self):
        order, penalties = self.weigh(
            host_state('a', 0.9, 0.8), host_state('b', 0.2, 0.9), host_state('c', 0.5, 0.5)
        )
        self.assertEqual(['b', 'c', 'a'], order)
        expected = [share(0.2, 0.9), share(0.5, 0.5), share(0.9, 0.8)]
        self.assert_near(expected, [penalties[name] for name in 'bca'])

    def test_multiplier_and_floor_of_an_aggregate_override_the_options(self):
        calm = host_state('b', 0.1, 0.1)
        plain = self.weigh(host_state('a', 0.8, 0.8), calm)[1]['a']
        self.assert_near([share(0.8, 0.8)], [plain])
        for metadata, expected in (
            ({}, plain),
            ({'numa_pmc_weight_multiplier': '2'}, 2 * plain / MULTIPLIER),
            ({'numa_pmc_penalty_floor': '0.1'}, plain + 0.1 * MULTIPLIER),
            ({'numa_pmc_penalty_floor': '0.7'}, 0.0),
            ({'numa_pmc_penalty_floor': 'nan'}, plain),
        ):
            with self.subTest(str(metadata)):
                _, penalties = self.weigh(host_state('a', 0.8, 0.8, aggregates=[metadata]), calm)
                self.assertAlmostEqual(expected, penalties['a'])

    def test_a_host_that_is_exempt_has_the_median_of_the_others(self):
        for metadata in (
            {'numa_pmc_weight_multiplier': '0'},
            {'numa_pmc_weight_multiplier': '-1'},
            {'numa_pmc_mode': 'shadow'},
            {'numa_pmc_mode': 'off'},
        ):
            with self.subTest(str(metadata)):
                exempt = host_state('exempt', 0.9, 0.9, aggregates=[metadata])
                order, penalties = self.weigh(
                    exempt, *(host_state(str(at), at / 10, at / 10) for at in (1, 4, 8))
                )
                self.assertEqual(penalties['4'], penalties['exempt'])
                self.assertEqual('1', order[0])
                # Beside hosts that are exempt as well, nothing is subtracted.
                other = host_state('other', 0.1, 0.1, aggregates=[metadata])
                self.assertEqual({0.0}, set(self.weigh(exempt, other)[1].values()))

    def test_no_multiplier_draws_guests_to_pressed_hosts(self):
        calm = host_state('calm', 0.1, 0.1)
        _, plain = self.weigh(host_state('busy', 1.0, 1.0), calm)
        for odd in ('7', '-7'):
            _, penalties = self.weigh(
                host_state('busy', 1.0, 1.0, aggregates=[{'numa_pmc_weight_multiplier': odd}]),
                calm,
            )
            self.assertAlmostEqual(plain['calm'], penalties['calm'])
            self.assertLessEqual(penalties['busy'], 0.0)

    def test_an_invalid_multiplier_leaves_all_weights_finite(self):
        for odd in ('nan', 'inf', 'x'):
            _, penalties = self.weigh(
                host_state('a', 0.9, 0.9),
                host_state('b', 0.2, 0.2, aggregates=[{'numa_pmc_weight_multiplier': odd}]),
            )
            self.assertTrue(all(map(math.isfinite, penalties.values())))

    def test_an_option_that_cannot_be_read_is_logged_once(self):
        self.configure('weight_multiplier = much')
        hosts = [host_state('a', 0.2, 1.5), host_state('b', 1.0, 1.1)]
        with self.assertLogs(weigher.LOG.logger, 'ERROR') as log:
            for _ in range(2):
                self.assertEqual({'a': 0.0, 'b': 0.0}, self.weigh(*hosts)[1])
        (record,) = log.records
        self.assertIn('weight_multiplier', record.getMessage())

    def test_usage_by_one_instance_counts_for_the_next(self):
        hosts = [host_state(name, 0.4, 0.4) for name in 'abcd']
        counts = dict.fromkeys('abcd', 0)
        for _ in range(20):
            chosen = self.weigh(*hosts)[0][0]
            counts[chosen] += 1
            hosts['abcd'.index(chosen)].consume_from_request(self.spec)
        self.assertLessEqual(max(counts.values()) - min(counts.values()), 2, counts)

    def test_a_flavor_that_opts_out_changes_nothing(self):
        spec = nova_hosts.request_spec(**{'numa_pmc:policy': 'none'})
        _, penalties = self.weigh(host_state('a', 0.1, 0.9), host_state('b', 0.4, 0.4), spec=spec)
        self.assertEqual({0.0}, set(penalties.values()))

    def test_each_host_has_one_line_in_the_debug_log(self):
        with self.assertLogs(weigher.LOG.logger, 'DEBUG') as log:
            self.weigh(host_state('a', 0.1, 0.9), unknown('b'))
        messages = [record.getMessage() for record in log.records]
        self.assertEqual(2, sum('NUMA pressure of' in line for line in messages))
        self.assertIn('pressure 0.52 on 1 of 2 nodes', messages[0])
        self.assertIn('unknown: no metrics from nova-numa-pmc', messages[1])

    def test_a_broken_host_state_raises_no_exception(self):
        broken = host_state('a', 0.1, 0.1)
        del broken.vcpus_used
        _, penalties = self.weigh(broken, host_state('b', 0.5, 0.5))
        self.assertEqual({0.0}, set(penalties.values()))
        self.assertEqual([0.0], self.weigher.weigh_objects([weights.WeighedHost(None, 0.0)], None))


class AbsoluteTest(SchedulerTest):
    """A host's weight does not depend on the other hosts."""

    def test_saturation_outweighs_all_stock_weighers(self):
        classes = weights.HostWeightHandler().get_matching_classes(
            ['nova.scheduler.weights.all_weighers']
        )
        roomy = host_state('roomy', 0.9, 0.9, vcpus_used=0, memory_mb_used=0)
        calm = host_state('calm', 0.2, 0.2, vcpus_used=60, memory_mb_used=200000)
        for jitter in (0.0, JITTER):
            self.useFixture(fixtures.MockPatchObject(losses, 'JITTER', jitter))
            for number in range(20):
                self.spec.instance_uuid = str(uuid.UUID(int=number))
                weighed_hosts = weights.HostWeightHandler().get_weighed_objects(
                    [*(weigher_class() for weigher_class in classes), self.weigher],
                    [roomy, calm],
                    self.spec,
                )
                self.assertEqual('calm', weighed_hosts[0].obj.host)

    def test_one_more_guest_on_a_calm_host_counts_less_than_a_stock_weigher(self):
        hosts = [host_state(name, 0.1, 0.1) for name in 'abcde']
        hosts[2].vcpus_used += 1
        _, penalties = self.weigh(*hosts)
        self.assertLessEqual(max(penalties.values()) - min(penalties.values()), 1.0)


class JitterTest(SchedulerTest):
    def chosen(self, hosts, jitter):
        """Return {host: number of 200 requests that chose it}; none of them is counted yet."""
        self.useFixture(fixtures.MockPatchObject(losses, 'JITTER', jitter))
        chosen_hosts = []
        for number in range(200):
            self.spec.instance_uuid = str(uuid.UUID(int=number))
            chosen_hosts.append(self.weigh(*hosts)[0][0])
        return collections.Counter(chosen_hosts)

    def test_requests_of_the_same_seconds_go_to_different_hosts(self):
        hosts = [host_state(f'host{at}', 0.2, 0.2) for at in range(10)]
        counts = {}
        self.assertEqual(1, len(self.chosen(hosts, 0.0)))
        counts = self.chosen(hosts, JITTER)
        self.assertEqual(10, len(counts))
        self.assertLessEqual(max(counts.values()), 40)

    def test_the_nodes_of_one_nova_compute_are_varied_singly(self):
        nodes = [unknown(f'node{at}') for at in range(10)]
        for node in nodes:
            node.host = 'ironic'
        self.useFixture(fixtures.MockPatchObject(losses, 'JITTER', JITTER))
        weighed_hosts = weights.HostWeightHandler().get_weighed_objects(
            [self.weigher], nodes, self.spec
        )
        self.assertEqual(10, len({one.weight for one in weighed_hosts}))

    def test_a_repeated_request_has_the_same_weights(self):
        self.useFixture(fixtures.MockPatchObject(losses, 'JITTER', 0.5))
        hosts = [host_state(f'host{at}', 0.2, 0.2) for at in range(10)]
        self.assertEqual(self.weigh(*hosts)[1], self.weigh(*reversed(hosts))[1])


class PromiseTest(SchedulerTest):
    """Promises of Nova's own weighers are kept unless guests would lose much."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(losses, 'JITTER', JITTER))

    def test_they_are_kept_by_default_where_guests_would_lose_less_than_they_are_worth(self):
        for promise in bench_promises.PROMISES:
            for pressure in (0.2, 0.5):
                with self.subTest(promise=promise, pressure=pressure):
                    shares = [
                        bench_promises.broken_share(promise, pressure, with_ours, 20)
                        for with_ours in (False, True)
                    ]
                    self.assertEqual([0.0, 0.0], shares)

    def test_guests_that_would_lose_more_go_elsewhere(self):
        self.assertGreater(bench_promises.added_loss(1.2), weigher.PROMISE_LOSS)
        for promise in bench_promises.PROMISES:
            self.assertEqual(1.0, bench_promises.broken_share(promise, 1.2, True, 10), promise)

    def test_hosts_that_keep_a_promise_are_weighed_by_pressure(self):
        hosts = [bench_promises.host(at, pressure) for at, pressure in enumerate((0.9, 0.2, 0.2))]
        hosts[2].hypervisor_version -= 1
        self.assertEqual('host1', self.weigh(*hosts)[0][0])

    def test_a_weigher_that_is_not_configured_or_counts_0_promises_nothing(self):
        hosts = [bench_promises.host(at, 0.2) for at in range(2)]
        hosts[1].hypervisor_version -= 1
        for options in (
            {'hypervisor_version_weight_multiplier': 0.0},
            {'weight_classes': ['nova.scheduler.weights.ram.RAMWeigher']},
        ):
            self.flags(group='filter_scheduler', **options)
            self.useFixture(fixtures.MockPatchObject(losses, 'JITTER', 0.0))
            self.weigher = weigher.NUMAPressureWeigher()
            self.assertEqual(1, len(set(self.weigh(*hosts)[1].values())), options)

    def test_nothing_is_added_below_a_floor_that_is_worth_more_than_a_promise(self):
        self.flags(penalty_floor=0.4, group='numa_pmc')
        hosts = [bench_promises.host(at, 0.2) for at in range(2)]
        hosts[1].hypervisor_version -= 1
        self.assertEqual({0.0}, set(self.weigh(*hosts)[1].values()))

    def test_no_host_changes_what_is_added_to_others(self):
        self.flags(penalty_floor=0.2, group='numa_pmc')
        hosts = [bench_promises.host(at, pressure) for at, pressure in enumerate((0.2, 0.2, 2.0))]
        hosts[1].hypervisor_version -= 1
        _, with_busy = self.weigh(*hosts)
        _, without = self.weigh(*hosts[:2])
        self.assertLess(without['host1'], without['host0'])
        self.assertEqual(without, {name: with_busy[name] for name in without})


class UnderWayTest(SchedulerTest):
    """Guests follow one another faster than they are built, so that agents see none of them."""

    HOSTS, BOOTS, EVERY_S, AUDIT_S = 20, 100, 1.8, 60.0

    def most_on_a_host(self):
        """Boot; return how many guests the host with the most has."""
        rows = nova_hosts.compute_nodes(self.HOSTS)
        for row in rows:
            row.vcpus_used = 0
        for boot in range(self.BOOTS):
            for at, row in enumerate(rows):
                due_s = self.AUDIT_S * at / self.HOSTS + self.EVERY_S * boot
                if not boot or due_s % self.AUDIT_S < self.EVERY_S:
                    self.audit(row, 0.0045 + 0.3 * at / self.HOSTS)
            self.spec.instance_uuid = str(uuid.UUID(int=boot))
            names, _ = self.weigh(*nova_hosts.host_states(rows, instances=0))
            (best,) = (row for row in rows if row.host == names[0])
            best.vcpus_used += self.spec.vcpus
        return max(row.vcpus_used for row in rows) / self.spec.vcpus

    def audit(self, row, pressure):
        published = build_publication(pressure, pressure, cores=40.0, taken_s=int(time.time()))
        row.metrics = json.dumps(metric_list(published, 0, row.memory_mb_used))

    def test_guests_are_charged_until_they_are_measured(self):
        self.spec = nova_hosts.request_spec(vcpus=4, memory_mb=8192)
        self.assertLess(self.most_on_a_host(), 20)
        self.useFixture(fixtures.MockPatchObject(losses, 'JITTER', JITTER))
        self.assertLess(self.most_on_a_host(), 15)


class ModeTest(SchedulerTest):
    """Shadow mode and off, for all hosts and for those of an aggregate."""

    def weighed(self, *modes):
        """Weigh three hosts of these aggregates; return (weights, decisions in the log)."""
        hosts = [
            host_state(
                name, pressure, pressure, aggregates=[{'numa_pmc_mode': mode}] if mode else ()
            )
            for name, pressure, mode in zip('abc', (0.9, 0.8, 0.2), (*modes, None, None, None))
        ]
        with self.assertLogs(weigher.LOG.logger, 'INFO') as log:
            weigher.LOG.info('that there is something')
            _, penalties = self.weigh(*hosts)
        lines = [record.getMessage() for record in log.records[1:]]
        return [round(penalties[name], 9) for name in 'abc'], [
            json.loads(line[len(shadow.MARK) :]) for line in lines
        ]

    def test_mode_off_makes_all_weights_zero(self):
        penalties, lines = self.weighed()
        self.assert_near([share(0.9, 0.9), share(0.8, 0.8), share(0.2, 0.2)], penalties)
        self.assertEqual([], lines)
        self.flags(mode='off', group='numa_pmc')
        self.assertEqual(([0.0, 0.0, 0.0], []), self.weighed())

    def test_the_mode_may_be_in_any_case(self):
        self.configure('mode = Shadow')
        penalties, lines = self.weighed()
        self.assertEqual(([0.0, 0.0, 0.0], 1), (penalties, len(lines)))

    def test_the_mode_of_an_aggregate_may_be_in_any_case(self):
        self.assertEqual(self.weighed('off'), self.weighed('Off '))
        self.assertEqual(1, len(self.weighed('SHADOW')[1]))

    def test_an_unknown_mode_of_an_aggregate_is_logged_once(self):
        hosts = [host_state(name, 0.5, 0.5, aggregates=[{'numa_pmc_mode': 'of'}]) for name in 'ab']
        with self.assertLogs(weigher.LOG.logger, 'WARNING') as log:
            for _ in range(2):
                _, penalties = self.weigh(*hosts)
        (record,) = log.records
        self.assertIn("'of'", record.getMessage())
        self.assert_near([share(0.5, 0.5)] * 2, [penalties[name] for name in 'ab'])

    def test_unknown_modes_of_aggregates_take_limited_memory(self):
        aggregates = [{'numa_pmc_mode': f'unknown{at}'} for at in range(1200)]
        with self.assertLogs(weigher.LOG.logger, 'WARNING') as log:
            self.weigh(host_state('a', 0.5, 0.5), host_state('b', 0.5, 0.5, aggregates=aggregates))
        self.assertEqual(1200, len(log.records))
        self.assertLess(problem_log.log_once.cache_info().currsize, 1200)

    def test_shadow_mode_changes_no_weight_and_logs_the_decision(self):
        on, _ = self.weighed()
        self.flags(mode='shadow', group='numa_pmc')
        penalties, (choice,) = self.weighed()
        self.assertEqual([0.0, 0.0, 0.0], penalties)
        self.assertEqual(('a', 'c'), (choice['chosen']['host'], choice['top'][0]['host']))
        self.assertTrue(choice['changed'])
        self.assertEqual(
            [round(one, 3) for one in on[::-1]], [one['share'] for one in choice['top']]
        )
        self.assertEqual(
            [round(one / -MULTIPLIER, 4) for one in on[::-1]],
            [one['loss'] for one in choice['top']],
        )
        self.assertIn(choice['chosen']['age_s'], range(60))

    def test_shadow_mode_tells_the_nodes_of_one_nova_compute_apart(self):
        self.flags(mode='shadow', group='numa_pmc')
        hosts = host_state('busy', 0.9, 0.9), host_state('idle', 0.2, 0.2)
        for host in hosts:
            host.host = 'ironic'
        with self.assertLogs(weigher.LOG.logger, 'INFO') as log:
            self.weigh(*hosts)
        (line,) = [record.getMessage() for record in log.records]
        choice = json.loads(line[len(shadow.MARK) :])
        self.assertTrue(choice['changed'])
        self.assertEqual(('busy', 'idle'), (choice['chosen']['host'], choice['top'][0]['host']))

    def test_an_aggregates_mode_applies_to_its_hosts(self):
        on, _ = self.weighed()
        penalties, (choice,) = self.weighed('shadow')
        expected = [round(sum(on[1:]) / 2, 9), *on[1:]]  # the median of the others
        self.assert_near(expected, penalties)
        self.assertEqual(('c', 'c'), (choice['chosen']['host'], choice['top'][0]['host']))
        off, lines = self.weighed('off')
        self.assertEqual((penalties, []), (off, lines))

    def test_options_take_effect_without_a_restart(self):
        for option in (*scheduler_conf.OPTIONS, *compute_conf.OPTIONS):
            self.assertTrue(option.mutable, option.name)


class FilterTest(SchedulerTest):
    def setUp(self):
        super().setUp()
        self.flags(max_pressure=1.0, group='numa_pmc')

    def test_a_host_has_no_limit_by_default(self):
        CONF.clear_override('max_pressure', group='numa_pmc')
        self.assertEqual(['a'], self.passing(host_state('a', 9.0, 9.0)))

    def test_a_saturated_host_fails(self):
        self.assertEqual(['a'], self.passing(host_state('a', 0.2, 1.5), host_state('b', 1.0, 1.1)))

    def test_hosts_pass_singly_as_they_pass_together(self):
        self.assertTrue(self.filter.host_passes(host_state('a', 0.2, 1.5), self.spec))
        self.assertFalse(self.filter.host_passes(host_state('b', 1.0, 1.1), self.spec))

    def test_an_unknown_host_passes(self):
        self.assertEqual(['x'], self.passing(unknown('x')))

    def test_a_host_fails_if_a_guest_of_one_node_does_not_fit(self):
        spec = nova_hosts.request_spec(vcpus=20, **{'numa_pmc:max_pressure': '9'})
        self.assertEqual(['a'], self.passing(host_state('a', 0.2, 0.2), spec=spec))
        spec.flavor.extra_specs['numa_pmc:policy'] = 'one_node'
        self.assertEqual([], self.passing(host_state('a', 0.2, 0.2), spec=spec))

    def test_all_hosts_pass_while_an_option_cannot_be_read_and_one_error_is_logged(self):
        CONF.clear_override('max_pressure', group='numa_pmc')
        self.configure('max_pressure = x')
        hosts = [host_state('a', 0.2, 1.5), host_state('b', 1.0, 1.1)]
        with self.assertLogs(pressure_filter.LOG.logger, 'ERROR') as log:
            for _ in range(2):
                self.assertEqual(['a', 'b'], self.passing(*hosts))
        (record,) = log.records
        self.assertIn('Every host passes until this is fixed', record.getMessage())
        self.assertIn('max_pressure', record.getMessage())

    def test_a_rebuild_passes_anywhere(self):
        self.spec.scheduler_hints = {'_nova_check_type': ['rebuild']}
        self.assertEqual(['a'], self.passing(host_state('a', 3.0, 3.0)))

    def test_a_resize_in_place_does_not_count_twice(self):
        here, there = (host_state(name, 0.95, 0.95) for name in ('here', 'there'))
        here.instances[self.spec.instance_uuid] = objects.Instance()
        self.assertEqual(['here'], self.passing(here, there))

    def test_guests_that_nova_pins_are_left_to_its_own_filter(self):
        spec = nova_hosts.request_spec(**{'hw:numa_nodes': '2'})
        self.assertEqual(['a'], self.passing(host_state('a', 3.0, 3.0), spec=spec))

    def test_a_wrong_extra_spec_is_ignored(self):
        self.spec.flavor.extra_specs = {'numa_pmc:max_pressure': 'nan', 'numa_pmc:once': '1'}
        with self.assertLogs(pressure_filter.LOG.logger, 'WARNING') as log:
            pressure_filter.LOG.warning('that there is something')
            for _ in range(3):
                self.assertEqual(['a'], self.passing(host_state('a', 0.2, 0.2)))
        messages = [record.getMessage() for record in log.records]
        self.assertEqual(1, sum('numa_pmc:once' in line for line in messages), messages)


class FuzzTest(SchedulerTest):
    def test_mutated_metrics_do_not_change_the_weights_of_other_hosts(self):
        rng, original = (
            random.Random(5),
            metric_list(build_publication(0.5, 0.25, taken_s=int(time.time()))),
        )
        odd = host_state('odd', 0.5, 0.5)
        neighbours = [
            host_state(f'{name}-{at}', *pressures)
            for name, pressures in (('calm', (0.2, 0.3)), ('busy', (0.9, 0.8)))
            for at in range(5)
        ]
        refused = blank = 0
        for at in range(MUTATIONS):
            try:
                odd.metrics = objects.MonitorMetricList.from_json(
                    json.dumps(mutate(rng, original), default=str)
                )
            except Exception:
                # Nova's own decoding fails, as it would without the package; nothing gets as far
                # as here.
                refused += 1
                odd.metrics = _forced(rng, original)
            _, penalties = self.weigh(odd, *neighbours)
            self.assertTrue(all(map(math.isfinite, penalties.values())), at)
            self.assert_near(
                [share(0.2, 0.3), share(0.9, 0.8)], [penalties['calm-1'], penalties['busy-1']]
            )
            if metrics_decoder.decode(odd.metrics) is None:
                blank += 1
                # According to its 16 vCPUs, 4.8 of 40 cores are wanted.
                self.assert_near([share(0.12, 0.12, cores=20)], [penalties['odd']])
                self.assertIn('odd', self.passing(odd))
            else:
                self.passing(odd)
        self.assertGreater(blank, MUTATIONS / 4)
        self.assertLess(refused, MUTATIONS)


def _forced(rng, original):
    """Put mutated values into Nova's objects, bypassing the checks of their fields."""
    metrics = objects.MonitorMetricList(
        objects=[
            objects.MonitorMetric(
                name=one['name'],
                value=1,
                source='x',
                timestamp=datetime.datetime(2026, 1, 1),
                numa_membw_values=one.get('numa_membw_values'),
            )
            for one in original
        ]
    )
    values = mutate(rng, original)
    if type(values) is list:
        for metric, one in zip(metrics.objects, values):
            if type(one) is dict:
                for field in ('name', 'numa_membw_values'):
                    setattr(metric, f'_obj_{field}', one.get(field))
    return metrics
