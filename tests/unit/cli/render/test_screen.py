# SPDX-License-Identifier: Apache-2.0
"""A screen shows all tables and problems, and keys count only on a terminal."""

import io
import os
import pty
import termios
import unittest
import unittest.mock

from nova_numa_pmc.cli.commands import top
from nova_numa_pmc.cli.render import screen
from tests.fixtures import samples

PARTS = top.to_parts(samples.sample(problems=('no PMU: load it',)), 'name', 30)


class Terminal(io.StringIO):
    """A terminal, as far as a program can query it."""

    def isatty(self):
        return True


class TestScreens(unittest.TestCase):
    def drawn(self, parts=PARTS):
        stream = Terminal()
        with (
            unittest.mock.patch.dict(
                os.environ, {'COLUMNS': '160', 'LINES': '30', 'TERM': 'xterm'}
            ),
            screen.open_screen(stream) as draw,
        ):
            draw(parts)
        return stream.getvalue()

    def test_a_screen_shows_all_tables_and_problems(self):
        text = self.drawn()
        for expected in ('instance-00000001', 'pressure', 'no PMU: load it', '@1 remote'):
            self.assertIn(expected, text)

    def test_a_name_is_not_read_as_markup(self):
        sample = samples.sample(
            guests=(samples.guest_sample()._replace(name='[red]x[/nonsense]'),)
        )
        self.assertIn('[red]x[/nonsense]', self.drawn(top.to_parts(sample, 'name')))


class TestKeys(unittest.TestCase):
    def setUp(self):
        self.ours, theirs = pty.openpty()
        self.terminal = os.fdopen(theirs, 'r')
        self.addCleanup(self.terminal.close)
        self.attributes = termios.tcgetattr(theirs)

    def test_a_key_counts_at_once_and_the_settings_come_back(self):
        with screen.keys(self.terminal) as key:
            os.write(self.ours, b's')
            self.assertEqual('s', key(60))
            self.assertEqual('', key(0))
            self.assertNotEqual(self.attributes, termios.tcgetattr(self.terminal))
        self.assertEqual(self.attributes, termios.tcgetattr(self.terminal))
        os.close(self.ours)

    def test_without_a_terminal_no_key_is_read(self):
        os.close(self.ours)
        with screen.keys(io.StringIO()) as key:
            self.assertEqual('', key(0))
