# SPDX-License-Identifier: Apache-2.0
"""Decide which guests to move, and when a move pays.

:func:`plan` is called once per interval, with the measurements and the state that the last call
returned. :func:`propose` lists the moves that would pay now, regardless of regret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import reasons
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.core.rebalance.evaluation import (
    MoveCandidate,
    as_move,
    distinct_proposals,
    gain_of,
    open_trial,
    proposal_key,
    regret_key,
)
from nova_numa_pmc.core.rebalance.host_model import HostModel
from nova_numa_pmc.core.rebalance.layout import Place
from nova_numa_pmc.core.rebalance.planner_state import (
    PlannerState,
    Regret,
    after_interval,
    caution_factors,
    with_move_recorded,
)
from nova_numa_pmc.core.rebalance.proposals import proposals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nova_numa_pmc.core.rebalance.evaluation import ProposalKey
    from nova_numa_pmc.core.rebalance.layout import Proposal
    from nova_numa_pmc.core.rebalance.planner_state import RegretKey

#: Maximum number of regrets that are kept between ticks.
REGRETS_MAX = 256
#: Of the moves that are due, the one with the highest net gain over this time comes first [s].
PAYBACK_S = 600.0
#: A guest is not widened if a move from its node will be due within this time, because widening
#: would only delay the move [s].
DUE_SOON_S = 60.0
#: Maximum number of moves that :func:`propose` lists.
PROPOSED_MAX = 200


def plan(
    situation: plan_records.Situation,
    state: PlannerState,
    rebalance_options: plan_records.RebalanceOptions,
    elapsed_s: float,
    now_s: float,
    assumed: Iterable[plan_records.PlanPart] = (),
) -> tuple[plan_records.Plan, PlannerState]:
    """Decide which guests to move now.

    In each interval, the regret of each candidate becomes R ← max(0, R + (G − min_gain_cores) ·
    Δt). The candidate is due when R ≥ K · caution: what was lost by waiting then equals the cost
    of the move, so that loss and cost together are within a constant factor of the least possible
    in hindsight (ski rental: Karlin, Manasse, Rudolph & Sleator 1988, "Competitive snoopy
    caching"). Of the moves that are due, the one with the highest G · 600 s − K comes first. The
    others are then evaluated again as if it had been made, and their regret is reduced in
    proportion to what they would still gain.

    :param state: the state that the last call returned, or an empty one in the first call
    :param elapsed_s: length of the measured interval [s]
    :param now_s: time of a clock that does not jump [s]
    :param assumed: parts of earlier plans that count as made, although they were not
    :returns: (plan, state for the next call). The state presumes that all moves are made; for
        those that are not, call :func:`planner_state.without_guests`
    """
    elapsed_s = min(max(0.0, elapsed_s), rebalance_options.interval_max_s)
    host_model = HostModel(situation, rebalance_options)
    for part in assumed:
        proposal = _recall_proposal(host_model, ((part.uuid, part.to_nodes, part.mem_nodes),))
        if proposal:
            host_model.apply(proposal)
    state = after_interval(state, host_model, elapsed_s, now_s)
    candidates = _candidates_with_regrets(host_model, state, elapsed_s)
    loss_before = host_model.host_loss.loss()
    moves: list[plan_records.Move] = []
    exceeded_budgets: set[str] = set()
    while True:
        best = _best_due_candidate(host_model, candidates, state, exceeded_budgets)
        if best is None:
            break
        moves.append(as_move(host_model, best))
        state = with_move_recorded(state, moves[-1], open_trial(host_model, best, now_s), now_s)
        host_model.apply(best.proposal)
        candidates = [candidate for candidate in candidates if not best.overlaps(candidate)]
        for candidate in candidates:
            candidate.fresh = False
    candidates = [candidate for candidate in candidates if _refresh(host_model, candidate)]
    state = state._replace(
        regrets=tuple(
            Regret(regret_key(host_model, candidate.proposal), candidate.regret_core_sec)
            for candidate in candidates
        )
    )
    return plan_records.Plan(
        tuple(moves),
        loss_before,
        host_model.host_loss.loss(),
        _remarks(host_model, state, exceeded_budgets),
    ), state


def propose(
    situation: plan_records.Situation,
    rebalance_options: plan_records.RebalanceOptions,
    payback_s: float = PAYBACK_S,
) -> plan_records.Plan:
    """List the moves that gain more than they cost within a time, the best first.

    They are what an operator is shown on request: no regret is needed, and no budget applies. No
    guest is moved more than once.

    :param payback_s: time for which the load is assumed to stay as it is [s]
    """
    host_model = HostModel(situation, rebalance_options)
    loss_before = host_model.host_loss.loss()
    moves: list[plan_records.Move] = []
    moved_uuids: set[str] = set()
    while len(moves) < PROPOSED_MAX:
        candidates = [
            MoveCandidate(host_model, proposal, gain_of(host_model, proposal))
            for proposal in distinct_proposals(proposals(host_model)).values()
            if moved_uuids.isdisjoint(guest.load.uuid for guest, _ in proposal)
        ]
        paying_candidates = [
            candidate for candidate in candidates if _pays(host_model, candidate, payback_s)
        ]
        best_gains = _best_gain_by_place(paying_candidates)
        best = _best_candidate(paying_candidates, best_gains, payback_s)
        if best is None:
            break
        moves.append(as_move(host_model, best))
        moved_uuids.update(guest.load.uuid for guest, _ in best.proposal)
        host_model.apply(best.proposal)
    return plan_records.Plan(
        tuple(moves),
        loss_before,
        host_model.host_loss.loss(),
        _remarks(host_model, PlannerState(), ()),
    )


def why_not_paying(
    situation: plan_records.Situation,
    rebalance_options: plan_records.RebalanceOptions,
    move: plan_records.Move,
    payback_s: float,
) -> str:
    """Return why a move that :func:`propose` has listed no longer pays; empty if it does.

    :param situation: the situation now
    """
    host_model = HostModel(situation, rebalance_options)
    proposal = _recall_proposal(
        host_model, tuple((part.uuid, part.to_nodes, part.mem_nodes) for part in move.parts)
    )
    if proposal is None:
        return 'the guest has moved, has ended, or may not or does not fit there any more'
    candidate = MoveCandidate(host_model, proposal, gain_of(host_model, proposal))
    if _pays(host_model, candidate, payback_s):
        return ''
    return 'it no longer pays: it would gain %.2f cores and cost %.1f core-seconds' % (
        candidate.gain_cores,
        candidate.cost_core_sec,
    )


def _pays(host_model: HostModel, candidate: MoveCandidate, payback_s: float) -> bool:
    return (
        candidate.gain_cores >= host_model.min_gain_cores
        and candidate.gain_cores * payback_s > candidate.cost_core_sec
    )


def _candidates_with_regrets(
    host_model: HostModel, state: PlannerState, elapsed_s: float
) -> list[MoveCandidate]:
    """Evaluate new proposals and those with regrets, and return those nearest to being due."""
    recalled_regrets = [
        (_recall_proposal(host_model, regret.key), regret.core_sec) for regret in state.regrets
    ]
    known_regrets = {
        proposal_key(proposal): core_sec for proposal, core_sec in recalled_regrets if proposal
    }
    recalled_proposals = [proposal for proposal, _ in recalled_regrets if proposal]
    candidates = _evaluate(
        host_model,
        distinct_proposals(proposals(host_model), recalled_proposals),
        known_regrets,
        elapsed_s,
    )
    candidates.sort(
        key=lambda candidate: (
            -candidate.regret_core_sec / max(candidate.cost_core_sec, 1e-9),
            candidate.sort_key(PAYBACK_S),
        )
    )
    return candidates[:REGRETS_MAX]


def _evaluate(
    host_model: HostModel,
    proposed: Mapping[ProposalKey, Proposal],
    known_regrets: Mapping[ProposalKey, float],
    elapsed_s: float,
) -> list[MoveCandidate]:
    """Evaluate proposals, add the interval to their regret, and return those with any regret."""
    candidates = []
    for key, proposal in proposed.items():
        gain_cores = gain_of(host_model, proposal)
        added_core_sec = (gain_cores - host_model.min_gain_cores) * elapsed_s
        regret_core_sec = known_regrets.get(key, 0.0) + added_core_sec
        if regret_core_sec > 0:
            candidates.append(MoveCandidate(host_model, proposal, gain_cores))
            candidates[-1].regret_core_sec = regret_core_sec
    return candidates


def _recall_proposal(host_model: HostModel, key: RegretKey) -> Proposal | None:
    """Return the proposal that a regret's key stands for; None if it is no longer possible."""
    parts = []
    for uuid, cpu_nodes, mem_nodes in key:
        guest = host_model.guests.get(uuid)
        nodes_exist = all(node in host_model.position_of_node for node in cpu_nodes + mem_nodes)
        if guest is None or not nodes_exist:
            return None
        place = Place(
            host_model.positions(cpu_nodes),
            host_model.position_of_node[mem_nodes[0]] if mem_nodes else None,
        )
        if not host_model.allows(guest, place) or (
            place.cpu_positions == guest.cpu_positions
            and (
                place.mem_position is None
                or not guest.has_memory_worth_fetching(place.mem_position)
            )
        ):
            return None
        parts.append((guest, place))
    proposal = tuple(parts)
    return proposal if host_model.fits(proposal) else None


def _best_due_candidate(
    host_model: HostModel,
    candidates: list[MoveCandidate],
    state: PlannerState,
    exceeded_budgets: set[str],
) -> MoveCandidate | None:
    """Return the best candidate that is due and within the budgets; None if there is none.

    A gain that is outdated by moves of this plan is computed again only if its candidate could
    come first.

    :param exceeded_budgets: set to which the budgets that held candidates back are added by name
    """
    factors = caution_factors(state)
    while True:
        gains_soon = _gains_due_soon(host_model, candidates, state, factors)
        due_candidates = []
        for candidate in candidates:
            has_gain = (
                candidate.gain_cores > 0 and candidate.gain_cores >= host_model.min_gain_cores
            )
            if not has_gain or _missing_regret(candidate, factors) > 0:
                continue
            budget = _exceeded_budget(host_model, candidate, state)
            if budget:
                exceeded_budgets.add(budget)
            else:
                due_candidates.append(candidate)
        best = _best_candidate(due_candidates, gains_soon, PAYBACK_S)
        if best is None or best.fresh:
            return best
        if not _refresh(host_model, best):
            candidates.remove(best)


def _missing_regret(candidate: MoveCandidate, factors: Mapping[str, float]) -> float:
    """Return the cost that regret has yet to cover [core-seconds]; at most 0 if a move is due."""
    return (
        candidate.cost_core_sec
        * max(factors.get(guest.load.uuid, 1.0) for guest, _ in candidate.proposal)
        - candidate.regret_core_sec
    )


def _gains_due_soon(
    host_model: HostModel,
    candidates: Iterable[MoveCandidate],
    state: PlannerState,
    factors: Mapping[str, float],
) -> dict[tuple[int, ...], float]:
    """Return {positions: gain of the best move from these that is due now or soon}."""
    return _best_gain_by_place(
        candidate
        for candidate in candidates
        if candidate.gain_cores >= host_model.min_gain_cores
        and _missing_regret(candidate, factors) <= DUE_SOON_S * candidate.gain_cores
        and _exceeded_budget(host_model, candidate, state) != plan_records.MOVES_PER_HOUR
    )


def _best_gain_by_place(candidates: Iterable[MoveCandidate]) -> dict[tuple[int, ...], float]:
    """Return {positions: gain of the best move or swap of a guest from these}."""
    best_gains: dict[tuple[int, ...], float] = {}
    for candidate in candidates:
        if candidate.kind in (plan_records.MOVE, plan_records.SWAP):
            for guest, _ in candidate.proposal:
                best_gains[guest.cpu_positions] = max(
                    candidate.gain_cores, best_gains.get(guest.cpu_positions, 0.0)
                )
    return best_gains


def _best_candidate(
    candidates: Iterable[MoveCandidate],
    best_gains: Mapping[tuple[int, ...], float],
    payback_s: float,
) -> MoveCandidate | None:
    """Return the best candidate that is not superfluous; None if there is none."""
    return min(
        (candidate for candidate in candidates if not _is_superfluous(candidate, best_gains)),
        key=lambda candidate: candidate.sort_key(payback_s),
        default=None,
    )


def _is_superfluous(candidate: MoveCandidate, gains_soon: Mapping[tuple[int, ...], float]) -> bool:
    """Return whether a candidate widens a guest although a move that is due soon suffices.

    The move suffices if it gains at least half as much.
    """
    if candidate.kind != plan_records.WIDEN:
        return False
    ((guest, _),) = candidate.proposal
    return gains_soon.get(guest.cpu_positions, 0.0) >= candidate.gain_cores / 2


def _exceeded_budget(host_model: HostModel, candidate: MoveCandidate, state: PlannerState) -> str:
    """Return the name of the budget that a candidate would exceed; empty if there is none."""
    rebalance_options, count = host_model.rebalance_options, len(candidate.proposal)
    if all(place.mem_position is None for _, place in candidate.proposal):
        is_exceeded = len(state.changed_s) + count > rebalance_options.changes_per_hour
        return plan_records.CHANGES_PER_HOUR if is_exceeded else ''
    if len(state.moved_s) + count > rebalance_options.moves_per_hour:
        return plan_records.MOVES_PER_HOUR
    is_alone = candidate.to_move_bytes > rebalance_options.bytes_per_tick and not state.owed_bytes
    if (
        not is_alone
        and state.owed_bytes + candidate.to_move_bytes > rebalance_options.bytes_per_tick
    ):
        return plan_records.BYTES_PER_TICK
    return ''


def _refresh(host_model: HostModel, candidate: MoveCandidate) -> bool:
    """Evaluate a candidate again after other moves, and reduce its regret with its gain.

    :returns: whether the candidate is still to be considered
    """
    if not candidate.fresh:
        if not host_model.fits(candidate.proposal):
            return False
        previous_gain = candidate.gain_cores
        candidate.gain_cores, candidate.fresh = gain_of(host_model, candidate.proposal), True
        if previous_gain > 0:
            candidate.regret_core_sec *= max(0.0, min(1.0, candidate.gain_cores / previous_gain))
    return candidate.regret_core_sec > 0


def _remarks(
    host_model: HostModel, state: PlannerState, exceeded_budgets: Collection[str]
) -> tuple[model.Reason, ...]:
    """Return remarks on budgets that held moves back, and on parts that are unknown."""
    remarks = []
    for name in sorted(exceeded_budgets):
        used_amount = {
            plan_records.BYTES_PER_TICK: state.owed_bytes,
            plan_records.MOVES_PER_HOUR: len(state.moved_s),
            plan_records.CHANGES_PER_HOUR: len(state.changed_s),
        }[name]
        remarks.append(model.Reason(plan_records.BUDGET, (('of', name), ('used', used_amount))))
    unknown_nodes = host_model.node_ids(
        n for n in host_model.positions_with_cpus if not host_model.cpu_known[n]
    )
    if unknown_nodes:
        remarks.append(model.Reason(plan_records.DEMAND_UNKNOWN, (('nodes', unknown_nodes),)))
    if not host_model.bandwidth_known:
        remarks.append(model.Reason(reasons.BANDWIDTH_DROPPED))
    return tuple(remarks)
