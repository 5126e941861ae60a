# SPDX-License-Identifier: Apache-2.0
"""A calibration file that cannot be read costs a problem, and the options stay as they are."""

import tempfile
import unittest

from nova_numa_pmc.agent import calibrated_options
from nova_numa_pmc.conf import counters as counters_conf


class ReadTest(unittest.TestCase):
    def test_a_bad_calibration_file_is_a_problem_and_no_error(self):
        with tempfile.NamedTemporaryFile('w') as file:
            file.write('x')
            file.flush()
            options, problems = calibrated_options.read('/nonexistent', file.name)
        self.assertEqual(
            (counters_conf.CounterOptions(), 1), (options.counter_options, len(problems))
        )
