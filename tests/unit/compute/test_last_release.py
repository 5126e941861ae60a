# SPDX-License-Identifier: Apache-2.0
"""Compute hosts and controllers of this release and of the last one understand each other.

``tests/fixtures/last_release`` has what the last one writes for :data:`PUBLISHED`, and which
options it knows; after a new release, both are written anew by that release's own code. Before
the first release, they are those of main on 24 November 2026, which hosts may still run.
"""

import json
import os
import unittest

from nova_numa_pmc import model
from nova_numa_pmc.compute import metrics_decoder, metrics_encoder
from nova_numa_pmc.state import publication
from tests import fixtures
from tests.fixtures.model_records import GIB

PUBLISHED = publication.Publication(
    1790000000.0,
    60.0,
    model.HostView(
        tuple(
            model.NodeView(
                at * 2,
                20.0,
                32,
                64 * GIB,
                (8 + at) * GIB,
                3.5,
                14.0,
                4.25 + at,
                1.5e9,
                1e11,
                0.25 if at else None,
            )
            for at in range(2)
        ),
        ((10, 32), (32, 10)),
        1,
    ),
    'perf',
    history=model.DemandHistory(7, 3.5),
)
COUNTED = metrics_encoder.NovaCounts(('0fa1-x', '2b00-y'), 4)


def of_last_release(name):
    path = os.path.join(os.path.dirname(fixtures.__file__), 'last_release', name)
    with open(path, encoding='utf-8') as file:
        return json.load(file)


class MetricsTest(unittest.TestCase):
    def test_a_newer_scheduler_reads_older_metrics(self):
        decoded = metrics_decoder.decode(of_last_release('metrics.json'))
        self.assertEqual(PUBLISHED.view, decoded.view)
        self.assertEqual(
            (1790000000, 660, 28, 57344, (7, 3.5)),
            (
                decoded.taken_s,
                decoded.interval_s,
                decoded.vcpus_used,
                decoded.memory_mb_used,
                decoded.history,
            ),
        )
        self.assertEqual(
            (None, 0, None, (0, 0)),
            (
                decoded.sent_s,
                decoded.pinned_cpus,
                decoded.huge_page_mb,
                decoded.count_departed(()),
            ),
        )

    def test_an_older_scheduler_finds_all_that_it_knows_in_newer_metrics(self):
        # It ignores other keys, and the values that it reads have the version of its major number.
        written = metrics_encoder.to_values(PUBLISHED, 28, 57344, 660, COUNTED, 1790000001.5)
        for metric, values in zip(of_last_release('metrics.json'), written):
            known = metric['numa_membw_values']
            kept = {key: values.get(key) for key in known}
            version = known.pop('pmc', None)
            self.assertEqual(version and version // 100, version and kept.pop('pmc') // 100)
            self.assertEqual(known, kept)
