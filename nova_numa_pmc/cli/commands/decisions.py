# SPDX-License-Identifier: Apache-2.0
"""Summarise what shadow mode has logged: which choices of hosts would have changed.

With [numa_pmc] mode = shadow, nova-scheduler logs a line for each decision but decides as if the
weigher were not there. This command reads these logs, on any machine, and shows how often another
host would have been chosen. For both hosts it also shows what guests would lose because of the new
guest, and the pressure at that time and, if later lines have it, an hour and a day later.

examples:
  nova-numa-rebalance decisions /var/log/nova/nova-scheduler.log*
  journalctl -u nova-scheduler -o cat | nova-numa-rebalance decisions -
  nova-numa-rebalance decisions --json nova-scheduler.log | jq .changed

exit codes: 0 shown; 1 a problem, or no shadow mode lines; 64 usage error
"""

from __future__ import annotations

import errno
import importlib
import io
import json
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, exits
from nova_numa_pmc.cli.render import tables
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler import shadow_log

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


class _Compression(Record):
    """A compression format of logs.

    :param suffix: the end of their names
    :param magic: their first bytes
    :param program: prints them decompressed
    :param module: reads them, with a function ``open``; not every Python has all of them
    """

    suffix: str
    magic: bytes
    program: str
    module: str


#: The formats that are known, of which logrotate may use any (``compresscmd``).
_COMPRESSIONS = (
    _Compression('.gz', b'\x1f\x8b', 'zcat', 'gzip'),
    _Compression('.xz', b'\xfd7zXZ\x00', 'xzcat', 'lzma'),
    _Compression('.bz2', b'BZh', 'bzcat', 'bz2'),
    _Compression('.zst', b'\x28\xb5\x2f\xfd', 'zstdcat', 'compression.zstd'),
)
_MAGIC_MAX_BYTES = max(len(compression.magic) for compression in _COMPRESSIONS)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        'logs',
        nargs='+',
        metavar='LOG',
        help='log of nova-scheduler, also compressed (.gz, .xz, .bz2); - reads standard input',
    )
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the summary; return the exit code."""
    try:
        summary = shadow_log.summarise(shadow_log.decisions(_lines(args.logs)))
    except OSError as error:
        print('%s: %s' % (error.filename or 'log', error.strerror or error), file=sys.stderr)
        return exits.PROBLEM
    if args.json:
        print(json.dumps(to_data(summary), indent=2))
    elif summary.decisions:
        print('\n'.join(to_lines(summary)))
    if summary.unreadable:
        print('unreadable lines, left out: %d' % summary.unreadable, file=sys.stderr)
    elif not summary.decisions:
        print('no shadow mode lines: set [numa_pmc] mode = shadow in nova.conf', file=sys.stderr)
    return exits.OK if summary.decisions else exits.PROBLEM


def _lines(paths: list[str]) -> Iterator[str]:
    for path in paths:
        if path == '-':
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(encoding='utf-8', errors='replace')
            yield from sys.stdin or ()  # None: it was closed
        else:
            try:
                with open(path, 'rb') as stream:
                    yield from _text(stream, path)
            except OSError as error:
                error.filename = path  # only the errors of open() have it
                raise


def _text(stream: io.BufferedReader, path: str) -> Iterator[str]:
    """Yield the lines of a log, decompressed.

    :raises OSError: it cannot be read, or not be decompressed here, or is damaged
    """
    # The bytes are not taken from the file, which may be a pipe. They count before the suffix, as
    # logrotate appends .gz for any compresscmd unless compressext is set.
    magic = stream.peek(_MAGIC_MAX_BYTES)
    compression = next(
        (known for known in _COMPRESSIONS if magic.startswith(known.magic)),
        next((known for known in _COMPRESSIONS if path.endswith(known.suffix)), None),
    )
    if compression is None:
        yield from io.TextIOWrapper(stream, encoding='utf-8', errors='replace')
    else:
        yield from _decompressed(stream, compression)


def _decompressed(stream: io.BufferedReader, compression: _Compression) -> Iterator[str]:
    """Yield the lines of a compressed log.

    :raises OSError: it cannot be read, or not be decompressed here, or is damaged
    """
    try:
        module = importlib.import_module(compression.module)
    except ImportError:  # Python before 3.14, or built without bz2 or lzma
        raise OSError(
            errno.ENOTSUP,
            'compressed in a format that cannot be read here: specify - in its place, and pipe '
            'the output of %s into this command' % compression.program,
        ) from None
    try:
        yield from module.open(stream, 'rt', encoding='utf-8', errors='replace')
    except Exception as error:  # each of the modules has exceptions of its own
        if isinstance(error, OSError) and error.errno:
            raise
        raise OSError(errno.EIO, 'damaged: %s' % error) from error


def to_data(summary: shadow_log.ShadowSummary) -> dict[str, object]:
    """Return the summary as plain data."""
    return {
        'decisions': summary.decisions,
        'changed': summary.changed,
        'first_s': summary.first_s,
        'last_s': summary.last_s,
        'pressure': summary.pressure and summary.pressure._asdict(),
        'loss': summary.loss and summary.loss._asdict(),
        'later': {str(seconds): means._asdict() for seconds, means in summary.later.items()},
        'unreadable': summary.unreadable,
    }


def to_lines(summary: shadow_log.ShadowSummary) -> list[str]:
    """Return the summary as lines of text."""
    lines = [
        '%d decisions from %s to %s'
        % (
            summary.decisions,
            tables.clock_time(summary.first_s),
            tables.clock_time(summary.last_s),
        ),
        'another host would have been chosen in %d (%.1f %%)'
        % (summary.changed, 100 * summary.changed / summary.decisions),
    ]
    rows = [
        (
            figure,
            str(means.decisions),
            tables.number(means.chosen, digits),
            tables.number(means.preferred, digits),
        )
        for figure, digits, means in (
            ('loss then', 4, summary.loss),
            ('pressure then', 2, summary.pressure),
            *(
                ('pressure %d h later' % (seconds // 3600), 2, means)
                for seconds, means in summary.later.items()
            ),
        )
        if means
    ]
    if rows:
        headings = ('figure', 'decisions', 'chosen', 'would have been')
        lines += ['', *tables.to_lines(tables.text_table(headings, rows, (0,)))]
    return lines
