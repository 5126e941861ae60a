# SPDX-License-Identifier: Apache-2.0
"""Show a live view of the pressure on each node and of where guests run and access memory.

On a terminal, the tables are redrawn after each interval, by rich (the extra "tools"),
until q or Ctrl-C; the keys below them sort the guests and turn pages. Otherwise, and
with --once, they are printed one after another. With --plan, they are the nodes and the
moves of guests that would pay now; nothing is moved.

examples:
  nova-numa-rebalance top
  nova-numa-rebalance top --once --interval 2
  nova-numa-rebalance top --guest instance-0000002a --sort remote
  nova-numa-rebalance top --json | jq '.nodes[] | {id, pressure, remote_ratio}'
  nova-numa-rebalance top --plan --json | jq --unbuffered '.moves | length'

exit codes: 0 ended by the operator, or shown once; 1 a problem; 64 usage error
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, moves, tables
from nova_numa_pmc.core.rebalance import planner
from nova_numa_pmc.json_values import printable, to_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import Any

    from nova_numa_pmc.core.sample_records import Sample

    #: (an interval's lines of text, the same as plain data, what could not be measured)
    _Frame = tuple[tables.Render, dict[str, Any], tuple[str, ...]]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        '--interval',
        type=arguments.duration_s,
        default=5.0,
        metavar='DURATION',
        help='length of a sample (default: 5)',
    )
    parser.add_argument('--once', action='store_true', help='show one interval and exit')
    arguments.add_common(parser, 'print one JSON object per sample, each on its own line')
    parser.add_argument(
        '--guest',
        action='append',
        metavar='NAME|UUID',
        help='show this guest only (may be repeated)',
    )
    parser.add_argument(
        '--plan', action='store_true', help='show which moves would pay instead of guests'
    )
    parser.add_argument(
        '--sort',
        choices=list(tables.SORTS),
        default='wait',
        help='what guests are sorted by, highest first, or name (default: wait, what they lose by '
        'waiting for CPUs); accesses are the remote ones',
    )


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show samples until the operator ends the command; return the exit code.

    :param command: what --plan uses; tests replace it
    """
    is_drawn = not (args.json or args.once) and tables.can_draw(sys.stdout) and sys.stdin.isatty()
    printed_problems: set[str] = set()
    measuring = 'measuring for %g s …' % args.interval
    if sys.stderr.isatty() and not is_drawn:
        print(measuring, file=sys.stderr)
    with (
        context.until_interrupted(),
        tables.open_screen(args.sort) if is_drawn else contextlib.nullcontext() as screen,
    ):
        if screen is not None:
            screen.show(lambda _: ([measuring], []))
        wait = screen.wait if screen else command.wait if command else time.sleep
        frames = _plans(args, command, wait) if args.plan else _samples(args, wait)
        for render, data, problems in itertools.islice(frames, 1 if args.once else None):
            if screen is not None:
                screen.show(functools.partial(_with_problems, problems, render))
            elif args.json:
                print(json.dumps(data), flush=True)
            else:
                context.print_new_problems(problems, printed_problems)
                above, rows = render(args.sort)
                print('\n'.join([*above, *rows, '', *(() if args.plan else tables.LEGEND), '']))
    return arguments.OK


def _with_problems(
    problems: tuple[str, ...], render: tables.Render, sort: str
) -> tuple[list[str], list[str]]:
    above, rows = render(sort)
    return [*tables.problem_lines(problems), *above], rows


def _plans(
    args: argparse.Namespace, command: context.CommandContext | None, wait: Callable[[float], None]
) -> Iterator[_Frame]:
    command = command or context.CommandContext(args.root)
    for observed in command.samples(args.interval, wait):
        assert observed.sample is not None
        plan, situation = command.propose(observed, planner.PAYBACK_S, args.guest or ())
        lines = moves.plan_lines(plan, situation, planner.PAYBACK_S, observed)
        nodes = tables.to_lines(tables.node_table(observed.sample))
        data = moves.plan_data(plan, situation, observed)
        yield functools.partial(_same, [*nodes, ''], lines), data, observed.problems


def _same(above: list[str], rows: list[str], _sort: str) -> tuple[list[str], list[str]]:
    return above, rows


def _samples(args: argparse.Namespace, wait: Callable[[float], None]) -> Iterator[_Frame]:
    """Yield the chosen guests of each sample, and a problem for each that does not run."""
    with contextlib.closing(context.open_sampler(args.root)) as sampler:
        for sample in context.sample_every(sampler.sample, args.interval, wait, time.monotonic):
            running = {name for guest in sample.guests for name in (guest.name, guest.uuid)}
            absent = [name for name in args.guest or () if name not in running]
            chosen = tables.select_guests(sample, args.guest)._replace(
                problems=(
                    *sample.problems,
                    *('no guest %.80r is running' % name for name in absent),
                )
            )
            yield functools.partial(to_lines, chosen), to_json(chosen), chosen.problems


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
