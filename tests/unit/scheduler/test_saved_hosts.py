# SPDX-License-Identifier: Apache-2.0
"""Saved rows of compute nodes are weighed and refused as the scheduler does."""

import json
import unittest

from hypothesis import given, settings, strategies

from nova_numa_pmc.compute import metrics_decoder
from nova_numa_pmc.scheduler import saved_hosts
from tests.fixtures.compute_nodes import NOW_S, compute_node_row
from tests.fixtures.expected_losses import cpu_loss

FLAVOR = saved_hosts.SavedFlavor(2, 1024)
DEFAULTS = saved_hosts.defaults()


def judge(rows, flavor=FLAVOR, **conf):
    hosts, saved_s = saved_hosts.read(json.dumps(rows))
    return saved_hosts.rank(hosts, flavor, {**DEFAULTS, **conf}, saved_s)


def share(wanted, at=0, cores=4, multiplier=DEFAULTS['weight_multiplier']):
    """Return how much a guest of FLAVOR lowers the weight of a host with two nodes."""
    return -multiplier * cpu_loss(wanted, at, 1.0, cores)


def order(decisions):
    return [decision.host for decision in decisions if decision.passes]


class JudgeTest(unittest.TestCase):
    def test_the_least_pressed_comes_first(self):
        decisions = judge(
            [
                compute_node_row('busy', 3.0, 2.8),
                compute_node_row('half', 2.0, 2.0),
                compute_node_row('idle', 0.1, 0.2),
            ]
        )
        self.assertEqual(['idle', 'half', 'busy'], order(decisions))
        for decision, wanted in zip(decisions, ((0.1, 0.2), (2.0, 2.0), (2.8, 3.0))):
            self.assertAlmostEqual(share(wanted), decision.added_weight)
            self.assertAlmostEqual(decision.loss, decision.penalty)
        self.assertLess(decisions[0].penalty, decisions[1].penalty)
        # The pressure is that of the node with the guest; the loss is what the guest adds.
        for decision, others in zip(decisions, (0.02 + 0.8 * 0.15, 2.0, 0.2 * 2.8 + 0.8 * 2.9)):
            self.assertAlmostEqual((others + 1) / 4, decision.pressure)

    def test_the_multiplier_scales_the_added_weight(self):
        decisions = judge(
            [compute_node_row('a', 3.0, 3.0), compute_node_row('b', 0.0, 0.0)],
            weight_multiplier=2.5,
        )
        self.assertEqual(['b', 'a'], order(decisions))
        for decision, wanted in zip(decisions, ((0.0, 0.0), (3.0, 3.0))):
            self.assertAlmostEqual(share(wanted, multiplier=2.5), decision.added_weight)

    def test_what_is_lost_below_the_floor_costs_nothing(self):
        rows = [compute_node_row('a', 3.0, 3.0), compute_node_row('b', 0.0, 0.0)]
        for floor in (0.05, 0.5):
            decisions = judge(rows, penalty_floor=floor)
            for decision, wanted in zip(decisions, ((0.0, 0.0), (3.0, 3.0))):
                lost = cpu_loss(wanted, 0, 1.0, 4)
                self.assertAlmostEqual(lost, decision.loss)
                self.assertAlmostEqual(max(0.0, lost - floor), decision.penalty)

    def test_equals_keep_their_order(self):
        self.assertEqual(
            ['b', 'a'],
            order(judge([compute_node_row('b', 1.0, 1.0), compute_node_row('a', 1.0, 1.0)])),
        )

    def test_a_host_above_max_pressure_is_refused(self):
        hosts = [compute_node_row('full', 4.2, 4.1), compute_node_row('half', 2.0, 2.0)]
        self.assertEqual(['half', 'full'], order(judge(hosts)))
        decisions = judge(hosts, max_pressure=1.0)
        self.assertEqual(['half'], order(decisions))
        self.assertIn('above max_pressure 1', decisions[1].why_refused)
        flavor = FLAVOR._replace(extra_specs={'numa_pmc:max_pressure': '0.5'})
        self.assertEqual([], order(judge([compute_node_row('half', 2.0, 2.0)], flavor)))

    def test_a_guest_that_needs_one_node_is_refused_where_it_would_span(self):
        large = saved_hosts.SavedFlavor(4, 12_000)
        rows = [compute_node_row('a', 0.0, 0.0)]
        self.assertEqual(['a'], order(judge(rows, large)))
        one = large._replace(extra_specs={'numa_pmc:policy': 'one_node'})
        for decisions in (judge(rows, one), judge(rows, large, require_one_node=True)):
            self.assertEqual([], order(decisions))

    def test_as_many_guests_of_one_node_pass_as_fit(self):
        flavor = saved_hosts.SavedFlavor(1, 1000, {'numa_pmc:policy': 'one_node'})
        (host,), saved_s = saved_hosts.read(json.dumps([compute_node_row('a', 0.0, 0.0)]))
        decoded = metrics_decoder.decode(host.metrics).columns
        count = sum(
            (capacity - promised) // 1000
            for capacity, promised in zip(decoded.capacity_mib, decoded.promised_mib)
        )
        self.assertGreater(count, 8)
        for at in range(count + 1):
            (decision,) = saved_hosts.rank([host], flavor, DEFAULTS, saved_s)
            self.assertEqual(at < count, decision.passes, at)
            host.consume(flavor)

    def test_unknown_and_stale_hosts_are_weighed_by_novas_counts(self):
        rows = [
            compute_node_row('known', 2.0, 2.0),
            compute_node_row('none', 0.0, 0.0, metrics='[]'),
            compute_node_row('null', 0.0, 0.0, metrics=None),
            compute_node_row('old', 0.0, 0.0, taken_s=NOW_S - 3600),
        ]
        decisions = judge(rows)
        self.assertEqual(['none', 'null', 'old', 'known'], order(decisions))
        # According to Nova's counts: 0.3 cores for each of 4 vCPUs on ten cores, assumed for 16
        # CPUs.
        for decision in decisions[:3]:
            self.assertAlmostEqual(share((0.6, 0.6), cores=5), decision.added_weight)
            self.assertIsNone(decision.pressure)
            self.assertGreater(decision.loss, 0.0)
        self.assertAlmostEqual(share((2.0, 2.0)), decisions[3].added_weight)
        # 60 cores are wanted of ten.
        crowded = compute_node_row('none', 0.0, metrics='[]', vcpus_used=200)
        self.assertEqual(['known', 'none'], order(judge([crowded, rows[0]])))
        self.assertEqual(['known'], order(judge(rows, refuse_unknown=True)))

    def test_a_host_without_metrics_has_the_memory_that_its_row_shows(self):
        sizes = {'metrics': '[]', 'memory_mb': 16384}
        rows = [
            compute_node_row('full', memory_mb_used=15360, **sizes),
            compute_node_row('roomy', **sizes),
        ]
        # Each half of the full host has 512 MiB left, so the guest would need both.
        self.assertEqual(['roomy', 'full'], order(judge(rows)))

    def test_a_host_without_metrics_has_the_memory_that_nova_may_allocate(self):
        row = compute_node_row('a', metrics='[]', memory_mb=16384, memory_mb_used=17408)
        (crowded,) = judge([row])
        (roomy,) = judge([{**row, 'ram_allocation_ratio': 1.5}])
        self.assertLess(roomy.loss, crowded.loss)

    def test_saved_at_is_the_time_of_the_decision(self):
        decisions = judge([compute_node_row('a', 0.0, 0.0, saved_at=NOW_S + 3600)])
        self.assertIn('3600 s old', decisions[0].estimate.why_unknown)

    def test_guests_that_came_since_are_charged(self):
        rows = [
            compute_node_row('a', 1.0, 1.0, vcpus_used=12, memory_mb_used=8192),
            compute_node_row('b', 1.0, 1.0),
        ]
        self.assertEqual(['b', 'a'], order(judge(rows)))
        self.assertEqual(['a', 'b'], order(judge(rows, charge_new_guests=False)))

    def test_several_of_one_request_take_turns(self):
        hosts, now_s = saved_hosts.read(
            json.dumps([compute_node_row(name, 0.5, 0.5) for name in 'abcd'])
        )
        counts = dict.fromkeys('abcd', 0)
        for _ in range(8):
            best = saved_hosts.rank(hosts, FLAVOR, saved_hosts.defaults(), now_s)[0]
            counts[best.host] += 1
            next(host for host in hosts if host.host == best.host).consume(FLAVOR)
        self.assertEqual({2}, set(counts.values()))

    def test_placed_guests_are_charged_for_shared_cpus_only(self):
        for specs, charged in (
            ({}, 2),
            ({'hw:cpu_policy': 'shared'}, 2),
            ({'hw:cpu_policy': 'dedicated'}, 0),
            ({'resources:PCPU': '2'}, 0),
            ({'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0'}, 2),
        ):
            for changes in ({}, {'metrics': '[]'}):
                with self.subTest(specs, known=not changes):
                    row = compute_node_row('a', 2.0, 2.0, **changes)
                    (host,), now_s = saved_hosts.read(json.dumps([row]))
                    (before,) = saved_hosts.rank([host], FLAVOR, DEFAULTS, now_s)
                    host.consume(saved_hosts.SavedFlavor(2, 0, specs))
                    (after,) = saved_hosts.rank([host], FLAVOR, DEFAULTS, now_s)
                    if not changes:
                        self.assertEqual(charged, after.estimate.arrived_vcpus)
                    self.assertEqual(charged > 0, after.loss > before.loss)

    def test_flavors_that_nova_pins_pass_and_are_weighed_by_all_nodes(self):
        decisions = judge(
            [compute_node_row('full', 4.2, 4.1)],
            FLAVOR._replace(extra_specs={'hw:numa_nodes': '1'}),
        )
        self.assertEqual(['full'], order(decisions))
        self.assertEqual('spread', decisions[0].estimate.outcome.code)


class ReadTest(unittest.TestCase):
    def test_an_array_and_lines_are_read_alike(self):
        rows = [compute_node_row('a', 1.0), compute_node_row('b', 1.0)]
        for text in (json.dumps(rows), '\n'.join(map(json.dumps, rows)) + '\n\n'):
            hosts, saved_s = saved_hosts.read(text)
            self.assertEqual((['a', 'b'], NOW_S), ([host.host for host in hosts], saved_s))

    def test_a_host_may_have_the_name_of_the_column_in_novas_table(self):
        text = json.dumps([{'hypervisor_hostname': 'a', 'metrics': []}])
        self.assertEqual('a', saved_hosts.read(text)[0][0].host)

    def test_rows_that_cannot_be_used_are_refused(self):
        for text in (
            '',
            '[]',
            '{',
            'host,metrics',
            '[1]',
            '[[]]',
            '{"host": "a"}',
            '["a"]',
            '[{"host": "a", "metrics": "{"}]',
            '[{"host": "\\u001b[2J", "metrics": []}]',
            '[{"host": 1, "metrics": []}]',
            '[' * 100_000,
            '[{"host": "a", "metrics": [], "vcpus_used": "4"}]',
            '[{"host": "a", "metrics": [], "vcpus_used": NaN}]',
            '[{"host": "a", "metrics": [], "memory_mb_used": -1}]',
            '[{"host": "a", "metrics": [], "ram_allocation_ratio": "1.5"}]',
        ):
            with self.subTest(text[:40]), self.assertRaises(saved_hosts.RowsError):
                saved_hosts.read(text)

    def test_a_row_with_metrics_that_are_nested_too_deeply_is_named(self):
        rows = [compute_node_row('a', 1.0), compute_node_row('b', metrics='[' * 100_000)]
        with self.assertRaisesRegex(saved_hosts.RowsError, '^row 2: '):
            saved_hosts.read(json.dumps(rows))

    @settings(max_examples=200, deadline=None)
    @given(
        strategies.recursive(
            strategies.none()
            | strategies.booleans()
            | strategies.floats()
            | strategies.text()
            | strategies.integers(),
            lambda inner: (
                strategies.lists(inner, max_size=3)
                | strategies.dictionaries(
                    strategies.sampled_from(
                        ['name', 'numa_membw_values', 'pmc', 'pmc.nodes', 'pmc.at']
                    ),
                    inner,
                    max_size=3,
                )
            ),
        )
    )
    def test_a_host_with_any_metrics_is_ranked_and_passes(self, reported):
        text = json.dumps([{'host': 'a', 'metrics': [reported]}])
        hosts, saved_s = saved_hosts.read(text)
        (decision,) = saved_hosts.rank(hosts, FLAVOR, saved_hosts.defaults(), saved_s)
        self.assertTrue(decision.passes)


class PartsTest(unittest.TestCase):
    def test_node_metrics_have_each_part_of_each_node(self):
        hosts, _ = saved_hosts.read(json.dumps([compute_node_row('a', 1.0, None)]))
        first, second = saved_hosts.node_metrics(hosts[0])
        self.assertEqual(
            (0, 0.25, None, 2.0),
            (first['node'], first['cpu_ratio'], first['bandwidth_ratio'], first['vcpus']),
        )
        self.assertIsNone(second['cpu_ratio'])
        without_metrics = saved_hosts.SavedHost({'host': 'b', 'metrics': []})
        self.assertEqual([], saved_hosts.node_metrics(without_metrics))
