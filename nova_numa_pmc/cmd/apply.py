# SPDX-License-Identifier: Apache-2.0
"""Measure this host, show which moves of guests would pay, ask, and make them.

The new place is promised, the CPUs are written, and the memory follows at the rate
of the option move_mib_per_s. A move whose memory does not follow is taken back.
Ctrl-C and SIGTERM end the move in hand: it is kept where most of the memory has
moved, else taken back. While it works the agent moves and holds nobody; a command
that finds another one at work waits for --wait.

examples:
  nova-numa-rebalance apply
  nova-numa-rebalance apply --yes --json
  nova-numa-rebalance apply --yes instance-0000002a
  nova-numa-rebalance undo                           # take it back

exit codes: 0 nothing would pay, or all was done; 2 something would pay, and you
said no; 3 some moves were made and others not, or memory followed partly; 1 a
problem, nothing was moved; 64 wrong usage, as without --yes where nobody can be
asked
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cmd import exits, plan as plan_command, top
from nova_numa_pmc.movement import history
from nova_numa_pmc.operating import applying, seeing
from nova_numa_pmc.viewing import plans

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    plan_command.configure(parser)
    add_moving(parser)


def add_moving(parser: argparse.ArgumentParser) -> None:
    """Add what every command that moves guests has."""
    parser.add_argument('--yes', action='store_true', help='do not ask')
    parser.add_argument(
        '--wait',
        type=top.seconds,
        default=30.0,
        metavar='SECONDS',
        help='wait so long for whoever else moves guests (default: 30)',
    )


def run(args: argparse.Namespace, here: seeing.Here | None = None) -> int:
    """Show the plan, ask, make the moves; return the exit code."""
    here = here or seeing.Here(args.root)
    if not may_ask(args, here):
        return exits.USAGE
    here.need_root()
    seen = here.measure(args.interval, keep=True)
    plan, situation = here.propose(seen, args.horizon, args.guest)
    if not args.json:
        plan_command.show(plan, situation, args.horizon, seen)
    outcome = None
    if plan.moves and (args.yes or agreed(here, 'make these moves?')):
        outcome = applying.make(here, plan, seen.record.promises, history.APPLY, args.wait)
    if args.json:
        print(
            json.dumps(
                {
                    'plan': plans.to_data(plan, situation, seen),
                    'outcome': outcome and applying.outcome_data(outcome),
                }
            )
        )
    elif outcome:
        applying.say_outcome(outcome, print)
    if outcome:
        return outcome.exit_code
    return exits.NOT_EMPTY if plan.moves else exits.OK


def may_ask(args: argparse.Namespace, here: seeing.Here) -> bool:
    """Say whether it was said not to ask, or somebody can be asked; tell where neither is."""
    if args.yes or here.terminal and not args.json:
        return True
    print(
        'nova-numa-rebalance: there is nobody to ask: --yes makes the moves without asking',
        file=sys.stderr,
    )
    return False


def agreed(here: seeing.Here, question: str) -> bool:
    """Ask; an end of the input is a no."""
    try:
        return here.ask(question + ' [y/N] ').strip().lower() in ('y', 'yes')
    except EOFError:
        return False
