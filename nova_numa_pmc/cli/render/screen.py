# SPDX-License-Identifier: Apache-2.0
"""Draw tables on a terminal, with rich if it is installed, and read keys from it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING

from nova_numa_pmc.cli.render import tables

try:
    import rich.console
    import rich.live
    import rich.text
except ImportError:  # rich is an optional dependency
    rich = None  # type: ignore[assignment]  # if it is not installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TextIO

_STYLES = {tables.PLAIN: '', tables.WARN: 'yellow', tables.BAD: 'bold red'}
#: Move the cursor home, erase to the end of the line, erase to the end of the screen: a screen
#: redrawn in this way does not flicker.
_HOME, _END_OF_LINE, _END_OF_SCREEN = '\x1b[H', '\x1b[K', '\x1b[J'
#: Enter and leave the alternate screen, in which the cursor is hidden.
_ALTERNATE, _NORMAL = '\x1b[?1049h\x1b[?25l', '\x1b[?25h\x1b[?1049l'


@contextlib.contextmanager
def open_screen(stream: TextIO) -> Iterator[Callable[[Iterable[tables.Table | str]], None]]:
    """Yield a function that redraws a terminal with tables and lines: by rich, if installed.

    At the end, the terminal shows again what it showed before.
    """
    if rich is not None:
        console = rich.console.Console(file=stream)
        with rich.live.Live(console=console, screen=True, auto_refresh=False) as live:
            yield lambda parts: live.update(
                rich.console.Group(*map(_renderable, parts)), refresh=True
            )
        return
    stream.write(_ALTERNATE)
    try:
        yield lambda parts: _draw_plainly(stream, parts)
    finally:
        stream.write(_NORMAL)
        stream.flush()


def _draw_plainly(stream: TextIO, parts: Iterable[tables.Table | str]) -> None:
    width, line_count = shutil.get_terminal_size()
    lines: list[str] = []
    for part in parts:
        lines += [part[:width]] if isinstance(part, str) else tables.to_lines(part, width)
    stream.write(
        _HOME + (_END_OF_LINE + '\n').join(lines[:line_count]) + _END_OF_LINE + _END_OF_SCREEN
    )
    stream.flush()


def _renderable(part: tables.Table | str) -> rich.console.RenderableType:
    """Return a table or a line as text that is cropped at the edge and not wrapped."""
    if isinstance(part, str):
        return rich.text.Text(part, no_wrap=True, overflow='ellipsis')
    lines = []
    for index, line in enumerate(tables.align(part)):
        gap = rich.text.Text(tables.GAP)
        line_text = gap.join(rich.text.Text(cell.text, _STYLES[cell.level]) for cell in line)
        line_text.no_wrap = True
        line_text.overflow = 'ellipsis'
        if not index:
            line_text.stylize('reverse')
        lines.append(line_text)
    return rich.console.Group(*lines, *map(_renderable, part.notes))


@contextlib.contextmanager
def keys(stream: TextIO | None = None) -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key and returns it.

    The function takes the longest time to wait [s], and returns '' if no key was pressed. If
    ``stream`` is not a terminal, it only waits. The terminal's attributes are restored at the end.

    :param stream: where to read keys; None: stdin
    """
    stream = stream or sys.stdin
    if stream is None or not stream.isatty():
        yield _only_wait
        return
    fd = stream.fileno()
    previous_attributes = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield lambda seconds: _read_key(fd, seconds)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, previous_attributes)


def _only_wait(seconds: float) -> str:
    time.sleep(seconds)
    return ''


def _read_key(fd: int, seconds: float) -> str:
    if not select.select([fd], [], [], seconds)[0]:
        return ''
    return os.read(fd, 1).decode(errors='replace') or 'q'  # the terminal has hung up
