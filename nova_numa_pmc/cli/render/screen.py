# SPDX-License-Identifier: Apache-2.0
"""Draw tables on a terminal with rich, which is an optional dependency, and read keys from it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING

import rich.console
import rich.live
import rich.text

from nova_numa_pmc.cli.render import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TextIO

_STYLES = {tables.PLAIN: '', tables.WARN: 'yellow', tables.BAD: 'bold red'}


@contextlib.contextmanager
def open_screen(stream: TextIO) -> Iterator[Callable[[Iterable[tables.Table | str]], None]]:
    """Yield a function that redraws a terminal with tables and lines.

    At the end, the terminal shows again what it showed before.
    """
    console = rich.console.Console(file=stream)
    with rich.live.Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda parts: live.update(rich.console.Group(*map(_renderable, parts)), refresh=True)


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
