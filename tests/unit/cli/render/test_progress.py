# SPDX-License-Identifier: Apache-2.0
"""Test how progress is shown while guests are moved."""

import io
import unittest

from nova_numa_pmc.cli.render import progress
from nova_numa_pmc.host.page_moves.guest_move import DONE, MOVING, Progress


class Terminal(io.StringIO):
    """A terminal, as far as a program can query it."""

    def isatty(self):
        return True


class ProgressTest(unittest.TestCase):
    def shown(self, stream):
        """Let two guests move and end; the size of the second is unknown."""
        with progress.ProgressBars(stream) as bars:
            for in_progress in (
                (('a', Progress(MOVING)),),
                (('a', Progress(MOVING, 1 << 20, 3 << 20)),),
                (('a', Progress(DONE, 4 << 20, 0)), ('b', Progress(MOVING))),
                (),
            ):
                bars.show(in_progress)
            bars.print_line('a [bold] 1 was moved')
        return stream.getvalue()

    def test_progress_off_a_terminal_is_lines_of_plain_text(self):
        self.assertEqual('a [bold] 1 was moved\n', self.shown(io.StringIO()))

    def test_bars_show_names_as_they_are(self):
        self.assertIn('a [bold] 1 was moved', self.shown(Terminal()))
