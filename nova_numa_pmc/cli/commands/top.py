# SPDX-License-Identifier: Apache-2.0
"""Show a live view of the pressure on each node and of where guests run and access memory.

On a terminal, the tables are redrawn after each interval, by rich (the extra "tools"),
until q or Ctrl-C; the keys below them sort the guests and turn pages. Otherwise, and
with --once, they are printed one after another, and so are the moves of guests that
would pay now, with --plan; nothing is moved. The output of --json is a recording:
"report" shows its means, or compares two.

examples:
  nova-numa-rebalance top
  nova-numa-rebalance top --once --interval 2
  nova-numa-rebalance top --guest instance-0000002a --sort remote
  nova-numa-rebalance top --json | jq '.nodes[] | {id, pressure, remote_ratio}'
  nova-numa-rebalance top --plan

exit codes: 0 ended by the operator, or shown once; 1 a problem; 64 usage error
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import select
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, moves, tables
from nova_numa_pmc.core.rebalance import planner
from nova_numa_pmc.json_values import printable, to_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator
    from typing import TextIO

    import rich.live

    from nova_numa_pmc.core.measurements import Sample

    #: Returns, for a sort order, (lines that are always shown, lines that are shown by pages).
    Render = Callable[[str], tuple[list[str], list[str]]]


OPTIONS = (
    arguments.interval(),
    arguments.option('--once', action='store_true', help='show one interval and exit'),
    arguments.option(
        '--guest',
        action='append',
        metavar='NAME|UUID',
        help='show this guest only (may be repeated)',
    ),
    arguments.option(
        '--plan', action='store_true', help='print which moves would pay, and nothing else'
    ),
    arguments.option(
        '--sort',
        choices=list(tables.SORTS),
        default='wait',
        help='what guests are sorted by, highest first, or name (default: wait, what they lose by '
        'waiting for CPUs); accesses are the remote ones',
    ),
    arguments.ROOT,
    arguments.JSON,
)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show samples until the operator ends the command; return the exit code.

    :param command: what --plan uses; tests replace it
    """
    if args.plan:
        with context.until_interrupted():
            for _ in itertools.repeat(None, 1) if args.once else itertools.repeat(None):
                moves.show_plan(
                    command or context.CommandContext(args.root), args, planner.PAYBACK_S
                )
        return arguments.OK
    is_drawn = not (args.json or args.once) and can_draw(sys.stdout) and sys.stdin.isatty()
    printed: set[str] = set()
    measuring = 'measuring for %g s …' % args.interval
    if sys.stderr.isatty() and not is_drawn:
        print(measuring, file=sys.stderr)
    with (
        context.until_interrupted(),
        open_screen(args.sort) if is_drawn else contextlib.nullcontext() as screen,
        contextlib.closing(context.open_sampler(args.root)) as sampler,
    ):
        if screen is not None:
            screen.show(lambda _: ([measuring], []))
        wait = screen.wait if screen else time.sleep
        samples = context.sample_every(sampler.sample, args.interval, wait)
        for sample in itertools.islice(samples, 1 if args.once else None):
            chosen = _choose(sample, args.guest or ())
            if screen is not None:
                screen.show(functools.partial(_to_screen, chosen))
                continue
            above, rows = to_lines(chosen, args.sort)
            tables.show(args.json, to_json(chosen), [*above, *rows, '', *tables.LEGEND, ''])
            for line in tables.problem_lines(p for p in chosen.problems if p not in printed):
                print(line, file=sys.stderr, flush=True)
            printed.update(chosen.problems)
    return arguments.OK


def _choose(sample: Sample, names: Collection[str]) -> Sample:
    """Return a sample with the chosen guests only, and a problem for each that does not run."""
    running = {name for guest in sample.guests for name in (guest.name, guest.uuid)}
    absent = tuple('no guest %.80r is running' % name for name in names if name not in running)
    return tables.select_guests(sample, names)._replace(problems=sample.problems + absent)


def _to_screen(sample: Sample, sort: str) -> tuple[list[str], list[str]]:
    above, rows = to_lines(sample, sort)
    return [*tables.problem_lines(sample.problems), *above], rows


def to_lines(sample: Sample, sort: str) -> tuple[list[str], list[str]]:
    """Return (time, nodes and headings, the rows of guests) as lines of plain text."""
    headings, *rows = tables.to_lines(tables.guest_table(sample, sort))
    return [
        '%s   over %.3g s   source: %s   guests: %d, sorted by %s'
        % (
            tables.clock_time(sample.taken_s),
            sample.elapsed_s,
            printable(sample.source) or 'none',
            len(sample.guests),
            sort,
        ),
        '',
        *tables.to_lines(tables.node_table(sample)),
        '',
        *([headings] if rows else ()),
    ], rows


def can_draw(stream: TextIO) -> bool:
    """Return whether lines can be drawn there again and again: on a terminal, with rich."""
    return stream.isatty() and importlib.util.find_spec('rich') is not None


class Screen:
    """A terminal that is redrawn; keys choose the sort order and the page."""

    def __init__(self, live: rich.live.Live, sort: str, keyboard: TextIO) -> None:
        """Show nothing yet.

        :param live: what draws on the terminal
        :param sort: the first sort order, one of :data:`tables.SORTS`
        :param keyboard: the terminal's input
        """
        self._live, self._sort, self._keyboard = live, sort, keyboard
        self._first = self._room = 0
        self._render: Render = lambda _: ([], [])

    def show(self, render: Render) -> None:
        """Draw lines, which are cropped at the right, with the keys below them."""
        import rich.text

        self._render = render
        above, rows = render(self._sort)
        self._room = max(1, self._live.console.height - len(above) - 1)
        self._first = max(0, min(self._first, len(rows) - self._room))
        page = rows[self._first : self._first + self._room]
        keys = 's: sort by the next column   space, b: next, previous page (%d-%d of %d)   q: end'
        shown = keys % (self._first + 1, self._first + len(page), len(rows)) if rows else 'q: end'
        text = '\n'.join([*above, *page, shown])
        self._live.update(rich.text.Text(text, no_wrap=True, overflow='ellipsis'), refresh=True)

    def wait(self, seconds: float) -> None:
        """Wait, and meanwhile do what the operator's keys say.

        :raises KeyboardInterrupt: the operator wants to end
        """
        due_s = time.monotonic() + seconds
        while select.select([self._keyboard], [], [], max(0.0, due_s - time.monotonic()))[0]:
            key = os.read(self._keyboard.fileno(), 16)
            if key in (b'q', b''):
                raise KeyboardInterrupt
            if key == b's':
                orders = list(tables.SORTS)
                self._sort = orders[(orders.index(self._sort) + 1) % len(orders)]
            pages = {b' ': 1, b'\x1b[6~': 1, b'b': -1, b'\x1b[5~': -1}  # with Page Down, Page Up
            self._first += pages.get(key, 0) * self._room
            self.show(self._render)


@contextlib.contextmanager
def open_screen(sort: str) -> Iterator[Screen]:
    """Yield the terminal as a screen.

    At the end, the terminal shows again what it showed before.
    """
    import rich.console
    import rich.live

    former = termios.tcgetattr(sys.stdin)
    console = rich.console.Console(file=sys.stdout)
    with rich.live.Live(console=console, screen=True, auto_refresh=False) as live:
        tty.setcbreak(sys.stdin)
        try:
            yield Screen(live, sort, sys.stdin)
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, former)
