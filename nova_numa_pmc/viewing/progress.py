# SPDX-License-Identifier: Apache-2.0
"""Show how far moves are: bars where rich is and somebody looks, else a line per event."""

from __future__ import annotations

import sys

try:
    import rich.console
    import rich.progress
except ImportError:  # The base install has no more than oslo.config.
    rich = None


class Lines:
    """Only what is said, line by line."""

    def __init__(self, stream):
        self._stream = stream

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def say(self, line):
        """Print a line."""
        print(line, file=self._stream, flush=True)

    def show(self, in_hand, waiting):
        """Take note of how far the moves are.

        :param in_hand: tuple of (a guest's name, :class:`migrate.Progress`)
        :param waiting: how many moves are to come
        """


class Bars(Lines):
    """A bar for each guest in hand: bytes, rate and the time that is left."""

    def __init__(self, stream):
        super().__init__(stream)
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn('{task.description}', markup=False),
            rich.progress.BarColumn(), rich.progress.DownloadColumn(binary_units=True),
            rich.progress.TransferSpeedColumn(), rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn('{task.fields[waiting]}', markup=False),
            console=rich.console.Console(file=stream), transient=True)
        self._tasks = {}  # name → task

    def __enter__(self):
        self._bars.__enter__()
        return self

    def __exit__(self, *exception):
        self._bars.__exit__(*exception)

    def say(self, line):
        """Print a line above the bars."""
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, in_hand, waiting):
        """Draw the bars of the guests in hand."""
        for name in self._tasks.keys() - {name for name, _ in in_hand}:
            self._bars.remove_task(self._tasks.pop(name))
        for name, progress in in_hand:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=None, waiting='')
            total = (None if progress.left_bytes is None
                     else progress.moved_bytes + progress.left_bytes)
            self._bars.update(self._tasks[name], completed=progress.moved_bytes, total=total,
                              waiting='%d more to come' % waiting if waiting else '')


def open_bars(stream=None):
    """Return what suits a stream, as a context."""
    stream = stream or sys.stderr
    return Bars(stream) if rich is not None and stream.isatty() else Lines(stream)
