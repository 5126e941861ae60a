# SPDX-License-Identifier: Apache-2.0
"""Measure this host and show which moves of guests would pay, and why. Nothing is moved.

A move pays if it gains more than it costs within --horizon, provided that the load
stays as it is now. The agent's budgets do not apply, and guests are not widened, which
only the agent does. The agent need not be running.

examples:
  nova-numa-rebalance plan
  nova-numa-rebalance plan --interval 20 --horizon 1h
  nova-numa-rebalance plan instance-0000002a instance-0000002b
  nova-numa-rebalance plan --json | jq -r '.moves[].text'

exit codes: 0 nothing would pay; 2 something would; 1 a problem; 64 usage error
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import context, exits, intervals, options
from nova_numa_pmc.cli.render import plans, tables
from nova_numa_pmc.core.rebalance import planner

if TYPE_CHECKING:
    import argparse

    from nova_numa_pmc.core.rebalance import plan_records


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_guests(parser)
    add_measuring(parser)
    options.add_common(parser)


def add_guests(parser: argparse.ArgumentParser) -> None:
    """Add the argument with the names of guests."""
    parser.add_argument(
        'guest',
        nargs='*',
        metavar='GUEST',
        help='consider only these guests (name, uuid or libvirt id)',
    )


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Add ``--interval`` and ``--horizon``."""
    parser.add_argument(
        '--interval',
        type=intervals.parse_interval_s,
        default=5.0,
        metavar='SECONDS',
        help='how long to measure (default: 5)',
    )
    parser.add_argument(
        '--horizon',
        type=intervals.parse_interval_s,
        default=planner.PAYBACK_S,
        metavar='SECONDS',
        help='how long to assume that the load stays as it is (default: 10m)',
    )


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Print the plan; return the exit code."""
    command = command or context.CommandContext(args.root)
    observed = command.measure(args.interval)
    plan, situation = command.propose(observed, args.horizon, args.guest)
    if args.json:
        print(json.dumps(plans.to_data(plan, situation, observed)))
    else:
        show(plan, situation, args.horizon, observed)
    return exits.NOT_MADE if plan.moves else exits.OK


def show(
    plan: plan_records.Plan,
    situation: plan_records.Situation,
    payback_s: float,
    observed: context.ObservedHost,
) -> None:
    """Print a plan as text, and problems to stderr."""
    print('\n'.join(plans.lines(plan, situation, payback_s, observed)), flush=True)
    for problem in observed.problems:
        print('problem: ' + tables.printable(problem), file=sys.stderr)
