# SPDX-License-Identifier: Apache-2.0
"""Show this host's nodes and guests: where each guest is, and why.

It answers at once, with the load that the agent last published; with --interval, the
load is measured instead. The row of a guest shows the nodes that its CPUs are held to,
the nodes that its memory is on, and what brought it there: its start, or a move and
the reason for it. The agent need not be running.

examples:
  nova-numa-rebalance status
  nova-numa-rebalance status --interval 5
  nova-numa-rebalance status --json | jq '.guests[] | {name, held_nodes, why}'

exit codes: 0 shown; 1 a problem; 64 usage error
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, exits, host_status, output, parse
from nova_numa_pmc.cli.render import status

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        '--interval',
        type=parse.option_duration_s,
        default=None,
        metavar='DURATION',
        help='measure for this long (default: show the published load)',
    )
    arguments.add_common(parser)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show the host's status; return the exit code."""
    command = command or context.CommandContext(args.root)
    observed = command.measure(args.interval) if args.interval else command.read_host()
    host = host_status.read(command, observed)
    if args.json:
        print(json.dumps(status.to_data(host)))
    else:
        output.print_lines(status.to_lines(host), host.problems)
    return exits.OK
