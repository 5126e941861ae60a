# SPDX-License-Identifier: Apache-2.0
"""Choose the moves that are worth evaluating out of the many that could be made.

A thousand guests on eight nodes have 7,000 moves and half a million swaps. What the absence of a
guest would save is an upper bound of the gain of moving it, and cheap to compute. Only the best
guests of each node by that bound are evaluated on every other node, and in swaps with a few guests
there that fit. On a host with few guests, all moves and swaps are evaluated.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from nova_numa_pmc.core.rebalance.layout import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from nova_numa_pmc.core.rebalance.host_model import HostModel
    from nova_numa_pmc.core.rebalance.layout import GuestModel, Proposal

#: Maximum number of guests of each node that are evaluated, by the upper bound of their gain and,
#: as many again, by that bound ÷ cost.
_MOVED_MAX = 8
#: Maximum number of guests of each node that are evaluated in swaps, or widened.
_SWAPPED_MAX = 6
#: Maximum number of a guest's partners on each other node that are chosen by nearest demand.
_NEAREST_MAX = 2
#: Maximum number of partners chosen by each of two other orders: fewest accesses, and memory on
#: the guest's node.
_OTHERS_MAX = 2
#: If at most this many guests may be moved, no move is left out.
_EXHAUSTIVE_GUESTS_MAX = 16


def cpu_proposals(host_model: HostModel) -> list[Proposal]:
    """List the proposals to evaluate that leave memory where it is."""
    movable_guests = _movable_guests(host_model)
    proposals: list[Proposal] = [
        ((guest, place),)
        for guest in movable_guests
        if not guest.load.mem_nodes
        for place in single_places(host_model, guest, with_memory=False)
    ]
    if host_model.rebalance_options.go_home:
        proposals.extend(_going_home_proposals(host_model, movable_guests))
    if host_model.rebalance_options.widen:
        proposals.extend(_widening_proposals(host_model, movable_guests))
    return proposals


def memory_proposals(host_model: HostModel) -> list[Proposal]:
    """List the proposals to evaluate by which memory follows the CPUs."""
    movable_guests = _movable_guests(host_model)
    gain_max = {
        guest.load.uuid: host_model.host_loss.gain((guest.effect,), ()) for guest in movable_guests
    }
    promising_guests = [
        guest for guest in movable_guests if gain_max[guest.load.uuid] > host_model.min_gain_cores
    ]
    is_exhaustive = len(movable_guests) <= _EXHAUSTIVE_GUESTS_MAX
    guests_by_place = _guests_by_place(promising_guests)
    proposals: list[Proposal] = []
    for positions in sorted(guests_by_place):
        evaluated_guests = (
            guests_by_place[positions]
            if is_exhaustive
            else _best_guests(host_model, guests_by_place[positions], gain_max, _MOVED_MAX)
        )
        for guest in evaluated_guests:
            proposals.extend(((guest, place),) for place in single_places(host_model, guest))
    proposals.extend(
        _swap_proposals(host_model, movable_guests, guests_by_place, gain_max, is_exhaustive)
    )
    return proposals


def _movable_guests(host_model: HostModel) -> list[GuestModel]:
    return [guest for guest in host_model.guests.values() if guest.movable]


def single_places(
    host_model: HostModel, guest: GuestModel, with_memory: bool = True
) -> list[Place]:
    """List the places at a single position that a guest may have instead of its present place.

    :param with_memory: whether its memory follows; otherwise, it was promised nowhere in
        particular and stays where it is
    """
    places = []
    for n in host_model.positions_with_cpus:
        place = Place((n,), host_model.memory_at[n] if with_memory else None)
        if guest.cpu_positions == (n,):
            if with_memory and guest.has_memory_worth_fetching(host_model.memory_at[n]):
                places.append(place)
        elif guest.home == guest.cpu_positions or guest.home != (n,):
            places.append(place)
    return [
        place
        for place in places
        if host_model.allows(guest, place) and host_model.fits(((guest, place),))
    ]


def _guests_by_place(guests: Iterable[GuestModel]) -> dict[tuple[int, ...], list[GuestModel]]:
    guests_by_place: dict[tuple[int, ...], list[GuestModel]] = {}
    for guest in guests:
        guests_by_place.setdefault(guest.cpu_positions, []).append(guest)
    return guests_by_place


def _best_guests(
    host_model: HostModel,
    guests: Collection[GuestModel],
    gain_max: Mapping[str, float],
    count: int,
) -> list[GuestModel]:
    """Return the ``count`` best guests by the bound of their gain, and as many by that ÷ cost."""

    def cost(guest: GuestModel) -> float:
        guest_bytes = sum(guest.bytes_by_position.values()) if guest.bytes_by_position else 0
        return (
            guest_bytes / host_model.rebalance_options.bytes_per_sec
            + host_model.rebalance_options.change_core_sec
        )

    by_gain = sorted(guests, key=lambda guest: -gain_max[guest.load.uuid])[:count]
    by_cost = sorted(guests, key=lambda guest: -gain_max[guest.load.uuid] / cost(guest))[:count]
    return list(dict.fromkeys(by_gain + by_cost))


def _swap_proposals(
    host_model: HostModel,
    movable_guests: list[GuestModel],
    guests_by_place: Mapping[tuple[int, ...], list[GuestModel]],
    gain_max: Mapping[str, float],
    is_exhaustive: bool,
) -> Iterator[Proposal]:
    """Yield swaps of guests that cause a loss at their place with guests elsewhere."""
    partners_by_place = {
        positions: _SwapPartners(guests)
        for positions, guests in _guests_by_place(movable_guests).items()
        if len(positions) == 1
    }
    seen_pairs = set()
    for positions in sorted(guests_by_place):
        if len(positions) > 1:
            continue
        guests_to_swap = (
            guests_by_place[positions]
            if is_exhaustive
            else _best_guests(host_model, guests_by_place[positions], gain_max, _SWAPPED_MAX // 2)
        )
        for guest in guests_to_swap:
            for other_positions in sorted(partners_by_place):
                if other_positions == positions or not host_model.allows(
                    guest, _place_at(host_model, other_positions)
                ):
                    continue
                partners = (
                    partners_by_place[other_positions].guests
                    if is_exhaustive
                    else partners_by_place[other_positions].partners(
                        host_model, guest, other_positions[0]
                    )
                )
                for partner in partners:
                    pair = frozenset((guest.load.uuid, partner.load.uuid))
                    proposal = (
                        (guest, _place_at(host_model, other_positions)),
                        (partner, _place_at(host_model, positions)),
                    )
                    if (
                        pair not in seen_pairs
                        and host_model.allows(*proposal[1])
                        and host_model.fits(proposal)
                    ):
                        seen_pairs.add(pair)
                        yield proposal


def _place_at(host_model: HostModel, positions: tuple[int, ...]) -> Place:
    return Place(positions, host_model.memory_at[positions[0]])


class _SwapPartners:
    """Guests of one node, in each order in which swap partners are searched for."""

    def __init__(self, guests: Iterable[GuestModel]) -> None:
        self.guests = sorted(guests, key=lambda guest: (guest.demand_cores, guest.load.uuid))
        self.demands = [guest.demand_cores for guest in self.guests]
        self.fewest_accesses = sorted(self.guests, key=lambda guest: guest.stalls_per_ns)[
            :_OTHERS_MAX
        ]
        #: {position: guests that have most of their memory there}
        self.guests_by_memory_position: dict[int, list[GuestModel]] = {}
        for guest in self.guests:
            for position, share in guest.mem_shares:
                if share > 0.5 and position != guest.cpu_positions[0]:
                    self.guests_by_memory_position.setdefault(position, []).append(guest)

    def partners(
        self, host_model: HostModel, guest: GuestModel, target: int
    ) -> Iterable[GuestModel]:
        """Return the partners for a guest that would move to ``target``.

        They are the guests whose demand is nearest to what would relieve the guest's node, those
        with the lowest rate of accesses, and those that have most of their memory on its node.
        """
        host_loss, source = host_model.host_loss, guest.cpu_positions[0]
        missing_cores = host_loss.demand_cores[source] - host_loss.cores[source]
        idle_cores = host_loss.cores[target] - host_loss.demand_cores[target]
        wanted_demand = guest.demand_cores - (
            min(missing_cores, max(0.0, idle_cores)) if missing_cores > 0 else 0.0
        )
        start = max(0, bisect_left(self.demands, wanted_demand) - _NEAREST_MAX // 2)
        memory_at_source = self.guests_by_memory_position.get(source, [])[:_OTHERS_MAX]
        return dict.fromkeys(
            self.guests[start : start + _NEAREST_MAX] + self.fewest_accesses + memory_at_source
        )


def _going_home_proposals(
    host_model: HostModel, movable_guests: Iterable[GuestModel]
) -> Iterator[Proposal]:
    """Yield proposals to take widened guests home.

    Memory that such a guest leaves elsewhere is fetched later.
    """
    for guest in movable_guests:
        home = Place(guest.home, None)
        if set(guest.home) < set(guest.cpu_positions) and host_model.allows(guest, home):
            yield ((guest, home),)


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
        for guest in guests_by_access_rate[:_SWAPPED_MAX]:
            for n in idle_positions:
                # If accesses are not counted, the gain from cores that are idle only between
                # bursts may be less than the unknown loss to distance.
                is_worthwhile = (
                    demand[n] < host_loss.cores[n] or guest.load.lines_per_sec is not None
                )
                if n not in positions and is_worthwhile:
                    place = Place(tuple(sorted((*positions, n))), None)
                    if host_model.allows(guest, place):
                        yield ((guest, place),)
