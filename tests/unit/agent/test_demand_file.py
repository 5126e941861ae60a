# SPDX-License-Identifier: Apache-2.0
"""The agent's file of guests' demand, and what is published from it."""

import json
import os
import stat

from tests.cases.agent import LOG, AgentCase

MINUTE = 60


class RememberingCase(AgentCase):
    def setUp(self):
        super().setUp()
        self.library = os.path.join(self.root, 'var/lib')
        self.file = os.path.join(self.library, 'nova-numa-pmc/demand')
        self.at_s, self.ran_s = 0, {}
        self.agent = self.open_agent()

    def start(self, number, node=0):
        self.launch(number)
        self.promise(number, node)
        self.ran_s[number] = 0.0

    def minutes(self, count, wanted):
        """Let guests want cores for some minutes, each on the node of its promise.

        :param wanted: {number: (cores, node)}
        :returns: the last tick
        """
        self.tick(self.agent, self.at_s)
        for _ in range(count):
            self.at_s += MINUTE
            for number, (cores, node) in wanted.items():
                self.ran_s[number] += cores * MINUTE
                self.set_guest_times(number, self.ran_s[number], cpu=4 * node)
            ran = [
                sum(self.ran_s[number] for number, (_, node) in wanted.items() if node == at)
                for at in (0, 1)
            ]
            self.set_busy(*ran)
            tick = self.tick(self.agent, self.at_s)
        return tick

    def demand(self):
        publication = self.read_publication()
        return (
            [node.demand_cores for node in publication.view.nodes],
            [node.demand_now_cores for node in publication.view.nodes],
        )

    def again(self):
        """Restart the agent."""
        self.agent.close()
        self.agent = self.open_agent()

    def assert_demand(self, longer, now):
        for wanted, demand in zip((longer, now), self.demand()):
            for expected, other in zip(wanted, demand):
                self.assertAlmostEqual(expected, other, places=1)


class PublishTest(RememberingCase):
    def test_where_recording_demand_fails_the_interval_counts(self):
        self.start(1)
        self.minutes(1, {1: (2.0, 0)})
        self.agent._demand_file.histories = object()
        with self.assertLogs(LOG, 'WARNING') as logs:
            self.minutes(2, {1: (1.0, 0)})
        self.assertEqual(1, sum('recording guest demand' in text for text in logs.output))
        self.assert_demand((1.0, 0.0), (1.0, 0.0))


class FileTest(RememberingCase):
    def test_lasting_demand_outlasts_a_restart(self):
        self.start(1)
        self.minutes(10, {1: (2.0, 0)})
        self.again()
        self.minutes(1, {1: (0.0, 0)})
        longer, now = self.demand()
        self.assertGreater(longer[0], 1.7)
        self.assertEqual(0.0, now[0])
        self.assertEqual(0o644, stat.S_IMODE(os.stat(self.file).st_mode))

    def test_the_demand_file_is_written_every_few_minutes(self):
        self.start(1)
        self.minutes(4, {1: (2.0, 0)})
        self.assertFalse(os.path.exists(self.file))
        self.minutes(1, {1: (2.0, 0)})
        before = os.stat(self.file).st_ino, os.stat(self.file).st_mtime_ns
        self.minutes(4, {1: (2.0, 0)})
        self.assertEqual(before, (os.stat(self.file).st_ino, os.stat(self.file).st_mtime_ns))
        self.minutes(1, {1: (2.0, 0)})
        with open(self.file) as file:
            self.assertEqual(10 * MINUTE, json.load(file)['clock_s'])

    def test_a_damaged_demand_file_is_logged_once_and_replaced(self):
        for content in (b'', b'{', b'[]', b'{"schema":"1.0"}', b'\xff', b'[' * 100000):
            with self.subTest(content[:20]):
                os.makedirs(os.path.dirname(self.file), exist_ok=True)
                with open(self.file, 'wb') as file:
                    file.write(content)
                self.agent = self.open_agent()
                with self.assertLogs(LOG, 'WARNING') as logs:
                    self.minutes(6, {})
                (message,) = (
                    text for text in logs.output if 'guest demand is measured again' in text
                )
                self.assertIn(self.file, message)
                with open(self.file) as file:
                    self.assertEqual('3.0', json.load(file)['schema'])
