# SPDX-License-Identifier: Apache-2.0
"""Between two ticks, guests with events are corrected; a tick corrects all of them."""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.agent.tick import Moment
from nova_numa_pmc.state import overrides
from tests.cases.agent import LOG, SECOND, START_NS, AgentCase
from tests.fixtures import fake_host
from tests.fixtures.clock import Clock
from tests.fixtures.listener import Listener


class HandleEventsCase(AgentCase):
    """Guests 1 and 2 were placed on node 1, and a tick holds them there."""

    def setUp(self):
        super().setUp()
        self.listener, self.clock = Listener(), Clock()
        self.agent = self.open_agent(listener=self.listener, clock=self.clock)
        self.trees = {}
        for number in (1, 2):
            self.promise(number, 1)
            self.trees[number] = self.launch(number)
        self.tick(self.agent, 0)

    def handle_events(self, *numbers):
        """Announce these guests and handle the events; return how long it first wanted to wait."""
        self.listener.announce(*numbers)
        now = Moment(SECOND, START_NS + SECOND, 1001.0)
        first = wait_s = self.agent.handle_events(now)
        while wait_s is not None:
            self.clock.now_s += wait_s
            wait_s = self.agent.handle_events(now)
        return first

    def cpus(self, number):
        return self.trees[number].held()

    def reset(self, number):
        self.trees[number].set_all('0-7')


class HandleEventsTest(HandleEventsCase):
    def test_a_cpuset_that_was_reset_is_written_before_the_next_tick(self):
        self.reset(1)
        self.assertAlmostEqual(0.2, self.handle_events(1))
        self.assertEqual('4-7', self.cpus(1))

    def test_guests_that_could_not_be_read_at_an_event_count_as_failing_until_a_tick_reads_them(
        self,
    ):
        pin = overrides.Override(fake_host.uuid_of(1), model.PIN, fake_host.name_of(1))
        overrides.put(pin, self.root)
        path = os.path.join(self.root, overrides.DIRECTORY, overrides.FILE)
        os.chmod(path, 0o666)
        self.handle_events(1)
        self.assertEqual(1, self.tick(self.agent, 5).failing_count)
        os.chmod(path, 0o644)
        self.assertEqual(0, self.tick(self.agent, 10).failing_count)

    def test_a_guest_that_ends_and_one_that_starts_are_counted_at_once(self):
        self.host.end(1)
        self.trees[3] = self.launch(3)
        with self.assertLogs(LOG, 'INFO'):
            self.handle_events(1, 3)
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
            self.handle_events(3)
            self.assertEqual({fake_host.uuid_of(number) for number in known}, set(self.promises()))

    def test_a_guest_that_could_not_be_held_is_held_in_the_next_tick(self):
        self.host.write('proc/4002/cgroup', '0::/system.slice/other.service\n')
        self.agent._keeper._known.clear()
        self.reset(2)
        with self.assertLogs(LOG, 'WARNING'):
            self.tick(self.agent, 5)
        self.trees[2] = self.host.launch(2)
        self.reset(2)
        self.tick(self.agent, 10)
        self.assertEqual('4-7', self.cpus(2))
