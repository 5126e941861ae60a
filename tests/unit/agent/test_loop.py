# SPDX-License-Identifier: Apache-2.0
"""Test the agent's loop: its timing, its handling of signals and its messages to systemd."""

import collections
import logging
import signal
import unittest
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.agent import loop
from nova_numa_pmc.agent.tick import Tick
from nova_numa_pmc.conf import agent as agent_conf, counters as counters_conf
from nova_numa_pmc.exceptions import OptionsError
from nova_numa_pmc.state import pause, publication

LOG = logging.getLogger('nova_numa_pmc.agent.loop')


class Agent:
    """An agent that records its calls; its move in progress and a pending one have these steps."""

    def __init__(self, clock, tick_s=0.0, steps=(), interval_s=5.0, pending=()):
        self.clock, self.tick_s, self.steps = clock, tick_s, collections.deque(steps)
        self.pending = collections.deque(pending)
        self.options = agent_conf.AgentOptions(
            None, counters_conf.CounterOptions(interval_s=interval_s)
        )
        self.ticks, self.reloaded, self.ended = [], [], 0

    def tick(self):
        self.ticks.append(self.clock.now_s)
        self.clock.now_s += self.tick_s
        return Tick(None)

    def handle_events(self):
        return None

    def step(self):
        steps = self.steps or self.pending
        return steps.popleft() if steps else None

    def stop_beginning_moves(self):
        self.pending.clear()

    def reload(self, options):
        self.reloaded.append(options)
        self.options = options

    def end_move(self):
        self.ended += 1
        self.steps.clear()


HOST_OPTIONS = agent_conf.read('/nonexistent').host_options


class Clock:
    """Time that passes while a caller waits; signals arrive at their times."""

    def __init__(self, signals=(), early=1.0):
        self.now_s, self.signals, self.waits = 0.0, collections.deque(signals), []
        self.early = early  # the part of a wait after which it returns

    def __call__(self):
        return self.now_s

    def wait(self, seconds):
        self.waits.append(seconds)
        end_s = self.now_s + max(self.early * seconds, min(seconds, 0.001))
        if self.signals and self.signals[0][0] <= end_s:
            at_s, number = self.signals.popleft()
            self.now_s = max(self.now_s, at_s)
            return number
        self.now_s = end_s
        return None


class ServiceTest(unittest.TestCase):
    def serve(
        self, signals, read_options=None, watchdog_s=None, write_metrics=None, early=1.0, **more
    ):
        self.clock, self.messages = Clock(signals, early), []
        self.agent = Agent(self.clock, **more)
        loop.AgentLoop(
            self.agent,  # type: ignore[arg-type]
            read_options,
            LOG,
            self.clock.wait,
            self.clock,
            lambda *texts: self.messages.append((self.clock.now_s, *texts)),
            watchdog_s,
            write_metrics,
        ).run()

    def when(self, text):
        return [message[0] for message in self.messages if text in message]

    def test_the_second_tick_comes_soon_and_the_others_at_the_interval(self):
        self.serve([(17, signal.SIGTERM)], tick_s=0.25)
        self.assertEqual([0, 1.25, 6.25, 11.25, 16.25], self.agent.ticks)
        self.assertEqual([1.5], self.when('READY=1'))
        self.assertEqual([17], self.when('STOPPING=1'))

    def test_a_whole_interval_passes_after_a_tick_longer_than_it(self):
        self.serve([(40, signal.SIGINT)], tick_s=7)
        self.assertEqual([0, 8, 20, 32], self.agent.ticks)

    def test_the_watchdog_is_notified_twice_in_its_time(self):
        self.serve([(300, signal.SIGTERM)], interval_s=100.0, watchdog_s=90)
        heard = self.when('WATCHDOG=1')
        self.assertLessEqual(max(b - a for a, b in zip(heard, heard[1:])), 45)

    def test_moves_go_on_between_ticks(self):
        self.serve([(7, signal.SIGTERM)], steps=[0.0, 0.5, 0.25])
        self.assertEqual([0, 1, 6], self.agent.ticks)
        self.assertEqual([0.0, 0.5, 0.25], self.clock.waits[:3])

    def test_events_of_guests_are_handled_when_they_are_due(self):
        attended = []

        def handle_events():
            attended.append(self.clock.now_s)
            return 0.2 if self.clock.now_s == 1 else None

        with mock.patch.object(Agent, 'handle_events', lambda agent: handle_events()):
            self.serve([(7, signal.SIGTERM)])
        self.assertEqual([0, 1, 1.2, 6], [at_s for at_s in attended if at_s != 7])

    def test_reload_reads_the_options_again_and_takes_the_new_interval_at_once(self):
        for interval_s in (5.0, 3600.0):
            with self.subTest(interval_s):
                new = agent_conf.AgentOptions(
                    HOST_OPTIONS, counters_conf.CounterOptions(interval_s=2.0)
                )
                self.serve(
                    [(3, signal.SIGHUP), (9, signal.SIGTERM)],
                    lambda: new,  # noqa: B023 -- called in this iteration
                    interval_s=interval_s,
                )
                self.assertEqual([new], self.agent.reloaded)
                self.assertEqual([0, 1, 3, 4, 6, 8], self.agent.ticks)
                self.assertEqual([3], self.when('RELOADING=1'))
                self.assertEqual([1, 3], self.when('READY=1'))

    def test_reload_without_new_counter_options_leaves_the_next_tick_at_its_time(self):
        new = agent_conf.AgentOptions(HOST_OPTIONS, counters_conf.CounterOptions(), reassert=False)
        self.serve([(3, signal.SIGHUP), (9, signal.SIGTERM)], lambda: new)
        self.assertEqual([new], self.agent.reloaded)
        self.assertEqual([0, 1, 6], self.agent.ticks)

    def test_a_reload_with_wrong_options_changes_nothing(self):
        def wrong():
            raise OptionsError('[agent] rebalance')

        with self.assertLogs(LOG, 'ERROR'):
            self.serve([(3, signal.SIGHUP), (9, signal.SIGTERM)], wrong)
        self.assertEqual([], self.agent.reloaded)
        self.assertEqual([1, 3], self.when('READY=1'))

    def test_sigterm_finishes_moves_or_gives_them_up_in_time(self):
        self.serve([(0, signal.SIGTERM)], steps=[0.5] * 12)
        self.assertEqual((0, 0), (self.agent.ended, len(self.agent.steps)))
        self.serve([(0, signal.SIGTERM)], steps=[1.0] * 1000)
        self.assertEqual(1, self.agent.ended)
        self.assertLessEqual(self.clock.now_s, 10)

    def test_sigterm_finishes_only_the_move_in_progress(self):
        self.serve([(0, signal.SIGTERM)], steps=[0.5] * 4, pending=[0.5] * 4)
        self.assertEqual((0, 0), (self.agent.ended, len(self.agent.steps)))
        self.assertEqual([0.5] * 4, self.clock.waits)


class StatusLineTest(unittest.TestCase):
    def test_the_status_line_has_guests_source_and_demand(self):
        nodes = (
            model.NodeView(0, 4.0, 4, 0, 0, 1.5, 3, 2.25),
            model.NodeView(1, 4.0, 4, 0, 0, 0.5, 1),
        )
        self.assertEqual(
            '2 guests; source: pages; cores wanted: node 0: 2.25 of 4, node 1: unknown of 4',
            loop.status_line(
                publication.Publication(0.0, 5.0, model.HostView(nodes, ()), 'pages')
            ),
        )
        self.assertIn('the journal says why', loop.status_line(None))
        self.assertTrue(
            loop.status_line(None, pause.Paused(7, 'firmware')).startswith('paused: firmware; ')
        )
