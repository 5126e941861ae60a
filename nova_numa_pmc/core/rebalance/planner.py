# SPDX-License-Identifier: Apache-2.0
"""Decide which guests to move, and when a move pays.

:func:`plan` is called once per interval with the measurements and its memory of the last call.
:func:`propose` lists what could be gained now, regardless of regret. Pure: no clock and no files;
arguments and results are records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.core.rebalance.evaluation import (
    MoveCandidate,
    distinct,
    gain_of,
    open_trial,
    regret_key,
    to_move,
)
from nova_numa_pmc.core.rebalance.host_model import HostModel, Place
from nova_numa_pmc.core.rebalance.proposals import proposals
from nova_numa_pmc.core.rebalance.rebalance_memory import (
    RebalanceMemory,
    Regret,
    after_interval,
    caution_factors,
    with_move_recorded,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nova_numa_pmc.core.rebalance.evaluation import ProposalKey
    from nova_numa_pmc.core.rebalance.proposals import Proposal
    from nova_numa_pmc.core.rebalance.rebalance_memory import RegretKey

#: Regrets kept between ticks.
REGRETS_MAX = 256
#: Among moves that are due, the one that gains most over this time comes first [s].
PAYBACK_S = 600.0
#: CPUs are not widened where a move is due within this time, which widening would only delay [s].
BRIDGE_S = 60.0
#: The most moves that :func:`propose` lists.
PROPOSED_MAX = 200


def plan(
    situation: plan_records.Situation,
    memory: RebalanceMemory,
    options: plan_records.RebalanceOptions,
    elapsed_s: float,
    now_s: float,
) -> tuple[plan_records.Plan, RebalanceMemory]:
    """Decide which guests to move now.

    Prepaid regret: R ← max(0, R + (G − min_gain) · Δt) for each candidate, which is due when
    R ≥ K · caution. What was lost by waiting has then paid for the move, so the sum of
    loss and cost is within a constant of what hindsight would have paid (ski rental: Karlin,
    Manasse, Rudolph & Sleator 1988, "Competitive snoopy caching"). Among due moves the one
    with the largest G · 600 s − K comes first; the others are weighed again as if it were made
    and keep the share of their regret that they would still gain.

    :param memory: the memory that the last call returned; at first an empty one
    :param elapsed_s: length of the interval that was measured [s]
    :param now_s: a clock that does not jump [s]
    :returns: (the plan, the memory for the next call). The memory presumes that the moves are
        made; call :func:`rebalance_memory.without_guests` for those that are not
    """
    elapsed_s = min(max(0.0, elapsed_s), options.tick_max_s)
    host_model = HostModel(situation, options)
    memory = after_interval(memory, host_model, elapsed_s, now_s, options)
    candidates = _with_regrets(host_model, memory, elapsed_s)
    before, chosen = host_model.host_loss.loss(), []
    exceeded: set[str] = set()
    while True:
        best = _best_due(host_model, candidates, memory, exceeded)
        if best is None:
            break
        chosen.append(to_move(host_model, best))
        memory = with_move_recorded(memory, chosen[-1], open_trial(host_model, best, now_s), now_s)
        host_model.apply(best.proposal)
        candidates = [candidate for candidate in candidates if not best.overlaps(candidate)]
        for candidate in candidates:
            candidate.fresh = False
    candidates = [candidate for candidate in candidates if _refresh(host_model, candidate)]
    memory = memory._replace(
        regrets=tuple(
            Regret(regret_key(host_model, candidate.proposal), candidate.regret)
            for candidate in candidates
        )
    )
    return plan_records.Plan(
        tuple(chosen), before, host_model.host_loss.loss(), _remarks(host_model, memory, exceeded)
    ), memory


def propose(
    situation: plan_records.Situation,
    options: plan_records.RebalanceOptions,
    payback_s: float = PAYBACK_S,
) -> plan_records.Plan:
    """List the moves that gain more than they cost within a time, the best first.

    This is for an operator who asks now: no regret is needed and no budget applies. No guest is
    changed twice.

    :param payback_s: how long the load is assumed to stay as it is [s]
    """
    host_model = HostModel(situation, options)
    before = host_model.host_loss.loss()
    chosen: list[plan_records.Move] = []
    chosen_uuids: set[str] = set()
    while len(chosen) < PROPOSED_MAX:
        candidates = [
            MoveCandidate(host_model, proposal, gain_of(host_model, proposal))
            for proposal in distinct(proposals(host_model)).values()
            if chosen_uuids.isdisjoint(guest.load.uuid for guest, _ in proposal)
        ]
        paying = [
            candidate
            for candidate in candidates
            if candidate.gain >= host_model.min_gain
            and candidate.gain * payback_s > candidate.cost
        ]
        best_gains = _best_gain_by_place(paying)
        best = _best(paying, best_gains, payback_s)
        if best is None:
            break
        chosen.append(to_move(host_model, best))
        chosen_uuids.update(guest.load.uuid for guest, _ in best.proposal)
        host_model.apply(best.proposal)
    return plan_records.Plan(
        tuple(chosen),
        before,
        host_model.host_loss.loss(),
        _remarks(host_model, RebalanceMemory(), ()),
    )


def _with_regrets(
    host_model: HostModel, memory: RebalanceMemory, elapsed_s: float
) -> list[MoveCandidate]:
    """Weigh the proposals, new ones and those with regrets; keep those nearest to being due."""
    recalled = [(_recall(host_model, regret.key), regret.core_sec) for regret in memory.regrets]
    known = {}
    for proposal, core_sec in recalled:
        if proposal:
            (proposal_key,) = distinct((proposal,))
            known[proposal_key] = core_sec
    remembered = [proposal for proposal, _ in recalled if proposal]
    candidates = _weigh(host_model, distinct(proposals(host_model), remembered), known, elapsed_s)
    candidates.sort(
        key=lambda candidate: (
            -candidate.regret / max(candidate.cost, 1e-9),
            candidate.order(PAYBACK_S),
        )
    )
    return candidates[:REGRETS_MAX]


def _weigh(
    host_model: HostModel,
    proposed: Mapping[ProposalKey, Proposal],
    known: Mapping[ProposalKey, float],
    elapsed_s: float,
) -> list[MoveCandidate]:
    """Weigh proposals and add the interval's regret to the known one; drop those without any."""
    candidates = []
    for proposal_key, proposal in proposed.items():
        now = gain_of(host_model, proposal)
        regret = known.get(proposal_key, 0.0) + (now - host_model.min_gain) * elapsed_s
        if regret > 0:
            candidates.append(MoveCandidate(host_model, proposal, now))
            candidates[-1].regret = regret
    return candidates


def _recall(host_model: HostModel, key: RegretKey) -> Proposal | None:
    """Turn a regret's key into a proposal; None: no longer possible."""
    parts = []
    for uuid, cpu_nodes, mem_nodes in key:
        guest = host_model.guests.get(uuid)
        known = all(node in host_model.position for node in cpu_nodes + mem_nodes)
        if guest is None or not known:
            return None
        place = Place(
            host_model.positions(cpu_nodes),
            host_model.position[mem_nodes[0]] if mem_nodes else None,
        )
        if not host_model.may_have(guest, place) or (
            place.cpus == guest.at and not host_model.bytes_to_move(guest, place)
        ):
            return None
        parts.append((guest, place))
    return tuple(parts) if host_model.fits(parts) else None


def _best_due(
    host_model: HostModel,
    candidates: list[MoveCandidate],
    memory: RebalanceMemory,
    exceeded: set[str],
) -> MoveCandidate | None:
    """Return the best candidate that is due and within the budgets; None: there is none.

    A gain that is outdated by moves of this plan is computed again only if it could come first.

    :param exceeded: the names of the budgets that held candidates back; added to
    """
    factors, options = caution_factors(memory), host_model.options
    while True:
        soon = _gains_due_soon(host_model, candidates, memory)
        due = []
        for candidate in candidates:
            if not _gains(host_model, candidate) or _missing_regret(candidate, factors) > 0:
                continue
            over = _budget_exceeded(candidate, memory, options)
            if over:
                exceeded.add(over)
            else:
                due.append(candidate)
        best = _best(due, soon, PAYBACK_S)
        if best is None or best.fresh:
            return best
        if not _refresh(host_model, best):
            candidates.remove(best)


def _gains(host_model: HostModel, candidate: MoveCandidate) -> bool:
    """Return whether a candidate gains more than noise, or, if any gain counts, more than 0."""
    return candidate.gain > 0 and candidate.gain >= host_model.min_gain


def _missing_regret(candidate: MoveCandidate, factors: Mapping[str, float]) -> float:
    """Return the cost that regret has yet to cover [core-seconds]; 0 or less: it is due."""
    return (
        candidate.cost * max(factors.get(guest.load.uuid, 1.0) for guest, _ in candidate.proposal)
        - candidate.regret
    )


def _gains_due_soon(
    host_model: HostModel, candidates: Iterable[MoveCandidate], memory: RebalanceMemory
) -> dict[tuple[int, ...], float]:
    """Return {positions: gain} of the best move away from them that is due now or soon."""
    factors = caution_factors(memory)
    return _best_gain_by_place(
        candidate
        for candidate in candidates
        if candidate.gain >= host_model.min_gain
        and _missing_regret(candidate, factors) <= BRIDGE_S * candidate.gain
        and _budget_exceeded(candidate, memory, host_model.options) != 'moves_per_hour'
    )


def _best_gain_by_place(candidates: Iterable[MoveCandidate]) -> dict[tuple[int, ...], float]:
    """Return {place: gain of the best move or swap that leaves it}."""
    best: dict[tuple[int, ...], float] = {}
    for candidate in candidates:
        if candidate.kind in (plan_records.MOVE, plan_records.SWAP):
            for guest, _ in candidate.proposal:
                best[guest.at] = max(candidate.gain, best.get(guest.at, 0.0))
    return best


def _best(
    candidates: Iterable[MoveCandidate],
    best_gains: Mapping[tuple[int, ...], float],
    payback_s: float,
) -> MoveCandidate | None:
    """Return the first candidate in order that is not superfluous."""
    return min(
        (candidate for candidate in candidates if not _is_superfluous(candidate, best_gains)),
        key=lambda candidate: candidate.order(payback_s),
        default=None,
    )


def _is_superfluous(candidate: MoveCandidate, soon: Mapping[tuple[int, ...], float]) -> bool:
    """Return whether it is a widening, and a move due soon gains at least half as much."""
    if candidate.kind != plan_records.WIDEN:
        return False
    ((guest, _),) = candidate.proposal
    return soon.get(guest.at, 0.0) >= candidate.gain / 2


def _budget_exceeded(
    candidate: MoveCandidate, memory: RebalanceMemory, options: plan_records.RebalanceOptions
) -> str:
    """Return the name of the budget that a candidate would exceed; empty: none."""
    count = len(candidate.proposal)
    if not candidate.bytes:
        return (
            'changes_per_hour' if len(memory.changed_s) + count > options.changes_per_hour else ''
        )
    if len(memory.moved_s) + count > options.moves_per_hour:
        return 'moves_per_hour'
    alone = candidate.bytes > options.bytes_per_tick and not memory.owed_bytes
    if not alone and memory.owed_bytes + candidate.bytes > options.bytes_per_tick:
        return 'bytes_per_tick'
    return ''


def _refresh(host_model: HostModel, candidate: MoveCandidate) -> bool:
    """Weigh a candidate again after a move; scale its regret with its gain.

    :returns: whether it is still to be considered
    """
    if not candidate.fresh:
        if not host_model.fits(candidate.proposal):
            return False
        before = candidate.gain
        candidate.gain, candidate.fresh = gain_of(host_model, candidate.proposal), True
        if before > 0:
            candidate.regret *= max(0.0, min(1.0, candidate.gain / before))
    return candidate.regret > 0


def _remarks(
    host_model: HostModel, memory: RebalanceMemory, exceeded: Collection[str]
) -> tuple[model.Reason, ...]:
    """Return the budgets that held moves back, and the parts that are unknown."""
    remarks = []
    for name in sorted(exceeded):
        value = {
            'bytes_per_tick': memory.owed_bytes,
            'moves_per_hour': len(memory.moved_s),
            'changes_per_hour': len(memory.changed_s),
        }[name]
        remarks.append(model.Reason('budget', (('of', name), ('used', value))))
    unknown = host_model.node_ids(n for n in host_model.running if not host_model.cpu_known[n])
    if unknown:
        remarks.append(model.Reason('demand_unknown', (('nodes', unknown),)))
    if not host_model.bandwidth_known:
        remarks.append(model.Reason('bandwidth_dropped'))
    return tuple(remarks)
