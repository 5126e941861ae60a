# SPDX-License-Identifier: Apache-2.0
"""Which guests have events, when they are due, and from where the agent learns of them."""

from __future__ import annotations

import logging
import tempfile
import unittest

from nova_numa_pmc.agent import guest_events
from tests.fixtures import fake_host
from tests.fixtures.clock import Clock
from tests.fixtures.listener import Listener

LOG = logging.getLogger('nova_numa_pmc.agent.guest_events')


class GuestEventsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root, self.clock = directory.name, Clock()
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)

    def open(self, listener=None):
        events = guest_events.GuestEvents(self.root, LOG, listener, self.clock)
        self.addCleanup(events.close)
        return events

    def test_events_that_come_together_are_one_occasion(self):
        listener = Listener()
        events = self.open(listener)
        events.collect()
        self.assertIsNone(events.due_in_s())
        listener.announce(1)
        events.collect()
        self.clock.now_s += 0.15
        listener.announce(2, 1)
        events.collect()
        self.assertAlmostEqual(0.05, events.due_in_s())
        self.clock.now_s += 1
        self.assertEqual(0.0, events.due_in_s())
        self.assertEqual({fake_host.name_of(1), fake_host.name_of(2)}, events.pop_names())
        self.assertIsNone(events.due_in_s())

    def test_without_libvirt_no_events_are_heard_and_the_guests_are_read_all_the_same(self):
        self.host.launch(1)
        events = self.open()
        events.collect()
        self.assertEqual(
            ([], None, 'status files'), (events.descriptors, events.due_in_s(), events.source)
        )
        self.assertEqual([fake_host.name_of(1)], [guest.name for guest in events.guests.read()[0]])
