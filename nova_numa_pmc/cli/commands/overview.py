# SPDX-License-Identifier: Apache-2.0
"""Show this host's status and which moves would pay, and ask whether to make them.

This is what nova-numa-rebalance does without a command. It asks only if run by root on a
terminal; otherwise it exits after printing the plan.

examples:
  nova-numa-rebalance
  nova-numa-rebalance --interval 20
  nova-numa-rebalance --json

exit codes: 0 no move would pay, or all were made; 2 moves would pay but were not
made; 3 some moves were made and others were not; 1 a problem; 64 usage error
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, confirm, context, exits, host_status, output, run_moves
from nova_numa_pmc.cli.render import plans, status
from nova_numa_pmc.state import history

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    arguments.add_measuring(parser)
    arguments.add_wait(parser)
    arguments.add_common(parser, 'print one JSON object with status and plan')


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show status and plan, ask, make the moves, and return the exit code."""
    command = command or context.CommandContext(args.root)
    can_ask = command.on_terminal and command.may_write and not args.json
    observed = command.measure(args.interval, write_promises=can_ask)
    plan, situation = command.propose(observed, args.payback)
    host = host_status.read(command, observed)
    if args.json:
        print(
            json.dumps(
                {'status': status.to_data(host), 'plan': plans.to_data(plan, situation, observed)}
            )
        )
    else:
        output.print_lines(status.to_lines(host), host.problems)
        print()
        print('\n'.join(plans.to_lines(plan, situation, args.payback, observed)), flush=True)
    if not plan.moves:
        return exits.OK
    if not can_ask or not confirm.ask_operator(command, 'make these moves?'):
        return exits.NOT_MADE
    result = run_moves.make_moves(command, plan, observed, history.APPLY, args.wait)
    run_moves.print_result(result)
    return result.exit_code
