# SPDX-License-Identifier: Apache-2.0
"""Decide which guests to move, and when a move pays.

:func:`plan` is called once per interval, with the measurements and the state that the last call
returned. :func:`propose` lists the moves that would pay now, regardless of regret.

A thousand guests on eight nodes have 7,000 moves. What the absence of a guest would save is an
upper bound of the gain of moving it, and cheap to compute. Only the best guests of each node by
that bound are evaluated on every other node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import reasons
from nova_numa_pmc.core.rebalance import losses, plan_records
from nova_numa_pmc.core.rebalance.host_model import HostModel, Place
from nova_numa_pmc.core.rebalance.planner_state import (
    JUDGED_MOVES,
    WAITS_RATIO,
    PlannerState,
    Regret,
    after_interval,
    with_move_recorded,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nova_numa_pmc.core.rebalance.host_model import GuestModel

#: Maximum number of regrets that are kept between ticks.
REGRETS_MAX = 256
#: Of the moves that are due, the one with the highest net gain over this time comes first [s].
PAYBACK_S = 600.0
#: A host may move in a day what takes this time to copy, however little its guests have [s].
COPYING_MIN_S = 60.0
#: Maximum number of moves that :func:`propose` lists.
PROPOSED_MAX = 200
#: Maximum number of guests of each node that are evaluated, by the upper bound of their gain and,
#: as many again, by that bound ÷ cost.
_MOVED_MAX = 8
#: Maximum number of guests of each node for which it is evaluated to widen them.
_WIDENED_MAX = 6
#: A widened guest is assumed to lose at least this share of the time that it runs on nodes other
#: than its home, because it allocates new memory where it runs.
AWAY_RATIO = 0.02
#: Guests that may use several nodes absorb bursts on these up to this share of their demand
#: (assumed; simulated with a half, a quarter and an eighth).
BURST_ABSORPTION_RATIO = 0.25


class Candidate:
    """A new place of a guest, with its gain and cost.

    :ivar kind: one of :data:`plan_records.KINDS`
    :ivar gain_cores: its gain
    :ivar cost_core_sec, regret_core_sec: its cost and its regret so far
    :ivar to_move_bytes: memory to be moved
    """

    def __init__(self, host_model: HostModel, uuid: str, place: Place, gain_cores: float) -> None:
        self.uuid, self.place, self.gain_cores = uuid, place, gain_cores
        guest = host_model.guests[uuid]
        self.kind = _kind(set(guest.cpu_positions), set(place.cpu_positions))
        self.cost_core_sec = host_model.cost(guest, place)
        self.to_move_bytes = host_model.bytes_to_move(guest, place)
        self.regret_core_sec = 0.0
        # Of equal candidates, the one that moves the fewest bytes comes first, then the one with
        # the emptiest target; uuids decide last.
        target, host_loss = place.cpu_positions[0], host_model.host_loss
        self._tie_breakers = (
            self.to_move_bytes,
            round(host_loss.demand_cores[target] / host_loss.cores[target], 6),
            uuid,
            place.cpu_positions,
        )

    def sort_key(self, payback_s: float) -> tuple[object, ...]:
        """Return a sort key of net gain over a time, bytes, CPU ratio of the target, and uuids."""
        return (-round(self.gain_cores * payback_s - self.cost_core_sec, 6), *self._tie_breakers)

    def pays(self, host_model: HostModel, payback_s: float) -> bool:
        """Return whether it gains more than it costs within a time."""
        return (
            self.gain_cores >= host_model.min_gain_cores
            and self.gain_cores * payback_s > self.cost_core_sec
        )


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
        those that are not begun, call :func:`planner_state.refunded`
    """
    elapsed_s = min(max(0.0, elapsed_s), rebalance_options.interval_max_s)
    outlook = Outlook(situation, rebalance_options, state, elapsed_s, now_s)
    for move in assumed:
        place = outlook.now.recall(move.uuid, move.to_nodes, move.mem_nodes)
        if place:
            outlook.apply(move.uuid, place)
    state = after_interval(state, outlook.now, elapsed_s, now_s)
    candidates = outlook.candidates()
    loss_before = outlook.now.host_loss.loss()
    moves: list[plan_records.Move] = []
    while True:
        best = _best(
            [each for each in candidates if outlook.is_due(each, state.moved_bytes(now_s))],
            PAYBACK_S,
        )
        if best is None:
            break
        host_model = outlook.model(best.place)
        moves.append(_as_move(host_model, best))
        claims = _saved(host_model, best.uuid, best.place).kinds
        state = with_move_recorded(state, moves[-1], claims, now_s)
        outlook.apply(best.uuid, best.place)
        candidates = [
            each for each in candidates if each.uuid != best.uuid and outlook.is_still_one(each)
        ]
    regrets = [
        Regret(outlook.now.key(each.uuid, each.place), each.regret_core_sec) for each in candidates
    ]
    if outlook.lasting:
        state = state._replace(memory_at_s=now_s)
    elif outlook.may_move:
        regrets += [regret for regret in state.regrets if regret.moves_memory]
    state = state._replace(regrets=tuple(regrets))
    remarks = _remarks(outlook.now)
    if outlook.held_back:
        used = (('used', state.moved_bytes(now_s)),)
        remarks.insert(0, model.Reason(plan_records.BUDGET, used))
    if state.moves_do_not_pay:
        state = state._replace(outcomes=())
        judged = (('moves', JUDGED_MOVES),)
        remarks.insert(0, model.Reason(plan_records.DO_NOT_PAY, judged))
    loss_after = outlook.now.host_loss.loss()
    return plan_records.Plan(tuple(moves), loss_before, loss_after, tuple(remarks)), state


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

    def model(self, place: Place) -> HostModel:
        """Return the model by which a place is judged, with its memory or without."""
        return self.now if place.mem_position is None else self.lasting[0]

    def candidates(self) -> list[Candidate]:
        """Evaluate places, add the interval to their regret, and return those nearest to due."""
        regrets = {regret.key: regret.core_sec for regret in self._state.regrets}
        places = dict.fromkeys(_cpu_places(self.now))
        if self.lasting:
            places.update(dict.fromkeys(_memory_places(self.lasting[0])))
        for key in regrets:
            if self.lasting or not key[2]:
                recalled = (self.lasting[0] if key[2] else self.now).recall(*key)
                places.update({(key[0], recalled): None} if recalled else {})
        candidates = []
        for uuid, place in places:
            if self._stays(uuid, place):
                continue
            gain_cores = self.gain(uuid, place)
            added_core_sec = (
                (gain_cores - self.now.min_gain_cores) * self._elapsed_s
                if place.mem_position is None
                else gain_cores * self._memory_elapsed_s
            )
            regret_core_sec = regrets.get(self.now.key(uuid, place), 0.0) + added_core_sec
            if regret_core_sec > 0:
                candidate = Candidate(self.model(place), uuid, place, gain_cores)
                candidate.regret_core_sec = regret_core_sec
                candidates.append(candidate)
        candidates.sort(
            key=lambda candidate: (
                -candidate.regret_core_sec / max(candidate.cost_core_sec, 1e-9),
                candidate.sort_key(PAYBACK_S),
            )
        )
        return candidates[:REGRETS_MAX]

    def _stays(self, uuid: str, place: Place) -> bool:
        """Return whether a guest has to stay because it was moved lately."""
        guest = self.now.guests[uuid]
        waiting_cores = guest.interval_cores - (guest.load.served_cores or 0.0)
        return (
            place.mem_position is not None
            and place.cpu_positions != guest.cpu_positions
            and self._state.stays(
                uuid,
                waiting_cores > WAITS_RATIO * guest.interval_cores,
                self.now.node_ids(place.cpu_positions),
                self._now_s,
            )
        )

    def gain(self, uuid: str, place: Place) -> float:
        """Return the gain of a place [cores]."""
        gain_cores = gain_of(self.model(place), uuid, place)
        if place.mem_position is None or gain_cores <= self.now.min_gain_cores:
            return gain_cores
        return min(gain_cores, gain_of(self.lasting[1], uuid, place))

    def apply(self, uuid: str, place: Place) -> None:
        """Update the models as if a guest had been moved."""
        for host_model in (self.now, *self.lasting):
            host_model.apply(uuid, place)

    def is_due(self, candidate: Candidate, moved_bytes: int) -> bool:
        """Return whether a candidate has paid for itself and is within the day's budget.

        :param moved_bytes: memory that was moved within a day
        """
        if (
            candidate.gain_cores <= 0
            or candidate.gain_cores < self.now.min_gain_cores
            or candidate.regret_core_sec < candidate.cost_core_sec
        ):
            return False
        size_bytes = candidate.to_move_bytes
        is_within = not size_bytes or moved_bytes + size_bytes <= self._bytes_per_day
        self.held_back = self.held_back or not is_within
        return is_within

    def is_still_one(self, candidate: Candidate) -> bool:
        """Evaluate a candidate again after a move, and reduce its regret with its gain.

        :returns: whether the candidate is still to be considered
        """
        host_model = self.model(candidate.place)
        if not host_model.allows(host_model.guests[candidate.uuid], candidate.place):
            return False
        previous_gain = candidate.gain_cores
        candidate.gain_cores = self.gain(candidate.uuid, candidate.place)
        if previous_gain > 0:
            candidate.regret_core_sec *= max(0.0, min(1.0, candidate.gain_cores / previous_gain))
        return candidate.regret_core_sec > 0


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
    moves: dict[str, plan_records.Move] = {}
    while len(moves) < PROPOSED_MAX:
        candidates = [
            Candidate(host_model, uuid, place, gain_of(host_model, uuid, place))
            for uuid, place in (*_cpu_places(host_model), *_memory_places(host_model))
            if uuid not in moves
        ]
        best = _best([each for each in candidates if each.pays(host_model, payback_s)], payback_s)
        if best is None:
            break
        moves[best.uuid] = _as_move(host_model, best)
        host_model.apply(best.uuid, best.place)
    return plan_records.Plan(
        tuple(moves.values()),
        loss_before,
        host_model.host_loss.loss(),
        tuple(_remarks(host_model)),
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
    place = host_model.recall(move.uuid, move.to_nodes, move.mem_nodes)
    if place is None:
        return 'the guest has moved, has ended, or may not or does not fit there any more'
    candidate = Candidate(host_model, move.uuid, place, gain_of(host_model, move.uuid, place))
    if candidate.pays(host_model, payback_s):
        return ''
    return 'it no longer pays: it would gain %.2f cores and cost %.1f core-seconds' % (
        candidate.gain_cores,
        candidate.cost_core_sec,
    )


def _best(candidates: Sequence[Candidate], payback_s: float) -> Candidate | None:
    """Return the best candidate; None if there is none.

    Widening is superfluous where a move that gains at least half as much is to be made.
    """
    moving_gain_cores = max(
        (each.gain_cores for each in candidates if each.place.mem_position is not None),
        default=0.0,
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


def _remarks(host_model: HostModel) -> list[model.Reason]:
    """Return remarks on parts that are unknown."""
    remarks = []
    unknown_nodes = host_model.node_ids(
        n for n in host_model.positions_with_cpus if not host_model.cpu_known[n]
    )
    if unknown_nodes:
        remarks.append(model.Reason(plan_records.DEMAND_UNKNOWN, (('nodes', unknown_nodes),)))
    if not host_model.bandwidth_known:
        remarks.append(model.Reason(reasons.BANDWIDTH_DROPPED))
    return remarks


def _cpu_places(host_model: HostModel) -> Iterator[tuple[str, Place]]:
    """Yield (uuid, place) of the places to evaluate that leave memory where it is."""
    if host_model.options.go_home:
        for guest in host_model.guests.values():
            home = Place(guest.home, None)
            # Memory that it leaves elsewhere is fetched later.
            if set(guest.home) < set(guest.cpu_positions) and host_model.allows(guest, home):
                yield guest.load.uuid, home
    if host_model.options.widen:
        yield from _wider_places(host_model)


def _wider_places(host_model: HostModel) -> Iterator[tuple[str, Place]]:
    """Yield places that widen guests of crowded nodes to nodes with idle cores.

    They are for the guests with the lowest rate of accesses per core of demand.
    """
    host_loss, noise_cores = host_model.host_loss, host_model.min_gain_cores
    demand = host_loss.levelled_demand()
    waiting = {n: host_loss.waiting_at(n, demand) for n in host_model.positions_with_cpus}
    # Because of bursts, cores may be idle at times even if demand exceeds capacity on average.
    idle_positions = [
        n
        for n, waiting_cores in waiting.items()
        if host_model.cpu_known[n] and waiting_cores + host_loss.cores[n] - demand[n] > noise_cores
    ]
    guests_by_place = _movable_guests_by_place(host_model) if idle_positions else {}
    for positions, guests in sorted(guests_by_place.items()):
        if max(waiting[n] for n in positions) <= noise_cores:
            continue
        by_access_rate = sorted(
            (guest for guest in guests if guest.demand_cores > noise_cores),
            key=lambda guest: (guest.stalls_per_ns / guest.demand_cores, -guest.demand_cores),
        )
        for guest in by_access_rate[:_WIDENED_MAX]:
            for n in idle_positions:
                place = Place(tuple(sorted({*positions, n})), None)
                # If accesses are not counted, the gain from cores that are idle only between
                # bursts may be less than the unknown loss to distance.
                is_worthwhile = demand[n] < host_loss.cores[n] or guest.counted
                if n not in positions and is_worthwhile and host_model.allows(guest, place):
                    yield guest.load.uuid, place


def _memory_places(host_model: HostModel) -> Iterator[tuple[str, Place]]:
    """Yield (uuid, place) of the places to evaluate to which memory follows the CPUs."""
    options = host_model.options
    for _, guests in sorted(_movable_guests_by_place(host_model).items()):
        gains = [(host_model.host_loss.gain(guest.effect, None), guest) for guest in guests]
        promising = [
            (
                gain_cores,
                gain_cores
                / (
                    sum(guest.bytes_by_position.values()) / options.bytes_per_sec
                    + options.change_core_sec
                ),
                guest,
            )
            for gain_cores, guest in gains
            if gain_cores > host_model.min_gain_cores
        ]
        best = (
            sorted(promising, key=lambda each: -each[0])[:_MOVED_MAX]
            + sorted(promising, key=lambda each: -each[1])[:_MOVED_MAX]
        )
        for guest in dict.fromkeys(each[2] for each in best):
            for n in host_model.positions_with_cpus:
                place = Place((n,), host_model.memory_at[n])
                is_other = (
                    guest.has_memory_worth_fetching(host_model.memory_at[n])
                    if guest.cpu_positions == (n,)
                    else guest.home == guest.cpu_positions or guest.home != (n,)
                )
                if is_other and host_model.allows(guest, place):
                    yield guest.load.uuid, place


def _movable_guests_by_place(host_model: HostModel) -> dict[tuple[int, ...], list[GuestModel]]:
    guests_by_place: dict[tuple[int, ...], list[GuestModel]] = {}
    for guest in host_model.guests.values():
        if guest.movable:
            guests_by_place.setdefault(guest.cpu_positions, []).append(guest)
    return guests_by_place


def gain_of(host_model: HostModel, uuid: str, place: Place) -> float:
    """Return the gain of a place of a guest [cores]."""
    guest = host_model.guests[uuid]
    gain_cores = host_model.host_loss.gain(guest.effect, host_model.effect(guest, place))
    if set(guest.cpu_positions) < set(place.cpu_positions):
        return gain_cores + _burst_gain(host_model, guest, place)
    if (
        set(place.cpu_positions) < set(guest.cpu_positions)
        and place.mem_position is None
        and place.cpu_positions == guest.home
    ):
        return _going_home_gain(host_model, guest, place, gain_cores)
    return gain_cores


def _kind(old_positions: set[int], new_positions: set[int]) -> str:
    """Return the kind of a move, one of :data:`plan_records.KINDS`."""
    if old_positions == new_positions:
        return plan_records.FETCH
    if old_positions < new_positions:
        return plan_records.WIDEN
    return plan_records.NARROW if new_positions < old_positions else plan_records.MOVE


def _as_move(host_model: HostModel, candidate: Candidate) -> plan_records.Move:
    """Return a candidate as a :class:`plan_records.Move`; call this before it is applied."""
    guest, place = host_model.guests[candidate.uuid], candidate.place
    mem_nodes: tuple[int, ...] = ()
    if place.mem_position is not None and (candidate.to_move_bytes or guest.load.mem_nodes):
        mem_nodes = host_model.memory_nodes_at[place.mem_position]
    return plan_records.Move(
        candidate.kind,
        candidate.uuid,
        guest.load.name,
        tuple(guest.load.held_nodes),
        host_model.node_ids(place.cpu_positions),
        mem_nodes,
        candidate.to_move_bytes,
        gain_cores=candidate.gain_cores,
        cost_core_sec=candidate.cost_core_sec,
        regret_core_sec=candidate.regret_core_sec,
        reasons=tuple(_reasons(host_model, candidate)),
    )


def _saved(host_model: HostModel, uuid: str, place: Place) -> losses.Causes:
    """Return what a place saves, whether or not it is trusted [cores]."""
    guest = host_model.guests[uuid]
    return host_model.host_loss.saved(guest.effect, host_model.effect(guest, place))


def _reasons(host_model: HostModel, candidate: Candidate) -> Iterator[model.Reason]:
    """Yield the parts that a candidate's gain consists of, the largest first."""
    guest, place = host_model.guests[candidate.uuid], candidate.place
    gains = list(_saved(host_model, candidate.uuid, place))
    is_trusted = place.mem_position is not None  # less than these, or as much
    gains.append(0.0 if is_trusted else candidate.gain_cores - sum(gains))
    causes = (
        plan_records.WAITING,
        plan_records.DISTANCE,
        plan_records.BANDWIDTH,
        plan_records.CROWDING,
        plan_records.BURSTS if candidate.kind == plan_records.WIDEN else plan_records.AWAY,
    )
    from_and_to = (
        ('from', host_model.node_ids(guest.cpu_positions)),
        ('to', host_model.node_ids(place.cpu_positions)),
    )
    for cores, cause in sorted(zip(gains, causes), reverse=True):
        if abs(cores) > 1e-6:
            is_assumed = cause == plan_records.DISTANCE and not guest.counted
            rate = (('rate', plan_records.ASSUMED),) if is_assumed else ()
            yield model.Reason(cause, (('cores', cores), *from_and_to, *rate))


def _burst_gain(host_model: HostModel, guest: GuestModel, place: Place) -> float:
    """Return what widening gains, beyond levelling, when bursts find CPUs idle elsewhere [cores].

    Independent bursts add in quadrature, so that on nodes that share their guests
    h(ΣD, ΣC, √Σv²) cores wait instead of Σ h(D, C, v). Guests that may use several of the nodes
    save the difference, but at most :data:`BURST_ABSORPTION_RATIO` of their demand. What the
    guests that already may use several of them are assumed to save is subtracted.
    """
    positions = place.cpu_positions
    host_loss = host_model.host_loss.with_change(guest.effect, None)
    shared_cores = sum(
        spanning_cores
        for spanned, spanning_cores in host_loss.spanning_cores.items()
        if len(set(spanned).intersection(positions)) > 1
    )
    demand = host_loss.levelled_demand()
    losses.level_out(demand, host_loss.cores, positions, guest.demand_cores)
    apart_cores = sum(
        host_loss.waiting_at(n, demand) - losses.waiting(demand[n], host_loss.cores[n], 0.0)
        for n in positions
    )
    total_demand = sum(demand[n] for n in positions)
    total_cores = sum(host_loss.cores[n] for n in positions)
    common_burst = sum(host_loss.burst_cores[n] ** 2 for n in positions) ** 0.5
    together_cores = losses.waiting(total_demand, total_cores, common_burst) - losses.waiting(
        total_demand, total_cores, 0.0
    )
    absorbed_cores = min(
        apart_cores - together_cores, BURST_ABSORPTION_RATIO * (shared_cores + guest.demand_cores)
    )
    return max(0.0, absorbed_cores - BURST_ABSORPTION_RATIO * shared_cores)


def _going_home_gain(
    host_model: HostModel, guest: GuestModel, place: Place, gain_cores: float
) -> float:
    """Return the gain of taking a guest home.

    It is 0 if its nodes there would be too full. If the move causes no loss, its gain is at least
    the loss that is assumed for memory that is allocated away from home.
    """
    host_loss = host_model.host_loss.with_change(guest.effect, None)
    demand = host_loss.levelled_demand()
    losses.level_out(demand, host_loss.cores, place.cpu_positions, guest.demand_cores)
    narrow_below_ratio = host_model.options.narrow_below_ratio
    if any(demand[n] > narrow_below_ratio * host_loss.cores[n] for n in place.cpu_positions):
        return 0.0
    if gain_cores < -1e-9:
        return gain_cores
    away_share = sum(share for n, share in guest.cpu_shares if n not in place.cpu_positions)
    return max(
        gain_cores, host_model.min_gain_cores + AWAY_RATIO * guest.demand_cores * away_share
    )
