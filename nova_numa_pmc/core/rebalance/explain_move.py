# SPDX-License-Identifier: Apache-2.0
"""Words for moves and plans, put together only where they are shown."""

from __future__ import annotations

from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.cpulist import name_nodes

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nova_numa_pmc.model import Reason

_CAUSES = {
    'waiting': 'waiting for CPUs',
    'distance': 'distance of memory',
    'bandwidth': 'saturated memory',
    'crowding': 'an uneven use of full nodes',
    'bursts': 'bursts that find CPUs idle elsewhere',
}
_BUDGET = {
    'bytes_per_tick': 'the bytes allowed per plan',
    'moves_per_hour': 'the moves allowed per hour',
    'changes_per_hour': 'the CPU changes allowed per hour',
}
_GIB, _MIB = 1 << 30, 1 << 20


def explain_move(move: plan_records.Move) -> str:
    """Return one line on what is moved and why it pays.

    :returns: a line without its end, e.g. ``web moves from node 0 to 1 (1.0 GiB): gains 4.0 cores
        (waiting for CPUs 4.0), costs 5.0 core-seconds, 19.8 lost so far``
    """
    where = '; '.join(_step(move.kind, step) for step in move.steps)
    return f'{where}: {explain_why(move)}'


def explain_why(move: plan_records.Move) -> str:
    """Return why a move is made, without what is moved where."""
    requested = [
        _values(reason)['why'] for reason in move.reasons if reason.code == plan_records.REQUESTED
    ]
    if requested:
        return str(requested[0])
    causes = [(_values(reason)['cores'], _cause(reason)) for reason in move.reasons]
    shown = ', '.join(f'{cause} {cores:.2g}' for cores, cause in causes if abs(cores) >= 0.005)
    return (
        f'gains {move.gain_cores:.2g} cores'
        + (f' ({shown})' if shown else '')
        + f', costs {move.cost_core_sec:.1f} core-seconds'
        + (f', {move.regret_core_sec:.1f} lost so far' if move.regret_core_sec else '')
    )


def _cause(reason: Reason) -> str:
    cause = _CAUSES.get(reason.code, reason.code)
    if dict(reason.values).get('rate') == plan_records.ASSUMED:
        cause += ', at an assumed rate of accesses,'
    return cause


def explain_remark(reason: Reason) -> str:
    """Return one line on what held a plan back or was left out of it: a reason of a plan."""
    values = _values(reason)
    if reason.code == 'budget':
        return f'held back: {_BUDGET.get(values["of"], values["of"])} are used up'
    if reason.code == 'demand_unknown':
        return f'no CPU moves from or to {_nodes(values["nodes"])}: its CPU demand is unknown'
    if reason.code == 'bandwidth_dropped':
        return 'bandwidth left out: traffic or maximum is unknown on some nodes'
    return reason.code


def _values(reason: Reason) -> dict[str, Any]:  # of each name what the core has put there
    return dict(reason.values)


def _step(kind: str, step: plan_records.Step) -> str:
    size = f' ({_size(step.bytes)})' if step.bytes else ''
    if kind == plan_records.FETCH:
        return f'{step.name} gets its memory{size} to {_nodes(step.mem_nodes)}'
    if kind == plan_records.WIDEN:
        return f'{step.name} widens from {_nodes(step.from_nodes)} to {_nodes(step.to_nodes)}'
    if kind == plan_records.NARROW:
        return f'{step.name} narrows to {_nodes(step.to_nodes)}{size}'
    verb = 'swaps' if kind == plan_records.SWAP else 'moves'
    return f'{step.name} {verb} from {_nodes(step.from_nodes)} to {_nodes(step.to_nodes)}{size}'


def _nodes(ids: Sequence[int]) -> str:
    return name_nodes(ids) if ids else 'all nodes'


def _size(size: int) -> str:
    return f'{size / _GIB:.1f} GiB' if size >= _GIB else f'{size / _MIB:.0f} MiB'
