# SPDX-License-Identifier: Apache-2.0
"""Choose the moves that are worth evaluating, and compute their gain, cost and sort order.

A thousand guests on eight nodes have 7,000 moves. What the absence of a guest would save is an
upper bound of the gain of moving it, and cheap to compute. Only the best guests of each node by
that bound are evaluated on every other node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.rebalance import losses, plan_records
from nova_numa_pmc.core.rebalance.host_model import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from nova_numa_pmc.core.rebalance.host_model import GuestModel, HostModel, Place, Proposal
    from nova_numa_pmc.core.rebalance.planner_state import RegretKey


#: Maximum number of guests of each node that are evaluated, by the upper bound of their gain and,
#: as many again, by that bound ÷ cost.
_MOVED_MAX = 8
#: Maximum number of guests of each node for which it is evaluated to widen them.
_WIDENED_MAX = 6


def cpu_proposals(host_model: HostModel) -> list[Proposal]:
    """List the proposals to evaluate that leave memory where it is."""
    movable_guests = _movable_guests(host_model)
    proposals: list[Proposal] = []
    if host_model.rebalance_options.go_home:
        proposals.extend(_going_home_proposals(host_model, movable_guests))
    if host_model.rebalance_options.widen:
        proposals.extend(_widening_proposals(host_model, movable_guests))
    return proposals


def memory_proposals(host_model: HostModel) -> list[Proposal]:
    """List the proposals to evaluate by which memory follows the CPUs."""
    movable_guests = _movable_guests(host_model)
    gain_max = {
        guest.load.uuid: host_model.host_loss.gain(guest.effect, None) for guest in movable_guests
    }
    promising_guests = [
        guest for guest in movable_guests if gain_max[guest.load.uuid] > host_model.min_gain_cores
    ]
    guests_by_place = _guests_by_place(promising_guests)
    proposals: list[Proposal] = []
    for positions in sorted(guests_by_place):
        for guest in _best_guests(host_model, guests_by_place[positions], gain_max):
            proposals.extend((guest, place) for place in single_places(host_model, guest))
    return proposals


def _movable_guests(host_model: HostModel) -> list[GuestModel]:
    return [guest for guest in host_model.guests.values() if guest.movable]


def single_places(host_model: HostModel, guest: GuestModel) -> list[Place]:
    """List the places at a single position that a guest may have instead of its present one."""
    places = []
    for n in host_model.positions_with_cpus:
        place = Place((n,), host_model.memory_at[n])
        if guest.cpu_positions == (n,):
            if guest.has_memory_worth_fetching(host_model.memory_at[n]):
                places.append(place)
        elif guest.home == guest.cpu_positions or guest.home != (n,):
            places.append(place)
    return [place for place in places if host_model.allows(guest, place)]


def _guests_by_place(guests: Iterable[GuestModel]) -> dict[tuple[int, ...], list[GuestModel]]:
    guests_by_place: dict[tuple[int, ...], list[GuestModel]] = {}
    for guest in guests:
        guests_by_place.setdefault(guest.cpu_positions, []).append(guest)
    return guests_by_place


def _best_guests(
    host_model: HostModel, guests: Collection[GuestModel], gain_max: Mapping[str, float]
) -> list[GuestModel]:
    """Return the best guests by the bound of their gain, and as many by that ÷ cost."""

    def cost(guest: GuestModel) -> float:
        guest_bytes = sum(guest.bytes_by_position.values()) if guest.bytes_by_position else 0
        return (
            guest_bytes / host_model.rebalance_options.bytes_per_sec
            + host_model.rebalance_options.change_core_sec
        )

    by_gain = sorted(guests, key=lambda guest: -gain_max[guest.load.uuid])[:_MOVED_MAX]
    by_cost = sorted(guests, key=lambda guest: -gain_max[guest.load.uuid] / cost(guest))[
        :_MOVED_MAX
    ]
    return list(dict.fromkeys(by_gain + by_cost))


def _going_home_proposals(
    host_model: HostModel, movable_guests: Iterable[GuestModel]
) -> Iterator[Proposal]:
    """Yield proposals to take widened guests home.

    Memory that such a guest leaves elsewhere is fetched later.
    """
    for guest in movable_guests:
        home = Place(guest.home, None)
        if set(guest.home) < set(guest.cpu_positions) and host_model.allows(guest, home):
            yield guest, home


def _widening_proposals(
    host_model: HostModel, movable_guests: Iterable[GuestModel]
) -> Iterator[Proposal]:
    """Yield proposals to widen guests of crowded nodes to nodes with idle cores.

    They are for the guests with the lowest rate of accesses per core of demand.
    """
    host_loss = host_model.host_loss
    demand = host_loss.levelled_demand() if host_loss.spanning_cores else host_loss.demand_cores
    # Because of bursts, cores may be idle at times even if demand exceeds capacity on average.
    idle_positions = [
        n
        for n in host_model.positions_with_cpus
        if host_model.cpu_known[n]
        and host_loss.waiting_at(n, demand) + host_loss.cores[n] - demand[n]
        > host_model.min_gain_cores
    ]
    if not idle_positions:
        return
    crowded_positions = {
        n
        for n in host_model.positions_with_cpus
        if host_loss.waiting_at(n, demand) > host_model.min_gain_cores
    }
    for positions, guests in sorted(_guests_by_place(movable_guests).items()):
        if not crowded_positions.intersection(positions):
            continue
        guests_by_access_rate = [
            guest for guest in guests if guest.demand_cores > host_model.min_gain_cores
        ]
        guests_by_access_rate.sort(
            key=lambda guest: (guest.stalls_per_ns / guest.demand_cores, -guest.demand_cores)
        )
        for guest in guests_by_access_rate[:_WIDENED_MAX]:
            for n in idle_positions:
                # If accesses are not counted, the gain from cores that are idle only between
                # bursts may be less than the unknown loss to distance.
                is_worthwhile = (
                    demand[n] < host_loss.cores[n] or guest.load.lines_per_sec is not None
                )
                if n not in positions and is_worthwhile:
                    place = Place(tuple(sorted((*positions, n))), None)
                    if host_model.allows(guest, place):
                        yield guest, place


#: A widened guest is assumed to lose at least this share of the time that it runs on nodes other
#: than its home, because it allocates new memory where it runs.
AWAY_RATIO = 0.02
#: Guests that may use several nodes absorb bursts on these up to this share of their demand
#: (assumed; simulated with a half, a quarter and an eighth).
BURST_ABSORPTION_RATIO = 0.25


class MoveCandidate:
    """A proposal with its gain and cost.

    :ivar proposal: the guest's model and its new place
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
        guest, place = proposal
        self.cost_core_sec = host_model.cost(guest, place)
        self.to_move_bytes = host_model.bytes_to_move(guest, place)
        self.regret_core_sec, self.fresh = 0.0, True
        # Of equal candidates, the one that moves the fewest bytes comes first, then the one with
        # the emptiest target; uuids decide last.
        self._tie_breakers = (
            self.to_move_bytes,
            round(host_model.host_loss.cpu_ratio(place.cpu_positions[0]), 6),
            guest.load.uuid,
            place.cpu_positions,
        )

    @property
    def uuid(self) -> str:
        """Return the uuid of the guest."""
        return self.proposal[0].load.uuid

    def sort_key(self, payback_s: float) -> tuple[object, ...]:
        """Return a sort key of net gain over a time, bytes, CPU ratio of the target, and uuids."""
        return (-round(self.gain_cores * payback_s - self.cost_core_sec, 6), *self._tie_breakers)


def gain_of(host_model: HostModel, proposal: Proposal) -> float:
    """Return the gain of a proposal [cores]."""
    guest, place = proposal
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


def regret_key(host_model: HostModel, proposal: Proposal) -> RegretKey:
    """Return a key that still identifies a proposal in later ticks."""
    guest, place = proposal
    return (
        guest.load.uuid,
        host_model.node_ids(place.cpu_positions),
        () if place.mem_position is None else host_model.nodes_at[place.mem_position],
    )


def moves_memory(proposal: Proposal) -> bool:
    """Return whether memory follows."""
    return proposal[1].mem_position is not None


def kind_of(proposal: Proposal) -> str:
    """Return the kind of a proposal, one of :data:`plan_records.KINDS`."""
    guest, place = proposal
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


def as_move(host_model: HostModel, candidate: MoveCandidate) -> plan_records.Move:
    """Return a candidate as a :class:`plan_records.Move`; call this before it is applied."""
    guest, place = candidate.proposal
    mem_nodes: tuple[int, ...] = ()
    if place.mem_position is not None and (candidate.to_move_bytes or guest.load.mem_nodes):
        mem_nodes = host_model.memory_nodes_at[place.mem_position]
    return plan_records.Move(
        candidate.kind,
        guest.load.uuid,
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


def saved_by(host_model: HostModel, proposal: Proposal) -> losses.Causes:
    """Return what a proposal saves, whether or not it is trusted [cores]."""
    guest, place = proposal
    return host_model.host_loss.saved(guest.effect, host_model.effect(guest, place))


def _reasons(host_model: HostModel, candidate: MoveCandidate) -> Iterator[model.Reason]:
    """Yield the parts that a candidate's gain consists of, the largest first."""
    gains = list(saved_by(host_model, candidate.proposal))
    is_trusted = moves_memory(candidate.proposal)  # less than these, or as much
    gains.append(0.0 if is_trusted else candidate.gain_cores - sum(gains))
    causes = (
        plan_records.WAITING,
        plan_records.DISTANCE,
        plan_records.BANDWIDTH,
        plan_records.CROWDING,
        plan_records.BURSTS if candidate.kind == plan_records.WIDEN else plan_records.AWAY,
    )
    guest, place = candidate.proposal
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
