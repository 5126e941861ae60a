# SPDX-License-Identifier: Apache-2.0
"""The changes that are worth weighing, out of the many that could be made.

A thousand guests on eight nodes have 7,000 moves and half a million swaps. What a guest's
absence would spare bounds the gain of moving it, and costs one look at it; only the best of
each node by that bound are weighed against every other node, and swapped with a few partners
that fit what is missing there. Everything is tried on a host with few guests.
"""

from __future__ import annotations

from bisect import bisect_left

from nova_numa_pmc.core.rebalance.host_model import Place

TYPE_CHECKING = False  # not typing's, which is dear to import

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nova_numa_pmc.core.rebalance.host_model import Ground
    from nova_numa_pmc.core.rebalance.layout import Mover

    Change = tuple[tuple[Mover, Place], ...]

#: Of each node: guests weighed by bound, and again by bound per cost; guests tried in swaps;
#: partners for each on each other node, by nearest demand and by each of two other orders.
_MOVERS, _SWAPPERS, _NEAREST, _OTHERS = 8, 6, 2, 2
#: On hosts of at most so many guests nothing is left out.
_FEW = 16


def proposals(ground: Ground) -> list[Change]:
    """List the changes to weigh, each a tuple of (Mover, Place)."""
    movable = [mover for mover in ground.movers.values() if mover.movable]
    bounds = {mover.guest.uuid: ground.balance.gain((mover.effect,), ()) for mover in movable}
    promising = [mover for mover in movable if bounds[mover.guest.uuid] > ground.min_gain]
    few = len(movable) <= _FEW
    sources = _by_place(promising)
    found: list[Change] = []
    for at in sorted(sources):
        chosen = sources[at] if few else _best(ground, sources[at], bounds, _MOVERS)
        for mover in chosen:
            found.extend(((mover, place),) for place in single_places(ground, mover))
    for mover in movable:
        home = Place(mover.home, None)
        if set(mover.home) < set(mover.at) and ground.may(mover, home):
            found.append(((mover, home),))  # what it left elsewhere is fetched later
    found.extend(_swaps(ground, movable, sources, bounds, few))
    if ground.terms.widen:
        found.extend(_widenings(ground, movable))
    return found


def single_places(ground: Ground, mover: Mover) -> list[Place]:
    """List the places on one position that a guest may have instead of its own."""
    found = []
    for n in ground.running:
        place = Place((n,), ground.memory_at[n])
        if mover.at == (n,):
            if mover.bytes and ground.bytes_to_move(mover, place):
                found.append(place)
        elif mover.home == mover.at or mover.home != (n,):
            found.append(place)
            if not mover.guest.mem_nodes:
                found.append(Place((n,), None))  # its memory was promised nowhere
    return [
        place for place in found if ground.may(mover, place) and ground.fits(((mover, place),))
    ]


def _by_place(movers: Iterable[Mover]) -> dict[tuple[int, ...], list[Mover]]:
    sources: dict[tuple[int, ...], list[Mover]] = {}
    for mover in movers:
        sources.setdefault(mover.at, []).append(mover)
    return sources


def _best(
    ground: Ground, movers: Iterable[Mover], bounds: Mapping[str, float], count: int
) -> list[Mover]:
    """Take the first by bound and by bound per cost."""

    def cost(mover: Mover) -> float:
        size = sum(mover.bytes.values()) if mover.bytes else 0
        return size / ground.terms.bytes_per_sec + ground.terms.change_core_sec

    by_bound = sorted(movers, key=lambda each: -bounds[each.guest.uuid])[:count]
    by_cost = sorted(movers, key=lambda each: -bounds[each.guest.uuid] / cost(each))[:count]
    return list(dict.fromkeys(by_bound + by_cost))


def _swaps(
    ground: Ground,
    movable: list[Mover],
    sources: Mapping[tuple[int, ...], list[Mover]],
    bounds: Mapping[str, float],
    few: bool,
) -> Iterator[Change]:
    """Pair guests that lose where they are with guests elsewhere."""
    pools = {at: _Pool(movers) for at, movers in _by_place(movable).items() if len(at) == 1}
    seen = set()
    for at in sorted(sources):
        if len(at) > 1:
            continue
        chosen = sources[at] if few else _best(ground, sources[at], bounds, _SWAPPERS // 2)
        for mover in chosen:
            for other in sorted(pools):
                if other == at or not ground.may(mover, _place(ground, other)):
                    continue
                partners = (
                    pools[other].movers if few else pools[other].partners(ground, mover, other[0])
                )
                for partner in partners:
                    pair = frozenset((mover.guest.uuid, partner.guest.uuid))
                    steps = ((mover, _place(ground, other)), (partner, _place(ground, at)))
                    if pair not in seen and ground.may(*steps[1]) and ground.fits(steps):
                        seen.add(pair)
                        yield steps


def _place(ground: Ground, at: tuple[int, ...]) -> Place:
    return Place(at, ground.memory_at[at[0]])


class _Pool:
    """The guests of one node in the orders in which partners are looked for."""

    def __init__(self, movers: Iterable[Mover]) -> None:
        self.movers = sorted(movers, key=lambda each: (each.demand, each.guest.uuid))
        self.demands = [each.demand for each in self.movers]
        self.calmest = sorted(self.movers, key=lambda each: each.lines_sec)[:_OTHERS]
        #: By the position where most of their memory lies.
        self.returning: dict[int, list[Mover]] = {}
        for each in self.movers:
            for at, share in each.mem_shares:
                if share > 0.5 and at != each.at[0]:
                    self.returning.setdefault(at, []).append(each)

    def partners(self, ground: Ground, mover: Mover, at: int) -> Iterable[Mover]:
        """Take those nearest to the demand that should come back, the calmest, the returning."""
        balance, here = ground.balance, mover.at[0]
        missing = balance.demand[here] - balance.cores[here]
        idle = balance.cores[at] - balance.demand[at]
        wanted = mover.demand - (min(missing, max(0.0, idle)) if missing > 0 else 0.0)
        first = max(0, bisect_left(self.demands, wanted) - _NEAREST // 2)
        returning = self.returning.get(here, [])[:_OTHERS]
        return dict.fromkeys(self.movers[first : first + _NEAREST] + self.calmest + returning)


def _widenings(ground: Ground, movable: Iterable[Mover]) -> Iterator[Change]:
    """Let the calmest guests of a node that waits also run where cores idle."""
    balance = ground.balance
    poured = balance.poured() if balance.wide else balance.demand
    # Bursts leave cores idle where more is wanted on average than there is.
    idle = [
        n
        for n in ground.running
        if ground.cpu_known[n]
        and (balance.wait(n, poured) + balance.cores[n] - poured[n] > ground.min_gain)
    ]
    if not idle:
        return
    waiting = {n for n in ground.running if balance.wait(n, poured) > ground.min_gain}
    for at, movers in sorted(_by_place(movable).items()):
        if not waiting.intersection(at):
            continue
        wanting = [each for each in movers if each.demand > ground.min_gain]
        wanting.sort(key=lambda each: (each.lines_sec / each.demand, -each.demand))
        for mover in wanting[:_SWAPPERS]:
            for n in idle:
                # What bursts leave would not pay for distances that nobody has counted.
                worth = poured[n] < balance.cores[n] or mover.guest.lines_per_sec is not None
                if n not in at and worth:
                    place = Place(tuple(sorted((*at, n))), None)
                    if ground.may(mover, place):
                        yield ((mover, place),)
