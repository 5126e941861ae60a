# SPDX-License-Identifier: Apache-2.0
"""Show the plan repeatedly: which moves of guests would pay now. Nothing is moved.

On a terminal, the plan is redrawn with the nodes after each interval; q or Ctrl-C ends
the command. Otherwise, each plan is printed.

examples:
  nova-numa-rebalance watch
  nova-numa-rebalance watch --interval 30 --payback 1h
  nova-numa-rebalance watch --json | jq --unbuffered '.moves | length'

exit codes: 0 ended by the operator; 1 a problem; 64 usage error
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, exits, live, output
from nova_numa_pmc.cli.render import plans, tables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from nova_numa_pmc.core.rebalance import plan_records


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    arguments.add_guests(parser)
    arguments.add_measuring(parser)
    arguments.add_common(parser, 'print one JSON object per line')


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show plans until the operator ends the command; return the exit code."""
    command = command or context.CommandContext(args.root)
    if args.json or not command.on_terminal:
        live.print_each(_frames(args, command, command.wait), args.json)
    else:
        live.redraw(lambda wait: _frames(args, command, wait), args.interval)
    return exits.OK


def _frames(
    args: argparse.Namespace, command: context.CommandContext, wait: Callable[[float], None]
) -> Iterator[live.Frame]:
    """Yield a frame at the end of each interval."""
    for observed in command.samples(args.interval, wait):
        yield _frame(*command.propose(observed, args.payback, args.guest), args.payback, observed)


def _frame(
    plan: plan_records.Plan,
    situation: plan_records.Situation,
    payback_s: float,
    observed: context.ObservedHost,
) -> live.Frame:
    assert observed.sample is not None
    nodes = tables.node_table(observed.sample)
    lines = plans.to_lines(plan, situation, payback_s, observed)
    return live.Frame(
        observed.problems,
        lambda: plans.to_data(plan, situation, observed),
        lambda: lines,
        lambda: [nodes, '', *lines, '', *output.problem_lines(observed.problems)],
    )
