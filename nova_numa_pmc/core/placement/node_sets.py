# SPDX-License-Identifier: Apache-2.0
"""Find the smallest sets of nodes that together hold a guest too large for one node.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    #: Between two positions.
    Distances = Callable[[int, int], float]
    #: Sort key of a position.
    Cost = tuple[float, ...]
    Set = tuple[int, ...]

#: Up to this many sets of one size are enumerated; beyond that a search finds some of them.
ENUMERATED_MAX = 300
#: At most this many sets are returned, the cheapest ones.
RETURNED_MAX = 72
#: About this many neighbourhoods are searched, those of the first positions.
_NEIGHBOURHOODS_MAX = 32
#: Weights of the first of two resources when the roomiest nodes are searched for.
_BLENDS = (0.5, 0.0, 1.0, 0.25, 0.75)


def smallest(
    room: Sequence[tuple[float, ...]],
    need: tuple[float, ...],
    distances: Distances,
    costs: Sequence[Cost] | None = None,
) -> list[Set]:
    """List the smallest sets of positions whose summed room covers the need.

    Exact while a size has at most 300 sets (any host of up to 10 nodes, or pairs on 25).
    On larger hosts one set is searched for in each neighbourhood, such as a socket or the whole
    host, and one more among the roomiest nodes. The search takes the nodes up to the lowest cost
    that suffices, chooses the roomiest of these by a blend of resources, and exchanges them for
    cheaper ones as long as the set still holds the guest.

    :param room: per position, what it has of each resource
    :param need: what is wanted of each resource; all ≥ 0
    :param distances: ``distances(a, b)`` between two positions
    :param costs: sort keys of the positions, the lowest is the best; None: all are equal
    :returns: ascending tuples, all of one size; empty: even all do not suffice
    """
    everywhere = tuple(range(len(room)))
    costs = costs or [(0,)] * len(room)
    if not everywhere or not _covers(room, need, everywhere):
        return []
    for size in range(_least_size(room, need), len(room) + 1):
        if comb(len(room), size) > ENUMERATED_MAX:
            return _find_sets(_Search(room, need, costs), distances, size)
        sets = [chosen for chosen in combinations(everywhere, size) if _covers(room, need, chosen)]
        if sets:
            return sets if len(sets) <= RETURNED_MAX else _cheapest(sets, costs, distances)
    return []


def _cheapest(sets: list[Set], costs: Sequence[Cost], distances: Distances) -> list[Set]:
    """Keep the sets of lowest cost, and among equals of nearest positions; preserve the order."""

    def key(chosen: Set) -> tuple[list[float], float, list[Cost]]:
        own = sorted([costs[at] for at in chosen], reverse=True)
        return (
            [cost[0] for cost in own],
            sum([distances(a, b) for a, b in combinations(chosen, 2)]),
            own,
        )

    kept = set(sorted(sets, key=key)[:RETURNED_MAX])
    return [chosen for chosen in sets if chosen in kept]


def _covers(
    room: Sequence[tuple[float, ...]], need: tuple[float, ...], chosen: Sequence[int]
) -> bool:
    for kind, wanted in enumerate(need):
        if sum([room[at][kind] for at in chosen]) < wanted:
            return False
    return True


def _least_size(room: Sequence[tuple[float, ...]], need: tuple[float, ...]) -> int:
    """Bound the size from below: each resource alone, taken from its roomiest nodes."""
    least = 1
    for kind, wanted in enumerate(need):
        left = wanted
        for count, has in enumerate(sorted((amounts[kind] for amounts in room), reverse=True), 1):
            left -= has
            if left <= 0:
                least = max(least, count)
                break
    return least


def _find_sets(search: _Search, distances: Distances, least: int) -> list[Set]:
    """Find sets of the fewest positions that suffice, looking in neighbourhoods."""
    everywhere = list(range(len(search.room)))
    for size in range(least, len(everywhere) + 1):
        sets = set()
        if search.roomiest(everywhere, size):
            for positions in _neighbourhoods(len(everywhere), distances):
                chosen = search.best(positions, size)
                if chosen:
                    sets.add(chosen)
        if sets:
            return sorted(sets)
    return [tuple(everywhere)]


def _neighbourhoods(count: int, distances: Distances) -> Iterable[frozenset[int]]:
    """Return, for each position and distance, the positions within it; and all positions."""
    neighbourhoods = {frozenset(range(count)): None}
    for seed in range(count):
        apart = [distances(seed, at) for at in range(count)]
        for radius in sorted({*apart} - {max(apart)}):
            near = frozenset(at for at in range(count) if apart[at] <= radius)
            if len(near) > 1:
                neighbourhoods[near] = None
        if len(neighbourhoods) >= _NEIGHBOURHOODS_MAX:
            break
    return neighbourhoods


class _Search:
    """Searches sets of positions by their room, as a share of the need, and by their cost."""

    __slots__ = ('room', 'need', 'costs', 'values')

    def __init__(
        self, room: Sequence[tuple[float, ...]], need: tuple[float, ...], costs: Sequence[Cost]
    ) -> None:
        kinds = [kind for kind, wanted in enumerate(need) if wanted]
        self.room, self.need, self.costs = room, need, costs
        ratios = [[min(1.0, has[kind] / need[kind]) for kind in kinds] for has in room]
        if len(kinds) == 2:
            self.values = [
                [blend * one + (1 - blend) * other for one, other in ratios] for blend in _BLENDS
            ]
        else:
            self.values = [[sum(of_node) for of_node in ratios]] + [
                [of_node[at] for of_node in ratios] for at in range(len(kinds))
            ]

    def roomiest(self, positions: Iterable[int], size: int) -> list[int] | None:
        """Return a set of these positions that holds the guest; None: none was found."""
        for values in self.values:
            chosen = sorted(positions, key=values.__getitem__, reverse=True)[:size]
            if _covers(self.room, self.need, chosen):
                return chosen
        return None

    def best(self, positions: Iterable[int], size: int) -> Set | None:
        """Return the cheapest set found among some positions; None: none suffices."""
        costs = self.costs
        ordered = sorted(positions, key=costs.__getitem__)
        levels = [
            at
            for at in range(size, len(ordered) + 1)
            if at == len(ordered) or costs[ordered[at]][0] != costs[ordered[at - 1]][0]
        ]
        low, high = 0, len(levels) - 1
        widest = None if high < 0 else self.roomiest(ordered, size)
        if not widest:
            return None
        while low < high:
            middle = (low + high) // 2
            if self.roomiest(ordered[: levels[middle]], size):
                high = middle
            else:
                low = middle + 1
        allowed = ordered[: levels[low]]
        return self._exchange(self.roomiest(allowed, size) or widest, allowed)

    def _exchange(self, chosen: list[int], allowed: list[int]) -> Set:
        """Exchange the costliest positions for the cheapest with which the set still suffices."""
        kept = set(chosen)
        for costly in sorted(chosen, key=self.costs.__getitem__, reverse=True):
            rest = [at for at in kept if at != costly]
            missing = [
                wanted - sum([self.room[at][kind] for at in rest])
                for kind, wanted in enumerate(self.need)
            ]
            for cheaper in allowed:
                if self.costs[cheaper] >= self.costs[costly]:
                    break
                if cheaper not in kept and all(
                    has >= wanted for has, wanted in zip(self.room[cheaper], missing)
                ):
                    kept.remove(costly)
                    kept.add(cheaper)
                    break
        return tuple(sorted(kept))
