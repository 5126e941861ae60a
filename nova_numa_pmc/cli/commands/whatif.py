# SPDX-License-Identifier: Apache-2.0
"""Replay your own requests on your own hosts: what would the weigher change?

It takes saved rows of compute_nodes and a list of create requests, fills the hosts once with the
weigher and once without it, and shows which choices differ, what pressure the new guests would
leave on their hosts, and how much would be lost because of them. It simulates Nova's weighers for
free vCPUs, RAM, disk and instances being built, and of Nova's filters only the check for room; the
package's own filter is applied as well. It runs on any machine, and neither queries nor changes
anything there.

examples:
  nova-numa-rebalance whatif --hosts hosts.json --requests requests.json
  nova-numa-rebalance whatif --hosts hosts.json --requests requests.json --floor 0.05
  nova-numa-rebalance whatif --hosts hosts.json --requests requests.json --json | jq .changed

requests.json: {"vcpus": 4, "memory_mb": 8192, "disk_gb": 40, "count": 2, "extra_specs": {}}, one
object per line or an array; disk_gb, count and extra_specs may be left out. hosts.json: see the
guide's "How a decision was made", with the columns cpu_allocation_ratio, ram_allocation_ratio and
disk_allocation_ratio (without them, 4, 1 and 1 are assumed, which are Nova's defaults), and the
additional columns stats, local_gb and local_gb_used.

exit codes: 0 shown; 1 a problem; 64 usage error
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, exits, explain_hosts, parse
from nova_numa_pmc.cli.render import tables
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.scheduler import saved_hosts, what_if_hosts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

#: Number of changed choices in the text; the JSON has all choices.
_CHOICES_SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        '--hosts', required=True, metavar='FILE', help='file with rows of compute_nodes as JSON'
    )
    parser.add_argument(
        '--requests', required=True, metavar='FILE', help='file with create requests as JSON'
    )
    parser.add_argument(
        '--multiplier',
        type=parse.non_negative_number,
        metavar='M',
        help='override weight_multiplier',
    )
    parser.add_argument(
        '--floor', type=parse.non_negative_number, metavar='P', help='override penalty_floor'
    )
    parser.add_argument(
        '--nova-conf',
        action='append',
        default=[],
        metavar='FILE',
        help="the scheduler's configuration file (default: none, all options at their defaults)",
    )
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the comparison; return the exit code.

    :raises RowsError: a file of rows or requests cannot be used
    :raises OptionsError: a file of ``--nova-conf`` cannot be read
    """
    conf = explain_hosts.options(args.nova_conf)
    for name, value in (('weight_multiplier', args.multiplier), ('penalty_floor', args.floor)):
        if value is not None:
            conf[name] = value
    with explain_hosts.name_file_in_errors(args.requests):
        create_requests = what_if_hosts.read_requests(explain_hosts.read_content(args.requests))
    with explain_hosts.name_file_in_errors(args.hosts):
        content = explain_hosts.read_content(args.hosts)
        _, saved_s = saved_hosts.read(content)
        choices = what_if_hosts.choices(content, create_requests, conf, saved_s)
    if args.json:
        print(json.dumps(to_data(choices, conf), indent=2, sort_keys=True))
    else:
        print('\n'.join(to_lines(choices)))
    return exits.OK


def to_data(
    choices: list[what_if_hosts.WhatIfChoice], conf: dict[str, object]
) -> dict[str, object]:
    """Return the comparison as plain data."""
    without_room, without_room_otherwise = _count_without_room(choices)
    refused, refused_otherwise = _count_refused(choices)
    return {
        'options': conf,
        'instances': len(choices),
        'changed': sum(choice.changed for choice in choices),
        'without_room': without_room,
        'without_room_otherwise': without_room_otherwise,
        'refused': refused,
        'refused_otherwise': refused_otherwise,
        'pressure': _mean(choice.pressure for choice in choices),
        'pressure_without': _mean(choice.pressure_without for choice in choices),
        'loss': _mean(choice.loss for choice in choices),
        'loss_without': _mean(choice.loss_without for choice in choices),
        'choices': [{**choice._asdict(), 'changed': choice.changed} for choice in choices],
    }


def to_lines(choices: list[what_if_hosts.WhatIfChoice]) -> list[str]:
    """Return the comparison as lines of text."""
    changed = [choice for choice in choices if choice.changed]
    lines = [
        '%d instances; %d would get another host (%.1f %%)'
        % (len(choices), len(changed), 100 * len(changed) / max(1, len(choices))),
        'mean pressure left on their hosts: %s with the weigher, %s without'
        % (
            tables.number(_mean(choice.pressure for choice in choices)),
            tables.number(_mean(choice.pressure_without for choice in choices)),
        ),
        'mean loss because of them: %s of the CPU that they want with the weigher, %s without'
        % (
            tables.number(_mean(choice.loss for choice in choices), 4),
            tables.number(_mean(choice.loss_without for choice in choices), 4),
        ),
    ]
    lines += [
        text % counts
        for text, counts in (
            (
                'no host had room for %d instances (without the weigher: %d)',
                _count_without_room(choices),
            ),
            (
                'the filter refused all hosts with room to %d instances (without the weigher: %d)',
                _count_refused(choices),
            ),
        )
        if any(counts)
    ]
    lines += _changed_lines(changed)
    return lines


def _count_without_room(choices: list[what_if_hosts.WhatIfChoice]) -> tuple[int, int]:
    """Return for how many instances no host has room, with and without the weigher."""
    return (
        sum(choice.host is None and not choice.refused for choice in choices),
        sum(choice.host_without is None and not choice.refused_without for choice in choices),
    )


def _count_refused(choices: list[what_if_hosts.WhatIfChoice]) -> tuple[int, int]:
    """Return to how many instances our filter refuses all hosts with room, as above."""
    return (
        sum(choice.refused for choice in choices),
        sum(choice.refused_without for choice in choices),
    )


def _changed_lines(changed: list[what_if_hosts.WhatIfChoice]) -> list[str]:
    lines = []
    rows = [
        (
            str(choice.request),
            printable(choice.host_without or '-'),
            tables.number(choice.pressure_without),
            printable(choice.host or '-'),
            tables.number(choice.pressure),
        )
        for choice in changed[:_CHOICES_SHOWN]
    ]
    if rows:
        headings = 'request without pressure with pressure'
        lines += ['', *tables.to_lines(tables.text_table(headings, rows, (1, 3)))]
    if len(changed) > _CHOICES_SHOWN:
        lines.append('and %d more' % (len(changed) - _CHOICES_SHOWN))
    return lines


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
