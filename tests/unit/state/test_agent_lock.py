# SPDX-License-Identifier: Apache-2.0
"""Only one agent at a time runs on a host."""

import os
import tempfile
import unittest

from nova_numa_pmc.exceptions import StateLocked
from nova_numa_pmc.state import agent_lock


class OnlyAgentTest(unittest.TestCase):
    def test_one_agent_runs_at_a_time(self):
        with tempfile.TemporaryDirectory() as directory:
            directory = os.path.join(directory, 'state')
            for _ in range(2):
                with agent_lock.hold_agent_lock(directory):
                    with self.assertRaisesRegex(StateLocked, 'another nova-numa-agent is running'):
                        with agent_lock.hold_agent_lock(directory):
                            pass
