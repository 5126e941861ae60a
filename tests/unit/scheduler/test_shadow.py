# SPDX-License-Identifier: Apache-2.0
"""A decision in shadow mode is a line of JSON: what is chosen, and what would be."""

import json
import math
import unittest

from hypothesis import given, strategies

from nova_numa_pmc.scheduler import request, shadow as subject
from nova_numa_pmc.scheduler.losses import Loss
from tests.fixtures.nova_stand_ins import request_spec

REQUEST = request.read(request_spec(4, 8192, '7f1e9a52-8b2f-4c66-9a0a-0d4f3c2b1a00'))
BLIND = 'no metrics from nova-numa-pmc'
NOW_S = 1_800_000_000.4


def candidate(
    host,
    other_weight,
    added_weight,
    pressure=0.5,
    age_s=30.0,
    why_unknown=None,
    counted_weight=0.0,
    loss=0.025,
):
    met = Loss(1, pressure, loss)
    return subject.ShadowHost(
        host, other_weight, added_weight, counted_weight, met, age_s, why_unknown
    )


def logged(*candidates):
    line = subject.line(REQUEST, candidates, NOW_S)
    assert line.startswith(subject.MARK)
    return json.loads(line[len(subject.MARK) :], parse_constant=int)


class LineTest(unittest.TestCase):
    def test_a_line_names_the_host_that_is_chosen_and_the_one_that_would_be(self):
        record = logged(
            candidate('roomy', 3.0, -5.5, 0.9),
            candidate('calm', 2.5, 0.0, 0.2),
            candidate('blind', 2.0, 0.0, 0.4, None, BLIND, loss=0.01234567),
        )
        self.assertTrue(record['changed'])
        self.assertEqual('roomy', record['chosen']['host'])
        self.assertEqual(['calm', 'blind', 'roomy'], [host['host'] for host in record['top']])
        self.assertEqual(
            (3, 1, 4, 8192), tuple(map(record.get, ('hosts', 'unknown', 'vcpus', 'memory_mb')))
        )
        calm, blind, _ = record['top']
        self.assertEqual((0.2, 0.025), (calm['pressure'], calm['loss']))
        # Its assumed loss counts; its pressure remains unknown.
        self.assertEqual((None, 0.0123), (blind['pressure'], blind['loss']))
        self.assertEqual('no metrics from nova-numa-pmc', blind['why'])

    def test_nothing_changes_where_both_agree(self):
        record = logged(
            candidate('a', 2.0, 0.0), candidate('b', 2.0, 0.0), candidate('c', 1.0, 0.0)
        )
        self.assertFalse(record['changed'])
        self.assertEqual('a', record['chosen']['host'])

    def test_what_counts_in_fact_chooses(self):
        # An aggregate that is not in shadow mode.
        record = logged(candidate('a', 2.0, -1.5, counted_weight=-1.5), candidate('b', 1.0, -0.2))
        self.assertEqual('b', record['chosen']['host'])

    def test_no_cpu_there_is_still_json(self):
        chosen = logged(candidate('a', 0.0, -200.0, math.inf, loss=1.0))['chosen']
        self.assertEqual((1e6, 1.0), (chosen['pressure'], chosen['loss']))

    @given(
        strategies.lists(
            strategies.tuples(
                strategies.text(min_size=1, max_size=255),
                strategies.floats(-1e7, 1e7),
                strategies.floats(-1e3, 0),
            ),
            min_size=1,
            max_size=8,
        )
    )
    def test_a_line_is_short_and_json(self, hosts):
        line = subject.line(REQUEST, [candidate(*fields) for fields in hosts], NOW_S)
        self.assertNotIn('\n', line)
        json.loads(line[len(subject.MARK) :])
        if all(name.isascii() and name.isprintable() for name, *_ in hosts):
            self.assertLess(len(line), 1024)
