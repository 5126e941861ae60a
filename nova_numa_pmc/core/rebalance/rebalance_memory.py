# SPDX-License-Identifier: Apache-2.0
"""The rebalancer's memory between ticks: regrets, trials of moves, cautions and budgets.

Immutable; a plan takes one and returns the next. All fields are numbers, strings and tuples
of them, so that it can be kept over a restart. Times are seconds of a clock that does not
jump (CLOCK_BOOTTIME).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nova_numa_pmc.core.rebalance.host_model import HostModel
    from nova_numa_pmc.core.rebalance.plan_records import Move, RebalanceOptions

    #: Of each guest: uuid, node ids for the CPUs, node ids for the memory.
    RegretKey = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    TrialPart = tuple[str, tuple[int, ...], tuple[tuple[int, float], ...], tuple[int, ...]]

HOUR_S = 3600.0
#: Upper bound of a caution factor.
FACTOR_MAX = 64.0


class Regret(Record):
    """The loss so far from not having made a move.

    :param key: (uuid, node ids for the CPUs, node ids for the memory), one per guest
    :param core_sec: R [core-seconds]
    """

    key: RegretKey
    core_sec: float


class Trial(Record):
    """A move that was made and has yet to prove itself.

    :param parts: of each guest: (uuid, node ids it was on, ((node id, share of accesses), …),
        node ids it went to)
    :param credit_core_sec: loss that it has spared so far; it has paid when this covers the cost
    """

    parts: tuple[TrialPart, ...]
    cost_core_sec: float
    credit_core_sec: float
    since_s: float


class Caution(Record):
    """A factor on the cost of a guest's next moves, raised by each move."""

    uuid: str
    factor: float
    since_s: float


class RebalanceMemory(Record):
    """The rebalancer's memory.

    :param moved_s, changed_s: times within the last hour at which a guest's memory was moved, or
        only its CPUs were changed
    :param owed_bytes: by how much a large guest has exceeded the bytes of a tick
    """

    regrets: tuple[Regret, ...] = ()
    trials: tuple[Trial, ...] = ()
    cautions: tuple[Caution, ...] = ()
    moved_s: tuple[float, ...] = ()
    changed_s: tuple[float, ...] = ()
    owed_bytes: int = 0


def after_interval(
    memory: RebalanceMemory,
    host_model: HostModel,
    elapsed_s: float,
    now_s: float,
    options: RebalanceOptions,
) -> RebalanceMemory:
    """Return the memory after an interval: trials credited or closed, budgets refilled.

    The credit of a trial grows by what reversing its move would lose now. A trial whose credit
    has covered the cost halves its guests' caution. One whose guest has gone or was moved by
    others is dropped, and so is one that is older than an hour.

    :param host_model: the host as it is now
    """
    trials, cautions = [], {caution.uuid: caution for caution in memory.cautions}
    for trial in memory.trials:
        spared = _spared_loss(trial, host_model)
        if spared is None or not 0 <= now_s - trial.since_s <= HOUR_S:
            continue
        trial = trial._replace(credit_core_sec=trial.credit_core_sec + spared * elapsed_s)
        if trial.credit_core_sec < trial.cost_core_sec:
            trials.append(trial)
            continue
        for uuid, *_ in trial.parts:
            if uuid in cautions:
                cautions[uuid] = cautions[uuid]._replace(factor=cautions[uuid].factor / 2)
    return memory._replace(
        trials=tuple(trials),
        cautions=_ease(cautions.values(), host_model, now_s),
        moved_s=_within_hour(memory.moved_s, now_s),
        changed_s=_within_hour(memory.changed_s, now_s),
        owed_bytes=max(0, memory.owed_bytes - options.bytes_per_tick),
    )


def caution_factors(memory: RebalanceMemory) -> dict[str, float]:
    """Return {uuid: factor} by which the cost of a guest's next move is multiplied."""
    return {caution.uuid: caution.factor for caution in memory.cautions}


def with_move_recorded(
    memory: RebalanceMemory, move: Move, trial: Trial, now_s: float
) -> RebalanceMemory:
    """Return the memory after a move.

    The cost of its guests' next move counts twice until this one has paid for itself: otherwise
    guests would be moved for ever, following a load that changes faster than moves pay.

    :param trial: the trial of the move
    """
    factors = {caution.uuid: caution for caution in memory.cautions}
    uuids = {part.uuid for part in move.parts}
    for uuid in uuids:
        before = factors[uuid].factor if uuid in factors else 1.0
        factors[uuid] = Caution(uuid, min(FACTOR_MAX, 2 * before), now_s)
    count = (now_s,) * len(move.parts)
    return memory._replace(
        regrets=tuple(
            regret
            for regret in memory.regrets
            if not uuids.intersection(uuid for uuid, *_ in regret.key)
        ),
        trials=(
            *tuple(
                opened
                for opened in memory.trials
                if not uuids.intersection(uuid for uuid, *_ in opened.parts)
            ),
            trial,
        ),
        cautions=tuple(factors.values()),
        moved_s=memory.moved_s + (count if move.bytes else ()),
        changed_s=memory.changed_s + (() if move.bytes else count),
        owed_bytes=memory.owed_bytes + move.bytes,
    )


def without_guests(memory: RebalanceMemory, uuids: Iterable[str]) -> RebalanceMemory:
    """Return the memory without regrets and trials of guests whose move failed or was undone."""
    uuids = frozenset(uuids)

    return memory._replace(
        regrets=tuple(
            regret
            for regret in memory.regrets
            if uuids.isdisjoint(uuid for uuid, *_ in regret.key)
        ),
        trials=tuple(
            trial for trial in memory.trials if uuids.isdisjoint(uuid for uuid, *_ in trial.parts)
        ),
    )


def _spared_loss(trial: Trial, host_model: HostModel) -> float | None:
    """Return what reversing the move would lose now [cores]; None: it is no longer in force."""
    removed, added = [], []
    for uuid, from_nodes, mem_shares, to_nodes in trial.parts:
        guest = host_model.guests.get(uuid)
        if guest is None or guest.at != host_model.positions(to_nodes):
            return None
        removed.append(guest.effect)
        added.append(
            host_model.effect_with_memory(
                guest,
                host_model.positions(from_nodes),
                tuple(
                    (host_model.position[node], share)
                    for node, share in mem_shares
                    if node in host_model.position
                ),
            )
        )
    return -host_model.host_loss.gain(removed, added)


def _ease(cautions: Iterable[Caution], host_model: HostModel, now_s: float) -> tuple[Caution, ...]:
    """Halve cautions an hour old; drop those back at 1 and those of guests that have gone."""
    remaining = []
    for caution in cautions:
        if not 0 <= now_s - caution.since_s <= HOUR_S:
            caution = caution._replace(factor=caution.factor / 2, since_s=now_s)
        if caution.factor > 1 and caution.uuid in host_model.guests:
            remaining.append(caution)
    return tuple(remaining)


def _within_hour(times: Iterable[float], now_s: float) -> tuple[float, ...]:
    return tuple(at_s for at_s in times if 0 <= now_s - at_s < HOUR_S)
