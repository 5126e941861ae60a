# SPDX-License-Identifier: Apache-2.0
"""Ask the operator before anything is moved or measured."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from nova_numa_pmc.cli.context import CommandContext


def may_proceed(args: argparse.Namespace, command: CommandContext) -> bool:
    """Return whether --yes was given or an operator can be asked; if neither, print the remedy."""
    if args.yes or (command.on_terminal and not args.json):
        return True
    print(
        'nova-numa-rebalance: cannot ask for confirmation (no terminal, or --json): use --yes to '
        'proceed',
        file=sys.stderr,
    )
    return False


def ask_operator(command: CommandContext, text: str) -> bool:
    """Ask a yes-or-no question and return whether the answer is yes; end of input means no."""
    try:
        return command.ask(text + ' [y/N] ').strip().lower() in ('y', 'yes')
    except EOFError:
        return False
