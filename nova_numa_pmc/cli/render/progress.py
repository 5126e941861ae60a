# SPDX-License-Identifier: Apache-2.0
"""Show the progress of moves as bars, on a terminal if rich is installed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

try:
    import rich.console
    import rich.progress
except ImportError:  # rich is an optional dependency
    rich = None  # type: ignore[assignment]  # if it is not installed

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, TextIO

    from nova_numa_pmc.host.page_moves import guest_move


class ProgressBars:
    """A bar for each guest being moved (bytes, rate and remaining time), and lines above them.

    :param stream: where to write; None: stderr
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._tasks: dict[str, rich.progress.TaskID] = {}  # by name
        self._bars: rich.progress.Progress | None = None
        if rich is not None and self._stream.isatty():
            self._bars = rich.progress.Progress(
                rich.progress.TextColumn('{task.description}', markup=False),
                rich.progress.BarColumn(),
                rich.progress.DownloadColumn(binary_units=True),
                rich.progress.TransferSpeedColumn(),
                rich.progress.TimeRemainingColumn(),
                console=rich.console.Console(file=self._stream),
                transient=True,
            )

    def __enter__(self) -> ProgressBars:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bars is not None:
            self._bars.stop()

    def print_line(self, line: str) -> None:
        """Print a line, above the bars if there are some."""
        if self._bars is not None:
            self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def show(self, in_progress: Collection[tuple[str, guest_move.Progress]]) -> None:
        """Draw a bar for each guest that is being moved.

        :param in_progress: (name of a guest, progress of its move)
        """
        if self._bars is None:
            return
        for name in self._tasks.keys() - {name for name, _ in in_progress}:
            self._bars.remove_task(self._tasks.pop(name))
        for name, progress in in_progress:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=None)
            left_bytes, moved_bytes = progress.left_bytes, progress.moved_bytes
            total = None if left_bytes is None else moved_bytes + left_bytes
            self._bars.update(self._tasks[name], completed=moved_bytes, total=total)
