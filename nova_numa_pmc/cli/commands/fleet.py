# SPDX-License-Identifier: Apache-2.0
"""Show which guests should be live-migrated to other hosts, and why. Nothing is moved.

It needs the figures of all hosts: a directory with the output of "status --json" of
each in HOST.json, where HOST is the name of the compute service, or the URL of a
server with Prometheus' HTTP API that has the agents' metrics. Hosts that their own
agents can relieve are left alone, and so are guests that came to their host within a
day. It runs anywhere, and needs neither root nor libvirt.

examples:
  nova-numa-rebalance fleet /var/tmp/fleet
  nova-numa-rebalance fleet http://prometheus:9090 --match 'cluster="a"'
  nova-numa-rebalance fleet /var/tmp/fleet --moves 3 --bytes 64G
  nova-numa-rebalance fleet /var/tmp/fleet --json | jq -r '.moves[].command'

exit codes: 0 no move would pay; 2 some moves would; 1 a problem; 64 usage error
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.cli import arguments, fleet_input, tables
from nova_numa_pmc.core import fleet
from nova_numa_pmc.json_values import printable

if TYPE_CHECKING:
    import argparse

#: Number of hosts named for each reason to leave hosts alone.
_NAMES_SHOWN = 6


OPTIONS = (
    arguments.option('source', metavar='DIR|URL', help='where the figures of the hosts are'),
    arguments.option(
        '--match',
        default='',
        metavar='LABELS',
        help='only hosts with these labels (of a URL): cluster="a",rack!="b"',
    ),
    arguments.option(
        '--moves',
        type=arguments.integer(10_000),
        default=10,
        metavar='N',
        help='the most guests to move (default: 10)',
    ),
    arguments.option(
        '--bytes',
        type=arguments.memory_bytes,
        default=256 * model.GIB,
        metavar='SIZE',
        help='the most memory to move (default: 256G)',
    ),
    arguments.JSON,
)


def run(args: argparse.Namespace) -> int:
    """Print the plan; return the exit code."""
    hosts, problems = fleet_input.read(args.source, args.match)
    plan = fleet.plan(hosts, fleet.Budgets(args.moves, args.bytes), time.time())
    data = {
        'moves': [dict(move._asdict(), command=_command(move)) for move in plan.moves],
        'left_alone': [
            {'host': host, 'code': code, 'why': fleet.TEXTS[code]}
            for host, code in plan.left_alone
        ],
        'hosts': len(hosts),
        'problems': problems,
    }
    tables.show(args.json, data, _to_lines(plan, len(hosts)), problems)
    return arguments.NOT_MADE if plan.moves else arguments.OK


def _to_lines(plan: fleet.FleetPlan, count: int) -> list[str]:
    """Return the plan as lines of text.

    :param count: number of hosts whose figures were read
    """
    lines = ['%d hosts: no move would pay' % count]
    if plan.moves:
        lines = [
            '%d hosts: %d moves gain %.1f cores'
            % (count, len(plan.moves), sum(move.gain_cores for move in plan.moves)),
            '',
            *tables.to_lines(_table(plan)),
            '',
            *map(_command, plan.moves),
        ]
    for code, text in fleet.TEXTS.items():
        names = [host for host, reason in plan.left_alone if reason == code]
        if names:
            shown = ', '.join(names[:_NAMES_SHOWN])
            more = len(names) - _NAMES_SHOWN
            lines.append(
                'left alone: %s%s: %s' % (shown, ' and %d more' % more if more > 0 else '', text)
            )
    return lines


def _table(plan: fleet.FleetPlan) -> tables.Table:
    rows = [
        [
            printable(move.name),
            move.source,
            move.target,
            '%.2f' % move.gain_cores,
            tables.short_number(move.memory_bytes, 1024),
            '%.1f' % (move.duration_s / 60),
            'pressure %.2f to %.2f there, %.2f to %.2f here'
            % (*move.source_ratios, *move.target_ratios),
        ]
        for move in plan.moves
    ]
    return tables.Table(
        ['guest', 'from', 'to', 'gain', 'memory', 'minutes', 'why'], rows, (0, 1, 2, 6)
    )


def _command(move: fleet.FleetMove) -> str:
    """Return the command of OpenStack that makes a move; Nova's scheduler checks the host."""
    return (
        'openstack --os-compute-api-version 2.30 server migrate --live-migration --wait '
        '--host %s %s' % (move.target, move.uuid)
    )
