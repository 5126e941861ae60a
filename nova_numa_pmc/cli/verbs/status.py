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
import sys
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import context, exits, host_status, intervals, options
from nova_numa_pmc.cli.render import status, tables
from nova_numa_pmc.core import pools

if TYPE_CHECKING:
    import argparse
    from typing import Any

    from nova_numa_pmc.state.overrides import Override


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        '--interval',
        type=intervals.parse_interval_s,
        default=None,
        metavar='SECONDS',
        help='measure for this long (default: show the published load)',
    )
    options.add_common(parser)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show the host's status; return the exit code."""
    command = command or context.CommandContext(args.root)
    observed = command.measure(args.interval) if args.interval else command.observe()
    if args.json:
        print(json.dumps(to_data(command, observed)))
    else:
        show(command, observed)
    return exits.OK


def show(command: context.CommandContext, observed: context.ObservedHost) -> None:
    """Print a host's status, and problems to stderr."""
    agent, nodes, guests, absent, problems, source = _collect(command, observed)
    lines = status.agent_lines(agent, observed.sample is not None)
    lines.append(status.pool_line(observed.pool, source))
    lines += status.memory_lines(nodes)
    lines += ['', *tables.text(status.node_table(nodes))]
    if guests:
        lines += ['', *tables.text(status.guest_table(guests, *_clocks()))]
    if absent:
        lines += [
            '',
            'not running: '
            + ', '.join(
                '%s %s (%s)' % (override.name, override.uuid, override.kind) for override in absent
            ),
        ]
    print('\n'.join(lines), flush=True)
    for problem in problems:
        print('problem: ' + tables.printable(problem), file=sys.stderr)


def to_data(command: context.CommandContext, observed: context.ObservedHost) -> dict[str, Any]:
    """Return a host's status as plain data."""
    agent, nodes, guests, absent, problems, source = _collect(command, observed)
    return dict(
        status.to_data(agent, nodes, guests, absent, problems, *_clocks()),
        pool={'cpus': sorted(observed.pool.cpus), 'source': source or observed.pool.source},
    )


def _collect(
    command: context.CommandContext, observed: context.ObservedHost
) -> tuple[
    host_status.AgentStatus,
    tuple[host_status.NodeStatus, ...],
    tuple[host_status.GuestStatus, ...],
    list[Override],
    tuple[str, ...],
    str,
]:
    """Return what is shown of a host.

    :returns: (status of the agent, of the nodes, of the guests; overrides of guests that are not
        running; problems; source of the agent's floating pool, or '' if that pool is not used)
    """
    agent, publication = host_status.agent(command)
    guests, problems = host_status.guests(command, observed)
    return (
        agent,
        host_status.nodes(command, observed, publication if agent.fresh else None),
        guests,
        host_status.overrides_of_absent(command, observed),
        (*observed.problems, *problems),
        publication.pool_source if publication and observed.pool.source == pools.AGENT else '',
    )


def _clocks() -> tuple[float, float]:
    """Return (CLOCK_REALTIME, CLOCK_BOOTTIME) [s]."""
    return time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
