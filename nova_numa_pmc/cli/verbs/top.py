# SPDX-License-Identifier: Apache-2.0
"""Show a live view of the pressure on each node and of where guests run and access memory.

On a terminal the tables are redrawn each interval (keys: s sorts by the next
column, q or Ctrl-C ends). Anywhere else, and with --once, they are printed.

examples:
  nova-numa-rebalance top
  nova-numa-rebalance top --once --interval 2
  nova-numa-rebalance top --guest instance-0000002a --sort remote
  nova-numa-rebalance top --json | jq '.nodes[] | {id, pressure, remote_ratio}'
  nova-numa-rebalance top --replay /var/log/nova-numa-pmc/samples

exit codes: 0 ended by the operator, or shown once; 1 a problem; 64 usage error
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import sample_records
from nova_numa_pmc.cli import exits, intervals, live, options
from nova_numa_pmc.cli.render import screen, tables
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.recordings import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nova_numa_pmc.sample_records import Sample

_SORT_KEYS = list(tables.SORTS)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        '--interval',
        type=intervals.seconds,
        default=5.0,
        metavar='SECONDS',
        help='length of a sample; with --replay, time between two samples (default: 5)',
    )
    parser.add_argument(
        '--once',
        action='store_true',
        help='show one interval and exit; with --replay, the last sample',
    )
    options.add_json(parser, 'print one JSON object per sample, each on its own line')
    parser.add_argument(
        '--guest',
        action='append',
        metavar='NAME|UUID',
        help='show this guest only (may be repeated)',
    )
    parser.add_argument(
        '--sort',
        choices=_SORT_KEYS,
        default='name',
        help='column to sort guests by, highest first (default: name)',
    )
    parser.add_argument(
        '--replay',
        metavar='FILE',
        help='show a recording, or the output of "top --json" or "perf stat -x, -I", instead of '
        'this host',
    )
    parser.add_argument(
        '--cpu',
        metavar='MODEL',
        help='with --replay: CPU on which perf counted, which determines the meaning of raw '
        'events (see "events --help")',
    )


def run(args: argparse.Namespace) -> int:
    """Show samples until the operator ends it."""
    with live.until_interrupted():
        if args.json or args.once or not sys.stdout.isatty():
            _print_all(args)
        else:
            _live(args)
    return exits.OK


def _samples(args: argparse.Namespace, wait: Callable[[float], bool | None]) -> Iterator[Sample]:
    """Yield the samples to show, one an interval."""
    if args.replay:
        damaged = lambda line: print('top: %s' % line, file=sys.stderr)  # noqa: E731
        samples: Iterator[Sample] = replay.read(args.replay, damaged, args.cpu)
        if args.once:
            samples = iter(_last(samples, args.replay))
        yield from intervals.replay_every(samples, args.interval, wait)
        return
    with live.open_sampler() as sampler:
        yield from intervals.sample_every(sampler.sample, args.interval, wait, time.monotonic)


def _last(samples: Iterator[Sample], path: str) -> collections.deque[Sample]:
    last = collections.deque(samples, maxlen=1)
    if not last:
        raise NumaPmcError('%s: holds no sample yet' % path)
    return last


def _print_all(args: argparse.Namespace) -> None:
    if not args.replay and sys.stderr.isatty():
        print('measuring for %g s …' % args.interval, file=sys.stderr)
    printed: set[str] = set()
    for shown in _samples(args, time.sleep):
        shown = live.select_guests(shown, args.guest)
        if args.json:
            print(json.dumps(sample_records.to_data(shown)), flush=True)
        else:
            live.print_once(shown.problems, printed, lambda line: print(line, file=sys.stderr))
            print('\n'.join(as_lines(shown, args.sort)) + '\n', flush=True)
        if args.once:
            return


def _live(args: argparse.Namespace) -> None:
    view = _View(args)
    with screen.keys() as key, screen.open_screen(sys.stdout) as drawn:
        drawn.draw(['measuring for %g s …  (q ends)' % args.interval])

        def wait(waiting_s: float) -> bool:
            end = time.monotonic() + waiting_s
            while True:
                pressed = key(max(0.0, end - time.monotonic()))
                if pressed == 'q':
                    return True
                if pressed == 's':
                    view.next_sort()
                    view.draw(drawn)
                elif not pressed:
                    return False

        for shown in _samples(args, wait):
            view.sample = live.select_guests(shown, args.guest)
            view.draw(drawn)
        while args.replay and not wait(3600):
            pass  # the recording's end stays until the operator has seen it


class _View:
    """State of the live screen: the last sample, and how it is sorted."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.sample: Sample | None = None
        self.sort: str = args.sort

    def next_sort(self) -> None:
        self.sort = _SORT_KEYS[(_SORT_KEYS.index(self.sort) + 1) % len(_SORT_KEYS)]

    def draw(self, drawn: screen.PlainScreen | screen.RichScreen) -> None:
        if self.sample is not None:
            drawn.draw(as_parts(self.sample, self.sort, screen.height()))


def as_lines(shown: Sample, sort: str) -> list[str]:
    """Return a sample as lines of plain text."""
    lines: list[str] = []
    for part in as_parts(shown._replace(problems=()), sort):
        lines += [part] if isinstance(part, str) else tables.text(part)
    return lines


def as_parts(shown: Sample, sort: str, height: int | None = None) -> list[tables.Table | str]:
    """Return a sample as tables and lines; where they are higher than a screen, fewer guests."""
    problems = ['problem: ' + tables.printable(problem) for problem in shown.problems]
    above = [
        '%s   over %.3g s   source: %s   guests: %d, sorted by %s'
        % (
            intervals.clock_time(shown.taken_s, with_date=True),
            shown.elapsed_s,
            tables.printable(shown.source) or 'none',
            len(shown.guests),
            sort,
        )
    ]
    nodes, guests = tables.node_table(shown), tables.guest_table(shown, sort)
    below = [*tables.LEGEND, *problems]
    if height is not None:
        room = height - len(above) - len(nodes.rows) - len(below) - 6  # headings, blanks, note
        if len(guests.rows) > max(1, room):
            room = max(1, room)
            guests = guests._replace(
                rows=guests.rows[:room],
                notes=(
                    '… %d more: use --guest, or s to sort differently' % (len(guests.rows) - room),
                ),
            )
    return (
        [*above, '', nodes, '', guests, '', *below]
        if guests.rows
        else [*above, '', nodes, '', *below]
    )
