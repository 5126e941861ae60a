# SPDX-License-Identifier: Apache-2.0
"""The arena's arrays compared with Nova's own handler, for the decisions of a small run."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from tests.arena import cells, hosts, loads, policies, region, sampling

ROOT = pathlib.Path(__file__).parent.parent.parent


def decisions(number, count=20):
    """Return the recorded decisions of a small run of a cell."""
    cell = cells.cells()[number].shortened(count, 1200, 600)
    shape = hosts.Hosts(cell.shape, count, np.random.default_rng((7, number, 0)))
    # Each kind of error.
    shape.agent[:] = np.arange(count) > 1
    shape.broken[2:6] = range(1, 5)
    sampler = sampling.Sampler(6, number)
    trace = loads.Trace(cell, shape, 7)
    region.Region(
        cell, shape, trace, policies.POLICIES[policies.SPREAD_10], 7, sampler=sampler
    ).run()
    return sampler.kept


class RefereeTest(unittest.TestCase):
    def test_arrays_and_nova_decide_alike(self):
        kept = [record for number in (3, 9, 15, 21) for record in decisions(number)]
        self.assertGreater(len(kept), 40)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, 'decisions')
            sampling.write(path, kept)
            done = subprocess.run(
                [sys.executable, '-m', 'tests.arena.referee', path],
                capture_output=True,
                cwd=ROOT,
                text=True,
                check=False,
            )
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual(0, json.loads(done.stdout.splitlines()[-1])['twin_disagreements'])
