# SPDX-License-Identifier: Apache-2.0
"""Frames are redrawn on a terminal until q is pressed, and printed one by one elsewhere."""

import contextlib
import io
import unittest
import unittest.mock

from nova_numa_pmc.cli import live
from nova_numa_pmc.cli.render import screen


def frame(number):
    return live.Frame((), lambda: {'n': number}, lambda: [str(number)], lambda: [number])


class TestRedraw(unittest.TestCase):
    def redrawn(self, numbers, keys, on_key=lambda _key: None):
        """Return what was drawn until the operator pressed q."""
        drawn, left = [], iter(keys)

        @contextlib.contextmanager
        def fake_keys():
            yield lambda _seconds: next(left)

        @contextlib.contextmanager
        def fake_screen(_stream):
            yield drawn.extend

        def frames(wait):
            for number in numbers:
                wait(5.0)
                yield frame(number)

        with (
            unittest.mock.patch.object(screen, 'keys', fake_keys),
            unittest.mock.patch.object(screen, 'open_screen', fake_screen),
        ):
            live.redraw(frames, 5.0, on_key)
        self.assertIsNone(next(left, None))
        return drawn

    def test_a_screen_is_redrawn_with_each_frame_until_q_is_pressed(self):
        self.assertEqual(
            ['measuring for 5 s …  (q ends)', 1, 2], self.redrawn([1, 2, 3], ['', '', 'q'])
        )

    def test_the_last_frame_stays_on_the_screen_until_q_is_pressed(self):
        self.assertEqual([1], self.redrawn([1], ['', '', '', 'q'])[1:])

    def test_a_key_is_passed_on_and_the_frame_is_drawn_again(self):
        pressed = []
        self.assertEqual(
            [1, 1, 2], self.redrawn([1, 2], ['s', '', 's', '', 'q'], pressed.append)[1:]
        )
        self.assertEqual(['s', 's'], pressed)


class TestPrintEach(unittest.TestCase):
    def printed(self, as_json):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            live.print_each(map(frame, (1, 2)), as_json)
        return out.getvalue()

    def test_frames_are_printed_as_text_or_as_a_line_of_json_each(self):
        self.assertEqual('1\n\n2\n\n', self.printed(False))
        self.assertEqual('{"n": 1}\n{"n": 2}\n', self.printed(True))
