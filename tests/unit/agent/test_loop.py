# SPDX-License-Identifier: Apache-2.0
"""Test the agent's loop: its timing, its handling of signals and its messages to systemd."""

import collections
import signal
import unittest

from nova_numa_pmc import model
from nova_numa_pmc.agent import agent
from nova_numa_pmc.agent.agent import Tick
from nova_numa_pmc.conf import opts
from nova_numa_pmc.state import pause, publication


class Agent:
    """An agent that records its calls; its move in progress has these steps."""

    def __init__(self, clock, tick_s=0.0, steps=(), interval_s=5.0, guests=0):
        self.clock, self.tick_s, self.steps = clock, tick_s, collections.deque(steps)
        self.options = opts.AgentOptions(None, opts.CounterOptions(interval_s=interval_s))
        self.ticks, self.samples, self.ended = [], [], 0
        self.guests = (None,) * guests

    def tick(self, with_sample):
        self.ticks.append(self.clock.now_s)
        self.samples += [self.clock.now_s] * with_sample
        self.clock.now_s += self.tick_s
        return Tick(None, guests=self.guests)

    def step(self):
        return self.steps.popleft() if self.steps else None

    def end_move(self):
        self.ended += 1


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
    def serve(self, signals, watchdog_s=None, early=1.0, **more):
        self.clock, self.messages, self.written = Clock(signals, early), [], 0
        self.agent = Agent(self.clock, **more)
        agent.run(
            self.agent,  # type: ignore[arg-type]
            self.clock.wait,
            self.count,
            self.clock,
            lambda *texts: self.messages.append((self.clock.now_s, *texts)),
            watchdog_s,
        )

    def count(self, tick, duration_s):
        self.written += 1

    def when(self, text):
        return [message[0] for message in self.messages if text in message]

    def test_the_second_tick_comes_soon_and_the_others_at_the_interval(self):
        self.serve([(17, signal.SIGTERM)], tick_s=0.25)
        self.assertEqual([0, 1.25, 6.25, 11.25, 16.25], self.agent.ticks)
        self.assertEqual([1.5], self.when('READY=1'))
        self.assertEqual([17], self.when('STOPPING=1'))

    def test_ticks_are_rarer_with_many_guests(self):
        for guests, interval_s in ((80, 5), (100, 6), (1000, 10)):
            self.serve([(50, signal.SIGTERM)], guests=guests)
            self.assertEqual([0, 1, 1 + interval_s], self.agent.ticks[:3])

    def test_samples_are_rarer_still_so_that_they_cost_a_bounded_part_of_a_core(self):
        for guests, option_s, interval_s in (
            (40, 5, 5),
            (60, 5, 10),
            (100, 5, 18),
            (200, 5, 30),
            (1000, 5, 30),
            (1000, 60, 60),
        ):
            self.serve([(200, signal.SIGTERM)], guests=guests, interval_s=option_s)
            expected = [0, 1, 1 + interval_s, 1 + 2 * interval_s]
            self.assertEqual(expected, self.agent.samples[:4], guests)
            self.assertEqual(len(self.agent.samples), self.written)
            cost_s = 0.37e-3 * guests
            self.assertLessEqual(cost_s / interval_s, 0.003 if guests <= 200 else 0.015)

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

    def test_a_signal_ends_the_move_in_progress(self):
        self.serve([(1.5, signal.SIGTERM)], steps=[0.5] * 12)
        self.assertEqual((1, [0, 1]), (self.agent.ended, self.agent.ticks))


class StatusLineTest(unittest.TestCase):
    def test_the_status_line_has_guests_source_and_demand(self):
        nodes = (
            model.NodeView(0, 4.0, 4, 0, 0, 1.5, 3, 2.25),
            model.NodeView(1, 4.0, 4, 0, 0, 0.5, 1),
        )
        self.assertEqual(
            '2 guests; source: pages; cores wanted: node 0: 2.25 of 4, node 1: unknown of 4',
            agent.status_line(
                publication.Publication(0.0, 5.0, model.HostView(nodes, ()), 'pages')
            ),
        )
        self.assertIn('the journal says why', agent.status_line(None))
        self.assertTrue(
            agent.status_line(None, pause.Paused(7, 'firmware')).startswith('paused: firmware; ')
        )
