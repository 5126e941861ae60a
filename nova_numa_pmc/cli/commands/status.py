# SPDX-License-Identifier: Apache-2.0
"""Show this host's nodes and guests: where each guest is, and why.

It answers at once, with the load that the agent last published; with --interval, the
load is measured instead. The row of a guest shows the nodes that its CPUs are held to,
the nodes that its memory is on, and what brought it there: its start, or a move and
the reason for it. The agent need not be running.

With --plan, which is what nova-numa-rebalance does without a command, the load is
measured, the moves that would pay are shown, and root on a terminal is asked whether to
make them.

examples:
  nova-numa-rebalance
  nova-numa-rebalance --interval 20
  nova-numa-rebalance status
  nova-numa-rebalance status --interval 5
  nova-numa-rebalance status --html /tmp/status.html
  nova-numa-rebalance status --json | jq '.guests[] | {name, held_nodes, why}'

exit codes: 0 shown; with --plan, no move would pay, or all were made; 2 moves would pay
but were not made; 3 some moves were made and others were not; 1 a problem; 64 usage
error
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, moves, page, status, tables

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        '--plan', action='store_true', help='also show which moves would pay, and ask'
    )
    arguments.add_measuring(parser, None, 'show the published load; with --plan, 5')
    arguments.add_wait(parser, 'with --plan: ')
    arguments.add_html(parser)
    arguments.add_common(parser)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show the host's status; return the exit code."""
    command = command or context.CommandContext(args.root)
    if args.plan:
        return _show_plan(args, command)
    observed = command.measure(args.interval) if args.interval else command.read_host()
    host = status.read(command, observed)
    if args.html:
        page.write(args.html, status.to_html(host))
    if args.json:
        print(json.dumps(status.to_data(host)))
    else:
        tables.print_lines(status.to_lines(host), host.problems)
    return arguments.OK


def _show_plan(args: argparse.Namespace, command: context.CommandContext) -> int:
    """Show status and plan, ask, make the moves, and return the exit code."""
    can_ask = command.on_terminal and command.may_write and not args.json
    observed = command.measure(args.interval or arguments.INTERVAL_S, write_promises=can_ask)
    plan, situation = command.propose(observed, args.payback)
    host = status.read(command, observed)
    if args.html:
        page.write(args.html, status.to_html(host))
    if args.json:
        print(
            json.dumps(
                {
                    'status': status.to_data(host),
                    'plan': moves.plan_data(plan, situation, observed),
                }
            )
        )
    else:
        tables.print_lines(status.to_lines(host), host.problems)
        print()
        print('\n'.join(moves.plan_lines(plan, situation, args.payback, observed)), flush=True)
    if not plan.moves:
        return arguments.OK
    if not can_ask or not moves.ask_operator(command, 'make these moves?'):
        return arguments.NOT_MADE
    result = moves.make_shown_moves(command, plan, observed, args)
    moves.print_result(result)
    return result.exit_code
