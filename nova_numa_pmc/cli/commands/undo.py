# SPDX-License-Identifier: Apache-2.0
"""Undo the moves of the last command, or one move from the history.

Guests that have not been restarted since the move, and are still where it left them,
are moved back with their memory; the others are listed and left alone. If a guest was
moved from several nodes to only some of them, its memory stays. An undo can itself be undone.
To undo one of the agent's moves, use --move; the agent may repeat the move once it pays
again, unless the guest is pinned or the agent is paused.

examples:
  nova-numa-rebalance undo
  nova-numa-rebalance undo --yes --json
  nova-numa-rebalance history --last 5
  nova-numa-rebalance undo --move 5f1c09ab

exit codes: 0 everything was undone; 2 you said no; 3 some moves were undone; 1 a
problem, nothing was undone; 64 usage error, such as no --yes where the command cannot ask
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, confirm, context, exits, run_moves, undo_plan
from nova_numa_pmc.core.rebalance.explain_move import explain_move
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.state import history

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument('--move', metavar='ID', help='undo only this move from the history')
    arguments.add_moving(parser)
    arguments.add_common(parser)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show what would be undone, ask, undo it, and return the exit code."""
    command = command or context.CommandContext(args.root)
    if not confirm.may_proceed(args, command):
        return exits.USAGE
    command.require_root()
    entries, _ = history.read(command.root)
    observed = command.read_host(write_promises=True)
    undo = undo_plan.plan(
        undo_plan.entries_to_undo(entries, args.move),
        observed.guests,
        observed.host_promises.promises,
    )
    if not args.json:
        _show(undo)
    result, declined = None, False
    if undo.plan.moves:
        declined = not args.yes and not confirm.ask_operator(command, 'undo these moves?')
        if not declined:
            result = run_moves.make_moves(
                command, undo.plan, observed, history.UNDO, args.wait, undo.targets
            )
    if args.json:
        print(
            json.dumps(
                {
                    'left_alone': dict(undo.left_alone),
                    'outcome': result and run_moves.to_data(result),
                }
            )
        )
    elif result:
        run_moves.print_result(result)
    return _exit_code(undo, result, declined)


def _show(undo: undo_plan.UndoPlan) -> None:
    for move in undo.plan.moves:
        print(printable(explain_move(move)))
    for name, why in undo.left_alone:
        print(printable('%s: left alone: %s' % (name, why)))


def _exit_code(
    undo: undo_plan.UndoPlan, result: run_moves.MovesResult | None, declined: bool
) -> int:
    if declined:
        return exits.NOT_MADE
    if result is None:
        return exits.PROBLEM
    if undo.left_alone and result.exit_code == exits.OK:
        return exits.PARTLY
    return result.exit_code
