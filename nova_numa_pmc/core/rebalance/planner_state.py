# SPDX-License-Identifier: Apache-2.0
"""The memory of the rebalancer between ticks: regrets, trials of moves, cautions and budgets.

The records are immutable: each plan takes a state and returns the next one. All fields are
numbers, strings, and tuples of these, so that a state can be kept over a restart. Times are
seconds of a clock that does not jump (CLOCK_BOOTTIME).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nova_numa_pmc.core.rebalance.host_model import HostModel
    from nova_numa_pmc.core.rebalance.plan_records import Move
    from nova_numa_pmc.json_values import Signed

    #: For each guest, (uuid, node ids for its CPUs, node ids for its memory).
    RegretKey = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]

HOUR_S = 3600.0
#: The highest factor of a caution.
FACTOR_MAX = 64.0


class Regret(Record):
    """The cost so far of a move that was not made.

    :param key: for each guest, (uuid, node ids for its CPUs, node ids for its memory)
    :param core_sec: the regret R [core-seconds]
    """

    key: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    core_sec: float


class TrialPart(Record):
    """The part of a move on trial that concerns one guest.

    :param mem_shares: (node id, share of its accesses) before the move
    """

    uuid: str
    from_nodes: tuple[int, ...]
    mem_shares: tuple[tuple[int, float], ...]
    to_nodes: tuple[int, ...]


class Trial(Record):
    """A move that was made but has not yet saved as much as it cost.

    :param credit_core_sec: loss that the move has saved so far; the move has paid once this covers
        its cost
    """

    parts: tuple[TrialPart, ...]
    cost_core_sec: float
    credit_core_sec: Signed
    since_s: float


class Caution(Record):
    """A factor by which the cost of a guest's next move is multiplied; each move raises it."""

    uuid: str
    factor: float
    since_s: float


class PlannerState(Record):
    """The memory of the planner between ticks.

    :param moved_s: times within the last hour at which a guest was moved with its memory
    :param changed_s: times within the last hour at which only a guest's CPUs were changed
    :param owed_bytes: moved bytes that the bytes allowed per tick have yet to cover
    """

    regrets: tuple[Regret, ...] = ()
    trials: tuple[Trial, ...] = ()
    cautions: tuple[Caution, ...] = ()
    moved_s: tuple[float, ...] = ()
    changed_s: tuple[float, ...] = ()
    owed_bytes: int = 0


def after_interval(
    state: PlannerState, host_model: HostModel, elapsed_s: float, now_s: float
) -> PlannerState:
    """Return the state after an interval, with trials credited or closed and budgets refilled.

    The credit of a trial grows by what reversing its move would lose now. Once the credit covers
    the cost, the trial ends and the cautions of its guests are halved. A trial is dropped if one
    of its guests has gone or was moved by others, or if it is older than an hour.

    :param host_model: the host as it is now
    """
    trials, cautions = [], {caution.uuid: caution for caution in state.cautions}
    for trial in state.trials:
        is_recent = 0 <= now_s - trial.since_s <= HOUR_S
        if is_recent and any(part.uuid in host_model.unmeasured_uuids for part in trial.parts):
            trials.append(trial)
            continue
        saved_cores = _saved_loss(trial, host_model)
        if saved_cores is None or not is_recent:
            continue
        trial = trial._replace(credit_core_sec=trial.credit_core_sec + saved_cores * elapsed_s)
        if trial.credit_core_sec < trial.cost_core_sec:
            trials.append(trial)
            continue
        for part in trial.parts:
            if part.uuid in cautions:
                caution = cautions[part.uuid]
                cautions[part.uuid] = caution._replace(factor=caution.factor / 2)
    return state._replace(
        trials=tuple(trials),
        cautions=_reduce_cautions(cautions.values(), host_model, now_s),
        moved_s=_within_last_hour(state.moved_s, now_s),
        changed_s=_within_last_hour(state.changed_s, now_s),
        owed_bytes=max(0, state.owed_bytes - host_model.rebalance_options.bytes_per_tick),
    )


def caution_factors(state: PlannerState) -> dict[str, float]:
    """Return {uuid: factor by which the cost of the guest's next move is multiplied}."""
    return {caution.uuid: caution.factor for caution in state.cautions}


def with_move_recorded(
    state: PlannerState, move: Move, trial: Trial, now_s: float
) -> PlannerState:
    """Return the state after a move.

    The cost of its guests' next move counts twice until this move has paid. Otherwise, a load that
    changes faster than moves pay would cause guests to be moved forever.

    :param trial: the trial of the move
    """
    cautions = {caution.uuid: caution for caution in state.cautions}
    uuids = {part.uuid for part in move.parts}
    for uuid in uuids:
        previous_factor = cautions[uuid].factor if uuid in cautions else 1.0
        cautions[uuid] = Caution(uuid, min(FACTOR_MAX, 2 * previous_factor), now_s)
    times_s = (now_s,) * len(move.parts)
    moves_memory = any(part.mem_nodes for part in move.parts)
    state = without_guests(state, uuids)
    return state._replace(
        trials=(*state.trials, trial),
        cautions=tuple(cautions.values()),
        moved_s=state.moved_s + (times_s if moves_memory else ()),
        changed_s=state.changed_s + (() if moves_memory else times_s),
        owed_bytes=state.owed_bytes + move.to_move_bytes,
    )


def refunded(state: PlannerState, moves: Iterable[Move]) -> PlannerState:
    """Return the state without what the last moves have used of the budgets, if they were refused.

    :param moves: moves that were not begun; those that nobody planned have used nothing
    """
    for move in moves:
        if any(reason.code == plan_records.REQUESTED for reason in move.reasons):
            continue
        count = len(move.parts)
        if any(part.mem_nodes for part in move.parts):
            state = state._replace(
                moved_s=state.moved_s[:-count],
                owed_bytes=max(0, state.owed_bytes - move.to_move_bytes),
            )
        else:
            state = state._replace(changed_s=state.changed_s[:-count])
    return state


def without_guests(state: PlannerState, uuids: Iterable[str]) -> PlannerState:
    """Return the state without regrets and trials of guests, as after moves or failed ones."""
    uuids = frozenset(uuids)
    return state._replace(
        regrets=tuple(
            regret for regret in state.regrets if uuids.isdisjoint(uuid for uuid, *_ in regret.key)
        ),
        trials=tuple(
            trial for trial in state.trials if uuids.isdisjoint(part.uuid for part in trial.parts)
        ),
    )


def _saved_loss(trial: Trial, host_model: HostModel) -> float | None:
    """Return what reversing a trial's move would lose now [cores]; None if it is not in effect."""
    present_effects, former_effects = [], []
    for uuid, from_nodes, mem_shares, to_nodes in trial.parts:
        guest = host_model.guests.get(uuid)
        if guest is None or guest.cpu_positions != host_model.positions(to_nodes):
            return None
        present_effects.append(guest.effect)
        former_effects.append(
            host_model.effect_with_memory(
                guest,
                host_model.positions(from_nodes),
                tuple(
                    (host_model.position_of_node[node], share)
                    for node, share in mem_shares
                    if node in host_model.position_of_node
                ),
            )
        )
    return -host_model.host_loss.gain(present_effects, former_effects)


def _reduce_cautions(
    cautions: Iterable[Caution], host_model: HostModel, now_s: float
) -> tuple[Caution, ...]:
    """Halve cautions that are an hour old, and drop those at 1 or of guests that have gone."""
    remaining = []
    for caution in cautions:
        if not 0 <= now_s - caution.since_s <= HOUR_S:
            caution = caution._replace(factor=caution.factor / 2, since_s=now_s)
        if caution.factor > 1 and (
            caution.uuid in host_model.guests or caution.uuid in host_model.unmeasured_uuids
        ):
            remaining.append(caution)
    return tuple(remaining)


def _within_last_hour(times: Iterable[float], now_s: float) -> tuple[float, ...]:
    return tuple(time_s for time_s in times if 0 <= now_s - time_s < HOUR_S)
