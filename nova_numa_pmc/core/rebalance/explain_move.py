# SPDX-License-Identifier: Apache-2.0
"""Render the reasons of moves and plans as text, which is done only where they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.placement import reasons
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.model import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nova_numa_pmc.model import Reason

#: {code of a reason, or a budget: its text for operators}
TEXTS = {
    plan_records.WAITING: 'waiting for CPUs',
    plan_records.DISTANCE: 'distance to memory',
    plan_records.BANDWIDTH: 'saturated memory',
    plan_records.CROWDING: 'unevenly crowded nodes',
    plan_records.BURSTS: 'bursts absorbed by idle CPUs elsewhere',
    plan_records.AWAY: 'work away from home',
}


def explain_move(move: plan_records.Move) -> str:
    """Return one line that states what is moved and why it pays.

    :returns: a line without a newline, such as ``web moves from node 0 to node 1 (1.0 GiB): gains
        4 cores (waiting for CPUs 4), costs 5.0 core-seconds, 19.8 lost so far``
    """
    where = '; '.join(_part(move.kind, part) for part in move.parts)
    return '%s: %s' % (where, explain_why(move))


def explain_why(move: plan_records.Move) -> str:
    """Return why a move is made, without its guests and nodes."""
    requested = [
        _values(reason)['why'] for reason in move.reasons if reason.code == plan_records.REQUESTED
    ]
    if requested:
        return str(requested[0])
    causes = [(_values(reason)['cores'], _cause(reason)) for reason in move.reasons]
    shown = ', '.join('%s %.2g' % (cause, cores) for cores, cause in causes if abs(cores) >= 0.005)
    return (
        'gains %.2g cores' % move.gain_cores
        + (' (%s)' % shown if shown else '')
        + ', costs %.1f core-seconds' % move.cost_core_sec
        + (', %.1f lost so far' % move.regret_core_sec if move.regret_core_sec else '')
    )


def _cause(reason: Reason) -> str:
    cause = TEXTS.get(reason.code, reason.code)
    if dict(reason.values).get('rate') == plan_records.ASSUMED:
        cause += ', at an assumed rate of accesses,'
    return cause


def explain_remark(reason: Reason) -> str:
    """Return a remark on a plan as one line: what held moves back, or what was unknown."""
    values = _values(reason)
    if reason.code == plan_records.BUDGET:
        return 'held back: %s of memory were moved within a day (moved_percent_per_day)' % _size(
            values['used']
        )
    if reason.code == plan_records.DO_NOT_PAY:
        return 'the last %d moves cost more than they gained' % values['moves']
    if reason.code == plan_records.DEMAND_UNKNOWN:
        return 'no CPU moves from or to %s: CPU demand is unknown there' % _nodes(values['nodes'])
    if reason.code == reasons.BANDWIDTH_DROPPED:
        return 'bandwidth left out: traffic or maximum is unknown on some nodes'
    return reason.code


def _values(reason: Reason) -> dict[str, Any]:
    return dict(reason.values)


def _part(kind: str, part: plan_records.PlanPart) -> str:
    size = ' (%s)' % _size(part.to_move_bytes) if part.to_move_bytes else ''
    if kind == plan_records.FETCH:
        return '%s fetches its memory%s to %s' % (part.name, size, _nodes(part.mem_nodes))
    if kind == plan_records.WIDEN:
        return '%s is widened from %s to %s' % (
            part.name,
            _nodes(part.from_nodes),
            _nodes(part.to_nodes),
        )
    if kind == plan_records.NARROW:
        return '%s is narrowed to %s%s' % (part.name, _nodes(part.to_nodes), size)
    text = '%s swaps %s for %s%s' if kind == plan_records.SWAP else '%s moves from %s to %s%s'
    return text % (part.name, _nodes(part.from_nodes), _nodes(part.to_nodes), size)


def _nodes(ids: Sequence[int]) -> str:
    return name_nodes(ids) if ids else 'all nodes'


def _size(size: int) -> str:
    return '%.1f GiB' % (size / GIB) if size >= GIB else '%.0f MiB' % (size / MIB)
