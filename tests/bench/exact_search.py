# SPDX-License-Identifier: Apache-2.0
"""Search for the best possible placement on a small host, by branch and bound.

It may move every guest freely and knows every demand, so it is a bound that no decision at a
guest's start can beat.
"""

#: Latency of a local line and of each SLIT step of 10 beyond [s]; lines per core-second.
STEP_SECONDS, LINES_PER_CORE_SEC = 60e-9, 2e6


class Host:
    """The search's input about a host: cores, bytes and distances by position."""

    def __init__(self, cores, threads, capacity_bytes, distances):
        self.cores, self.threads = cores, threads
        self.capacity_bytes, self.distances = capacity_bytes, distances

    def pressures(self, demand):
        """Return pressures, highest first."""
        return sorted((d / c for d, c in zip(demand, self.cores)), reverse=True)

    def waiting(self, demand):
        """Return the cores that are wanted but not available."""
        return sum(max(0.0, d - c) for d, c in zip(demand, self.cores))

    def shares(self, nodes):
        """Divide a guest among nodes in proportion to their cores."""
        total = sum(self.cores[at] for at in nodes)
        return [(at, self.cores[at] / total) for at in nodes]

    def remote(self, demand, nodes):
        """Return the cores that a guest on these nodes loses to distance."""
        far = sum(
            share * other * (self.distances[a][b] - 10) / 10
            for a, share in self.shares(nodes)
            for b, other in self.shares(nodes)
        )
        return demand * LINES_PER_CORE_SEC * STEP_SECONDS * far


class Search:
    """A search; ``steps`` counts its steps, ``proven`` says whether it was finished."""

    def __init__(self, host, guests, memory_counts, budget=40000):
        """Prepare a search.

        :param guests: list of (cores wanted, bytes, vCPUs); the largest are placed first
        :param memory_counts: whether each guest's memory must fit
        :param budget: number of steps after which it gives up
        """
        self.host, self.budget, self.steps = host, budget, 0
        self.guests = sorted(guests, reverse=True)
        self.memory_counts = memory_counts
        self.left = [sum(guest[0] for guest in self.guests[at:]) for at in range(len(guests) + 1)]
        self.options = [self._options(guest) for guest in self.guests]

    @property
    def proven(self):
        return self.steps < self.budget

    def _options(self, guest):
        """List the sets that a guest may have by the decision's own rule: the smallest ones."""
        host, (_, size, vcpus) = self.host, guest
        count = len(host.cores)
        sets = [
            tuple(at for at in range(count) if mask >> at & 1) for mask in range(1, 1 << count)
        ]
        holding = [
            nodes
            for nodes in sets
            if sum(host.threads[at] for at in nodes) >= vcpus
            and (not self.memory_counts or sum(host.capacity_bytes[at] for at in nodes) >= size)
        ]
        fewest = min(map(len, holding), default=0)
        return [nodes for nodes in holding if len(nodes) == fewest]

    def pressures(self, best):
        """Return the lowest possible sorted pressures, at most ``best``.

        A search that gives up returns those of a perfectly divisible load, which are lower.
        """
        pressures = self._descend(
            0,
            [0.0] * len(self.host.cores),
            list(self.host.capacity_bytes),
            0.0,
            best,
            lambda at, demand, _: self._level(demand, self.left[at]),
        )
        return (
            pressures if self.proven else self._level([0.0] * len(self.host.cores), self.left[0])
        )

    def loss(self, best):
        """Return the lowest possible loss [cores], at most ``best``; likewise."""
        floor = max(0.0, self.left[0] - sum(self.host.cores))
        least = self._descend(
            0,
            [0.0] * len(self.host.cores),
            list(self.host.capacity_bytes),
            0.0,
            [best],
            lambda _, demand, remote: [max(floor, self.host.waiting(demand)) + remote],
        )[0]
        return least if self.proven else floor

    def _descend(self, at, demand, free, remote, best, bound):
        self.steps += 1
        if not self.proven or not _better(bound(at, demand, remote), best):
            return best
        if at == len(self.guests):
            return bound(at, demand, remote)
        cores, size, _ = self.guests[at]
        options = sorted(
            self.options[at],
            key=lambda nodes: max(
                (demand[n] + cores * share) / self.host.cores[n]
                for n, share in self.host.shares(nodes)
            ),
        )
        for nodes in options:
            if self.memory_counts and sum(free[n] for n in nodes) < size:
                continue
            then, room, lost = list(demand), list(free), remote
            for n, share in self.host.shares(nodes):
                then[n] += cores * share
            if len(nodes) == 1:
                room[nodes[0]] -= size
            else:  # the division is left open, so the result stays a bound
                lost += self.host.remote(cores, nodes)
            best = self._descend(at + 1, then, room, lost, best, bound)
        return best

    def _level(self, demand, left):
        """Distribute the rest like water: no other division has lower sorted pressures."""
        host = self.host
        order = sorted(range(len(demand)), key=lambda n: demand[n] / host.cores[n])
        poured, cores = left, 0.0
        level = 0.0
        for rank, n in enumerate(order):
            poured += demand[n]
            cores += host.cores[n]
            level = poured / cores
            if (
                rank + 1 == len(order)
                or level <= demand[order[rank + 1]] / host.cores[order[rank + 1]]
            ):
                break
        return sorted((max(level, d / c) for d, c in zip(demand, host.cores)), reverse=True)


def _better(ours, best):
    """Compare in sequence, tolerating rounding."""
    for a, b in zip(ours, best):
        if abs(a - b) > 1e-9:
            return a < b
    return False
