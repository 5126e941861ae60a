# SPDX-License-Identifier: Apache-2.0
"""Data in Nova's metrics is read back unchanged, fits the column, and can do no harm."""

import json
import random
import types
import unittest
from typing import Any

from hypothesis import given, settings

from nova_numa_pmc import model
from nova_numa_pmc.compute import metrics_decoder, metrics_encoder
from nova_numa_pmc.core.host_view import quantise
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.state import publication
from tests.fixtures.host_views import hosts
from tests.fixtures.metrics import GIB, build_publication, metric_list

#: The size of Nova's column on MySQL, and the package's own limit for hosts with two nodes.
COLUMN_BYTES, TWO_NODES_BYTES = 65535, 2048
LARGEST: dict[str, Any] = dict(
    cores=160.0,
    cpu_count=256,
    capacity_bytes=8192 * GIB,
    promised_bytes=8191 * GIB,
    guests=999.5,
    vcpus=9999.75,
    demand_cores=999.99,
    bandwidth_bytes_per_sec=999e9,
    bandwidth_max_bytes_per_sec=999e9,
    link_ratio=0.999,
)
NEAR = (10, 11, 21, 21), (11, 10, 21, 21), (21, 21, 10, 11), (21, 21, 11, 10)


def mega(value):
    return value and value * 1e6


def largest(count, distances=None):
    """Build a host whose numbers are as long as possible."""
    published = build_publication(
        nodes=tuple(model.NodeView(at, **LARGEST) for at in range(count)),
        history=model.DemandHistory(50, 99.99),
    )
    if distances:
        published = published._replace(view=published.view._replace(distances=distances))
    return published


class RoundTripTest(unittest.TestCase):
    def setUp(self):
        self.published = build_publication(0.5, None)
        self.decoded = metrics_decoder.decode(metric_list(self.published, 20, 4096))

    def test_a_view_is_decoded_as_it_was_encoded(self):
        self.assertEqual(self.published.view, self.decoded.view)
        self.assertEqual(
            (1700000000, 60, 20, 4096),
            (
                self.decoded.taken_s,
                self.decoded.interval_s,
                self.decoded.vcpus_used,
                self.decoded.memory_mb_used,
            ),
        )

    def test_plain_node_ids_are_megabytes_per_second(self):
        current, maximum = metrics_encoder.to_values(self.published, 0, 0)
        self.assertEqual([1000, 1000], [current['0'], current['1']])
        self.assertEqual([100000, 100000], [maximum['0'], maximum['1']])

    def test_values_sent_to_nova_are_plain_ints(self):
        for values in metrics_encoder.to_values(self.published, 1.5, 2.5):  # type: ignore[arg-type]
            self.assertEqual({int}, set(map(type, values.values())))

    def test_an_unknown_figure_is_decoded_as_unknown(self):
        bare = build_publication(
            nodes=(
                model.NodeView(0, 4, 4, GIB, 0),
                model.NodeView(1, 4, 4, GIB, 0, bandwidth_bytes_per_sec=5e6),
            )
        )
        decoded = metrics_decoder.decode(metric_list(bare))
        self.assertEqual(bare.view, decoded.view)

    def test_node_ids_may_have_gaps(self):
        gaps = build_publication(
            nodes=tuple(
                model.NodeView(at, 4, 4, GIB, 0, bandwidth_bytes_per_sec=at * 1e6) for at in (0, 8)
            )
        )
        self.assertEqual(gaps.view, metrics_decoder.decode(metric_list(gaps)).view)

    def test_demand_expected_of_new_guests_is_decoded_as_encoded(self):
        self.assertIsNone(self.decoded.history)
        decoded = metrics_decoder.decode(
            metric_list(self.published._replace(history=model.DemandHistory(50, 12.34)))
        )
        self.assertEqual((50, 12.34), decoded.history)
        values = metric_list(self.published)
        for odd in (-1, 0, True, 2**60, 0.5, '1', None):
            values[-2]['numa_membw_values']['pmc.k'] = odd
            self.assertIsNone(metrics_decoder.decode(values).history)

    def test_demand_that_no_vcpus_can_want_is_decoded_as_unknown(self):
        for cores_per_vcpu_sum, expected in ((8.0, (4, 8.0)), (8.01, None), (1e9, None)):
            with self.subTest(cores_per_vcpu_sum):
                history = model.DemandHistory(4, cores_per_vcpu_sum)
                decoded = metrics_decoder.decode(
                    metric_list(self.published._replace(history=history))
                )
                self.assertEqual(expected, decoded.history)

    def test_links_are_decoded_as_encoded(self):
        for links in ((0.25, None), (None, 0.25), (0.5, 1.5)):
            linked = build_publication(
                nodes=tuple(
                    model.NodeView(
                        at,
                        4,
                        4,
                        GIB,
                        0,
                        bandwidth_bytes_per_sec=1e9,
                        bandwidth_max_bytes_per_sec=1e9,
                        link_ratio=link,
                    )
                    for at, link in enumerate(links)
                )
            )
            self.assertEqual(linked.view, metrics_decoder.decode(metric_list(linked)).view)

    def test_the_metrics_show_the_huge_pages_in_use_on_hosts_that_have_any(self):
        def topology(*pools):
            return types.SimpleNamespace(
                cells=[
                    types.SimpleNamespace(
                        mempages=[
                            types.SimpleNamespace(size_kb=size_kb, used=used, total=total)
                            for size_kb, used, total in pools
                        ]
                    )
                ]
                * 2
            )

        for pools, expected in (
            ((), None),
            (((4, 512, 1024),), None),
            (((4, 512, 1024), (2048, 0, 0)), None),
            (((4, 512, 1024), (2048, 0, 8)), 0),
            (((4, 512, 1024), (2048, 3, 8), (1 << 20, 1, 1)), 2 * (6 + 1024)),
        ):
            with self.subTest(pools):
                huge_mb = metrics_encoder.used_huge_page_mb(topology(*pools))
                counted = metrics_encoder.NovaCounts(huge_page_mb=huge_mb)
                decoded = metrics_decoder.decode(metric_list(self.published, counted=counted))
                self.assertEqual((expected, expected), (huge_mb, decoded.huge_page_mb))
        self.assertIsNone(self.decoded.huge_page_mb)

    def test_nodes_that_share_channels_are_decided_on_as_one(self):
        near = build_publication(0.25, 0.75)
        near = near._replace(
            view=near.view._replace(distances=((10, 11), (11, 10)), domains=(0, 0))
        )
        decoded = metrics_decoder.decode(metric_list(near))
        self.assertEqual((1, 20.0), decoded.figures[:2])
        self.assertEqual(near.view, decoded.view)

    def test_capacity_is_rounded_down_and_promises_up_to_mebibytes(self):
        odd = build_publication(nodes=(model.NodeView(0, 4, 4, 2**20 + 1, 2**20 + 1),))
        (node,) = metrics_decoder.decode(metric_list(odd)).view.nodes
        self.assertEqual((2**20, 2**21), (node.capacity_bytes, node.promised_bytes))

    def test_a_slow_update_interval_is_sent(self):
        current, _ = metrics_encoder.to_values(self.published, 0, 0, interval_s=300)
        self.assertEqual(300, current['pmc.every'])

    @settings(max_examples=100)
    @given(hosts())
    def test_any_host_is_decoded_within_the_rounding(self, view):
        published = publication.Publication(1.0, 60.0, view)
        decoded = metrics_decoder.decode(metric_list(published)).view
        self.assertEqual(view.distances, decoded.distances)
        for before, after in zip(view.nodes, decoded.nodes):
            for field in ('cores', 'cpu_count', 'guests', 'vcpus', 'demand_cores', 'link_ratio'):
                expected, actual = getattr(before, field), getattr(after, field)
                self.assertEqual(expected is None, actual is None)
                self.assertAlmostEqual(expected or 0, actual or 0, delta=0.00501)

    @settings(max_examples=100)
    @given(hosts())
    def test_a_rounded_view_is_decoded_unchanged(self, view):
        view = quantise(
            view._replace(
                nodes=tuple(
                    node._replace(
                        cpus=None,
                        bandwidth_bytes_per_sec=mega(node.bandwidth_bytes_per_sec),
                        bandwidth_max_bytes_per_sec=mega(node.bandwidth_max_bytes_per_sec),
                    )
                    for node in view.nodes
                ),
                rotation=view.rotation % len(view.nodes),
            )
        )
        published = publication.Publication(1.0, 60.0, view)
        self.assertEqual(view, metrics_decoder.decode(metric_list(published)).view)

    def test_the_scheduler_breaks_ties_as_the_host_does(self):
        near = build_publication(0.5, 0.5, 0.5, 0.5)
        near = near._replace(
            view=near.view._replace(rotation=7, distances=NEAR, domains=(0, 0, 2, 2))
        )
        self.assertEqual(1, metrics_decoder.decode(metric_list(near)).view.rotation)


class DomainTest(unittest.TestCase):
    def test_domains_of_any_shape_are_decoded_as_encoded(self):
        for domains in ((0, 0, 2, 2), (), (0, 0, 0, 0), (0, 1, 0, 1), (0, 0, 2, 3)):
            with self.subTest(domains):
                published = build_publication(*[0.5] * 4)
                view = published.view._replace(distances=NEAR, domains=domains)
                decoded = metrics_decoder.decode(metric_list(published._replace(view=view)))
                self.assertEqual(domains, decoded.view.domains)

    def test_domains_of_as_many_nodes_as_fit_are_decoded_as_encoded(self):
        for count in (1, 5, 6, 7, 64):
            domains = tuple(at % 3 if count > 3 else at for at in range(count))
            published = largest(count)
            published = published._replace(
                view=published.view._replace(domains=domains if count > 3 else ())
            )
            self.assertEqual(
                published.view.domains, metrics_decoder.decode(metric_list(published)).view.domains
            )


class SizeTest(unittest.TestCase):
    def test_metrics_of_two_nodes_and_nova_stay_below_two_kilobytes(self):
        self.assertLess(len(json.dumps(metric_list(largest(2), 99999, 99999999))), TWO_NODES_BYTES)

    def test_sixty_four_nodes_fit_into_the_column(self):
        rng = random.Random(1)
        distances = tuple(
            tuple(10 if a == b else rng.randint(12, 255) for b in range(64)) for a in range(64)
        )
        text = json.dumps(metric_list(largest(64, distances), 99999, 99999999))
        self.assertLess(len(text), COLUMN_BYTES)
        self.assertEqual(distances, metrics_decoder.decode(json.loads(text)).view.distances)

    def test_more_nodes_are_refused_where_they_are_written(self):
        with self.assertRaisesRegex(StateError, '65 nodes'):
            metrics_encoder.to_values(largest(65), 0, 0)


class RefusalTest(unittest.TestCase):
    def decoded(self, change_current=(), change_maximum=()):
        metrics = metric_list(build_publication(0.5, 0.5))
        for metric, change in zip(metrics[-2:], (change_current, change_maximum)):
            metric['numa_membw_values'].update(change)
        return metrics_decoder.decode(metrics)

    def test_malformed_metrics_are_none(self):
        for name, changes in {
            'another major version': ({'pmc': 100},),
            'no version': ({'pmc': 'x'},),
            'negative memory': ({'pmc.p0': -1},),
            'beyond unknown': ({'pmc.d1': -2},),
            'a float': ({'pmc.v0': 1.0},),
            'a boolean': ({'pmc.v0': True},),
            'text': ({'0': 'x'},),
            'a huge capacity': ({}, {'pmc.c0': 2**51}),
            'negative bandwidth': ({}, {'0': -5}),
            'CPUs without a core': ({}, {'pmc.c1': 0}),
            'no nodes': ({}, {'pmc.nodes': 0}),
            '1,000 nodes': ({}, {'pmc.nodes': 1000}),
            'a node more': ({}, {'pmc.nodes': 3}),
            'a bad interval': ({'pmc.every': -1},),
            'distances beyond a byte': ({}, {'pmc.x0': 2**49}),
        }.items():
            with self.subTest(name):
                self.assertIsNone(self.decoded(*changes))

    def test_a_node_without_cpus_may_have_no_core(self):
        self.assertIsNotNone(self.decoded({}, {'pmc.c1': 0, 'pmc.t1': 0}))

    def test_a_newer_minor_version_may_say_more(self):
        self.assertIsNotNone(self.decoded({'pmc': 299, 'pmc.new': 1}))

    def test_metrics_of_other_monitors_are_none(self):
        for metrics in (
            None,
            [],
            [{'name': metrics_encoder.CURRENT}],
            {},
            'x',
            5,
            [
                {'name': name, 'numa_membw_values': {'0': 5}}
                for name in (metrics_encoder.CURRENT, metrics_encoder.MAXIMUM)
            ],
        ):
            self.assertIsNone(metrics_decoder.decode(metrics))

    def test_objects_like_novas_are_read(self):
        objects = [
            types.SimpleNamespace(**metric) for metric in metric_list(build_publication(0.5, 0.5))
        ]
        self.assertIsNotNone(metrics_decoder.decode(types.SimpleNamespace(objects=objects)))
