# SPDX-License-Identifier: Apache-2.0
"""Show the progress of moves: as bars on a terminal if rich is installed, otherwise as lines."""

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


class LineProgress:
    """Progress display of plain lines, without bars."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def print_line(self, line: str) -> None:
        """Print a line."""
        print(line, file=self._stream, flush=True)

    def show(
        self, in_progress: Collection[tuple[str, guest_move.Progress]], pending_count: int
    ) -> None:
        """Update the display; plain lines need no update.

        :param in_progress: (name of a guest, progress of its move)
        :param pending_count: number of moves that have not begun
        """


class ProgressBars(LineProgress):
    """Progress display with a bar for each guest being moved: bytes, rate and remaining time."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn('{task.description}', markup=False),
            rich.progress.BarColumn(),
            rich.progress.DownloadColumn(binary_units=True),
            rich.progress.TransferSpeedColumn(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn('{task.fields[pending]}', markup=False),
            console=rich.console.Console(file=stream),
            transient=True,
        )
        self._tasks: dict[str, rich.progress.TaskID] = {}  # by name

    def __enter__(self) -> ProgressBars:
        self._bars.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._bars.__exit__(*raised)

    def print_line(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(
        self, in_progress: Collection[tuple[str, guest_move.Progress]], pending_count: int
    ) -> None:
        """Draw a bar for each guest that is being moved."""
        for name in self._tasks.keys() - {name for name, _ in in_progress}:
            self._bars.remove_task(self._tasks.pop(name))
        for name, progress in in_progress:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=None, pending='')
            total = (
                None if progress.left_bytes is None else progress.moved_bytes + progress.left_bytes
            )
            self._bars.update(
                self._tasks[name],
                completed=progress.moved_bytes,
                total=total,
                pending='%d more to come' % pending_count if pending_count else '',
            )


def open_progress(stream: TextIO | None = None) -> LineProgress:
    """Return the progress display that suits a stream, as a context manager.

    :param stream: where to write; None: stderr
    """
    stream = stream or sys.stderr
    return ProgressBars(stream) if rich is not None and stream.isatty() else LineProgress(stream)
