# SPDX-License-Identifier: Apache-2.0
"""Exit codes, the parser, the values and the options that several commands have."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from typing import TYPE_CHECKING, Any

from nova_numa_pmc import installed_version
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import NoReturn

#: Exit codes. In this order: nothing to do, or done; a problem, printed with its remedy; moves
#: would pay but were not made; only some of the moves were made.
OK, PROBLEM, NOT_MADE, PARTLY = 0, 1, 2, 3
#: Exit code of wrong usage: EX_USAGE of sysexits(3).
USAGE = 64
EXIT_CODES_HELP = (
    'exit codes: 0 nothing to do, or done; 1 a problem (printed with its remedy); 2 moves would '
    'pay but were not made; 3 some moves were made, others were not; 64 usage error'
)
_UNITS_S = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': 604800}
_UNITS_BYTES = {'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
_MEMORY_MAX_BYTES = 1 << 50
#: More than any guest has (``domain_xml.VCPUS_MAX``).
_VCPUS_MAX = 1 << 16


class Parser(argparse.ArgumentParser):
    """Argument parser that exits with 64 on wrong usage; argparse's 2 is an answer of ``plan``.

    Options cannot be abbreviated: a script that does so would break when another option is added.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what argparse's own parser takes."""
        super().__init__(*args, **{**kwargs, 'allow_abbrev': False})

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, with the word that is meant if one is close, and exit."""
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong:
            meant = difflib.get_close_matches(wrong[1], re.findall(r'[\w-]+', wrong[2]), 1)
            message += ''.join(': did you mean %s?' % word for word in meant)
        self.print_usage(sys.stderr)
        self.exit(USAGE, '%s: error: %s\n' % (self.prog, message))


class _ShowVersion(argparse.Action):
    """Prints the version, which is slow to find out, if it is asked for, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the version and exit."""
        print('%s %s' % (parser.prog, installed_version()))
        parser.exit()


class Option(Record):
    """An option or an argument.

    :param settings: what :meth:`argparse.ArgumentParser.add_argument` takes by name
    """

    names: tuple[str, ...]
    settings: dict[str, Any]


def option(*names: str, **settings: Any) -> Option:
    """Return an option, from what :meth:`argparse.ArgumentParser.add_argument` takes."""
    return Option(names, settings)


def add(parser: argparse.ArgumentParser, options: Iterable[Option | Sequence[Option]]) -> None:
    """Add options to a parser; of those that are in a list of their own, one may be given."""
    for each in options:
        if isinstance(each, Option):
            parser.add_argument(*each.names, **each.settings)
            continue
        group = parser.add_mutually_exclusive_group()
        for exclusive in each:
            group.add_argument(*exclusive.names, **exclusive.settings)


def duration_s(text: str) -> float:
    """Parse a duration from 0.1 s to a year, such as '5', '90s', '15m', '2h' or '7d'; in seconds.

    :raises argparse.ArgumentTypeError: it is not such a duration
    """
    unit = _UNITS_S.get(text[-1:])
    try:
        value = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        value = math.nan
    if not 0.1 <= value <= 366 * 86400:
        raise argparse.ArgumentTypeError('not a time like 5, 0.5, 15m, 2h or 7d')
    return value


def integer(maximum: int) -> Callable[[str], int]:
    """Return a parser of integers from 1 to ``maximum``, for an option's ``type``."""

    def parse(text: str) -> int:
        if not (is_number(text) and 1 <= int(text) <= maximum):
            raise argparse.ArgumentTypeError(
                '%.40r is not a whole number from 1 to %d' % (text, maximum)
            )
        return int(text)

    return parse


def memory_bytes(text: str) -> int:
    """Parse an amount of memory such as '8G' or '512M'; a plain number is MiB.

    :raises argparse.ArgumentTypeError: it is not such an amount
    """
    digits, unit = (text, 'M') if text[-1:].isdigit() else (text[:-1], text[-1:].upper())
    if not (
        is_number(digits, 15)
        and unit in _UNITS_BYTES
        and 0 < int(digits) * _UNITS_BYTES[unit] <= _MEMORY_MAX_BYTES
    ):
        raise argparse.ArgumentTypeError('%.40r is not a size like 8G or 512M' % text)
    return int(digits) * _UNITS_BYTES[unit]


def _spec(text: str) -> tuple[str, str]:
    key, equals, value = text.partition('=')
    if not equals or not key:
        raise argparse.ArgumentTypeError('%.40r is not KEY=VALUE' % text)
    return key, value


VERSION = option('--version', action=_ShowVersion, nargs=0, help='print the version and exit')
ROOT = option(
    '--root', default='/', metavar='DIR', help="root of the host's file system (default: /)"
)
JSON = option(
    '--json',
    action='store_true',
    help='print one JSON object; with several samples or moves, one on each line',
)
YES = option('--yes', action='store_true', help='do not ask')
WAIT = option(
    '--wait',
    type=duration_s,
    default=30.0,
    metavar='DURATION',
    help='how long to wait for another process that moves guests (default: 30)',
)


def interval(default_s: float | None = 5.0, default: str = '5') -> Option:
    """Return the option ``--interval``.

    :param default: what the help text says about the default
    """
    return option(
        '--interval',
        type=duration_s,
        default=default_s,
        metavar='DURATION',
        help='how long to measure (default: %s)' % default,
    )


def size(required: bool) -> tuple[Option, ...]:
    """Return the options that describe the flavor of a guest that does not exist yet."""
    return (
        option(
            '--vcpus',
            type=integer(_VCPUS_MAX),
            required=required,
            metavar='N',
            help='vCPUs of the guest',
        ),
        option(
            '--memory',
            type=memory_bytes,
            required=required,
            metavar='SIZE',
            help='memory of the guest: 8G, 512M; a plain number is MiB, as in a flavor',
        ),
        option(
            '--spec',
            action='append',
            default=[],
            type=_spec,
            metavar='KEY=VALUE',
            help='extra spec of its flavor (may be repeated)',
        ),
    )
