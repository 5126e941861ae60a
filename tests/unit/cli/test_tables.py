# SPDX-License-Identifier: Apache-2.0
"""Tables have each figure of nodes, guests and devices, and a dash for what is unknown."""

import unittest

from nova_numa_pmc.cli import tables
from nova_numa_pmc.core.measurements import GuestSample, NodeSample
from tests.fixtures import samples


def row(table, number=0):
    return dict(zip(table.headings, table.rows[number]))


class TestTables(unittest.TestCase):
    def test_an_unknown_figure_is_a_dash_and_not_nought(self):
        known = {'node', 'guest'}
        for cells in (
            row(tables.node_table(samples.sample(nodes=(NodeSample(0),)))),
            row(tables.guest_table(samples.sample(guests=(GuestSample('u', 'n', '', ''),)))),
        ):
            self.assertEqual(
                {tables.UNKNOWN}, {text for heading, text in cells.items() if heading not in known}
            )

    def test_a_table_sorts_the_highest_first_and_the_unknown_last(self):
        guests = (
            samples.guest_sample(1, remote_ratio=None),
            samples.guest_sample(2, remote_ratio=0.1),
            samples.guest_sample(3, remote_ratio=0.9),
            samples.guest_sample(4, remote_ratio=0.0),
        )
        taken = samples.sample(guests=guests)
        names = [cells[0] for cells in tables.guest_table(taken, 'remote').rows]
        self.assertEqual(['3', '2', '4', '1'], [name[-1] for name in names])
        for sort in tables.SORTS:
            self.assertEqual(4, len(tables.guest_table(taken, sort).rows))

    def test_a_name_cannot_steer_the_terminal(self):
        shown = '\n'.join(
            tables.to_lines(
                tables.guest_table(
                    samples.sample(
                        guests=(samples.guest_sample()._replace(name='\x1b[2Jevil\n\u202e\ud800'),)
                    )
                )
            )
        )
        self.assertIn('?[2Jevil???', shown)
        shown.encode()


class GuestColumnsTest(unittest.TestCase):
    def test_where_a_guest_ran_is_one_node_or_the_shares_of_several(self):
        for cores, expected in (
            ((), '-'),
            (((0, 0.0), (1, 2.0)), '1'),
            (((0, 0.6), (1, 1.4)), '0:30% 1:70%'),
        ):
            with self.subTest(cores):
                guest = GuestSample('uuid', 'name', cores_by_node=cores)
                self.assertEqual(expected, tables.runs_on(guest))

    def test_the_source_of_accesses_says_how_much_of_the_time_was_counted(self):
        for source, ratio, expected in (
            ('', None, '-'),
            ('resctrl', None, 'resctrl, counted'),
            ('threads', 1.0, 'threads, counted'),
            ('threads', 0.4, 'threads, counted 40%'),
        ):
            with self.subTest(source=source, ratio=ratio):
                guest = GuestSample('uuid', 'name', source, 'counted', counted_ratio=ratio)
                self.assertEqual(expected, tables.source_text(guest))

    def test_numbers_are_short_and_times_that_do_not_exist_are_unknown(self):
        for value, base, expected in (
            (None, 1000, '-'),
            (950, 1000, '950'),
            (1234.0, 1000, '1.2k'),
            (3e16, 1000, '30000T'),
            (1 << 30, 1024, '1.0G'),
        ):
            with self.subTest(value=value, base=base):
                self.assertEqual(expected, tables.short_number(value, base))
        self.assertEqual('-', tables.clock_time(1e300))
