# SPDX-License-Identifier: Apache-2.0
"""Exit codes of the commands, and a parser that ends with the one for wrong usage."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

#: Nothing to do, or done; a problem, printed with its remedy; moves would pay but were not made;
#: some of the moves were not made.
OK, PROBLEM, NOT_EMPTY, PARTLY = 0, 1, 2, 3
#: Wrong usage, EX_USAGE of sysexits(3).
USAGE = 64

TEXT = (
    'exit codes: 0 nothing to do, or done; 1 a problem (printed with its remedy); 2 moves would '
    'pay but were not made; 3 some moves were made, others were not; 64 usage error'
)


class Parser(argparse.ArgumentParser):
    """An argument parser that ends with 64 on wrong usage, as 2 is an answer of ``plan``."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, '%s: error: %s\n' % (self.prog, message))
