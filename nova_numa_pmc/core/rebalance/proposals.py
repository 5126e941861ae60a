# SPDX-License-Identifier: Apache-2.0
"""Choose the moves that are worth weighing, out of the many that could be made.

A thousand guests on eight nodes have 7,000 moves and half a million swaps. What a guest's
absence would spare is a bound of the gain of moving it, and cheap to compute. Only the best guests
of each node by that bound are weighed against every other node, and swapped with a few partners
that fit the room there. On a host with few guests everything is tried.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from nova_numa_pmc.core.rebalance.host_model import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nova_numa_pmc.core.rebalance.host_model import HostModel
    from nova_numa_pmc.core.rebalance.layout import GuestModel

    Proposal = tuple[tuple[GuestModel, Place], ...]

#: Of each node: guests weighed by bound, and again by bound per cost; guests tried in swaps;
#: partners for each on each other node, by nearest demand and by each of two other orders.
_MOVERS, _SWAPPERS, _NEAREST, _OTHERS = 8, 6, 2, 2
#: Where at most this many guests may be moved, nothing is left out.
_EXHAUSTIVE_GUESTS_MAX = 16


def proposals(host_model: HostModel) -> list[Proposal]:
    """List the proposals to weigh, each a tuple of (GuestModel, Place)."""
    movable = [guest for guest in host_model.guests.values() if guest.movable]
    bounds = {guest.load.uuid: host_model.host_loss.gain((guest.effect,), ()) for guest in movable}
    promising = [guest for guest in movable if bounds[guest.load.uuid] > host_model.min_gain]
    few = len(movable) <= _EXHAUSTIVE_GUESTS_MAX
    sources = _by_place(promising)
    listed: list[Proposal] = []
    for cpus in sorted(sources):
        chosen = sources[cpus] if few else _best(host_model, sources[cpus], bounds, _MOVERS)
        for guest in chosen:
            listed.extend(((guest, place),) for place in single_places(host_model, guest))
    for guest in movable:
        home = Place(guest.home, None)
        if set(guest.home) < set(guest.at) and host_model.may_have(guest, home):
            listed.append(((guest, home),))  # memory that it leaves elsewhere is fetched later
    listed.extend(_swaps(host_model, movable, sources, bounds, few))
    if host_model.options.widen:
        listed.extend(_widenings(host_model, movable))
    return listed


def single_places(host_model: HostModel, guest: GuestModel) -> list[Place]:
    """List the places on one position that a guest may have instead of its own."""
    places = []
    for n in host_model.running:
        place = Place((n,), host_model.memory_at[n])
        if guest.at == (n,):
            if guest.bytes and host_model.bytes_to_move(guest, place):
                places.append(place)
        elif guest.home == guest.at or guest.home != (n,):
            places.append(place)
            if not guest.load.mem_nodes:
                places.append(Place((n,), None))  # its memory was promised nowhere
    return [
        place
        for place in places
        if host_model.may_have(guest, place) and host_model.fits(((guest, place),))
    ]


def _by_place(guests: Iterable[GuestModel]) -> dict[tuple[int, ...], list[GuestModel]]:
    sources: dict[tuple[int, ...], list[GuestModel]] = {}
    for guest in guests:
        sources.setdefault(guest.at, []).append(guest)
    return sources


def _best(
    host_model: HostModel, guests: Iterable[GuestModel], bounds: Mapping[str, float], count: int
) -> list[GuestModel]:
    """Return the ``count`` best by bound, and those by bound per cost."""

    def cost(guest: GuestModel) -> float:
        size = sum(guest.bytes.values()) if guest.bytes else 0
        return size / host_model.options.bytes_per_sec + host_model.options.change_core_sec

    by_bound = sorted(guests, key=lambda guest: -bounds[guest.load.uuid])[:count]
    by_cost = sorted(guests, key=lambda guest: -bounds[guest.load.uuid] / cost(guest))[:count]
    return list(dict.fromkeys(by_bound + by_cost))


def _swaps(
    host_model: HostModel,
    movable: list[GuestModel],
    sources: Mapping[tuple[int, ...], list[GuestModel]],
    bounds: Mapping[str, float],
    few: bool,
) -> Iterator[Proposal]:
    """Yield swaps between guests that suffer a loss where they are and guests elsewhere."""
    partners_by_place = {
        cpus: _SwapPartners(guests)
        for cpus, guests in _by_place(movable).items()
        if len(cpus) == 1
    }
    seen = set()
    for cpus in sorted(sources):
        if len(cpus) > 1:
            continue
        chosen = sources[cpus] if few else _best(host_model, sources[cpus], bounds, _SWAPPERS // 2)
        for guest in chosen:
            for other_cpus in sorted(partners_by_place):
                if other_cpus == cpus or not host_model.may_have(
                    guest, _place(host_model, other_cpus)
                ):
                    continue
                partners = (
                    partners_by_place[other_cpus].guests
                    if few
                    else partners_by_place[other_cpus].partners(host_model, guest, other_cpus[0])
                )
                for partner in partners:
                    pair = frozenset((guest.load.uuid, partner.load.uuid))
                    proposal = (
                        (guest, _place(host_model, other_cpus)),
                        (partner, _place(host_model, cpus)),
                    )
                    if (
                        pair not in seen
                        and host_model.may_have(*proposal[1])
                        and host_model.fits(proposal)
                    ):
                        seen.add(pair)
                        yield proposal


def _place(host_model: HostModel, cpus: tuple[int, ...]) -> Place:
    return Place(cpus, host_model.memory_at[cpus[0]])


class _SwapPartners:
    """Guests of one node, in each order in which swap partners are looked for."""

    def __init__(self, guests: Iterable[GuestModel]) -> None:
        self.guests = sorted(guests, key=lambda guest: (guest.demand, guest.load.uuid))
        self.demands = [guest.demand for guest in self.guests]
        self.calmest = sorted(self.guests, key=lambda guest: guest.stalls_per_ns)[:_OTHERS]
        #: By the position where most of their memory lies.
        self.returning: dict[int, list[GuestModel]] = {}
        for guest in self.guests:
            for at, share in guest.mem_shares:
                if share > 0.5 and at != guest.at[0]:
                    self.returning.setdefault(at, []).append(guest)

    def partners(self, host_model: HostModel, guest: GuestModel, at: int) -> Iterable[GuestModel]:
        """Return the guests nearest to the wanted demand, the calmest, and the returning."""
        host_loss, here = host_model.host_loss, guest.at[0]
        missing = host_loss.demand[here] - host_loss.cores[here]
        idle = host_loss.cores[at] - host_loss.demand[at]
        wanted = guest.demand - (min(missing, max(0.0, idle)) if missing > 0 else 0.0)
        first = max(0, bisect_left(self.demands, wanted) - _NEAREST // 2)
        returning = self.returning.get(here, [])[:_OTHERS]
        return dict.fromkeys(self.guests[first : first + _NEAREST] + self.calmest + returning)


def _widenings(host_model: HostModel, movable: Iterable[GuestModel]) -> Iterator[Proposal]:
    """Yield widenings of the calmest guests of crowded nodes to nodes with idle cores."""
    host_loss = host_model.host_loss
    demand = host_loss.levelled_demand() if host_loss.spanning else host_loss.demand
    # Bursts leave cores idle where more is wanted on average than there is.
    idle = [
        n
        for n in host_model.running
        if host_model.cpu_known[n]
        and host_loss.wait(n, demand) + host_loss.cores[n] - demand[n] > host_model.min_gain
    ]
    if not idle:
        return
    crowded = {n for n in host_model.running if host_loss.wait(n, demand) > host_model.min_gain}
    for cpus, guests in sorted(_by_place(movable).items()):
        if not crowded.intersection(cpus):
            continue
        wanting = [guest for guest in guests if guest.demand > host_model.min_gain]
        wanting.sort(key=lambda guest: (guest.stalls_per_ns / guest.demand, -guest.demand))
        for guest in wanting[:_SWAPPERS]:
            for n in idle:
                # Cores idle between bursts would not pay for a distance that was not counted.
                worth = demand[n] < host_loss.cores[n] or guest.load.lines_per_sec is not None
                if n not in cpus and worth:
                    place = Place(tuple(sorted((*cpus, n))), None)
                    if host_model.may_have(guest, place):
                        yield ((guest, place),)
