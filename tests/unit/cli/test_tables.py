# SPDX-License-Identifier: Apache-2.0
"""Tables have each figure of nodes, guests and devices, and a dash for what is unknown."""

import io
import os
import unittest
from unittest import mock

from hypothesis import given, strategies as st

from nova_numa_pmc.cli import tables
from nova_numa_pmc.core.sample_records import DeviceSample, GuestSample, NodeSample
from nova_numa_pmc.host.page_moves.guest_move import DONE, MOVING, Progress
from tests.fixtures import samples


def row(table, number=0):
    return dict(zip(table.headings, table.rows[number]))


class TestTables(unittest.TestCase):
    def test_the_node_table_has_each_figure_of_a_node(self):
        cells = row(
            tables.node_table(samples.sample(nodes=(samples.node_sample(0, pressure=1.2),)))
        )
        self.assertEqual(
            {
                'node': '0',
                'pressure': '1.20',
                'cpu': '0.50',
                'bw': '0.40',
                'link': '-',
                'cores': '6.0/12.0',
                'GB/s': '8.0/20.0',
                'promised': '24G',
                'free': '8.0G/36G',
                'local/s': '9.0M',
                'remote/s': '1.0M',
                'rem%': '10.0',
                'CPI': '2.00',
                'wait': '0.25',
                'dist': '0.04',
                'iomiss%': '-',
            },
            cells,
        )

    def test_the_guest_table_has_each_figure_of_a_guest(self):
        cells = row(tables.guest_table(samples.sample()))
        self.assertEqual(
            {
                'guest': 'instance-00000001',
                'source': 'guests by thread, counted 75%',
                'cores': '2.50',
                'wait': '0.10',
                'runs on': '0',
                'memory': '0:3.0G 1:1.0G',
                'rem%': '25.0',
                'MB/s': '-',
                'CPI': '1.50',
                'acc/kI': '4.20',
                'stall%': '30.0',
                'rcache/s': '200k',
                'devices': '0000:3b:00.1@1 remote',
            },
            cells,
        )

    def test_an_unknown_figure_is_a_dash_and_not_nought(self):
        known = {'node', 'guest'}
        for cells in (
            row(tables.node_table(samples.sample(nodes=(NodeSample(0),)))),
            row(tables.guest_table(samples.sample(guests=(GuestSample('u', 'n', '', ''),)))),
        ):
            self.assertEqual(
                {tables.UNKNOWN}, {text for heading, text in cells.items() if heading not in known}
            )

    def test_a_cpi_of_idle_cpus_is_marked(self):
        self.assertEqual('8.53?', tables.cpi(8.53, False))
        self.assertEqual('-', tables.cpi(None, False))

    def test_the_nodes_where_a_guest_runs_have_shares_above_a_trifle(self):
        for cores, expected in (
            ((), '-'),
            (((0, 0.0), (1, 0.0)), '-'),
            (((1, 2.0),), '1'),
            (((0, 0.01), (1, 3.99)), '1'),
            (((0, 3.0), (1, 1.0)), '0:75% 1:25%'),
        ):
            self.assertEqual(expected, tables.runs_on(samples.guest_sample(cores_by_node=cores)))

    def test_devices_have_their_node_and_whether_it_is_local(self):
        self.assertEqual(
            'eth0@0 local, nvme1@-',
            tables.devices_text(
                samples.guest_sample(
                    devices=(DeviceSample('eth0', 0, True), DeviceSample('nvme1', None, None))
                )
            ),
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

    @given(st.floats(0, 1e14) | st.integers(0, 1 << 50), st.sampled_from([1000, 1024]))
    def test_scaled_numbers_are_short_and_right(self, value, base):
        text = tables.short_number(value, base)
        self.assertLessEqual(len(text), 5)
        factor = base ** ' kMGT'.find(text[-1]) if text[-1].isalpha() else 1
        self.assertAlmostEqual(
            value, float(text.rstrip('kMGT')) * factor, delta=max(0.051, value * 0.0501)
        )


class Terminal(io.StringIO):
    """A terminal, as far as a program can query it."""

    def isatty(self):
        return True


class TerminalTest(unittest.TestCase):
    def progress(self, stream):
        """Let two guests move and end; the size of the second is unknown."""
        with tables.progress_bars(stream) as (print_line, show):
            for in_progress in (
                (('a', Progress(MOVING)),),
                (('a', Progress(MOVING, 1 << 20, 3 << 20)),),
                (('a', Progress(DONE, 4 << 20, 0)), ('b', Progress(MOVING))),
                (),
            ):
                show(in_progress)
            print_line('a [bold] 1 was moved')
        return stream.getvalue()

    def test_progress_off_a_terminal_is_lines_of_plain_text(self):
        self.assertEqual('a [bold] 1 was moved\n', self.progress(io.StringIO()))

    def test_names_are_not_read_as_markup_on_a_terminal(self):
        self.assertIn('a [bold] 1 was moved', self.progress(Terminal()))
        stream = Terminal()
        size = {'COLUMNS': '80', 'LINES': '30', 'TERM': 'xterm'}
        with mock.patch.dict(os.environ, size), tables.open_screen(stream) as draw:
            draw(['[red]x[/nonsense]', 'y'])
        self.assertIn('[red]x[/nonsense]', stream.getvalue())
