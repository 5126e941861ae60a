# SPDX-License-Identifier: Apache-2.0
"""Show a live view of the pressure on each node and of where guests run and access memory.

On a terminal, the tables are redrawn after each interval, by rich (the extra "tools");
the key s sorts by the next column, and q or Ctrl-C ends the command. Otherwise, and
with --once, the tables are printed one after another. With --plan, they are the nodes
and the moves of guests that would pay now; nothing is moved.

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
import importlib.util
import itertools
import shutil
import sys
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import sample_records
from nova_numa_pmc.cli import arguments, context, exits, live, output, parse, sampling_loop
from nova_numa_pmc.cli.render import plans, tables
from nova_numa_pmc.core.rebalance import planner
from nova_numa_pmc.json_values import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator

    from nova_numa_pmc.sample_records import Sample

_SORT_KEYS = list(tables.SORTS)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        '--interval',
        type=parse.option_duration_s,
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
        choices=_SORT_KEYS,
        default='name',
        help='what guests are sorted by, highest first, or name (default: name); accesses are the '
        'remote ones',
    )


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show samples until the operator ends the command; return the exit code.

    :param command: what --plan uses; tests replace it
    """
    has_rich = importlib.util.find_spec('rich') is not None
    if not (args.json or args.once) and sys.stdout.isatty() and has_rich:
        live.redraw(
            lambda wait: _frames(args, wait, command),
            args.interval,
            lambda key: _sort_by_next(args, key),
        )
        return exits.OK
    if sys.stderr.isatty():
        print('measuring for %g s …' % args.interval, file=sys.stderr)
    wait = command.wait if command else time.sleep
    live.print_each(_frames(args, wait, command), args.json)
    return exits.OK


def _frames(
    args: argparse.Namespace, wait: Callable[[float], None], command: context.CommandContext | None
) -> Iterator[live.Frame]:
    """Yield a frame at each interval.

    :param wait: waits for the given number of seconds
    """
    if args.plan:
        command = command or context.CommandContext(args.root)
        for observed in itertools.islice(
            command.samples(args.interval, wait), 1 if args.once else None
        ):
            yield _plan_frame(args, command, observed)
        return
    for sample in _samples(args, wait):
        yield _frame(_select_guests(sample, args.guest or ()), args)


def _plan_frame(
    args: argparse.Namespace, command: context.CommandContext, observed: context.ObservedHost
) -> live.Frame:
    assert observed.sample is not None
    plan, situation = command.propose(observed, planner.PAYBACK_S, args.guest or ())
    nodes = tables.node_table(observed.sample)
    lines = plans.to_lines(plan, situation, planner.PAYBACK_S, observed)
    return live.Frame(
        observed.problems,
        lambda: plans.to_data(plan, situation, observed),
        lambda: lines,
        lambda: [nodes, '', *lines, '', *output.problem_lines(observed.problems)],
    )


def _select_guests(sample: Sample, names: Collection[str]) -> Sample:
    """Return a sample with only the named guests, and a problem for each that is not in it."""
    running = {name for guest in sample.guests for name in (guest.name, guest.uuid)}
    return live.select_guests(sample, names)._replace(
        problems=(
            *sample.problems,
            *('no guest %.80r is running' % name for name in names if name not in running),
        )
    )


def _frame(sample: Sample, args: argparse.Namespace) -> live.Frame:
    return live.Frame(
        sample.problems,
        lambda: sample_records.to_data(sample),
        lambda: to_lines(sample, args.sort),
        lambda: to_parts(sample, args.sort, shutil.get_terminal_size().lines),
    )


def _sort_by_next(args: argparse.Namespace, key: str) -> None:
    """Sort by the next column if the key is s."""
    if key == 's':
        args.sort = _SORT_KEYS[(_SORT_KEYS.index(args.sort) + 1) % len(_SORT_KEYS)]


def _samples(args: argparse.Namespace, wait: Callable[[float], None]) -> Iterator[Sample]:
    """Yield the samples to show, one for each interval, or only the last with --once."""
    with contextlib.closing(live.open_sampler(args.root)) as sampler:
        yield from itertools.islice(
            sampling_loop.sample_every(sampler.sample, args.interval, wait, time.monotonic),
            1 if args.once else None,
        )


def to_lines(sample: Sample, sort: str) -> list[str]:
    """Return a sample as lines of plain text, without its problems."""
    lines: list[str] = []
    for part in to_parts(sample._replace(problems=()), sort):
        lines += [part] if isinstance(part, str) else tables.to_lines(part)
    return lines


def to_parts(sample: Sample, sort: str, height: int | None = None) -> list[tables.Table | str]:
    """Return a sample as tables and lines, with only as many guests as the screen has room for.

    :param height: number of the screen's lines; None: all guests are shown
    """
    header = [
        '%s   over %.3g s   source: %s   guests: %d, sorted by %s'
        % (
            tables.clock_time(sample.taken_s),
            sample.elapsed_s,
            printable(sample.source) or 'none',
            len(sample.guests),
            sort,
        )
    ]
    nodes, guests = tables.node_table(sample), tables.guest_table(sample, sort)
    footer = [*tables.LEGEND, *output.problem_lines(sample.problems)]
    if height is not None:
        other_lines = len(header) + len(nodes.rows) + len(footer) + 6  # headings, blanks, note
        rows_max = max(1, height - other_lines)
        if len(guests.rows) > rows_max:
            hidden_count = len(guests.rows) - rows_max
            guests = guests._replace(
                rows=guests.rows[:rows_max],
                notes=('… %d more: use --guest, or s to sort differently' % hidden_count,),
            )
    return (
        [*header, '', nodes, '', guests, '', *footer]
        if guests.rows
        else [*header, '', nodes, '', *footer]
    )
