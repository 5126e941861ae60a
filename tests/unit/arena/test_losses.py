# SPDX-License-Identifier: Apache-2.0
"""A guest's loss follows from who shares its nodes, and both models rank hosts alike."""

import types
import unittest

import numpy as np

from tests.arena import losses as subject, parameters as p


def running(want, cpus, memory, vcpus=(4, 4), lines=(0.0, 0.0), waits=(True, True)):
    """Return guests on the two nodes of one host, from rows of parts."""
    running_ = object.__new__(subject.Running)
    running_.guests = np.arange(len(want))
    running_.want, running_.vcpus = np.array(want, float), np.array(vcpus)
    running_.lines, running_.waits = np.array(lines), np.array(waits)
    running_.far_ns = np.zeros(len(want))
    running_.hosts = np.zeros(len(want), int)
    running_.cpus, running_.memory = np.array(cpus, float).T, np.array(memory, float).T
    return running_


def host(cores=4.0, bandwidth=1e9):
    """Return a host of two nodes."""
    return types.SimpleNamespace(
        count=1, nodes=2, cores=np.full((1, 2), cores), bandwidth=np.full((1, 2), bandwidth)
    )


FIRST, SECOND = (1, 0), (0, 1)


class WaitingTest(unittest.TestCase):
    def test_waiting_agrees_with_a_sample_of_normal_demands(self):
        draws = np.random.default_rng(1).normal(0, 1.5, 200000)
        for excess in (-3.0, -1.0, 0.5, 2.0):
            with self.subTest(excess):
                waiting = subject.waiting(np.array([excess]), np.array([1.5]))[0]
                self.assertAlmostEqual(np.maximum(0, excess + draws).mean(), waiting, places=2)


class ByPressureTest(unittest.TestCase):
    def test_distance_costs_lines_times_latency_over_what_waits_together(self):
        one = running((2.0, 0.0), (FIRST, FIRST), (SECOND, FIRST), lines=(1e6, 0.0))
        one.far_ns[0] = 40.0
        lost, traffic = subject.by_pressure(one, host(cores=1000.0, bandwidth=1e15))
        self.assertAlmostEqual(2.0 * 1e6 * 40e-9 / p.MLP, lost[0], places=6)
        self.assertAlmostEqual(2.0 * 1e6 * 64, traffic[0, 1])

    def test_a_guest_loses_at_most_what_it_wants(self):
        one = running((2.0, 2.0), (FIRST, FIRST), (SECOND, SECOND), lines=(1e10, 1e10))
        lost, _ = subject.by_pressure(one, host(cores=1.0))
        self.assertTrue((lost <= one.want + 1e-9).all())


class ProcessorSharingTest(unittest.TestCase):
    def test_both_models_rank_crowded_and_level_hosts_alike(self):
        crowded = running((3.0, 3.0), (FIRST, FIRST), (FIRST, FIRST))
        level = running((3.0, 3.0), (FIRST, SECOND), (FIRST, SECOND))
        bursts = np.random.default_rng(1).gamma(5, 0.2, (2, 16))
        for name, lost in (
            ('pressure', lambda one: subject.by_pressure(one, host())[0].sum()),
            ('sharing', lambda one: subject.ProcessorSharing(host()).lost(one, bursts).sum()),
        ):
            with self.subTest(name):
                self.assertGreater(lost(crowded), 2 * lost(level))
