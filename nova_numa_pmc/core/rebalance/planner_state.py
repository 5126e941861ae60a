# SPDX-License-Identifier: Apache-2.0
"""What the planner keeps between ticks: regrets, moved guests, and how far claims came true.

The records are immutable: each plan takes a state and returns the next one. All fields are
numbers, strings, and tuples of these, so that a state can be kept over a restart. Times are
seconds of a clock that does not jump (CLOCK_BOOTTIME).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.demand import DAY_S, MINUTES_S
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nova_numa_pmc.core.rebalance.host_model import HostModel
    from nova_numa_pmc.core.rebalance.plan_records import Move
    from nova_numa_pmc.json_values import Signed

    #: (uuid of the guest, node ids for its CPUs, node ids for its memory).
    RegretKey = tuple[str, tuple[int, ...], tuple[int, ...]]

#: A guest stays for a day after a move unless it waits, and for a week once it has come back.
STAY_S, STAY_AFTER_RETURN_S = DAY_S, 7 * DAY_S
#: A guest waits if this share of its demand is not served.
WAITS_RATIO = 0.1
#: A move is judged by the time after it in which its gain has to cover its cost [s].
PAYBACK_S = 3600.0
#: The number of moves that together have to pay.
JUDGED_MOVES = 10
#: (claimed, realised) [cores] per kind of gain (waiting, distance, bandwidth) before any move was
#: judged. Waiting is measured as it is claimed; overlapping misses hide latency, and bandwidth
#: that a move is to relieve has often changed by then (both seen in simulations).
TRUST_AT_FIRST = ((4.0, 4.0), (4.0, 2.0), (4.0, 0.4))
#: Share of earlier claims that is forgotten with each judgement.
FORGOTTEN_RATIO = 0.1


class Regret(Record):
    """The cost so far of a move that was not made.

    :param key: (uuid of the guest, node ids for its CPUs, node ids for its memory)
    :param core_sec: the regret R [core-seconds]
    """

    key: tuple[str, tuple[int, ...], tuple[int, ...]]
    core_sec: float

    @property
    def moves_memory(self) -> bool:
        """Return whether memory would follow."""
        return bool(self.key[2])


class MovedGuest(Record):
    """A guest that was moved with its memory.

    :param from_nodes: ids of the nodes that it came from
    :param came_back: whether it was moved to where it had come from
    """

    uuid: str
    at_s: float
    from_nodes: tuple[int, ...]
    moved_bytes: int
    came_back: bool = False

    def was_on(self, nodes: tuple[int, ...]) -> bool:
        """Return whether it came from these nodes, from which it may have been widened."""
        return set(nodes) <= set(self.from_nodes)


class NodeLoss(Record):
    """What the guests on some nodes want and lose [cores].

    :param lost: what they wait for, and for how long they stall where this is counted
    :param stalls_known: whether the stalls of all these guests are counted
    """

    wanted: float = 0.0
    lost: float = 0.0
    stalls_known: bool = True

    @property
    def ratio(self) -> float:
        """Return the lost share of what is wanted."""
        return self.lost / self.wanted if self.wanted else 0.0


class Trial(Record):
    """Moves that are judged together, because their nodes or their time overlap.

    :param before: what guests lost on the nodes of these moves before the first one
    :param nodes: ids of these nodes
    :param claims: gains by kind (waiting, distance, bandwidth) [cores]
    :param after: likewise after the last move, summed up over ``measured_s`` [core-seconds]
    """

    before: NodeLoss
    nodes: tuple[int, ...] = ()
    claims: tuple[float, float, float] = (0.0, 0.0, 0.0)
    cost_core_sec: float = 0.0
    moves: int = 0
    after: NodeLoss = NodeLoss()
    measured_s: float = 0.0


class PlannerState(Record):
    """The memory of the planner between ticks.

    :param memory_at_s: when moves of memory were last evaluated; None: never
    :param moved: guests that were moved within a week
    :param losses: (node id, loss as a mean over minutes)
    :param trial: the moves that are being judged
    :param trust: (claimed, realised) [cores] by kind of gain
    :param outcomes: realised gain less cost of the last moves that were judged [core-seconds]
    """

    regrets: tuple[Regret, ...] = ()
    memory_at_s: float | None = None
    moved: tuple[MovedGuest, ...] = ()
    losses: tuple[tuple[int, NodeLoss], ...] = ()
    trial: Trial | None = None
    trust: tuple[tuple[float, Signed], ...] = TRUST_AT_FIRST
    outcomes: tuple[Signed, ...] = ()

    @property
    def trust_ratios(self) -> tuple[float, ...]:
        """Return the share of a claim that counts, by kind of gain."""
        return tuple(
            min(1.0, max(0.0, realised / claimed)) if claimed else 1.0
            for claimed, realised in self.trust
        )

    @property
    def moves_do_not_pay(self) -> bool:
        """Return whether the last moves together cost more than they gained."""
        return len(self.outcomes) >= JUDGED_MOVES and sum(self.outcomes) < 0

    def stays(self, uuid: str, waits: bool, to_nodes: tuple[int, ...], now_s: float) -> bool:
        """Return whether a guest was moved so lately that it must not be moved to some nodes.

        A guest that waits may be moved again, but not back.
        """
        return any(
            moved.uuid == uuid
            and (
                moved.came_back
                or (now_s - moved.at_s < STAY_S and (not waits or moved.was_on(to_nodes)))
            )
            for moved in self.moved
        )

    def moved_bytes(self, now_s: float) -> int:
        """Return the memory that was moved within the last day."""
        return sum(each.moved_bytes for each in self.moved if now_s - each.at_s < DAY_S)


def after_interval(
    state: PlannerState, host_model: HostModel, elapsed_s: float, now_s: float
) -> PlannerState:
    """Return the state after an interval, with what guests lost in it.

    :param host_model: the host as it was in the interval
    """
    weight = min(1.0, elapsed_s / MINUTES_S)
    before, now = dict(state.losses), _losses_by_node(host_model)
    losses = tuple(
        (node, _mixed(before.get(node, now[node]), now[node], weight)) for node in sorted(now)
    )
    state = state._replace(
        losses=losses,
        moved=tuple(
            moved for moved in state.moved if 0 <= now_s - moved.at_s < STAY_AFTER_RETURN_S
        ),
    )
    trial = state.trial
    if trial is None:
        return state
    sums = _sum([loss for node, loss in now.items() if node in trial.nodes])
    trial = trial._replace(
        after=NodeLoss(
            trial.after.wanted + sums.wanted * elapsed_s,
            trial.after.lost + sums.lost * elapsed_s,
            trial.after.stalls_known and sums.stalls_known,
        ),
        measured_s=trial.measured_s + elapsed_s,
    )
    if trial.measured_s < MINUTES_S:
        return state._replace(trial=trial)
    return _judged(state._replace(trial=None), trial)


def _judged(state: PlannerState, trial: Trial) -> PlannerState:
    """Return the state with what a trial's moves gained.

    The gain is the lost share of what the guests wanted before, less that after, at what they
    wanted after. Without counted stalls, it says nothing about distance and bandwidth.
    """
    stalls_known = trial.before.stalls_known and trial.after.stalls_known
    judged = trial.claims if stalls_known else (trial.claims[0], 0.0, 0.0)
    gained = (trial.before.ratio - trial.after.ratio) * trial.after.wanted / trial.measured_s
    expected = [claim * ratio for claim, ratio in zip(judged, state.trust_ratios)]
    if not sum(expected):
        return state
    trust = tuple(
        (
            (1 - FORGOTTEN_RATIO) * claimed + claim,
            (1 - FORGOTTEN_RATIO) * realised + gained * part / sum(expected),
        )
        if claim
        else (claimed, realised)
        for (claimed, realised), claim, part in zip(state.trust, judged, expected)
    )
    outcome = (gained * PAYBACK_S - trial.cost_core_sec) / trial.moves
    return state._replace(
        trust=trust, outcomes=(*state.outcomes, *[outcome] * trial.moves)[-JUDGED_MOVES:]
    )


def with_move_recorded(
    state: PlannerState, move: Move, claims: Sequence[float], now_s: float
) -> PlannerState:
    """Return the state after a move.

    :param claims: the gains by kind (waiting, distance, bandwidth) [cores]
    """
    regrets = tuple(regret for regret in state.regrets if regret.key[0] != move.uuid)
    state = state._replace(regrets=regrets)
    if not move.to_move_bytes:
        return state
    came_back = move.from_nodes != move.to_nodes and any(
        moved.uuid == move.uuid and moved.was_on(move.to_nodes) for moved in state.moved
    )
    moved = MovedGuest(move.uuid, now_s, move.from_nodes, move.to_move_bytes, came_back)
    nodes = {*move.from_nodes, *move.to_nodes}
    trial = state.trial or Trial(_sum([loss for node, loss in state.losses if node in nodes]))
    waiting, distance, bandwidth = (
        earlier + max(0.0, claim) for earlier, claim in zip(trial.claims, claims)
    )
    return state._replace(
        moved=(*(each for each in state.moved if each.uuid != move.uuid), moved),
        trial=trial._replace(
            nodes=tuple(sorted(nodes.union(trial.nodes))),
            claims=(waiting, distance, bandwidth),
            cost_core_sec=trial.cost_core_sec + move.cost_core_sec,
            moves=trial.moves + 1,
            after=NodeLoss(),
            measured_s=0.0,
        ),
    )


def refunded(state: PlannerState, moves: Iterable[Move]) -> PlannerState:
    """Return the state as if moves that were refused had not been planned.

    :param moves: moves that were not begun
    """
    uuids = {move.uuid for move in moves if move.mem_nodes}
    moved = tuple(each for each in state.moved if each.uuid not in uuids)
    return state if moved == state.moved else state._replace(moved=moved, trial=None)


def _losses_by_node(host_model: HostModel) -> dict[int, NodeLoss]:
    """Return {id of a position's first node: what its guests want and lose}."""
    by_node = {nodes[0]: NodeLoss() for nodes in host_model.nodes_at}
    for guest in host_model.guests.values():
        served_cores = min(guest.demand_cores, guest.load.served_cores or 0.0)
        stalled_ratio = guest.load.stalled_ratio
        lost_cores = guest.demand_cores - served_cores + served_cores * (stalled_ratio or 0.0)
        for position, share in guest.cpu_shares:
            node = host_model.nodes_at[position][0]
            wanted, lost, stalls_known = by_node[node]
            by_node[node] = NodeLoss(
                wanted + share * guest.demand_cores,
                lost + share * lost_cores,
                stalls_known and stalled_ratio is not None,
            )
    return by_node


def _mixed(old: NodeLoss, new: NodeLoss, weight: float) -> NodeLoss:
    return NodeLoss(
        old.wanted + weight * (new.wanted - old.wanted),
        old.lost + weight * (new.lost - old.lost),
        new.stalls_known,
    )


def _sum(losses: Sequence[NodeLoss]) -> NodeLoss:
    return NodeLoss(
        sum(loss.wanted for loss in losses),
        sum(loss.lost for loss in losses),
        all(loss.stalls_known for loss in losses),
    )
