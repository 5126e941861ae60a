# SPDX-License-Identifier: Apache-2.0
"""Metrics are sent anew only if guests change, or a figure does by more than the deadband."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.compute import metrics_encoder
from tests.fixtures.metrics import GIB, build_publication

CORES = 10.0
DEADBAND = 0.025
PRESSURES = st.floats(0.0, 4.0)


def changed(published, at=0, **fields):
    """Return the state with other figures for one node."""
    nodes = list(published.view.nodes)
    nodes[at] = nodes[at]._replace(**fields)
    return published._replace(view=published.view._replace(nodes=tuple(nodes)))


class WithinTest(unittest.TestCase):
    def setUp(self):
        self.sent = build_publication(0.3, 0.6, history=model.DemandHistory(20, 8.0))

    def may_reuse(self, now):
        return metrics_encoder.may_reuse(self.sent, now, DEADBAND)

    def test_a_later_measurement_of_the_same_load_is_not_sent(self):
        later = self.sent._replace(taken_s=self.sent.taken_s + 60, interval_s=61.2, uuids=())
        self.assertTrue(self.may_reuse(later))

    def test_measured_figures_may_differ_a_little(self):
        for name, little, much in (
            ('demand_cores', 3.2, 3.3),
            ('cores', 10.2, 10.3),
            ('bandwidth_bytes_per_sec', 3e9, 4e9),
            ('bandwidth_max_bytes_per_sec', 1.02e11, 1.03e11),
        ):
            with self.subTest(name):
                self.assertTrue(self.may_reuse(changed(self.sent, **{name: little})))
                self.assertFalse(self.may_reuse(changed(self.sent, **{name: much})))

    def test_memory_that_the_kernel_holds_may_differ(self):
        nodes = self.sent.view.nodes
        now = changed(
            self.sent,
            capacity_bytes=nodes[0].capacity_bytes - (90 << 20),
            promised_bytes=nodes[0].promised_bytes - (40 << 20),
        )
        self.assertFalse(self.may_reuse(now))  # 40 MiB less are promised
        moved = changed(now, at=1, promised_bytes=nodes[1].promised_bytes + (40 << 20))
        self.assertTrue(self.may_reuse(moved))  # floating guests are divided differently

    def test_traffic_beside_an_unknown_maximum_makes_no_pressure(self):
        self.sent = changed(self.sent, bandwidth_max_bytes_per_sec=None)
        self.assertTrue(self.may_reuse(changed(self.sent, bandwidth_bytes_per_sec=9e9)))
        self.assertFalse(self.may_reuse(changed(self.sent, bandwidth_bytes_per_sec=None)))

    def test_a_figure_that_becomes_known_or_unknown_is_sent(self):
        for name, value in (
            ('demand_cores', None),
            ('bandwidth_bytes_per_sec', None),
            ('bandwidth_max_bytes_per_sec', None),
            ('link_ratio', 0.0),
        ):
            with self.subTest(name):
                self.assertFalse(self.may_reuse(changed(self.sent, at=1, **{name: value})))

    def test_guests_promises_and_the_host_itself_must_be_the_same(self):
        node = self.sent.view.nodes[0]
        for name, value in (
            ('guests', node.guests + 1),
            ('vcpus', node.vcpus + 1),
            ('promised_bytes', node.promised_bytes + GIB),
            ('promised_bytes', node.promised_bytes + (3 << 20)),  # in total, over all nodes
            ('capacity_bytes', node.capacity_bytes - GIB),
            ('cpu_count', node.cpu_count - 1),
            ('id', 7),
        ):
            with self.subTest(name):
                self.assertFalse(self.may_reuse(changed(self.sent, **{name: value})))
        for field, value in (
            ('rotation', 1),
            ('distances', ((10, 32), (32, 10))),
            ('domains', (0, 0)),
            ('nodes', self.sent.view.nodes[:1]),
        ):
            with self.subTest(field):
                view = self.sent.view._replace(**{field: value})
                self.assertFalse(self.may_reuse(self.sent._replace(view=view)))

    def test_demand_expected_of_new_guests_may_drift(self):
        for history, expected in (
            (model.DemandHistory(19.4, 8.0), True),
            (model.DemandHistory(20, 8.4), True),
            (model.DemandHistory(20, 9.0), False),
            (model.DemandHistory(10, 4.0), False),
            (model.DemandHistory(), False),
        ):
            with self.subTest(history):
                self.assertEqual(expected, self.may_reuse(self.sent._replace(history=history)))

    @given(st.lists(st.tuples(PRESSURES, PRESSURES), min_size=1, max_size=4), PRESSURES)
    def test_no_pressure_is_off_by_more_than_the_deadband(self, pairs, allowed):
        sent, now = (build_publication(*column, cores=CORES) for column in zip(*pairs))
        off = max(abs(a - b) for a, b in pairs)
        if metrics_encoder.may_reuse(sent, now, allowed):
            self.assertLessEqual(off, allowed + 1e-9)
        else:
            self.assertGreater(off, allowed - 1e-9)
