# SPDX-License-Identifier: Apache-2.0
"""Show the plan repeatedly: which moves of guests would pay now. Nothing is moved.

On a terminal, the plan is redrawn with the nodes after each interval; q or Ctrl-C ends
the command. Otherwise, each plan is printed.

examples:
  nova-numa-rebalance watch
  nova-numa-rebalance watch --interval 30 --horizon 1h
  nova-numa-rebalance watch --json | jq --unbuffered '.moves | length'

exit codes: 0 ended by the operator; 1 a problem; 64 usage error
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import context, exits, live, options
from nova_numa_pmc.cli.render import plans, screen, tables
from nova_numa_pmc.cli.verbs import plan as plan_command

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    plan_command.add_guests(parser)
    plan_command.add_measuring(parser)
    options.add_common(parser, 'print one JSON object per line')


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show plans until the operator ends the command; return the exit code."""
    command = command or context.CommandContext(args.root)
    with live.until_interrupted():
        if args.json or not command.terminal:
            _print_all(args, command)
        else:
            _live(args, command)
    return exits.OK


def _print_all(args: argparse.Namespace, command: context.CommandContext) -> None:
    printed_problems: set[str] = set()
    for observed in command.samples(args.interval, command.wait):
        plan, situation = command.propose(observed, args.horizon, args.guest)
        if args.json:
            print(json.dumps(plans.to_data(plan, situation, observed)), flush=True)
        else:
            live.print_once(
                observed.problems, printed_problems, lambda line: print(line, file=sys.stderr)
            )
            print(
                '\n'.join(plans.lines(plan, situation, args.horizon, observed)) + '\n', flush=True
            )


def _live(args: argparse.Namespace, command: context.CommandContext) -> None:
    with screen.keys() as read_key, screen.open_screen(sys.stdout) as display:
        display.draw(['measuring for %g s …  (q ends)' % args.interval])

        def wait(duration_s: float) -> bool:
            end_s = time.monotonic() + duration_s
            while (left_s := end_s - time.monotonic()) > 0:
                if read_key(left_s) == 'q':
                    return True
            return False

        for observed in command.samples(args.interval, wait):
            plan, situation = command.propose(observed, args.horizon, args.guest)
            assert observed.sample is not None
            display.draw(
                [
                    tables.node_table(observed.sample),
                    '',
                    *plans.lines(plan, situation, args.horizon, observed),
                    '',
                    *('problem: ' + tables.printable(problem) for problem in observed.problems),
                ]
            )
