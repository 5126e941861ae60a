# SPDX-License-Identifier: Apache-2.0
"""Parse whole numbers as an operator writes them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number

if TYPE_CHECKING:
    from collections.abc import Callable


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``, for an option's ``type``."""

    def parse(text: str) -> int:
        if not (is_number(text) and low <= int(text) <= high):
            raise argparse.ArgumentTypeError('not a whole number from %d to %d' % (low, high))
        return int(text)

    return parse
