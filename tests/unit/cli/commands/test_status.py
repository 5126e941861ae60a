# SPDX-License-Identifier: Apache-2.0
"""Test how a guest's place is described for an operator."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.cli.commands import status
from tests.fixtures.model_records import GIB, guest

BOOTTIME_S = 1000.0
PROMISE = model.Promise(
    'uuid-g', 'g', (0,), (0,), 2, GIB, since_ns=int((BOOTTIME_S - 300) * 1e9), started=True
)


def standing(promise=PROMISE, one=None, held=(0,), why_fixed='', **fields):
    return status.GuestStatus(
        one or guest('g', 2, GIB), promise, held, {0: GIB}, 1.0, why_fixed, **fields
    )


def why(*arguments, **fields):
    return status.why(standing(*arguments, **fields), 0.0, BOOTTIME_S)


class WhyTest(unittest.TestCase):
    def test_why_says_what_has_placed_a_guest_where_we_have_not(self):
        for origin, one, text in (
            (model.BY_OTHERS, None, 'placed by others'),
            (
                model.PLACED,
                guest('g', placed_by=('vcpupin', 'numatune')),
                'placed by others: vcpupin, numatune',
            ),
            (model.FLOATING, None, 'floats'),
        ):
            with self.subTest(text):
                self.assertEqual(text, why(PROMISE._replace(origin=origin), one))
        self.assertEqual('floats', why(PROMISE._replace(cpu_nodes=()), held=()))

    def test_why_says_that_a_guest_is_held_elsewhere_than_promised(self):
        for held, text in (
            ((), '; widened from node 0'),
            ((0, 1), '; widened from node 0'),
            ((1,), '; not on node 0'),
            (None, ''),
        ):
            with self.subTest(held):
                is_held = None if held is None else False
                self.assertEqual('placed 5 min ago' + text, why(held=held, is_held=is_held))

    def test_why_of_a_guest_without_a_promise_is_its_problem(self):
        self.assertEqual('its groups: gone', why(None, problem='its groups: gone'))
        self.assertEqual('no promise', why(None))
