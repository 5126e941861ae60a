# SPDX-License-Identifier: Apache-2.0
"""Print what several commands print."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.json_values import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from nova_numa_pmc.state.overrides import Override


def problem_lines(problems: Iterable[str]) -> list[str]:
    """Return a line of text for each problem."""
    return ['problem: ' + printable(problem) for problem in problems]


def print_lines(lines: Iterable[str], problems: Iterable[str]) -> None:
    """Print lines of text, and problems to stderr."""
    print('\n'.join(lines), flush=True)
    for line in problem_lines(problems):
        print(line, file=sys.stderr)


def print_override(
    override: Override, effect: str, as_json: bool, result: dict[str, Any] | None = None
) -> None:
    """Print an override that was recorded.

    :param effect: what it does, for the text
    :param result: the result of the move that was made first, as plain data, or None
    """
    if as_json:
        print(json.dumps(dict(override._asdict(), outcome=result)))
    else:
        print('%s %s: %s' % (override.name, override.uuid, effect))
