# SPDX-License-Identifier: Apache-2.0
"""Show which guests were moved, by what, why, and with what result; the newest move last.

The history has the moves of the agent and of commands, and is kept across reboots in
/var/lib/nova-numa-pmc/history (the last 500 moves).

examples:
  nova-numa-rebalance history
  nova-numa-rebalance history --guest instance-0000002a --last 5
  nova-numa-rebalance history --json | jq 'select(.result != "done")'
  nova-numa-rebalance undo --move 5f1c09ab

exit codes: 0 shown; 1 a problem; 64 usage error
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, tables
from nova_numa_pmc.cpulist import format_nodes
from nova_numa_pmc.json_values import printable, to_json
from nova_numa_pmc.state import history

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


OPTIONS = (
    arguments.option('--guest', metavar='NAME|UUID', help='only this guest'),
    arguments.option(
        '--last', type=arguments.integer(999_999), metavar='N', help='only the newest N'
    ),
    arguments.ROOT,
    arguments.JSON,
)


def run(args: argparse.Namespace) -> int:
    """Print the history; return the exit code."""
    entries, unreadable_count = history.read(args.root)
    if args.guest:
        entries = [entry for entry in entries if args.guest in (entry.name, entry.uuid)]
    entries = entries[-args.last :] if args.last else entries
    for entry in entries if args.json else ():
        tables.show(True, to_json(entry), ())
    if not args.json:
        print('\n'.join(tables.to_lines(table(entries))) if entries else 'no moves in the history')
    if unreadable_count:
        print('unreadable lines of the history, left out: %d' % unreadable_count, file=sys.stderr)
    return arguments.OK


def table(entries: Sequence[history.HistoryEntry]) -> tables.Table:
    """Return entries as a table with a row for each move."""
    rows = [
        (
            entry.id,
            tables.clock_time(entry.taken_s),
            entry.mover,
            entry.name,
            _place_text(entry.before, entry.result),
            _place_text(entry.after, entry.result),
            tables.short_number(entry.moved_bytes, 1024),
            '%.1f s' % entry.duration_s,
            entry.result.replace('_', ' '),
            entry.why,
        )
        for entry in entries
    ]
    return tables.Table(
        'id when mover guest from to moved took result why'.split(),
        [[printable(text) for text in row] for row in rows],
        (0, 1, 2, 3, 4, 5, 8, 9),
    )


def _place_text(place: history.PromisedPlace, result: str) -> str:
    """Return a place such as '0', or '0, memory 1' if the memory is on other nodes."""
    cpus = format_nodes(place.cpu_nodes) or 'any'
    # The memory is only recorded once a move begins, except for that which it would have moved.
    if result == history.REFUSED and not place.mem_nodes:
        return cpus
    mems = format_nodes(place.mem_nodes) or 'any'
    return cpus if cpus == mems else '%s, memory %s' % (cpus, mems)
