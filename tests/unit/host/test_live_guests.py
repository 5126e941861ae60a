# SPDX-License-Identifier: Apache-2.0
"""Test which of libvirt's two descriptions of a guest applies: live XML or status file."""

from __future__ import annotations

import os
import tempfile
import unittest

from nova_numa_pmc.host import guests, libvirt_events
from nova_numa_pmc.host.libvirt_events import GuestEvent
from tests.fixtures import fake_host

NAME = fake_host.name_of(1)
PIN = "  <cputune><vcpupin vcpu='0' cpuset='2'/></cputune>\n"


class Asked(list):
    """A listener that records what is requested from it."""

    request_xml = list.append


class LiveGuestsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root, self.asked = directory.name, Asked()
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)
        self.host.launch(1)
        self.live_guests = libvirt_events.LiveGuests(self.root, self.asked)  # type: ignore[arg-type]

    def answer(self, identity=None, **more):
        """Let libvirt answer for the status file as it is, or for ``identity``."""
        self.live_guests.update(
            GuestEvent(
                NAME,
                guests.parse(fake_host.domain_xml(1, **more)),
                identity or guests.runtime_file_identity(self.root, NAME, '.xml'),
            )
        )

    def rewrite(self, text=None, vcpus=2):
        path = self.host.path('run/libvirt/qemu/%s.xml' % NAME)
        with open(path + '.new', 'wb') as file:
            file.write(
                text
                or b"<domstatus state='paused' pid='4001'>\n%s</domstatus>\n"
                % fake_host.domain_xml(1, vcpus=vcpus)
            )
        os.rename(path + '.new', path)

    def read(self):
        found, self.problems = self.live_guests.read()
        return found[0] if found else None

    def test_the_status_file_counts_until_libvirt_answers_its_one_request(self):
        for _ in range(3):
            self.assertEqual(2, self.read().vcpus)
        self.assertEqual([NAME], self.asked)

    def test_libvirt_reports_the_guest_and_the_file_its_process_and_state(self):
        self.answer(vcpus=4, extra=PIN)
        guest = self.read()
        self.assertEqual(
            (4, ('vcpupin',), frozenset({2})), (guest.vcpus, guest.placed_by, guest.pinned_cpus)
        )
        self.assertEqual((4001, 'running', 1), (guest.pid, guest.state, guest.id))
        self.assertEqual([], self.asked)

    def test_a_file_newer_than_libvirts_answer_counts(self):
        self.answer(vcpus=4)
        self.read()
        self.rewrite(vcpus=3)
        self.assertEqual((3, 'paused'), (self.read().vcpus, self.read().state))
        self.assertEqual([NAME], self.asked)
        self.answer(vcpus=3, extra=PIN)
        self.assertEqual(('vcpupin',), self.read().placed_by)

    def test_a_file_that_cannot_be_understood_leaves_libvirts_answer(self):
        self.rewrite(b'<another/>')
        self.assertIsNone(self.read())
        self.assertIn(NAME, self.problems[0])
        self.answer(vcpus=4)
        guest = self.read()
        self.assertEqual(
            (4, 4001, 'unknown', []), (guest.vcpus, guest.pid, guest.state, self.problems)
        )
        self.host.write('proc/4001/cmdline', 'another\0')  # the pid has been reused
        self.assertIsNone(self.read())

    def test_a_pid_file_that_cannot_be_read_is_a_problem(self):
        self.rewrite(b'<another/>')
        self.answer()
        path = self.host.path('run/libvirt/qemu/%s.pid' % NAME)
        os.unlink(path)
        self.assertIsNone(self.read())
        self.assertEqual([], self.problems)  # QEMU is not running
        os.symlink(path, path)
        self.assertIsNone(self.read())
        self.assertRegex(self.problems[0], '^%s: .*symbolic links' % path)

    def test_a_guest_that_has_gone_is_forgotten(self):
        self.answer(vcpus=4)
        self.host.end(1)
        self.assertIsNone(self.read())
        self.host.launch(1)
        self.assertEqual(2, self.read().vcpus)

    def test_an_answer_for_another_guest_of_the_same_name_is_not_used(self):
        self.live_guests.update(
            GuestEvent(
                NAME,
                guests.parse(fake_host.domain_xml(1, vcpus=4))._replace(uuid=fake_host.uuid_of(9)),
                guests.runtime_file_identity(self.root, NAME, '.xml'),
            )
        )
        self.assertEqual((fake_host.uuid_of(1), 2), (self.read().uuid, self.read().vcpus))
