# SPDX-License-Identifier: Apache-2.0
"""Which guests are read again: those with events, and those that have to be read without any."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc.agent import guest_events
from nova_numa_pmc.host import guests, inotify, libvirt_events
from tests.fixtures import fake_host
from tests.fixtures.clock import Clock

LOG = logging.getLogger('nova_numa_pmc.agent.guest_events')


class Listener:
    """A listener whose events are set by a test."""

    def __init__(self):
        self.problem, self.pending, self.asked = '', [], []
        self._ends = os.pipe()

    def fileno(self):
        return self._ends[0]

    def pop_events(self):
        pending, self.pending = self.pending, []
        return pending

    def request_xml(self, name):
        self.asked.append(name)

    def close(self):
        for end in self._ends:
            os.close(end)


class WatchingTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root, self.clock = directory.name, Clock()
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)
        self.trees = {number: self.host.launch(number) for number in (1, 2)}

    def open(self, listener=None):
        self.events = guest_events.GuestEvents(self.root, LOG, listener, self.clock)
        self.addCleanup(self.events.close)
        self.heard()
        return self.events

    def heard(self):
        """Return the numbers of the guests with events since the last call."""
        self.events.collect()
        names = self.events.pop_names()
        return [number for number in (1, 2, 3) if fake_host.name_of(number) in names]

    def watch(self):
        running = guests.read_running(self.root)[0]
        watched = self.events.watch(running)
        return [number for number in (1, 2, 3) if fake_host.uuid_of(number) in watched]

    def write(self, number, group, name='cpuset.cpus'):
        tree = self.trees[number]
        tree.write_file(os.path.join(group or tree.parent, name), '0-7\n')

    def test_guests_are_reported_at_first_and_when_they_come_change_or_go(self):
        events = guest_events.GuestEvents(self.root, LOG, None, self.clock)
        self.addCleanup(events.close)
        self.events = events
        self.assertEqual([1, 2], self.heard())
        self.assertEqual([], self.heard())
        self.trees[3] = self.host.launch(3)
        self.assertEqual([3], self.heard())
        path = self.host.path('run/libvirt/qemu/%s.xml' % fake_host.name_of(2))
        os.link(path, path + '.new')
        os.rename(path + '.new', path[:-4] + '.xml')
        self.host.end(1)
        self.assertEqual([1], self.heard())

    def test_guests_of_a_directory_made_later_or_anew_are_heard(self):
        moved = self.host.path('run/libvirt/old')
        os.rename(self.host.path('run/libvirt/qemu'), moved)
        self.open()
        os.rename(moved, self.host.path('run/libvirt/qemu'))
        self.assertEqual([1, 2], self.heard())

    def test_writes_to_groups_of_watched_guests_are_reported(self):
        self.open()
        self.write(1, None)
        self.assertEqual([], self.heard())
        self.assertEqual([1, 2], self.watch())
        for group in (
            self.trees[1].emulator,
            self.trees[1].vcpus[0],
            os.path.dirname(self.trees[1].parent),
        ):
            self.write(1, group)
            self.assertEqual([1], self.heard())
        self.write(1, None, 'memory.events')
        self.assertEqual([], self.heard())

    def test_a_group_made_below_a_watched_one_is_watched(self):
        self.open()
        self.watch()
        plugged = os.path.join(self.trees[2].parent, 'vcpu2')
        self.trees[2].add_group(plugged)
        self.assertEqual([2], self.heard())
        self.assertEqual([1, 2], self.watch())
        self.heard()
        self.write(2, plugged)
        self.assertEqual([2], self.heard())

    def test_a_guest_that_has_gone_is_watched_no_longer(self):
        self.open()
        self.watch()
        self.host.end(1)
        self.assertEqual([1], self.heard())
        self.assertEqual([2], self.watch())
        self.write(1, None)
        self.assertEqual([], self.heard())

    def test_events_that_come_together_are_one_occasion(self):
        agent = self.open()
        self.watch()
        self.assertIsNone(agent.due_in_s())
        self.write(1, None)
        agent.collect()
        self.clock.now_s += 0.15
        self.write(2, None)
        agent.collect()
        self.assertAlmostEqual(0.05, agent.due_in_s())
        self.clock.now_s += 1
        self.assertEqual(0.0, agent.due_in_s())
        self.assertEqual({fake_host.name_of(1), fake_host.name_of(2)}, agent.pop_names())
        self.assertIsNone(agent.due_in_s())

    def test_guests_are_read_where_inotify_watches_are_used_up(self):
        self.open()
        add = inotify.Inotify.add
        groups = []

        def few(one, directory, mask):
            groups.append(directory)
            if len(groups) > 6:
                raise OSError(errno.ENOSPC, 'no space', directory)
            return add(one, directory, mask)

        with mock.patch.object(inotify.Inotify, 'add', few):
            self.assertEqual([1], self.watch())
            count = len(groups)
            self.assertEqual([1], self.watch())
        self.assertEqual(count, len(groups))

    def test_without_inotify_nothing_is_heard_and_a_warning_is_logged(self):
        with mock.patch.object(inotify, 'Inotify', side_effect=OSError(errno.EMFILE, 'too many')):
            with self.assertLogs(LOG, 'WARNING'):
                events = guest_events.GuestEvents(self.root, LOG, None, self.clock)
        self.events = events
        self.assertEqual(([], [], []), (self.heard(), self.watch(), events.descriptors))
        events.close()

    def test_after_lost_events_every_guest_is_looked_at(self):
        self.open()
        self.watch()
        lost = inotify.InotifyEvent(-1, inotify.OVERFLOW, '')
        with mock.patch.object(inotify.Inotify, 'read', return_value=[lost]):
            self.assertEqual([1, 2], self.heard())

    def test_events_of_libvirt_are_heard_and_its_changes_are_logged(self):
        listener = Listener()
        listener.problem = libvirt_events.CONNECTING
        agent = self.open(listener)
        self.assertEqual(2, len(agent.descriptors))
        with self.assertLogs(LOG, 'INFO') as logs:
            for listener.problem in ('', '', libvirt_events.UNRESPONSIVE, ''):
                self.heard()
        self.assertEqual(
            [
                'the agent learns of changes to guests from libvirt',
                'the agent learns of changes to guests from status files: libvirt does not answer',
                'the agent learns of changes to guests from libvirt',
            ],
            [record.getMessage() for record in logs.records],
        )
        listener.pending = [libvirt_events.GuestEvent(fake_host.name_of(2))]
        self.assertEqual([2], self.heard())
        agent.guests.read()
        self.assertEqual([fake_host.name_of(1), fake_host.name_of(2)], listener.asked)
