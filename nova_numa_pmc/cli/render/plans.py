# SPDX-License-Identifier: Apache-2.0
"""Lay out plans as lines and as plain data. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nova_numa_pmc.cli.render import tables
from nova_numa_pmc.core import eligibility
from nova_numa_pmc.core.rebalance.explain_move import explain_move, explain_remark
from nova_numa_pmc.json_values import printable

if TYPE_CHECKING:
    from nova_numa_pmc.cli.context import ObservedHost
    from nova_numa_pmc.core.rebalance import plan_records

#: Number of guests named for each reason to leave guests alone.
_NAMES_SHOWN = 6


def to_lines(
    plan: plan_records.Plan,
    situation: plan_records.Situation,
    payback_s: float,
    observed: ObservedHost,
) -> list[str]:
    """Return a plan as lines of text.

    :param situation: the situation that the plan was made for
    :param payback_s: the time within which a move has to pay [s]
    :param observed: a host that was measured
    """
    assert observed.sample is not None
    plan_lines = [
        'over %.3g s, source: %s: %s cores are lost%s'
        % (
            observed.sample.elapsed_s,
            printable(observed.sample.source) or 'none',
            tables.number(plan.loss_cores),
            ', %s after these moves:' % tables.number(plan.loss_after_cores) if plan.moves else '',
        )
    ]
    plan_lines += [
        '%3d. %s' % (number, printable(explain_move(move)))
        for number, move in enumerate(plan.moves, 1)
    ]
    if not plan.moves:
        plan_lines.append('nothing to move: no move would pay for itself within %g s' % payback_s)
    plan_lines += [explain_remark(remark) for remark in plan.remarks]
    names_by_reason: dict[str, list[str]] = {}
    for guest in situation.guests:
        why = eligibility.TEXTS.get(guest.why_fixed)
        if why:
            names_by_reason.setdefault(why, []).append(guest.name)
    plan_lines += [
        'left alone (%s): %s%s'
        % (
            why,
            printable(', '.join(names[:_NAMES_SHOWN])),
            ' and %d more' % (len(names) - _NAMES_SHOWN) if len(names) > _NAMES_SHOWN else '',
        )
        for why, names in sorted(names_by_reason.items())
    ]
    return plan_lines


def to_data(
    plan: plan_records.Plan, situation: plan_records.Situation, observed: ObservedHost
) -> dict[str, Any]:
    """Return a plan and the measurements behind it as plain data."""
    assert observed.sample is not None
    return {
        'taken_s': observed.sample.taken_s,
        'elapsed_s': observed.sample.elapsed_s,
        'source': observed.sample.source,
        'loss_cores': plan.loss_cores,
        'loss_after_cores': plan.loss_after_cores,
        'moves': [
            {
                'kind': move.kind,
                'parts': [_part_data(part) for part in move.parts],
                'gain_cores': move.gain_cores,
                'cost_core_sec': move.cost_core_sec,
                'regret_core_sec': move.regret_core_sec,
                'bytes': move.to_move_bytes,
                'reasons': {reason.code: dict(reason.values) for reason in move.reasons},
                'text': explain_move(move),
            }
            for move in plan.moves
        ],
        'remarks': [explain_remark(remark) for remark in plan.remarks],
        'left_alone': {
            guest.uuid: guest.why_fixed for guest in situation.guests if guest.why_fixed
        },
        'problems': list(observed.problems),
    }


def _part_data(part: plan_records.PlanPart) -> dict[str, Any]:
    data = part._asdict()
    data['bytes'] = data.pop('to_move_bytes')  # as of a move
    return data
