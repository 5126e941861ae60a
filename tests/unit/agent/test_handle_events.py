# SPDX-License-Identifier: Apache-2.0
"""Between two ticks, guests with events are corrected, and no other guests are read."""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.agent import read_schedule
from nova_numa_pmc.agent.tick import Moment
from nova_numa_pmc.state import overrides
from tests.cases.agent import LOG, SECOND, START_NS, AgentCase
from tests.fixtures import fake_host
from tests.fixtures.clock import Clock


class HandleEventsCase(AgentCase):
    """Guests 1 and 2 were placed on node 1, and a tick holds them there."""

    def setUp(self):
        super().setUp()
        self.agent, self.clock = self.open_agent(), Clock()
        self.agent._guest_events._clock = self.clock
        self.trees = {}
        for number in (1, 2):
            self.promise(number, 1)
            self.trees[number] = self.launch(number)
        self.tick(self.agent, 0)
        self.handle_events()  # what the tick itself has written

    def handle_events(self):
        """Handle events until there is nothing to do; return how long it first wanted to wait."""
        now = Moment(SECOND, START_NS + SECOND, 1001.0)
        first = wait_s = self.agent.handle_events(now)
        while wait_s is not None:
            self.clock.now_s += wait_s
            wait_s = self.agent.handle_events(now)
        return first

    def cpus(self, number):
        return self.trees[number].held()

    def reset(self, number, unheard=False):
        tree = self.trees[number]
        for group in (tree.emulator, *tree.vcpus) if unheard else ():
            # The kernel's own files cannot be replaced in this way.
            tree.write_file(os.path.join(group, 'new'), '0-7\n')
            os.rename(os.path.join(group, 'new'), os.path.join(group, 'cpuset.cpus'))
        if not unheard:
            tree.set_all('0-7')


class HandleEventsTest(HandleEventsCase):
    def test_no_names_are_kept_while_guests_are_not_held_and_all_are_read_afterwards(self):
        held = self.agent.options
        self.agent.reload(held._replace(reassert=False))
        self.reset(1)
        self.reset(2, unheard=True)
        self.tick(self.agent, 5)
        self.assertEqual(set(), self.agent._read_schedule._changed)
        self.agent.reload(held)
        self.tick(self.agent, 10)
        self.assertEqual(['4-7', '4-7'], [self.cpus(number) for number in (1, 2)])

    def test_a_cpuset_that_was_reset_is_written_before_the_next_tick(self):
        self.reset(1)
        self.assertAlmostEqual(0.2, self.handle_events())
        self.assertEqual('4-7', self.cpus(1))

    def test_guests_that_could_not_be_read_at_an_event_count_as_failing_until_a_tick_reads_them(
        self,
    ):
        pin = overrides.Override(fake_host.uuid_of(1), model.PIN, fake_host.name_of(1))
        overrides.put(pin, self.root)
        path = os.path.join(self.root, overrides.DIRECTORY, overrides.FILE)
        os.chmod(path, 0o666)
        self.reset(1)
        self.handle_events()
        self.assertEqual(1, self.tick(self.agent, 5).failing_count)
        os.chmod(path, 0o644)
        self.assertEqual(0, self.tick(self.agent, 10).failing_count)

    def test_a_guest_that_ends_and_one_that_starts_are_counted_at_once(self):
        self.host.end(1)
        self.trees[3] = self.launch(3)
        with self.assertLogs(LOG, 'INFO'):
            self.handle_events()
        self.assertEqual({fake_host.uuid_of(2), fake_host.uuid_of(3)}, set(self.promises()))

    def test_a_guest_whose_file_comes_before_its_process_is_counted(self):
        path = 'run/libvirt/qemu/%s.xml' % fake_host.name_of(3)
        self.launch(3, status=False)
        for pid, known in ((b'0', {1, 2}), (b'4003', {1, 2, 3})):
            self.host.write(
                path,
                b"<domstatus state='paused' pid='%s'>\n%s</domstatus>\n"
                % (pid, fake_host.domain_xml(3)),
            )
            self.handle_events()
            self.assertEqual({fake_host.uuid_of(number) for number in known}, set(self.promises()))

    def test_vcpus_that_were_plugged_are_promised_at_once(self):
        self.host.write(
            'run/libvirt/qemu/%s.xml' % fake_host.name_of(1),
            b"<domstatus state='running' pid='4001'>\n%s</domstatus>\n"
            % fake_host.domain_xml(1, vcpus=3),
        )
        with self.assertLogs(LOG, 'INFO'):
            self.handle_events()
        self.assertEqual(3, self.promises()[fake_host.uuid_of(1)].vcpus)

    def test_a_pin_by_libvirt_is_logged_at_once(self):
        self.host.write(
            'run/libvirt/qemu/%s.xml' % fake_host.name_of(1),
            b"<domstatus state='running' pid='4001'>\n%s</domstatus>\n"
            % fake_host.domain_xml(
                1, extra="  <cputune><vcpupin vcpu='0' cpuset='2'/></cputune>\n"
            ),
        )
        with self.assertLogs(LOG, 'INFO') as logs:
            self.handle_events()
        self.assertIn('now placed by others: vcpupin', logs.output[0])

    def test_handling_events_measures_and_publishes_nothing(self):
        self.reset(1)
        self.handle_events()
        self.assertFalse(os.path.exists(os.path.join(self.directory, 'host')))

    def test_without_events_nothing_is_due(self):
        self.assertIsNone(self.handle_events())


class ReadScheduleTest(HandleEventsCase):
    def test_a_tick_reads_the_guests_of_which_something_was_heard(self):
        for number, unheard in ((1, False), (2, True)):
            self.reset(number, unheard)
        self.tick(self.agent, 5)
        self.assertEqual(('4-7', '0-7'), (self.cpus(1), self.cpus(2)))

    def test_every_guest_is_read_in_a_full_check(self):
        self.reset(2, unheard=True)
        self.tick(self.agent, read_schedule.FULL_CHECK_S - 1)
        self.assertEqual('0-7', self.cpus(2))
        self.tick(self.agent, read_schedule.FULL_CHECK_S)
        self.assertEqual('4-7', self.cpus(2))

    def test_a_guest_that_was_promised_another_place_is_read(self):
        self.reset(2, unheard=True)
        self.promise(2, 0)
        self.tick(self.agent, 5)
        self.assertEqual('0-3', self.cpus(2))

    def test_a_guest_that_cannot_be_watched_is_read(self):
        self.agent._guest_events._inotify.close()
        self.agent._guest_events._inotify = None
        self.reset(2, unheard=True)
        self.tick(self.agent, 5)
        self.assertEqual('4-7', self.cpus(2))

    def test_a_guest_that_failed_is_read_again(self):
        self.host.write('proc/4002/cgroup', '0::/system.slice/other.service\n')
        groups = self.agent._reassertion._groups
        for key in list(groups):
            del groups[key]
        self.reset(2)
        with self.assertLogs(LOG, 'WARNING'):
            self.tick(self.agent, 5)
        self.trees[2] = self.host.launch(2)
        self.reset(2, unheard=True)
        self.agent._guest_events.pop_names()
        self.tick(self.agent, 10)
        self.assertEqual('4-7', self.cpus(2))
