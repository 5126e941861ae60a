# SPDX-License-Identifier: Apache-2.0
"""Compute two tables of "KVM Tuning @ eBay" (2013), as in doc/source/reference/counters.rst."""

import json
import unittest

from nova_numa_pmc.core import rates
from nova_numa_pmc.core.rates import CounterDelta
from nova_numa_pmc.host.perf import events
from tests.fixtures.checkout import TOP

DECK = TOP / 'tests/fixtures/deck'
LOCAL_NS, REMOTE_NS, HZ = 60.0, 100.0, 3.07e9


class TestDeck(unittest.TestCase):
    def setUp(self):
        self.before = self.read('unpinned')
        self.after = self.read('pinned')
        self.codes = {
            event.role: 'r%x' % events.register_code(event)
            for event in events.select_events(cpu='westmere-dp').events
        }

    @staticmethod
    def read(name):
        with open(DECK / (name + '.json'), encoding='utf-8') as file:
            table = json.load(file)
        elapsed_ns = int(table['elapsed_sec'] * 1e9)
        return {
            name: rates.per_sec(CounterDelta(value, 1.0), elapsed_ns)
            for name, value in table['counts'].items()
        }

    def per_sec(self, table, role):
        return table[self.codes[role]]

    def test_instructions_per_cycle_are_those_of_the_deck(self):
        for table, ipc in ((self.before, 0.42), (self.after, 0.47)):
            cpi = rates.cycles_per_instruction(table['cpu-cycles'], table['instructions'], 0.97)
            self.assertEqual(ipc, round(1 / cpi, 2))

    def test_each_ratio_of_the_deck_is_of_its_event(self):
        for name, ratio in (
            (self.codes['remote_dram'], 56.0),
            ('node-load-misses', 18.7),
            ('node-store-misses', 18.0),
        ):
            # The windows differ by a third of a millisecond.
            self.assertAlmostEqual(ratio, self.before[name] / self.after[name], delta=0.06)

    def test_the_remote_share_of_dram_loads_is_that_of_the_deck(self):
        shares = [
            rates.remote_ratio(
                self.per_sec(table, 'local_dram'), self.per_sec(table, 'remote_dram')
            )
            for table in (self.before, self.after)
        ]
        self.assertAlmostEqual(0.528, shares[0], places=3)
        self.assertAlmostEqual(0.0098, shares[1], places=4)

    def test_the_loss_by_distance_follows_from_the_decks_counts(self):
        cores = []
        for table in (self.before, self.after):
            remote = self.per_sec(table, 'remote_dram')
            cores.append(remote * (REMOTE_NS - LOCAL_NS) * 1e-9)
        self.assertAlmostEqual(0.617, cores[0], places=3)
        self.assertAlmostEqual(0.011, cores[1], places=3)
        busy = self.before['cpu-cycles'] / HZ
        self.assertAlmostEqual(0.026, (cores[0] - cores[1]) / busy, places=3)
