# SPDX-License-Identifier: Apache-2.0
"""Measure this host, show which moves of guests would pay, ask, and make them.

Only the moves that were shown are made. Before each one, the host is measured again;
a move that no longer pays is left out, and the command says why.

A move promises the new place, writes the CPUs, and lets the memory follow at the rate
of the option move_mib_per_s. A move whose memory does not follow is undone.
Ctrl-C and SIGTERM end the move in progress: it is kept if most of the memory has
moved, and undone otherwise. While this command moves guests, the agent moves none.
If another command is moving guests, this one waits for at most the time given by
--wait. If this command is suspended for longer than 30 seconds, its moves end so too.

examples:
  nova-numa-rebalance apply
  nova-numa-rebalance apply --yes --json
  nova-numa-rebalance apply --yes instance-0000002a
  nova-numa-rebalance undo                           # undo the moves

exit codes: 0 no move would pay, or all were made; 2 moves would pay, but you
said no; 3 some moves were made and others were not, or only part of the memory
followed; 1 a problem, nothing was moved; 64 usage error, such as no --yes where the
command cannot ask
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, moves, tables
from nova_numa_pmc.state import history

if TYPE_CHECKING:
    import argparse


OPTIONS = (*moves.PLANNING, arguments.YES, arguments.WAIT)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show the plan, ask, make the moves, and return the exit code."""
    command = command or context.CommandContext(args.root)
    moves.require_answer(args, command)
    command.require_root()
    observed = command.measure(args.interval, write_promises=True)
    plan, situation = command.propose(observed, args.payback, args.guest)
    if not args.json:
        lines = moves.plan_lines(plan, situation, args.payback, observed)
        tables.show(False, {}, lines, observed.problems)
    result = None
    if plan.moves and moves.is_confirmed(args, command, 'make these moves?'):
        result = moves.make_moves(
            command,
            plan,
            observed,
            history.APPLY,
            args.wait,
            why_not=functools.partial(
                command.why_not_paying, interval_s=args.interval, payback_s=args.payback
            ),
        )
    moves.show_result(args, result, plan=moves.plan_data(plan, situation, observed))
    if result:
        return result.exit_code
    return arguments.NOT_MADE if plan.moves else arguments.OK
