# SPDX-License-Identifier: Apache-2.0
"""Parse durations and numbers as an operator writes them."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number

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


def integer(maximum: int) -> Callable[[str], int]:
    """Return a parser of integers from 1 to ``maximum``, for an option's ``type``."""

    def parse(text: str) -> int:
        if not (is_number(text) and 1 <= int(text) <= maximum):
            raise argparse.ArgumentTypeError(
                '%.40r is not a whole number from 1 to %d' % (text, maximum)
            )
        return int(text)

    return parse
