# SPDX-License-Identifier: Apache-2.0
"""The agent survives changes of clocks, files, guests and directories that it does not expect."""

import errno
import os
import shutil
from unittest import mock

from nova_numa_pmc.agent.agent import Moment
from nova_numa_pmc.conf import opts
from tests.cases.agent import MIB, SECOND, START_NS, AgentCase
from tests.cases.rebalancing import RebalancingCase
from tests.fixtures import fake_host

HOUR = 3600
YEARS = 10 * 365 * 24 * HOUR


class ClockTest(AgentCase):
    def test_setting_the_time_of_day_changes_no_rate_and_no_promise(self):
        agent = self.open_agent()
        self.launch(1)
        self.promise(1, 0)
        with self.foreseen():
            self.tick(agent, 0)
            for tick_number, realtime_s in enumerate((1000, 1000 + YEARS, 5, 0, 1010), 1):
                self.set_busy(5 * tick_number, 0)
                self.tick(agent, 5 * tick_number, realtime_s=float(realtime_s))
                publication = self.read_publication()
                self.assertEqual((realtime_s, 5.0), (publication.taken_s, publication.interval_s))
                self.assertAlmostEqual(1.0, publication.view.nodes[0].demand_cores)
                self.assertEqual(1, len(self.promises()))

    def test_a_suspended_host_keeps_its_rates_and_drops_an_old_start(self):
        """CLOCK_BOOTTIME has advanced, but not CLOCK_MONOTONIC, and nothing has run."""
        agent = self.open_agent()
        self.launch(1)
        self.promise(1, 0)
        self.promise(2, 1, started=False, since_ns=START_NS)  # its start was in progress
        for at_s, slept_s, left in ((0, 0, 2), (5, 0, 2), (10, 600, 2), (15, 8 * HOUR, 1)):
            self.set_busy(at_s, 0)
            agent.tick(
                Moment(
                    at_s * SECOND, START_NS + (at_s + slept_s) * SECOND, 1000.0 + at_s + slept_s
                )
            )
            self.assertEqual(left, len(self.promises()))
        self.assertEqual(
            (5.0, 1.0),
            (
                self.read_publication().interval_s,
                self.read_publication().view.nodes[0].demand_cores,
            ),
        )


class SuspendedMoveTest(RebalancingCase):
    def test_time_asleep_moves_no_guest(self):
        """A suspended host's guests do not wait, so their suspension pays for no move."""
        agent = self.open_agent(opts.AUTO)
        for tick_number, slept_s in enumerate((0, 10 * HOUR, 20 * HOUR, 30 * HOUR)):
            agent.tick(
                Moment(
                    tick_number * 5 * SECOND,
                    START_NS + (tick_number * 5 + slept_s) * SECOND,
                    1000.0 + tick_number * 5 + slept_s,
                )
            )
            self.assertIsNone(agent.step())
        self.assertEqual([self.HOME] * 3, list(self.places().values()))


class VanishingTest(AgentCase):
    """Guests that start and end within a tick."""

    def at_each_stage(self, agent, act):
        """Yield (stage, time) for each stage; ``act`` is called once, just before that stage."""
        parts = (
            (agent._sampler, 'sample'),
            (agent._sampler._status_files, 'read'),
            (agent._keeper, 'read_promises'),
            (agent._keeper, 'keep'),
            (agent._keeper, 'plan_fetches'),
            (agent._rebalancer, 'plan_and_enqueue'),
        )
        for at, (owner, name) in enumerate(parts):
            self.before(owner, name, act)
            yield name, 1000 * at  # otherwise it would look like a fight over a cpuset

    @staticmethod
    def before(owner, name, act):
        """Call ``act`` before the next call of a method."""
        real = getattr(owner, name)

        def wrapped(*args, **named):
            setattr(owner, name, real)
            act()
            return real(*args, **named)

        setattr(owner, name, wrapped)

    def remove(self, number, tree):
        self.host.end(number)
        shutil.rmtree(self.host.path('proc/%d' % (4000 + number)), ignore_errors=True)
        shutil.rmtree(tree.scope, ignore_errors=True)

    def test_a_guest_that_ends_within_a_tick_leaves_nothing(self):
        agent, trees = self.open_agent(rebalance=opts.AUTO), []
        for name, at_s in self.at_each_stage(agent, lambda: self.remove(1, trees[-1])):
            with self.subTest(before=name), self.foreseen():
                trees.append(self.launch(1))
                self.promise(1, 0)
                other = self.launch(2)
                self.promise(2, 1)
                self.tick(agent, at_s)
                self.tick(agent, at_s + 5)
                self.assertEqual({fake_host.uuid_of(2)}, self.promises().keys())
                self.assertEqual('4-7', other.held())

    def test_a_guest_that_starts_within_a_tick_is_counted(self):
        agent = self.open_agent(rebalance=opts.AUTO)
        trees = []
        for name, at_s in self.at_each_stage(agent, lambda: trees.append(self.launch(1))):
            with self.subTest(before=name), self.foreseen():
                self.tick(agent, at_s)
                self.tick(agent, at_s + 5)
                self.assertEqual({fake_host.uuid_of(1)}, self.promises().keys())
                self.remove(1, trees.pop())
                self.tick(agent, at_s + 7)
                self.assertEqual({}, self.promises())

    def test_a_guest_that_starts_anew_within_a_tick_is_held_to_its_new_place(self):
        """Its name and uuid are the same, but the hook has promised another place."""
        agent = self.open_agent(rebalance=opts.AUTO)

        def again():
            self.remove(1, trees[-1])
            trees.append(self.launch(1))
            self.promise(1, 1, since_ns=START_NS - 1000 * SECOND)

        trees = [self.launch(1)]
        for name, at_s in self.at_each_stage(agent, again):
            with self.subTest(before=name), self.foreseen():
                self.promise(1, 0)
                self.tick(agent, at_s)
                self.tick(agent, at_s + 5)
                self.assertEqual('4-7', trees[-1].held())


class UnlistedTest(AgentCase):
    def test_a_guest_whose_groups_cannot_be_listed_is_held_once_they_can(self):
        agent = self.open_agent()
        self.promise(1, 1)
        tree = self.launch(1)
        self.tick(agent, 0)
        tree.set_all('0-7')
        full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        real_list = os.listdir

        def list_or_fail(path='.'):
            if path == tree.parent:
                raise full
            return real_list(path)

        with self.foreseen() as texts:
            with mock.patch.object(os, 'listdir', list_or_fail):
                self.tick(agent, 5)
                self.tick(agent, 10)
            self.assertEqual('0-7', tree.held())
            self.tick(agent, 15)
        self.assertEqual('4-7', tree.held())
        self.assertEqual(
            ['failed: %s: %s' % (tree.parent, full.strerror), 'succeeded again'],
            [
                text.partition('holding guest %s ' % fake_host.name_of(1))[2]
                for text in texts
                if 'holding guest' in text
            ],
        )


class LibvirtTest(AgentCase):
    def test_a_guest_whose_file_breaks_keeps_its_promise_and_place(self):
        agent = self.open_agent()
        self.promise(1, 1)
        tree = self.launch(1)
        self.tick(agent, 0)
        path = 'run/libvirt/qemu/%s.xml' % fake_host.name_of(1)
        with open(self.host.path(path), encoding='utf-8') as file:
            good = file.read()
        with self.foreseen():
            self.host.write(path, good[: len(good) // 2])
            self.tick(agent, 5)
            self.tick(agent, 10)
            self.assertEqual({fake_host.uuid_of(1)}, self.promises().keys())
            self.assertEqual('4-7', tree.held())
            tree.set_all('0-7')
            self.host.write(path, good)
            self.tick(agent, 15)
        self.assertEqual('4-7', tree.held())


class StateDirectoryTest(AgentCase):
    def setUp(self):
        super().setUp()
        self.promise(1, 1)
        self.tree = self.launch(1)
        self.agent = self.open_agent(rebalance=opts.AUTO)
        self.tick(self.agent, 0)
        self.tick(self.agent, 5)

    def assert_as_before(self, at_s):
        self.tick(self.agent, at_s)
        self.assertEqual((1,), self.promises()[fake_host.uuid_of(1)].cpu_nodes)
        self.assertEqual('4-7', self.tree.held())
        self.assertEqual(1000.0 + at_s, self.read_publication().taken_s)
        self.assertEqual(512 * MIB, self.read_publication().view.nodes[1].promised_bytes)

    def test_a_removed_or_emptied_state_directory_is_made_again(self):
        with self.foreseen():
            shutil.rmtree(self.directory)
            self.assert_as_before(10)
            os.rename(self.directory, self.directory + '.old')
            os.mkdir(self.directory, 0o755)
            self.assert_as_before(15)
            self.assert_as_before(20)

    def test_files_that_break_in_the_state_directory_are_written_anew(self):
        for at_s, name in (
            (10, 'promises'),
            (20, 'host'),
            (30, 'rebalance-memory'),
            (40, 'moves'),
        ):
            for data in (b'', b'\0' * 4096, b'{"schema": "9.0"}', b'[' * 100000):
                with self.subTest(name=name, data=data[:9]), self.foreseen():
                    path = os.path.join(self.directory, name)
                    with open(path, 'wb') as file:
                        file.write(data)
                    self.assert_as_before(at_s)
                    at_s += 1
