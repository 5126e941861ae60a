# SPDX-License-Identifier: Apache-2.0
"""Measure this host and show which moves of guests would pay, and why. Nothing is moved.

A move pays if it gains more than it costs within --payback, provided that the load
stays as it is now. The agent's budgets do not apply, and guests are not widened: only
the agent does that, because it also takes them home again. The agent need not be
running.

examples:
  nova-numa-rebalance plan
  nova-numa-rebalance plan --interval 20 --payback 1h
  nova-numa-rebalance plan instance-0000002a instance-0000002b
  nova-numa-rebalance plan --json | jq -r '.moves[].text'

exit codes: 0 no move would pay; 2 some moves would; 1 a problem; 64 usage error
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, moves, tables

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    arguments.add_planning(parser)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Print the plan; return the exit code."""
    command = command or context.CommandContext(args.root)
    observed = command.measure(args.interval)
    plan, situation = command.propose(observed, args.payback, args.guest)
    if args.json:
        print(json.dumps(moves.plan_data(plan, situation, observed)))
    else:
        tables.print_lines(
            moves.plan_lines(plan, situation, args.payback, observed), observed.problems
        )
    return arguments.NOT_MADE if plan.moves else arguments.OK
