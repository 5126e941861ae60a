# SPDX-License-Identifier: Apache-2.0
"""Record samples of this host to a file: one JSON object a sample, as "top --json" prints.

Samples are appended as they are taken. A recorder that is killed may leave an incomplete
last line, which "report" skips. A sample of 6 guests takes about 8 KB.

examples:
  nova-numa-rebalance record --out /var/tmp/before --duration 10m
  systemd-run --unit numa-record nova-numa-rebalance record --out /var/log/samples

exit codes: 0 the duration is over, or interrupted by the operator; 1 a problem;
64 usage error
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, tables
from nova_numa_pmc.json_values import to_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


OPTIONS = (
    arguments.option('--out', required=True, metavar='FILE', help='file to append to'),
    arguments.interval(10.0, '10'),
    arguments.option(
        '--duration',
        type=arguments.duration_s,
        metavar='TIME',
        help='how long to record: 90, 15m, 2h, 7d (default: until interrupted)',
    ),
)


def run(
    args: argparse.Namespace,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Record until the duration is over or a signal is received; return the exit code.

    :param wait: waits for the given number of seconds
    :param clock: returns the time of a monotonic clock [s]
    """
    count, printed = 0, set[str]()
    end_s = clock() + args.duration if args.duration else float('inf')
    with open(
        args.out, 'a', encoding='utf-8', opener=lambda path, flags: os.open(path, flags, 0o640)
    ) as file:
        if file.tell():
            file.write('\n')  # ends the line of a recorder that was killed
        print('recording to %s every %g s' % (args.out, args.interval), file=sys.stderr)
        with context.until_interrupted(), contextlib.closing(context.open_sampler('/')) as sampler:
            for sample in context.sample_every(sampler.sample, args.interval, wait):
                print(tables.json_line(to_json(sample)), file=file, flush=True)
                count += 1
                for line in tables.problem_lines(set(sample.problems) - printed):
                    print(line, file=sys.stderr)
                printed.update(sample.problems)
                if clock() >= end_s:
                    break
    print('%d samples' % count, file=sys.stderr)
    return arguments.OK
