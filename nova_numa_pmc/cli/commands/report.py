# SPDX-License-Identifier: Apache-2.0
"""Summarise a recording per node and per guest, or compare two windows of it.

Write times as 2026-11-21T14:00 (local time), +2h (after the start of the recording),
-30m (before its end) or @EPOCH, and windows as A..B, either side of which may be left
out.

examples:
  nova-numa-rebalance report /var/log/nova-numa-pmc/samples
  nova-numa-rebalance report samples --before ..+1h --after +2h..
  nova-numa-rebalance report samples --from=-1d --plot /tmp/plots
  nova-numa-rebalance report samples --guest instance-0000002a --json

exit codes: 0 done; 1 a problem, such as nothing recorded in a window; 64 usage error
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, exits, guest_lookup, live, parse
from nova_numa_pmc.cli.render import report, summary, tables
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.recordings import replay

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nova_numa_pmc.sample_records import Sample

_EMPTY = 'contains no samples yet'


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument('file', metavar='FILE', help='a recording; its rotated files are read too')
    parser.add_argument(
        '--from', dest='from_', default='', metavar='TIME', help='leave out earlier samples'
    )
    parser.add_argument('--to', default='', metavar='TIME', help='leave out later samples')
    parser.add_argument('--before', metavar='A..B', help='compare this window …')
    parser.add_argument('--after', metavar='C..D', help='… with this one')
    parser.add_argument(
        '--guest', action='append', metavar='NAME|UUID', help='only this guest (may be repeated)'
    )
    parser.add_argument('--plot', metavar='DIR', help='also draw PNG files into this directory')
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report; return the exit code."""
    if bool(args.before) != bool(args.after):
        args.parser.error('--before and --after go together: name two windows')
    draw = _import_draw() if args.plot else None  # fails before a long recording is read
    recorded, windows = read(args)
    comparison = report.compare(recorded, windows[0], windows[1]) if windows else None
    plot_paths = draw(recorded, args.plot, windows) if draw else []
    if args.json:
        print(json.dumps(report.to_data(recorded, comparison, plot_paths), indent=2))
    else:
        print('\n'.join(report.to_lines(recorded, comparison)))
        for path in plot_paths:
            print('wrote %s' % path)
    return exits.OK


def _import_draw() -> Callable[[summary.RecordedSeries, str, Sequence[report.Window]], list[str]]:
    """Import and return :func:`plots.draw`.

    :raises NumaPmcError: matplotlib is not installed
    """
    try:
        from nova_numa_pmc.cli.render import plots
    except ImportError:
        raise NumaPmcError(
            '--plot needs matplotlib, which is not installed: pip install '
            '"nova-numa-pmc[plots]", or run report on a machine that has it'
        ) from None
    return plots.draw


def read(args: argparse.Namespace) -> tuple[summary.RecordedSeries, list[report.Window]]:
    """Read the recording.

    :returns: (the series of the chosen guests and times, the two windows to compare or none)
    :raises NumaPmcError: a time is malformed, or nothing was recorded then or of these guests
    """
    span = from_s = to_s = None
    windows = []
    if args.from_ or args.to or args.before:
        span = _span(args.file)
        from_s, to_s = (parse.time_s(text, *span) for text in (args.from_, args.to))
        windows = [parse.window_s(text, *span) for text in (args.before, args.after) if text]
    samples = replay.read(args.file, lambda line: print('report: %s' % line, file=sys.stderr))
    names_by_uuid: dict[str, str] = {}

    def selected() -> Iterator[Sample]:
        for sample in samples:
            names_by_uuid.update((guest.uuid, guest.name) for guest in sample.guests)
            yield live.select_guests(sample, args.guest)

    recorded = summary.gather(selected(), from_s, to_s)
    if not recorded.samples:
        if span is None:
            raise NumaPmcError('%s: %s' % (args.file, _EMPTY))
        raise NumaPmcError(
            '%s: nothing was recorded at that time; the recording spans %s to %s'
            % (args.file, *(tables.clock_time(time_s) for time_s in span))
        )
    _check_names(args.guest or (), names_by_uuid)
    return recorded, windows


def _check_names(names: Sequence[str], names_by_uuid: Mapping[str, str]) -> None:
    """Print a line for each named guest that was not recorded.

    :raises guest_lookup.UnknownGuest: none of them was recorded
    """
    recorded = {*names_by_uuid, *names_by_uuid.values()}
    unknown = [name for name in names if name not in recorded]
    if unknown and len(unknown) == len(names):
        raise guest_lookup.unknown(
            unknown[0], names_by_uuid.values(), 'was recorded', 'guests in the recording'
        )
    for name in unknown:
        print('report: no guest %.80r was recorded' % name, file=sys.stderr)


def _span(path: str) -> tuple[float, float]:
    """Return the times of a recording's first and last sample [s since the epoch]."""
    first_s: float | None = None
    last_s: float | None = None
    for sample in replay.read(path):
        first_s = sample.taken_s if first_s is None else first_s
        last_s = sample.taken_s
    if first_s is None or last_s is None:
        raise NumaPmcError('%s: %s' % (path, _EMPTY))
    return first_s, last_s
