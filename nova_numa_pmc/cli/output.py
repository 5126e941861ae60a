# SPDX-License-Identifier: Apache-2.0
"""Print what several commands print."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.json_values import printable

if TYPE_CHECKING:
    from collections.abc import Iterable


def problem_lines(problems: Iterable[str]) -> list[str]:
    """Return a line of text for each problem."""
    return ['problem: ' + printable(problem) for problem in problems]


def write_page(path: str, html: str) -> None:
    """Write a page to a file; an existing one is replaced."""
    with open(path, 'w', encoding='utf-8', errors='replace') as file:
        file.write(html)


def print_lines(lines: Iterable[str], problems: Iterable[str]) -> None:
    """Print lines of text, and problems to stderr."""
    print('\n'.join(lines), flush=True)
    for line in problem_lines(problems):
        print(line, file=sys.stderr)
