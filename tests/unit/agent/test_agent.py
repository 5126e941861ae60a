# SPDX-License-Identifier: Apache-2.0
"""Test ticks of the agent on a host whose guests start, run and end."""

import logging
import os
import random
import shutil
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.agent.agent import Moment
from nova_numa_pmc.conf import opts
from nova_numa_pmc.host import files, guests, topology
from tests.cases.agent import LOG, MIB, SECOND, START_NS, AgentCase
from tests.fixtures import fake_host


class PublishTest(AgentCase):
    def test_the_publication_contains_load_promises_and_time(self):
        agent = self.open_agent()
        for number in (1, 2):
            self.launch(number)
            self.promise(number, 0)
        self.assertIsNone(self.tick(agent, 0).publication)  # no rates yet
        self.assertFalse(os.path.exists(os.path.join(self.directory, 'host')))
        for number in (1, 2):
            self.set_guest_times(number, 5)
        self.set_busy(10, 0)
        self.tick(agent, 5)
        publication = self.read_publication()
        self.assertEqual(
            (1005.0, 5.0, 'pages'),
            (publication.taken_s, publication.interval_s, publication.source),
        )
        busy, idle = publication.view.nodes
        self.assertEqual((2.0, 0.0), (busy.demand_cores, idle.demand_cores))
        self.assertEqual((1024 * MIB, 0), (busy.promised_bytes, idle.promised_bytes))
        self.assertEqual((2, 4), (busy.guests, busy.vcpus))
        self.assertEqual(
            (files.read_boot_id(self.root), START_NS + 5 * SECOND),
            (publication.boot_id, publication.taken_ns),
        )
        floating = publication.pools[0]
        self.assertEqual([2.0, 0.0], [load.demand_cores for _, load in floating.loads])
        self.assertEqual(model.DemandHistory(), publication.history)  # too young to be known
        self.assertEqual(frozenset(range(8)), floating.cpus)

    def test_the_publication_names_the_guests_that_it_includes(self):
        agent = self.open_agent()
        self.launch(1)
        self.promise(1, 0)
        self.promise(2, 1, started=False, since_ns=START_NS)  # by the hook, at its start
        self.launch(3)  # without the hook
        self.launch(4, xml=b'<domain>')  # neither, and its status file is cut short
        self.tick(agent, 0)
        with self.foreseen():
            self.tick(agent, 5)
        published = self.read_publication()
        self.assertEqual(tuple(map(fake_host.uuid_of, (1, 2, 3))), published.uuids)
        self.assertEqual(3, round(sum(node.guests for node in published.view.nodes)))

    def test_what_guests_wanted_is_published_to_the_scheduler_and_the_hook(self):
        agent = self.open_agent()
        self.launch(1)
        self.promise(1, 0)
        self.tick(agent, 0)
        for at_s in (200, 400):
            self.set_guest_times(1, at_s)
            self.set_busy(at_s, 0)
            self.tick(agent, at_s)
        history = self.read_publication().history
        self.assertEqual(1, history.guests)
        self.assertGreater(history.cores_per_vcpu_sum, 0)


class WithoutSampleTest(AgentCase):
    """Ticks between two samples, on a host of many guests."""

    def tick_only(self, agent, at_s):
        moment = Moment(at_s * SECOND, START_NS + at_s * SECOND, 1000.0 + at_s)
        return agent.tick(moment, with_sample=False)

    def test_a_guest_is_held_and_counted_before_it_is_measured(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        self.tick(agent, 5)
        tree = self.launch(1)
        self.promise(1, 1)
        self.launch(2)
        ticked = self.tick_only(agent, 10)
        self.assertEqual('4-7', tree.read(tree.vcpus[0], 'cpuset.cpus'))
        self.assertEqual(set(map(fake_host.uuid_of, (1, 2))), self.promises().keys())
        self.assertEqual(
            (None, None, 0), (ticked.sample, ticked.publication, ticked.failing_count)
        )
        self.assertEqual(1005.0, self.read_publication().taken_s)

    def test_the_next_sample_has_the_mean_of_those_that_were_left_out(self):
        self.launch(1)
        self.promise(1, 0)
        every, third = self.open_agent(), self.open_agent()
        for agent in (every, third):
            self.tick(agent, 0)
        cores = []
        for at_s, run_s, wait_s in ((5, 5, 1), (10, 5, 1), (15, 7, 2)):
            self.set_guest_times(1, run_s, wait_s)
            [guest] = self.tick(every, at_s).sample.guests
            cores.append((guest.cores, guest.waiting_cores))
            if at_s < 15:
                self.tick_only(third, at_s)
        [guest] = self.tick(third, 15).sample.guests
        for mean, parts in zip((guest.cores, guest.waiting_cores), zip(*cores)):
            self.assertAlmostEqual(sum(parts) / 3, mean)

    def test_a_move_before_a_tick_without_sample_is_still_in_the_interval(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        agent._executor._has_moved = True
        self.tick_only(agent, 5)
        self.assertTrue(self.tick(agent, 10).guests_moved)
        self.assertFalse(self.tick(agent, 15).guests_moved)

    def test_a_host_that_cannot_be_read_is_a_problem(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        self.host.write('sys/devices/system/cpu/online', 'all')
        with self.assertLogs(LOG, 'WARNING'):
            self.assertIsNone(self.tick_only(agent, 5).host)
        self.host.write('sys/devices/system/cpu/online', '0-7')
        self.assertIsNotNone(self.tick_only(agent, 10).host)


class OneReadingTest(AgentCase):
    def test_a_tick_reads_the_topology_and_the_status_files_once(self):
        self.launch(1)
        agent = self.open_agent(rebalance=opts.DRY_RUN)
        self.tick(agent, 0)
        with (
            mock.patch.object(topology, 'read', wraps=topology.read) as read_topology,
            mock.patch.object(
                guests, 'without_full_pins', wraps=guests.without_full_pins
            ) as read_guests,
        ):
            last = self.tick(agent, 5)
        self.assertEqual((1, 1), (read_topology.call_count, read_guests.call_count))
        self.assertEqual([fake_host.uuid_of(1)], [guest.uuid for guest in last.guests])
        self.assertEqual(2, len(last.host.nodes))


class ProblemTest(AgentCase):
    def test_a_state_directory_that_cannot_be_trusted_stops_publishing_only(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        os.makedirs(self.directory, exist_ok=True)
        os.chmod(self.directory, 0o777)
        with self.assertLogs(LOG, 'WARNING') as logs:
            for at_s in (5, 10):
                self.assertIsNotNone(self.tick(agent, at_s).sample)
        self.assertEqual(1, sum(' failed: ' in text for text in logs.output))
        os.chmod(self.directory, 0o755)
        self.tick(agent, 15)
        self.assertEqual(1015.0, self.read_publication().taken_s)

    def test_a_held_lock_delays_the_update_of_promises_only(self):
        agent = self.open_agent()
        self.promise(1, 0)
        self.launch(1)
        self.tick(agent, 0)
        self.host.end(1)
        with self.locked():
            with self.assertLogs(LOG, 'WARNING'):
                self.tick(agent, 5)
            self.assertEqual(1005.0, self.read_publication().taken_s)
            self.assertEqual(1, len(self.promises()))
        self.tick(agent, 10)
        self.assertEqual({}, self.promises())


class PromisesTest(AgentCase):
    def test_promises_follow_the_guests(self):
        agent = self.open_agent()
        self.promise(1, 0)
        self.promise(2, 1, started=False, since_ns=START_NS)
        self.launch(3)
        with self.assertLogs(LOG, 'INFO') as logs:
            self.tick(agent, 0)
            self.tick(agent, 5)
        self.assertEqual({fake_host.uuid_of(2), fake_host.uuid_of(3)}, self.promises().keys())
        self.assertEqual(2, sum('guest ' in text for text in logs.output))
        messages = ' '.join(logs.output)
        self.assertIn(
            'guest %s: its promise of 512 MiB was dropped' % fake_host.name_of(1), messages
        )
        self.assertIn('guest %s: runs without a promise' % fake_host.name_of(3), messages)

    def test_the_lock_is_not_taken_for_a_guest_that_cannot_be_read(self):
        agent = self.open_agent()
        self.launch(1, xml=b'<domain/>')
        self.tick(agent, 0)
        with self.locked(), self.assertLogs(LOG, 'WARNING') as logs:
            self.tick(agent, 5)
            self.assertNotIn('locked by another process', ' '.join(logs.output))
            self.launch(1)
            self.tick(agent, 61)
        self.assertIn('locked by another process', logs.output[-1])
        self.assertEqual(1061.0, self.read_publication().taken_s)


class SoakTest(AgentCase):
    """Guests start, end, load and fail at random; none is lost, and nothing is left over."""

    def test_hundreds_of_ticks_lose_no_guest_and_leave_none_over(self):
        chance, running, trees = random.Random(11), set(), {}
        agent = self.open_agent(rebalance=opts.DRY_RUN)
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        for tick_number in range(300):
            for _ in range(chance.randrange(3)):
                number = chance.randrange(1, 9)
                if number in running:
                    running.remove(number)
                    self.end(number, chance)
                else:
                    running.add(number)
                    trees[number] = self.launch(number)
                    if chance.random() < 0.8:  # otherwise the hook was not installed
                        self.promise(number, chance.randrange(2))
            for number in running:
                self.set_guest_times(
                    number, 5 * tick_number * chance.random(), cpu=chance.randrange(8)
                )
                if chance.random() < 0.1:
                    trees[number].set_all(chance.choice(('0-7', '', '5')))
            broken = chance.random() < 0.1
            cpulist = 'sys/devices/system/node/node1/cpulist'
            self.host.write(cpulist, 'x\n' if broken else '4-7\n')
            publication = self.tick(agent, 5 * tick_number).publication
            if not broken:
                self.assertEqual(
                    {fake_host.uuid_of(number) for number in running}, self.promises().keys()
                )
            if publication:
                self.assertEqual(
                    len(running),
                    round(sum(node.guests for node in self.read_publication().view.nodes)),
                )
        self.assertLessEqual(len(agent._problem_log._failing) + len(agent._keeper._known), 2 * 8)

    def end(self, number, chance):
        """End a guest, and its process at random before or after the tick."""
        self.host.end(number)
        if chance.random() < 0.5:
            shutil.rmtree(self.host.path('proc/%d' % (4000 + number)))
