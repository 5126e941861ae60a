# SPDX-License-Identifier: Apache-2.0
"""Find the smallest sets of nodes that together hold a guest too large for one node.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from itertools import accumulate, combinations
from math import comb
from operator import add, ge

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    #: Returns the distance between two positions.
    DistanceFunction = Callable[[int, int], float]
    #: Sort key of a position by its pressure.
    PressureKey = tuple[float, ...]
    #: Set of positions, in ascending order.
    NodeSet = tuple[int, ...]

#: Maximum number of sets of one size that are enumerated. If there are more, a search finds some
#: of them.
ENUMERATED_MAX = 300
#: Maximum number of sets that are returned. If there are more, the best are.
RETURNED_MAX = 72
#: Once there are this many neighbourhoods, those of further positions are not searched.
_NEIGHBOURHOODS_MAX = 32
#: Weights of the first of two resources by which the roomiest nodes are searched for.
_BLENDS = (0.5, 0.0, 1.0, 0.25, 0.75)
#: Neighbourhoods of up to this many positions are searched exactly; the whole host always is.
_EXACT_MAX = 12
#: Maximum number of incomplete sets of one size that an exact search keeps. Real hosts need some
#: ten of them: nodes are of few sizes, and of two sets the one with less of everything is dropped.
_INCOMPLETE_MAX = 100


def smallest_sets(
    room: Sequence[tuple[float, ...]],
    need: tuple[float, ...],
    distance: DistanceFunction,
    pressure_keys: Sequence[PressureKey],
    size_min: int = 1,
) -> list[NodeSet]:
    """List the smallest sets of positions whose room together covers the need.

    No smaller set suffices, however many nodes there are. The list is complete if there are at
    most 300 sets of that size, as on any host of up to 10 nodes, or for pairs of 25 nodes. On
    larger hosts, one set is searched for in each neighbourhood, such as a socket or the whole
    host. The search takes the nodes up to the lowest pressure that suffices, chooses a set of
    these, the roomiest by a blend of resources if that suffices, and exchanges its nodes for
    better ones as long as the set still holds the guest.

    :param room: by position, the available amount of each resource
    :param need: the required amount of each resource, at least 0
    :param distance: returns the distance between two positions
    :param pressure_keys: the sort key of each position, of which the lowest is the best
    :param size_min: the least size of the sets
    :returns: ascending tuples, all of the same size; empty if all positions together do not
        suffice
    """
    all_positions = tuple(range(len(room)))
    if not all_positions or not _covers(room, need, all_positions):
        return []
    for size in range(max(size_min, _least_size(room, need)), len(room) + 1):
        if comb(len(room), size) > ENUMERATED_MAX:
            sets = _find_sets(_Search(room, need, pressure_keys), distance, size)
        else:
            sets = [
                positions
                for positions in combinations(all_positions, size)
                if _covers(room, need, positions)
            ]
        if sets:
            return sets if len(sets) <= RETURNED_MAX else _best_sets(sets, pressure_keys, distance)
    return []


def _best_sets(
    sets: list[NodeSet], pressure_keys: Sequence[PressureKey], distance: DistanceFunction
) -> list[NodeSet]:
    """Return the best sets in the given order; of equal ones, those with nearer positions."""

    def sort_key(positions: NodeSet) -> tuple[list[float], float, list[PressureKey]]:
        own_keys = sorted([pressure_keys[position] for position in positions], reverse=True)
        return (
            [key[0] for key in own_keys],
            sum([distance(a, b) for a, b in combinations(positions, 2)]),
            own_keys,
        )

    kept_sets = set(sorted(sets, key=sort_key)[:RETURNED_MAX])
    return [positions for positions in sets if positions in kept_sets]


def _covers(
    room: Sequence[tuple[float, ...]], need: tuple[float, ...], positions: Sequence[int]
) -> bool:
    for resource, required in enumerate(need):
        if sum([room[position][resource] for position in positions]) < required:
            return False
    return True


def _least_size(room: Sequence[tuple[float, ...]], need: tuple[float, ...]) -> int:
    """Return the smallest size at which each resource, considered by itself, could suffice."""
    size_min = 1
    for resource, required in enumerate(need):
        uncovered = required
        for count, amount in enumerate(
            sorted((amounts[resource] for amounts in room), reverse=True), 1
        ):
            uncovered -= amount
            if uncovered <= 0:
                size_min = max(size_min, count)
                break
    return size_min


def _find_sets(search: _Search, distance: DistanceFunction, size: int) -> list[NodeSet]:
    """Search neighbourhoods for sets of some size; there are none of fewer positions."""
    count = len(search.room)
    selection = search.find(range(count), size) or search.find_exactly(range(count), size)
    if not selection:
        return []
    sets = [search.best(positions, size) for positions in _neighbourhoods(count, distance)]
    return sorted({node_set for node_set in sets if node_set} or {tuple(sorted(selection))})


def _neighbourhoods(count: int, distance: DistanceFunction) -> Iterable[frozenset[int]]:
    """Return the set of all positions, and for each seed those within each distance of it."""
    neighbourhoods = {frozenset(range(count)): None}
    for seed in range(count):
        seed_distances = [distance(seed, position) for position in range(count)]
        for radius in sorted({*seed_distances} - {max(seed_distances)}):
            neighbourhood = frozenset(
                position for position in range(count) if seed_distances[position] <= radius
            )
            if len(neighbourhood) > 1:
                neighbourhoods[neighbourhood] = None
        if len(neighbourhoods) >= _NEIGHBOURHOODS_MAX:
            break
    return neighbourhoods


def _roomiest(sets: dict[tuple[float, ...], NodeSet]) -> dict[tuple[float, ...], NodeSet]:
    """Return those of some sets of equal size that no other set has as much of everything as."""
    kept: list[tuple[float, ...]] = []
    for amounts in sorted(sets, reverse=True):
        if not any(all(map(ge, other, amounts)) for other in reversed(kept)):
            kept.append(amounts)
    return {amounts: sets[amounts] for amounts in kept[:_INCOMPLETE_MAX]}


class _Search:
    """Search for sets of positions by their room, as a share of the need, and their pressure."""

    __slots__ = ('room', 'need', 'pressure_keys', 'values')

    def __init__(
        self,
        room: Sequence[tuple[float, ...]],
        need: tuple[float, ...],
        pressure_keys: Sequence[PressureKey],
    ) -> None:
        resources = [resource for resource, required in enumerate(need) if required]
        self.room, self.need, self.pressure_keys = room, need, pressure_keys
        ratios = [
            [min(1.0, amounts[resource] / need[resource]) for resource in resources]
            for amounts in room
        ]
        if len(resources) == 2:
            self.values = [
                [blend * first + (1 - blend) * second for first, second in ratios]
                for blend in _BLENDS
            ]
        else:
            self.values = [[sum(node_ratios) for node_ratios in ratios]] + [
                [node_ratios[index] for node_ratios in ratios] for index in range(len(resources))
            ]

    def find(self, positions: Collection[int], size: int) -> Sequence[int] | None:
        """Return a set of ``size`` positions that holds the guest; None if none is found."""
        for values in self.values:
            selection = sorted(positions, key=values.__getitem__, reverse=True)[:size]
            if _covers(self.room, self.need, selection):
                return selection
        return self.find_exactly(positions, size) if len(positions) <= _EXACT_MAX else None

    def find_exactly(self, positions: Collection[int], size: int) -> NodeSet | None:
        """Search all sets of up to ``size`` positions.

        The positions are added one by one to the sets found so far. A set is dropped if another of
        its size has at least as much of everything, and if even the roomiest of the remaining
        positions would not complete it.
        """
        order = sorted(positions, key=self.values[0].__getitem__, reverse=True)
        #: By number of positions: {amount of each resource, at most the need: positions}.
        incomplete: list[dict[tuple[float, ...], NodeSet]] = [{} for _ in range(size)]
        incomplete[0][(0.0,) * len(self.need)] = ()
        for index, position in enumerate(order):
            most_left = self._largest_sums(order[index + 1 :], size)
            for count in range(min(index, size - 1), -1, -1):
                for amounts, chosen in incomplete[count].items():
                    total = tuple(map(min, self.need, map(add, amounts, self.room[position])))
                    if total == self.need:
                        return (*chosen, position)
                    if count + 1 < size and all(
                        amount + sums[size - count - 1] >= required
                        for amount, sums, required in zip(total, most_left, self.need)
                    ):
                        incomplete[count + 1].setdefault(total, (*chosen, position))
                if count + 1 < size:
                    incomplete[count + 1] = _roomiest(incomplete[count + 1])
        return None

    def _largest_sums(self, positions: Sequence[int], count_max: int) -> list[list[float]]:
        """Return by resource and number of positions the most that so many positions have."""
        columns = zip(*(self.room[position] for position in positions))
        sums = [
            list(accumulate(sorted(column, reverse=True)[:count_max], initial=0.0))
            for column in columns
        ] or [[0.0] for _ in self.need]
        return [column + column[-1:] * (count_max + 1 - len(column)) for column in sums]

    def best(self, positions: Iterable[int], size: int) -> NodeSet | None:
        """Return the best set of ``size`` positions that is found; None if none suffices."""
        pressure_keys = self.pressure_keys
        by_pressure = sorted(positions, key=pressure_keys.__getitem__)
        level_sizes = [
            count
            for count in range(size, len(by_pressure) + 1)
            if count == len(by_pressure)
            or pressure_keys[by_pressure[count]][0] != pressure_keys[by_pressure[count - 1]][0]
        ]
        low, high = 0, len(level_sizes) - 1
        fallback = None if high < 0 else self.find(by_pressure, size)
        if not fallback:
            return None
        while low < high:
            middle = (low + high) // 2
            if self.find(by_pressure[: level_sizes[middle]], size):
                high = middle
            else:
                low = middle + 1
        allowed = by_pressure[: level_sizes[low]]
        return self._exchange(self.find(allowed, size) or fallback, allowed)

    def _exchange(self, selection: Sequence[int], allowed: list[int]) -> NodeSet:
        """Exchange each position, worst first, for the best one that still suffices."""
        kept_positions = set(selection)
        for worse_position in sorted(selection, key=self.pressure_keys.__getitem__, reverse=True):
            other_positions = [
                position for position in kept_positions if position != worse_position
            ]
            shortfalls = [
                required - sum([self.room[position][resource] for position in other_positions])
                for resource, required in enumerate(self.need)
            ]
            for better_position in allowed:
                if self.pressure_keys[better_position] >= self.pressure_keys[worse_position]:
                    break
                if better_position not in kept_positions and all(
                    amount >= required
                    for amount, required in zip(self.room[better_position], shortfalls)
                ):
                    kept_positions.remove(worse_position)
                    kept_positions.add(better_position)
                    break
        return tuple(sorted(kept_positions))
