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
