# SPDX-License-Identifier: Apache-2.0
"""``whatif`` chooses the hosts that Nova chooses, from the same databases."""

import contextlib
import io
import json
from unittest import mock

from nova_numa_pmc.cmd import rebalance
from nova_numa_pmc.scheduler import what_if
from tests.nova import base


class WhatIfTest(base.NovaTest):
    def whatif(self, *arguments):
        """Run the command with the Nova of this process; return (exit code, output)."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch.object(what_if, 'configure'):
            code = rebalance.main(['whatif', *arguments])
        return code, out.getvalue()

    def choices(self, *arguments):
        _, text = self.whatif('--vcpus', '1', '--memory', '512', '--json', *arguments)
        return json.loads(text)

    def test_the_command_chooses_the_host_that_nova_chooses(self):
        self.start_hosts('one', 'two', 'three')
        flavor = self.flavor()
        for one, two, three in (
            ((0.9, 0.9), (0.5, 0.9), (0.9, 0.2)),
            ((0.3, 0.9), (0.9, 0.9), (0.6, 0.6)),
            ((0.95, 0.9), (0.7, 0.75), (0.9, 0.85)),
        ):
            self.send(one=one, two=two, three=three)
            (choice,) = self.choices()['choices']
            self.assertEqual(choice['with'], self.host_of(self.boot(flavor)))

    def test_each_guest_counts_for_the_next_one(self):
        self.start_hosts('one', 'two')
        self.send(one=(0.6, 0.6), two=(0.6, 0.6))
        chosen = [choice['with'] for choice in self.choices('--count', '8')['choices']]
        self.assertEqual({'one', 'two'}, set(chosen))

    def test_without_our_weigher_pressure_does_not_count(self):
        self.flags(ram_weight_multiplier=3.0, group='filter_scheduler')
        self.start_hosts('busy', 'calm')
        self.boot(self.flavor(memory_mb=1024), host='calm')
        self.send(busy=(2.0, 2.0), calm=(0.1, 0.1))
        shown = self.choices()
        self.assertEqual([{'with': 'calm', 'without': 'busy'}], shown['choices'])
        self.assertEqual(1, shown['changed'])
        self.assertLess(shown['weights']['busy']['NUMAPressureWeigher'], -100)
        _, text = self.whatif('--vcpus', '1', '--memory', '512')
        self.assertRegex(text, r'(?m)^ +1  calm  busy$')
        self.assertIn('1 of 1 guests get another host with our weigher', text)

    def test_a_guest_for_which_no_host_has_room_is_a_problem(self):
        self.start_hosts('one', 'two')
        code, text = self.whatif('--vcpus', '500', '--memory', '512')
        self.assertEqual(1, code)
        self.assertIn('0 of 1 guests', text)
