# SPDX-License-Identifier: Apache-2.0
"""The rebalancer's state survives a restart, and nothing else is mistaken for it."""

import json
import unittest

from nova_numa_pmc.core.rebalance import planner_state_format
from nova_numa_pmc.core.rebalance.planner_state import (
    Caution,
    PlannerState,
    Regret,
    Trial,
    TrialPart,
)

FULL = PlannerState(
    (
        Regret((('uuid-a', (1,), (1,)), ('uuid-b', (0,), (0,))), 12.5),
        Regret((('uuid-c', (0, 1), ()),), 0.25),
    ),
    (Trial((TrialPart('uuid-a', (0,), ((0, 0.75), (1, 0.25)), (1,)),), 5.0, -1.0, 100.0),),
    (Caution('uuid-a', 4.0, 100.0),),
    (100.0, 105.0),
    (90.0,),
    1 << 30,
)


class RegretsFormatTest(unittest.TestCase):
    def test_a_memory_is_read_as_it_was_written(self):
        for state in (PlannerState(), FULL):
            data = json.loads(json.dumps(planner_state_format.to_data(state)))
            self.assertEqual(state, planner_state_format.from_data(data))

    def test_a_newer_writer_may_add_fields(self):
        data = dict(planner_state_format.to_data(FULL), more='?')
        data['regrets'] = [dict(regret, why='?') for regret in data['regrets']]
        self.assertEqual(FULL, planner_state_format.from_data(data))

    def test_malformed_data_of_a_memory_is_refused(self):
        good = planner_state_format.to_data(FULL)
        for name, value in (
            ('version', 2),
            ('regrets', None),
            ('regrets', [{}]),
            ('regrets', [{'key': [['a']], 'core_sec': 1}]),
            ('trials', [[]]),
            ('cautions', [{'uuid': 'a', 'factor': 'x'}]),
            ('moved_s', [float('nan')]),
            ('owed_bytes', float('inf')),
            ('changed_s', [True]),
            ('owed_bytes', None),
        ):
            with self.subTest(name=name, value=value), self.assertRaises(ValueError):
                planner_state_format.from_data(dict(good, **{name: value}))
        for data in (None, [], 'x', {}):
            with self.subTest(data), self.assertRaises(ValueError):
                planner_state_format.from_data(data)
