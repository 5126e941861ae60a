# SPDX-License-Identifier: Apache-2.0
"""A base class for tests that count with the kernel that runs them."""

import unittest

from nova_numa_pmc.exceptions import CounterError
from nova_numa_pmc.host.perf import perf_event
from tests.fixtures.software_events import CYCLES
from tests.fixtures.working_child import Child


class CountingCase(unittest.TestCase):
    """Skip the tests where this kernel does not let this process count."""

    def setUp(self):
        super().setUp()
        try:
            perf_event.EventGroup((CYCLES,), perf_event.on_cpu(0)).close()
        except CounterError as error:
            self.skipTest(str(error))

    def start_child(self, work):
        child = Child(work)
        self.addCleanup(child.end)
        return child
