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
from nova_numa_pmc.core.rebalance.host_model import HostModel, Place
from nova_numa_pmc.core.rebalance.planner_state import (
    JUDGED_MOVES,
    WAITS_RATIO,
    PlannerState,
    Regret,
    after_interval,
    with_move_recorded,
)
from nova_numa_pmc.core.rebalance.proposals import (
    MoveCandidate,
    as_move,
    cpu_proposals,
    gain_of,
    memory_proposals,
    moves_memory,
    regret_key,
    saved_by,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nova_numa_pmc.core.rebalance.host_model import Proposal
    from nova_numa_pmc.core.rebalance.planner_state import RegretKey

#: Maximum number of regrets that are kept between ticks.
REGRETS_MAX = 256
#: Of the moves that are due, the one with the highest net gain over this time comes first [s].
PAYBACK_S = 600.0
#: A host may move in a day what takes this time to copy, however little its guests have [s].
COPYING_MIN_S = 60.0
#: Maximum number of moves that :func:`propose` lists.
PROPOSED_MAX = 200


def plan(
    situation: plan_records.Situation,
    state: PlannerState,
    rebalance_options: plan_records.RebalanceOptions,
    elapsed_s: float,
    now_s: float,
    assumed: Iterable[plan_records.Move] = (),
) -> tuple[plan_records.Plan, PlannerState]:
    """Decide which guests to move now.

    CPU sets change by the load of the interval. Memory moves by what lasts, the lower of the gains
    at the guests' mean demands over minutes and over a day, which is looked at once a minute; a
    gain counts as far as earlier claims of its kind came true.

    In each interval, the regret of each candidate becomes R ← max(0, R + (G − g) · Δt). The
    candidate is due when R ≥ K: what was lost by waiting then equals the cost of the move, so that
    loss and cost together are within a constant factor of the least possible in hindsight (ski
    rental: Karlin, Manasse, Rudolph & Sleator 1988, "Competitive snoopy caching"). The noise of
    one interval, g, is ``min_gain_cores``; a gain at means has none.
    Of the moves that are due, the one with the highest G · 600 s − K comes first. The others are
    then evaluated again as if it had been made, and their regret is reduced in proportion to what
    they would still gain.

    :param state: the state that the last call returned, or an empty one in the first call
    :param elapsed_s: length of the measured interval [s]
    :param now_s: time of a clock that does not jump [s]
    :param assumed: moves of earlier plans that count as made, although they were not
    :returns: (plan, state for the next call). The state presumes that all moves are made; for
        those that are not, call :func:`planner_state.without_guests`
    """
    elapsed_s = min(max(0.0, elapsed_s), rebalance_options.interval_max_s)
    outlook = Outlook(situation, rebalance_options, state, elapsed_s, now_s)
    for move in assumed:
        key = (move.uuid, move.to_nodes, move.mem_nodes)
        proposal = _recall_proposal(outlook.now, key)
        if proposal:
            outlook.apply(proposal)
    state = after_interval(state, outlook.now, elapsed_s, now_s)
    candidates = _candidates_with_regrets(outlook, state)
    loss_before = outlook.now.host_loss.loss()
    moves: list[plan_records.Move] = []
    while True:
        best = _best_due_candidate(outlook, candidates, state.moved_bytes(now_s))
        if best is None:
            break
        host_model = outlook.model(best.proposal)
        moves.append(as_move(host_model, best))
        claims = saved_by(host_model, best.proposal).kinds
        state = with_move_recorded(state, moves[-1], claims, now_s)
        outlook.apply(best.proposal)
        candidates = [candidate for candidate in candidates if candidate.uuid != best.uuid]
        for candidate in candidates:
            candidate.fresh = False
    regrets = [
        Regret(regret_key(outlook.now, candidate.proposal), candidate.regret_core_sec)
        for candidate in candidates
        if _refresh(outlook, candidate)
    ]
    if outlook.may_move and not outlook.lasting:
        regrets += [regret for regret in state.regrets if regret.moves_memory]
    if outlook.lasting:
        state = state._replace(memory_at_s=now_s)
    state = state._replace(regrets=tuple(regrets))
    remarks = _remarks(outlook.now)
    if outlook.held_back:
        used = (('used', state.moved_bytes(now_s)),)
        remarks = (model.Reason(plan_records.BUDGET, used), *remarks)
    if state.moves_do_not_pay:
        state = state._replace(outcomes=())
        judged = (('moves', JUDGED_MOVES),)
        remarks = (model.Reason(plan_records.DO_NOT_PAY, judged), *remarks)
    return plan_records.Plan(
        tuple(moves), loss_before, outlook.now.host_loss.loss(), remarks
    ), state


class Outlook:
    """A host as it is now, by which CPU sets change, and as it lasts, by which memory moves.

    :ivar now: the host in the interval
    :ivar lasting: the host at the guests' mean demands over minutes, with guests where they are,
        and over a day, with widened guests at home; empty if moves of memory are not evaluated
        this time. What widening takes away already is no gain, and what is balanced without it
        is left alone
    :ivar may_move: whether memory is moved at all
    :ivar held_back: whether the day's budget has held back a move
    """

    def __init__(
        self,
        situation: plan_records.Situation,
        rebalance_options: plan_records.RebalanceOptions,
        state: PlannerState,
        elapsed_s: float,
        now_s: float,
    ) -> None:
        self.now = HostModel(situation, rebalance_options)
        self.lasting: list[HostModel] = []
        self.held_back = False
        self._state, self._elapsed_s, self._now_s = state, elapsed_s, now_s
        ratio = rebalance_options.moved_ratio_per_day
        self.may_move = rebalance_options.may_move and ratio > 0
        self._bytes_per_day = max(
            ratio * sum(guest.memory_bytes for guest in situation.guests),
            COPYING_MIN_S * rebalance_options.bytes_per_sec,
        )
        self._memory_elapsed_s = elapsed_s
        if state.memory_at_s is not None and state.memory_at_s <= now_s:
            since_s = now_s - state.memory_at_s
            self._memory_elapsed_s = min(since_s, rebalance_options.interval_max_s)
            if since_s < rebalance_options.memory_every_s:
                return
        for horizon in (0, 1) if self.may_move else ():
            host_model = HostModel(situation, rebalance_options, horizon)
            host_model.host_loss.trust_ratios = state.trust_ratios
            self.lasting.append(host_model)

    def model(self, proposal: Proposal) -> HostModel:
        """Return the model to whose guests a proposal refers."""
        return self.lasting[0] if moves_memory(proposal) else self.now

    def proposals(self) -> list[Proposal]:
        """List the proposals to evaluate, with those that are regretted."""
        proposals = cpu_proposals(self.now)
        if self.lasting:
            proposals += memory_proposals(self.lasting[0])
        for regret in self._state.regrets:
            if self.lasting or not regret.moves_memory:
                host_model = self.lasting[0] if regret.moves_memory else self.now
                recalled = _recall_proposal(host_model, regret.key)
                proposals += [recalled] if recalled else []
        return [proposal for proposal in proposals if not self._stays(proposal)]

    def _stays(self, proposal: Proposal) -> bool:
        """Return whether a guest of a proposal has to stay because it was moved lately."""
        guest, place = proposal
        waiting_cores = guest.interval_cores - (guest.load.served_cores or 0.0)
        return (
            moves_memory(proposal)
            and place.cpu_positions != guest.cpu_positions
            and self._state.stays(
                guest.load.uuid,
                waiting_cores > WAITS_RATIO * guest.interval_cores,
                self.now.node_ids(place.cpu_positions),
                self._now_s,
            )
        )

    def gain(self, proposal: Proposal) -> float:
        """Return the gain of a proposal [cores]."""
        if not moves_memory(proposal):
            return gain_of(self.now, proposal)
        gain_cores = gain_of(self.lasting[0], proposal)
        if gain_cores <= self.now.min_gain_cores:
            return gain_cores
        return min(gain_cores, gain_of(self.lasting[1], self.lasting[1].same(proposal)))

    def added_regret(self, proposal: Proposal, gain_cores: float) -> float:
        """Return by how much the regret of a proposal changes [core-seconds]."""
        if moves_memory(proposal):
            return gain_cores * self._memory_elapsed_s
        return (gain_cores - self.now.min_gain_cores) * self._elapsed_s

    def apply(self, proposal: Proposal) -> None:
        """Update the models as if a proposal had been carried out."""
        for host_model in (self.now, *self.lasting):
            host_model.apply(host_model.same(proposal))

    def is_within_budget(self, candidate: MoveCandidate, moved_bytes: int) -> bool:
        """Return whether the memory of a candidate may be moved today."""
        is_within = moved_bytes + candidate.to_move_bytes <= self._bytes_per_day
        is_within = is_within or not candidate.to_move_bytes
        self.held_back = self.held_back or not is_within
        return is_within


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
            for proposal in cpu_proposals(host_model) + memory_proposals(host_model)
            if proposal[0].load.uuid not in moved_uuids
        ]
        paying_candidates = [
            candidate for candidate in candidates if _pays(host_model, candidate, payback_s)
        ]
        best = _best_candidate(paying_candidates, payback_s)
        if best is None:
            break
        moves.append(as_move(host_model, best))
        moved_uuids.add(best.uuid)
        host_model.apply(best.proposal)
    return plan_records.Plan(
        tuple(moves), loss_before, host_model.host_loss.loss(), _remarks(host_model)
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
    proposal = _recall_proposal(host_model, (move.uuid, move.to_nodes, move.mem_nodes))
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


def _candidates_with_regrets(outlook: Outlook, state: PlannerState) -> list[MoveCandidate]:
    """Evaluate proposals, add the interval to their regret, and return those nearest to due."""
    regrets = {regret.key: regret.core_sec for regret in state.regrets}
    proposals = {regret_key(outlook.now, proposal): proposal for proposal in outlook.proposals()}
    candidates = []
    for key, proposal in proposals.items():
        gain_cores = outlook.gain(proposal)
        regret_core_sec = regrets.get(key, 0.0) + outlook.added_regret(proposal, gain_cores)
        if regret_core_sec > 0:
            candidate = MoveCandidate(outlook.model(proposal), proposal, gain_cores)
            candidate.regret_core_sec = regret_core_sec
            candidates.append(candidate)
    candidates.sort(
        key=lambda candidate: (
            -candidate.regret_core_sec / max(candidate.cost_core_sec, 1e-9),
            candidate.sort_key(PAYBACK_S),
        )
    )
    return candidates[:REGRETS_MAX]


def _recall_proposal(host_model: HostModel, key: RegretKey) -> Proposal | None:
    """Return the proposal that a regret's key stands for; None if it is no longer possible."""
    uuid, cpu_nodes, mem_nodes = key
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
        and (place.mem_position is None or not guest.has_memory_worth_fetching(place.mem_position))
    ):
        return None
    return guest, place


def _best_due_candidate(
    outlook: Outlook, candidates: list[MoveCandidate], moved_bytes: int
) -> MoveCandidate | None:
    """Return the best candidate that is due and within the budget; None if there is none.

    A gain that is outdated by moves of this plan is computed again only if its candidate could
    come first.

    :param moved_bytes: memory that was moved within a day
    """
    while True:
        due_candidates = [
            candidate
            for candidate in candidates
            if candidate.gain_cores > 0
            and candidate.gain_cores >= outlook.now.min_gain_cores
            and candidate.regret_core_sec >= candidate.cost_core_sec
            and outlook.is_within_budget(candidate, moved_bytes)
        ]
        best = _best_candidate(due_candidates, PAYBACK_S)
        if best is None or best.fresh:
            return best
        if not _refresh(outlook, best):
            candidates.remove(best)


def _best_candidate(candidates: Sequence[MoveCandidate], payback_s: float) -> MoveCandidate | None:
    """Return the best candidate; None if there is none.

    Widening is superfluous where a move that gains at least half as much is to be made.
    """
    moving_gain_cores = max(
        (each.gain_cores for each in candidates if moves_memory(each.proposal)), default=0.0
    )
    return min(
        (
            each
            for each in candidates
            if each.kind != plan_records.WIDEN or each.gain_cores > 2 * moving_gain_cores
        ),
        key=lambda candidate: candidate.sort_key(payback_s),
        default=None,
    )


def _refresh(outlook: Outlook, candidate: MoveCandidate) -> bool:
    """Evaluate a candidate again after other moves, and reduce its regret with its gain.

    :returns: whether the candidate is still to be considered
    """
    if not candidate.fresh:
        if not outlook.model(candidate.proposal).allows(*candidate.proposal):
            return False
        previous_gain = candidate.gain_cores
        candidate.gain_cores, candidate.fresh = outlook.gain(candidate.proposal), True
        if previous_gain > 0:
            candidate.regret_core_sec *= max(0.0, min(1.0, candidate.gain_cores / previous_gain))
    return candidate.regret_core_sec > 0


def _remarks(host_model: HostModel) -> tuple[model.Reason, ...]:
    """Return remarks on parts that are unknown."""
    remarks = []
    unknown_nodes = host_model.node_ids(
        n for n in host_model.positions_with_cpus if not host_model.cpu_known[n]
    )
    if unknown_nodes:
        remarks.append(model.Reason(plan_records.DEMAND_UNKNOWN, (('nodes', unknown_nodes),)))
    if not host_model.bandwidth_known:
        remarks.append(model.Reason(reasons.BANDWIDTH_DROPPED))
    return tuple(remarks)
