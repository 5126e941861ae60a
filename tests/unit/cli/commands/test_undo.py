# SPDX-License-Identifier: Apache-2.0
"""Test which part of a move is undone, and which guests are left alone."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.cli.commands import undo as undo_command
from nova_numa_pmc.cli.commands.undo import UndoError
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.state import history
from nova_numa_pmc.state.history import PromisedPlace

HOME, AWAY = PromisedPlace((0,), (0,)), PromisedPlace((1,), (1,))
FLOATING = PromisedPlace((), (), (), model.FLOATING)
SPANS = PromisedPlace((0, 1), (0, 1), (3, 5))


def entry(
    guest,
    before,
    after,
    number=1,
    kind=plan_records.MOVE,
    batch='b',
    result=history.DONE,
    mover='apply',
):
    return history.HistoryEntry(
        '%08x' % number,
        1000.0,
        mover,
        batch,
        kind,
        'u%d' % guest,
        'g%d' % guest,
        7,
        before,
        after,
        1.0,
        1.0,
        0,
        1.0,
        result,
        'why',
    )


def promise(number, place, since_ns=7):
    return model.Promise(
        'u%d' % number,
        'g%d' % number,
        vcpus=1,
        memory_bytes=1,
        since_ns=since_ns,
        started=True,
        **place._asdict(),
    )


def plan(entries, *promises, gone=(), overrides=None):
    guests = [
        model.Guest(
            promised.uuid, promised.name, 1, 1, override=(overrides or {}).get(promised.uuid, '')
        )
        for promised in promises
        if promised.uuid not in gone
    ]
    return undo_command.plan_undo(
        entries, guests, {promised.uuid: promised for promised in promises}
    )


class PlanTest(unittest.TestCase):
    def test_undo_goes_back_to_exactly_what_was_promised(self):
        for before, after, kind, mem_nodes in (
            (HOME, AWAY, plan_records.MOVE, (0,)),
            (SPANS, PromisedPlace((2,), (2,)), plan_records.MOVE, (0, 1)),
            (FLOATING, AWAY, plan_records.MOVE, ()),
            (PromisedPlace((0,), (1,)), PromisedPlace((1,), (1,)), plan_records.MOVE, ()),
            (PromisedPlace((0,), (1,)), PromisedPlace((0,), (0,)), plan_records.FETCH, (1,)),
            (PromisedPlace((0,), ()), HOME, plan_records.MOVE, ()),
            (PromisedPlace((0,), ()), AWAY, plan_records.MOVE, ()),
        ):
            with self.subTest(before=before, after=after):
                undo = plan([entry(1, before, after)], promise(1, after))
                [move] = undo.plan.moves
                self.assertEqual(
                    (kind, after.cpu_nodes, before.cpu_nodes, mem_nodes),
                    (move.kind, move.from_nodes, move.to_nodes, move.mem_nodes),
                )
                self.assertEqual({'u1': promise(1, before)}, undo.targets)
                self.assertEqual((), undo.left_alone)

    def test_guests_that_changed_since_are_left_and_the_reason_is_given(self):
        moved = entry(1, HOME, AWAY)
        for reason, undo in (
            ('ended', plan([moved])),
            ('ended', plan([moved], promise(1, AWAY), gone=['u1'])),
            ('restarted since', plan([moved], promise(1, AWAY, since_ns=8))),
            ('another place', plan([moved], promise(1, HOME))),
            (
                'did not change',
                plan([entry(1, HOME, HOME, kind=plan_records.WIDEN)], promise(1, HOME)),
            ),
            ('pinned', plan([moved], promise(1, AWAY), overrides={'u1': 'pin'})),
            ('ignored', plan([moved], promise(1, AWAY), overrides={'u1': 'ignore'})),
        ):
            with self.subTest(reason):
                self.assertEqual((), undo.plan.moves)
                self.assertEqual(1, len(undo.left_alone))
                self.assertIn(reason, undo.left_alone[0][1])

    def test_undo_brings_back_the_memory_that_a_failed_move_left_behind(self):
        split = entry(1, HOME, AWAY, result=history.SPLIT)._replace(moved_bytes=135 * 4096)
        undo = plan([split], promise(1, HOME))
        [move] = undo.plan.moves
        self.assertEqual(plan_records.FETCH, move.kind)
        self.assertEqual(((0,), 135 * 4096), (move.mem_nodes, move.to_move_bytes))
        self.assertEqual({'u1': promise(1, HOME)}, undo.targets)
        unmoved = split._replace(moved_bytes=0)
        self.assertEqual((), plan([unmoved], promise(1, HOME)).plan.moves)
        self.assertEqual([split], undo_command.entries_to_undo([split]))


class ChosenTest(unittest.TestCase):
    ENTRIES = [
        entry(1, HOME, AWAY, number=1, batch='a'),
        entry(2, HOME, AWAY, number=2, batch='b'),
        entry(3, HOME, AWAY, number=3, batch='b'),
        entry(4, HOME, AWAY, number=4, batch='b', result=history.TAKEN_BACK),
        entry(5, HOME, AWAY, number=5, batch='', mover='agent'),
        entry(6, HOME, AWAY, number=6, batch='c', result=history.REFUSED),
    ]

    def ids(self, *args):
        return [int(one.id, 16) for one in undo_command.entries_to_undo(self.ENTRIES, *args)]

    def test_undo_takes_the_last_batch_of_which_something_stands(self):
        self.assertEqual([2, 3], self.ids())

    def test_undo_takes_one_move_by_its_id(self):
        self.assertEqual([5], self.ids('00000005'))

    def test_undo_without_a_move_that_stands_is_an_error(self):
        for args in (
            ([],),
            (self.ENTRIES[4:],),
            (self.ENTRIES, '00000009'),
            (self.ENTRIES, '00000004'),
            (self.ENTRIES, '00000006'),
        ):
            with self.subTest(args), self.assertRaises(UndoError):
                undo_command.entries_to_undo(*args)
