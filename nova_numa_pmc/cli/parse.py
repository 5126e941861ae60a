# SPDX-License-Identifier: Apache-2.0
"""Parse durations, times and numbers as an operator writes them."""

from __future__ import annotations

import argparse
import datetime
import math
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import NumaPmcError

if TYPE_CHECKING:
    from collections.abc import Callable

_UNITS_S = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': 604800}


def duration_s(text: str) -> float:
    """Parse a duration such as '90', '90s', '15m', '2h', '7d' or '1w'; return seconds.

    :raises ValueError: it is not a duration, or not positive
    """
    unit = _UNITS_S.get(text[-1:])
    value = float(text[:-1] if unit else text) * (unit or 1)
    if not 0 < value < math.inf:
        raise ValueError('not a duration')
    return value


def option_duration_s(text: str) -> float:
    """Parse a duration from 0.1 s to a day, such as '5' or '2m'; return seconds.

    :raises argparse.ArgumentTypeError: it is not such a duration
    """
    try:
        value = duration_s(text)
    except ValueError:
        raise argparse.ArgumentTypeError('not a time like 5, 0.5 or 2m') from None
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError('not between 0.1 s and a day')
    return value


def time_s(text: str, first_s: float, last_s: float) -> float | None:
    """Parse a time that an operator gave; return seconds since the epoch, None if it is empty.

    :param text: '2026-11-21T14:00' (local time unless it has an offset), '+2h' (after the
        recording's beginning), '-30m' (before its end), '@1700000000' or ''
    :param first_s, last_s: beginning and end of the recording [s since the epoch]
    :raises NumaPmcError: it is none of these
    """
    try:
        if not text:
            return None
        if text[0] == '+':
            return first_s + duration_s(text[1:])
        if text[0] == '-':
            return last_s - duration_s(text[1:])
        if text[0] == '@':
            return _finite(float(text[1:]))
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise NumaPmcError(
            '%.60r is not a time: write 2026-11-21T14:00, +2h (after the start of the '
            'recording), -30m (before its end) or @1700000000' % text
        ) from None


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError('not finite')
    return value


def window_s(text: str, first_s: float, last_s: float) -> tuple[float | None, float | None]:
    """Parse a window 'A..B'; return (from, to) [s since the epoch], None for a side left out.

    :param first_s, last_s: as for :func:`time_s`
    :raises NumaPmcError: it is not a window
    """
    begin, dots, end = text.partition('..')
    if not dots:
        raise NumaPmcError(
            '%.60r is not a window: write A..B, as in ..+1h; a side that is left out is the '
            "recording's beginning or end" % text
        )
    return time_s(begin, first_s, last_s), time_s(end, first_s, last_s)


def integer(maximum: int) -> Callable[[str], int]:
    """Return a parser of integers from 1 to ``maximum``, for an option's ``type``."""

    def parse(text: str) -> int:
        if not (is_number(text) and 1 <= int(text) <= maximum):
            raise argparse.ArgumentTypeError(
                '%.40r is not a whole number from 1 to %d' % (text, maximum)
            )
        return int(text)

    return parse
