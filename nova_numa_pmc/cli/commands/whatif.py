# SPDX-License-Identifier: Apache-2.0
"""Replay your own requests on your own hosts: what would the weigher change?

It takes saved rows of compute_nodes and a list of create requests, fills the hosts once with the
weigher and once without it, and shows which choices differ, what pressure the new guests would
leave on their hosts, and how much would be lost because of them. It simulates Nova's weighers for
free vCPUs, RAM, disk and instances being built, with the multipliers of --nova-conf but not those
of aggregates, and of Nova's filters only the check for room; the package's own filter is applied
as well. Nova's other weighers (build failures, server groups, PCI devices, versions, numbers of
instances, metrics) are left out. The instances of one request count as being built until the next
request. It runs on any machine, and neither queries nor changes anything there.

examples:
  nova-numa-rebalance whatif --hosts hosts.json --requests requests.json
  nova-numa-rebalance whatif --hosts hosts.json --requests requests.json --floor 0.05
  nova-numa-rebalance whatif --hosts hosts.json --requests requests.json --json | jq .changed

requests.json: {"vcpus": 4, "memory_mb": 8192, "disk_gb": 40, "count": 2, "extra_specs": {}}, one
object per line or an array; disk_gb, count and extra_specs may be left out. hosts.json: see the
guide's "How a decision was made", with the columns cpu_allocation_ratio, ram_allocation_ratio and
disk_allocation_ratio (without them, 4, 1 and 1 are assumed, which are Nova's defaults), and the
additional columns stats, local_gb, local_gb_used, free_disk_gb and disk_available_least.

exit codes: 0 shown; 1 a problem; 64 usage error
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, exits, explain_hosts, parse
from nova_numa_pmc.cli.render import tables
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler import saved_hosts, what_if_hosts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

#: Number of changed choices in the text; the JSON has all choices.
_CHOICES_SHOWN = 20


class _Totals(Record):
    """Numbers of instances without a host, and means of the others, with or without the weigher.

    :param without_room: number of instances for which no host has room
    :param refused: number of instances for which our filter refuses every host that has room
    """

    without_room: int
    refused: int
    pressure: float | None
    loss: float | None


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
    multipliers = explain_hosts.options_of_group(
        args.nova_conf, 'filter_scheduler', what_if_hosts.MULTIPLIERS
    )
    for name, value in (('weight_multiplier', args.multiplier), ('penalty_floor', args.floor)):
        if value is not None:
            conf[name] = value
    with explain_hosts.name_file_in_errors(args.requests):
        create_requests = what_if_hosts.read_requests(explain_hosts.read_content(args.requests))
    with explain_hosts.name_file_in_errors(args.hosts):
        content = explain_hosts.read_content(args.hosts)
        _, saved_s = saved_hosts.read(content)
        choices = what_if_hosts.choices(content, create_requests, conf, multipliers, saved_s)
    if args.json:
        print(json.dumps(to_data(choices, conf, multipliers), indent=2, sort_keys=True))
    else:
        print('\n'.join(to_lines(choices)))
    return exits.OK


def to_data(
    choices: list[what_if_hosts.WhatIfChoice],
    conf: dict[str, object],
    multipliers: dict[str, object],
) -> dict[str, object]:
    """Return the comparison as plain data."""
    weighed, unweighed = _both_totals(choices)
    return {
        'options': conf,
        'filter_scheduler': multipliers,
        'instances': len(choices),
        'changed': sum(choice.changed for choice in choices),
        'without_room': weighed.without_room,
        'without_room_otherwise': unweighed.without_room,
        'refused': weighed.refused,
        'refused_otherwise': unweighed.refused,
        'pressure': weighed.pressure,
        'pressure_without': unweighed.pressure,
        'loss': weighed.loss,
        'loss_without': unweighed.loss,
        'choices': [
            {
                'request': choice.request,
                'changed': choice.changed,
                **choice.weighed._asdict(),
                **{
                    '%s_without' % name: value
                    for name, value in choice.unweighed._asdict().items()
                },
            }
            for choice in choices
        ],
    }


def to_lines(choices: list[what_if_hosts.WhatIfChoice]) -> list[str]:
    """Return the comparison as lines of text."""
    changed = [choice for choice in choices if choice.changed]
    weighed, unweighed = _both_totals(choices)
    lines = [
        '%d instances; %d would get another host (%.1f %%)'
        % (len(choices), len(changed), 100 * len(changed) / max(1, len(choices))),
        'mean pressure left on their hosts: %s with the weigher, %s without'
        % (tables.number(weighed.pressure), tables.number(unweighed.pressure)),
        'mean loss that they cause, as a share of the CPU time that they want: '
        '%s with the weigher, %s without'
        % (tables.number(weighed.loss, 4), tables.number(unweighed.loss, 4)),
    ]
    lines += [
        text % counts
        for text, counts in (
            (
                'no host had room for %d instances (without the weigher: %d)',
                (weighed.without_room, unweighed.without_room),
            ),
            (
                'for %d instances, the filter refused every host that had room '
                '(without the weigher: %d)',
                (weighed.refused, unweighed.refused),
            ),
        )
        if any(counts)
    ]
    lines += _changed_lines(changed)
    return lines


def _both_totals(choices: list[what_if_hosts.WhatIfChoice]) -> tuple[_Totals, _Totals]:
    """Return the totals with and without the weigher."""
    return (
        _totals([choice.weighed for choice in choices]),
        _totals([choice.unweighed for choice in choices]),
    )


def _totals(chosen_hosts: list[what_if_hosts.ChosenHost]) -> _Totals:
    return _Totals(
        sum(chosen.host is None and not chosen.refused for chosen in chosen_hosts),
        sum(chosen.refused for chosen in chosen_hosts),
        _mean(chosen.pressure for chosen in chosen_hosts),
        _mean(chosen.loss for chosen in chosen_hosts),
    )


def _changed_lines(changed: list[what_if_hosts.WhatIfChoice]) -> list[str]:
    lines = []
    rows = [
        (
            str(choice.request),
            printable(choice.unweighed.host or '-'),
            tables.number(choice.unweighed.pressure),
            printable(choice.weighed.host or '-'),
            tables.number(choice.weighed.pressure),
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
