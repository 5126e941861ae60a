# SPDX-License-Identifier: Apache-2.0
"""Evaluate proposals: compute their gain, their cost and their sort order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.rebalance import losses, plan_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nova_numa_pmc.core.rebalance.host_model import HostModel
    from nova_numa_pmc.core.rebalance.layout import GuestModel, Place, Proposal
    from nova_numa_pmc.core.rebalance.planner_state import RegretKey

    #: For each guest, its uuid and its new place in positions, in an order that does not depend on
    #: that of the proposal. A RegretKey has node ids instead, because it is kept between ticks.
    ProposalKey = tuple[tuple[str, tuple[int, ...], int | None], ...]

#: A widened guest is assumed to lose at least this share of the time that it runs on nodes other
#: than its home, because it allocates new memory where it runs.
AWAY_RATIO = 0.02
#: Guests that may use several nodes absorb bursts on these up to this share of their demand
#: (assumed; simulated with a half, a quarter and an eighth).
BURST_ABSORPTION_RATIO = 0.25


class MoveCandidate:
    """A proposal with its gain and cost.

    :ivar proposal: for each guest, its model and its new place
    :ivar kind: one of :data:`plan_records.KINDS`
    :ivar gain_cores: its gain
    :ivar cost_core_sec, regret_core_sec: its cost and its regret so far
    :ivar to_move_bytes: memory to be moved
    :ivar fresh: whether the gain includes the effect of all moves applied to the host model
    """

    __slots__ = (
        'proposal',
        'kind',
        'gain_cores',
        'cost_core_sec',
        'to_move_bytes',
        'regret_core_sec',
        'fresh',
        '_tie_breakers',
    )

    def __init__(self, host_model: HostModel, proposal: Proposal, gain_cores: float) -> None:
        self.proposal, self.kind, self.gain_cores = proposal, kind_of(proposal), gain_cores
        self.cost_core_sec = sum([host_model.cost(guest, place) for guest, place in proposal])
        self.to_move_bytes = sum(
            [host_model.bytes_to_move(guest, place) for guest, place in proposal]
        )
        self.regret_core_sec, self.fresh = 0.0, True
        # Of equal candidates, the one that moves the fewest bytes comes first, then the one with
        # the emptiest target; uuids decide last.
        self._tie_breakers = (
            self.to_move_bytes,
            round(
                sum(
                    host_model.host_loss.cpu_ratio(place.cpu_positions[0]) for _, place in proposal
                ),
                6,
            ),
            sorted((guest.load.uuid, place.cpu_positions) for guest, place in proposal),
        )

    def overlaps(self, other: MoveCandidate) -> bool:
        """Return whether another candidate moves any of the same guests."""
        return any(
            own_guest.load.uuid == other_guest.load.uuid
            for own_guest, _ in self.proposal
            for other_guest, _ in other.proposal
        )

    def sort_key(self, payback_s: float) -> tuple[object, ...]:
        """Return a sort key of net gain over a time, bytes, CPU ratio of the target, and uuids."""
        return (-round(self.gain_cores * payback_s - self.cost_core_sec, 6), *self._tie_breakers)


def gain_of(host_model: HostModel, proposal: Proposal) -> float:
    """Return the gain of a proposal [cores]."""
    gain_cores = host_model.host_loss.gain(
        [guest.effect for guest, _ in proposal],
        [host_model.effect(guest, place) for guest, place in proposal],
    )
    return _adjust_gain(host_model, *proposal[0], gain_cores) if len(proposal) == 1 else gain_cores


def regret_key(host_model: HostModel, proposal: Proposal) -> RegretKey:
    """Return a key that still identifies a proposal in later ticks."""
    return tuple(
        sorted(
            (
                guest.load.uuid,
                host_model.node_ids(place.cpu_positions),
                () if place.mem_position is None else host_model.nodes_at[place.mem_position],
            )
            for guest, place in proposal
        )
    )


def proposal_key(proposal: Proposal) -> ProposalKey:
    """Return a key that identifies a proposal within a tick."""
    key = tuple(
        [(guest.load.uuid, place.cpu_positions, place.mem_position) for guest, place in proposal]
    )
    return key[::-1] if len(key) > 1 and not key[0] < key[1] else key


def distinct_proposals(*sequences: Iterable[Proposal]) -> dict[ProposalKey, Proposal]:
    """Return {key: proposal} of all sequences, without duplicates."""
    return {proposal_key(proposal): proposal for sequence in sequences for proposal in sequence}


def moves_memory(proposal: Proposal) -> bool:
    """Return whether memory follows."""
    return any(place.mem_position is not None for _, place in proposal)


def kind_of(proposal: Proposal) -> str:
    """Return the kind of a proposal, one of :data:`plan_records.KINDS`."""
    if len(proposal) > 1:
        return plan_records.SWAP
    ((guest, place),) = proposal
    old_positions, new_positions = set(guest.cpu_positions), set(place.cpu_positions)
    if old_positions == new_positions:
        return plan_records.FETCH
    return (
        plan_records.WIDEN
        if old_positions < new_positions
        else plan_records.NARROW
        if new_positions < old_positions
        else plan_records.MOVE
    )


def as_move(
    host_model: HostModel, candidate: MoveCandidate, away_cores: float = 0.0
) -> plan_records.Move:
    """Return a candidate as a :class:`plan_records.Move`; call this before it is applied."""
    return plan_records.Move(
        candidate.kind,
        tuple(_part(host_model, guest, place) for guest, place in candidate.proposal),
        candidate.gain_cores,
        candidate.cost_core_sec,
        candidate.regret_core_sec,
        candidate.to_move_bytes,
        tuple(_reasons(host_model, candidate, away_cores)),
    )


def gains_by_cause(host_model: HostModel, proposal: Proposal) -> list[float]:
    """Return the gains of a proposal: waiting, distance, bandwidth, crowding [cores]."""
    return [
        loss_before - loss_after
        for loss_before, loss_after in zip(
            host_model.host_loss.by_cause(),
            host_model.host_loss.by_cause(
                [guest.effect for guest, _ in proposal],
                [host_model.effect(guest, place) for guest, place in proposal],
            ),
        )
    ]


def _reasons(
    host_model: HostModel, candidate: MoveCandidate, away_cores: float
) -> Iterator[model.Reason]:
    """Yield the parts that a candidate's gain consists of, the largest first."""
    gains = gains_by_cause(host_model, candidate.proposal)
    gains.append(
        away_cores if moves_memory(candidate.proposal) else candidate.gain_cores - sum(gains)
    )
    causes = (
        plan_records.WAITING,
        plan_records.DISTANCE,
        plan_records.BANDWIDTH,
        plan_records.CROWDING,
        plan_records.BURSTS if candidate.kind == plan_records.WIDEN else plan_records.AWAY,
    )
    is_counted = all(guest.counted for guest, _ in candidate.proposal)
    from_and_to = (
        ('from', host_model.node_ids(candidate.proposal[0][0].cpu_positions)),
        ('to', host_model.node_ids(candidate.proposal[0][1].cpu_positions)),
    )
    for cores, cause in sorted(zip(gains, causes), reverse=True):
        if abs(cores) > 1e-6:
            is_assumed = cause == plan_records.DISTANCE and not is_counted
            rate = (('rate', plan_records.ASSUMED),) if is_assumed else ()
            yield model.Reason(cause, (('cores', cores), *from_and_to, *rate))


def _part(host_model: HostModel, guest: GuestModel, place: Place) -> plan_records.PlanPart:
    return plan_records.PlanPart(
        guest.load.uuid,
        guest.load.name,
        tuple(guest.load.held_nodes),
        host_model.node_ids(place.cpu_positions),
        () if place.mem_position is None else host_model.memory_nodes_at[place.mem_position],
        host_model.bytes_to_move(guest, place),
    )


def _adjust_gain(
    host_model: HostModel, guest: GuestModel, place: Place, gain_cores: float
) -> float:
    """Return the gain of a proposal, corrected if the proposal widens a guest or takes it home."""
    if set(guest.cpu_positions) < set(place.cpu_positions):
        return gain_cores + _burst_gain(host_model, guest, place)
    if (
        set(place.cpu_positions) < set(guest.cpu_positions)
        and place.mem_position is None
        and place.cpu_positions == guest.home
    ):
        return _going_home_gain(host_model, guest, place, gain_cores)
    return gain_cores


def _burst_gain(host_model: HostModel, guest: GuestModel, place: Place) -> float:
    """Return what widening gains, beyond levelling, when bursts find CPUs idle elsewhere [cores].

    Independent bursts add in quadrature, so that on nodes that share their guests
    h(ΣD, ΣC, √Σv²) cores wait instead of Σ h(D, C, v). Guests that may use several of the nodes
    save the difference, but at most :data:`BURST_ABSORPTION_RATIO` of their demand. What the
    guests that already may use several of them are assumed to save is subtracted.
    """
    host_loss = host_model.host_loss
    if not any(host_loss.burst_cores[n] for n in place.cpu_positions):
        return 0.0
    positions = place.cpu_positions
    demand = host_loss.levelled_demand()
    if len(guest.cpu_positions) == 1:
        demand[guest.cpu_positions[0]] -= guest.demand_cores
        losses.level_out(demand, host_loss.cores, positions, guest.demand_cores)
    apart_cores = sum(
        host_loss.waiting_at(n, demand) - losses.waiting(demand[n], host_loss.cores[n], 0.0)
        for n in positions
    )
    total_demand, total_cores = (
        sum(values[n] for n in positions) for values in (demand, host_loss.cores)
    )
    common_burst = sum(host_loss.burst_cores[n] ** 2 for n in positions) ** 0.5
    together_cores = losses.waiting(total_demand, total_cores, common_burst) - losses.waiting(
        total_demand, total_cores, 0.0
    )
    shared_demand = sum(
        spanning_demand
        for spanned_positions, spanning_demand in host_loss.spanning_cores.items()
        if spanned_positions != guest.cpu_positions
        and len(set(spanned_positions).intersection(positions)) > 1
    )
    return max(
        0.0,
        min(
            apart_cores - together_cores,
            BURST_ABSORPTION_RATIO * (shared_demand + guest.demand_cores),
        )
        - BURST_ABSORPTION_RATIO * shared_demand,
    )


def _going_home_gain(
    host_model: HostModel, guest: GuestModel, place: Place, gain_cores: float
) -> float:
    """Return the gain of taking a guest home.

    It is 0 if its nodes there would be too full. If the move causes no loss, its gain is at least
    the loss that is assumed for memory that is allocated away from home.
    """
    host_loss = host_model.host_loss
    other_spanning = dict(host_loss.spanning_cores)
    other_spanning[guest.cpu_positions] = (
        other_spanning.get(guest.cpu_positions, 0.0) - guest.demand_cores
    )
    demand = host_loss.levelled_demand(spanning_cores=other_spanning)
    losses.level_out(demand, host_loss.cores, place.cpu_positions, guest.demand_cores)
    narrow_below_ratio = host_model.rebalance_options.narrow_below_ratio
    if any(demand[n] > narrow_below_ratio * host_loss.cores[n] for n in place.cpu_positions):
        return 0.0
    if gain_cores < 0:
        return gain_cores
    away_share = sum(share for n, share in guest.cpu_shares if n not in place.cpu_positions)
    return max(
        gain_cores, host_model.min_gain_cores + AWAY_RATIO * guest.demand_cores * away_share
    )
