# SPDX-License-Identifier: Apache-2.0
"""Exit codes of the commands, and an argument parser that exits with the one for wrong usage."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

#: In this order: nothing to do, or done; a problem, printed with its remedy; moves would pay but
#: were not made; only some of the moves were made.
OK, PROBLEM, NOT_MADE, PARTLY = 0, 1, 2, 3
#: Wrong usage: EX_USAGE of sysexits(3).
USAGE = 64

EXIT_CODES_HELP = (
    'exit codes: 0 nothing to do, or done; 1 a problem (printed with its remedy); 2 moves would '
    'pay but were not made; 3 some moves were made, others were not; 64 usage error'
)


class Parser(argparse.ArgumentParser):
    """Argument parser that exits with 64 on wrong usage; argparse's 2 is an answer of ``plan``."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, '%s: error: %s\n' % (self.prog, message))
