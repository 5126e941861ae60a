# SPDX-License-Identifier: Apache-2.0
"""Test how progress is shown while guests are moved."""

import importlib.util
import io
import unittest

from nova_numa_pmc.cli.render import progress
from nova_numa_pmc.host.page_moves.guest_move import DONE, MOVING, Progress


class ProgressTest(unittest.TestCase):
    def show(self, shown):
        """Let two guests move and end; the size of the second is unknown."""
        with shown:
            for in_progress, pending in (
                ((('a', Progress(MOVING)),), 1),
                ((('a', Progress(MOVING, 1 << 20, 3 << 20)),), 1),
                ((('a', Progress(DONE, 4 << 20, 0)), ('b', Progress(MOVING))), 0),
                ((), 0),
            ):
                shown.show(in_progress, pending)
            shown.print_line('a [bold] 1 was moved')

    def test_progress_off_a_terminal_is_lines_of_plain_text(self):
        stream = io.StringIO()
        shown = progress.open_progress(stream)
        self.assertIs(progress.LineProgress, type(shown))
        self.show(shown)
        self.assertEqual('a [bold] 1 was moved\n', stream.getvalue())

    def test_bars_of_rich_show_names_as_they_are(self):
        if importlib.util.find_spec('rich') is None:
            self.skipTest('rich is not installed')
        stream = io.StringIO()
        self.show(progress.ProgressBars(stream))
        self.assertIn('a [bold] 1 was moved\n', stream.getvalue())
