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

from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, moves

if TYPE_CHECKING:
    import argparse


OPTIONS = moves.PLANNING


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Print the plan; return the exit code."""
    would_pay = moves.show_plan(command or context.CommandContext(args.root), args, args.payback)
    return arguments.NOT_MADE if would_pay else arguments.OK
