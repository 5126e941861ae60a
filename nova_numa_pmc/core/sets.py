# SPDX-License-Identifier: Apache-2.0
"""The smallest sets of nodes that together hold a guest too large for one.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

#: Sets of one size that are tried one by one; beyond, sets are grown node by node.
MAX_ENUMERATED = 600


def smallest(room, need, distances):
    """List the smallest sets of positions whose summed room covers the need.

    Exact while a size has at most 600 sets (any host of up to 12 nodes, or pairs on
    35); on larger hosts each node is grown into a set, nearest and roomiest first, and
    freed of members it can do without: n · n · log n steps instead of 2ⁿ.

    :param room: sequence, one tuple per position: what it has of each resource
    :param need: tuple: what is wanted of each resource; all ≥ 0
    :param distances: ``distances(a, b)`` between two positions
    :returns: list of ascending tuples, all of one size; empty: even all don't suffice
    """
    everywhere = tuple(range(len(room)))
    if not everywhere or not _covers(room, need, everywhere):
        return []
    for size in range(_least(room, need), len(room) + 1):
        if comb(len(room), size) > MAX_ENUMERATED:
            return _grown(room, need, distances)
        found = [chosen for chosen in combinations(everywhere, size)
                 if _covers(room, need, chosen)]
        if found:
            return found
    return []


def _covers(room, need, chosen):
    return all(sum(room[at][kind] for at in chosen) >= wanted
               for kind, wanted in enumerate(need))


def _least(room, need):
    """Bound the size from below: each resource alone, taken from its roomiest nodes."""
    least = 1
    for kind, wanted in enumerate(need):
        left = wanted
        for count, has in enumerate(sorted((r[kind] for r in room), reverse=True), 1):
            left -= has
            if left <= 0:
                least = max(least, count)
                break
    return least


def _grown(room, need, distances):
    """Grow a set from each node, by nearness and by room, and keep the smallest ones."""
    worth = [sum(min(1.0, has / wanted) for has, wanted in zip(kinds, need) if wanted)
             for kinds in room]
    found = set()
    for seed in range(len(room)):
        apart = [distances(seed, at) for at in range(len(room))]
        nearest = sorted(range(len(room)), key=lambda at, seed=seed, apart=apart: (
            at != seed, apart[at], -worth[at]))
        roomiest = sorted(range(len(room)), key=lambda at, seed=seed, apart=apart: (
            at != seed, -worth[at], apart[at]))
        for order in (nearest, roomiest):
            found.add(_pruned(room, need, _prefix(room, need, order)))
    size = min(map(len, found))
    return sorted(chosen for chosen in found if len(chosen) == size)


def _prefix(room, need, order):
    left = list(need)
    for count, at in enumerate(order, 1):
        left = [wanted - has for wanted, has in zip(left, room[at])]
        if all(wanted <= 0 for wanted in left):
            return order[:count]
    return order


def _pruned(room, need, order):
    """Drop what the set can do without, the last grown first; the seed stays if needed."""
    kept = list(order)
    for at in reversed(order):
        rest = [member for member in kept if member != at]
        if rest and _covers(room, need, rest):
            kept = rest
    return tuple(sorted(kept))
