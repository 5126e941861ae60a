# SPDX-License-Identifier: Apache-2.0
"""Record samples of this host to files of bounded size, for days if need be.

Each sample is appended as a whole: if the command is killed, at most the sample being
written is lost, and a later run continues the same file. A full file is renamed to
FILE.1, FILE.1 to FILE.2 and so on, and the oldest is deleted, so that a recording
takes at most --max-size times --keep. `report FILE` and `top --replay FILE` read all
of these files.

examples:
  nova-numa-rebalance record --out /var/log/nova-numa-pmc/samples --duration 7d
  nova-numa-rebalance record --out /tmp/before --interval 2 --duration 10m
  systemd-run --unit numa-record nova-numa-rebalance record --out /var/log/samples

exit codes: 0 the duration is over, or interrupted by the operator; 1 a problem;
64 usage error
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from array import array
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import exits, live, parse, sampling_loop
from nova_numa_pmc.cli.render import tables
from nova_numa_pmc.recordings import recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nova_numa_pmc.sample_records import Sample
    from nova_numa_pmc.sampling import Sampler

_FILE_MAX_MIB = recording.FILE_MAX_BYTES >> 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument('--out', required=True, metavar='FILE', help='file to record to')
    parser.add_argument(
        '--interval',
        type=parse.option_duration_s,
        default=10.0,
        metavar='DURATION',
        help='length of a sample (default: 10)',
    )
    parser.add_argument(
        '--duration',
        type=_duration,
        metavar='TIME',
        help='how long to record: 90, 15m, 2h, 7d (default: until interrupted)',
    )
    parser.add_argument(
        '--max-size',
        type=parse.integer(_FILE_MAX_MIB),
        default=64,
        metavar='MIB',
        help='size at which the file is renamed and a new one started (default: 64)',
    )
    parser.add_argument(
        '--keep',
        type=parse.integer(recording.FILES_MAX),
        default=8,
        metavar='N',
        help='number of files to keep, including the current one (default: 8)',
    )


def _duration(text: str) -> float:
    try:
        return parse.duration_s(text)
    except ValueError:
        raise argparse.ArgumentTypeError('not a time like 90, 15m, 2h or 7d') from None


def run(
    args: argparse.Namespace,
    open_sampler: Callable[[], Sampler] = live.open_sampler,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Record until the duration is over or a signal is received; return the exit code.

    :param wait: waits for the given number of seconds
    :param clock: returns the time of a monotonic clock [s]
    """
    writer = recording.RecordingWriter(args.out, args.max_size << 20, args.keep)
    sizes = array('L')
    try:
        if writer.cut_bytes:
            _print_line(
                'removed %d bytes of an incomplete sample from the end of %s'
                % (writer.cut_bytes, args.out)
            )
        _print_line(
            'recording to %s every %g s%s'
            % (args.out, args.interval, '' if args.duration else '; Ctrl-C ends it')
        )
        with live.until_interrupted(), contextlib.closing(open_sampler()) as sampler:
            printed_problems: set[str] = set()
            for sample in _take_until(
                args.duration,
                sampling_loop.sample_every(sampler.sample, args.interval, wait, clock),
                clock,
            ):
                sizes.append(writer.append(sample))
                live.print_new_problems(sample.problems, printed_problems, _print_line)
    finally:
        writer.close()
    _print_line(
        '%d samples, %sB; a day of these takes %sB'
        % (
            len(sizes),
            tables.short_number(sum(sizes), 1024),
            tables.short_number(sum(sizes) / len(sizes) * 86400 / args.interval, 1024),
        )
        if sizes
        else 'no sample was taken'
    )
    return exits.OK


def _take_until(
    duration_s: float | None, samples: Iterable[Sample], clock: Callable[[], float]
) -> Iterator[Sample]:
    """Yield samples until the duration is over; None: until there are no more."""
    end_s = None if duration_s is None else clock() + duration_s
    for sample in samples:
        yield sample
        if end_s is not None and clock() >= end_s:
            return


def _print_line(line: str) -> None:
    print('record: %s' % line, file=sys.stderr, flush=True)
