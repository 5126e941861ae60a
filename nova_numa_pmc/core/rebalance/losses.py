# SPDX-License-Identifier: Apache-2.0
"""Losses of a host's guests, kept as sums so that changing one guest takes a few additions.

L = Σ_n waiting_n + Σ_m [ A_m + R_m · q(W_m / B_m) ] cores, which is the loss of
``core/pressure.py`` summed by the node of the *memory*:

* A_m = Σ_n x_nm · (ℓ_nm − ℓ_nn) / MLP, the unloaded distance
* R_m = Σ_n x_nm · 0.15 · ℓ_mm / MLP, what queueing at m multiplies, q(u) = u / (1 − u)
* W_m, the traffic that m's controllers serve, B_m its maximum

A guest stalls for no longer than it runs: where queueing would take more than half of S_m, the
cores whose accesses go to m, it approaches S_m (s ≤ ½: s, else 1 − 1/4s, s = R·q / S). Likewise
the distance of one guest approaches the cores that it runs.

Each guest adds to A, R, W and S of the nodes of its memory and to the demand on the nodes of its
CPUs, so a candidate move touches a few numbers and the rest of the host need not be looked at.
"""

from __future__ import annotations

from math import log, sqrt
from typing import TYPE_CHECKING

from nova_numa_pmc.core.pressure import QUEUEING_FACTOR, QUEUEING_KNEE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    #: (position, share of a guest's CPU time, or of its accesses) pairs.
    Shares = Sequence[tuple[int, float]]
    MemoryTerms = tuple[int, float, float, float, float]

_SLOPE = 1 / (1 - QUEUEING_KNEE) ** 2
_KNEE = QUEUEING_KNEE / (1 - QUEUEING_KNEE)


class Effect:
    """Demand and traffic that one guest adds to its host at one place.

    :ivar cpus: positions that its CPUs may use, ascending
    :ivar demand: cores wanted
    :ivar memory_terms: what it adds to each node's memory: (position, A, R, W, S)
    """

    __slots__ = ('cpus', 'demand', 'memory_terms')

    def __init__(
        self, cpus: tuple[int, ...], demand: float, memory_terms: tuple[MemoryTerms, ...]
    ) -> None:
        self.cpus, self.demand, self.memory_terms = cpus, demand, memory_terms


def effect(
    cpus: tuple[int, ...],
    demand: float,
    cpu_shares: Shares,
    mem_shares: Shares,
    stalls_per_ns: float,
    traffic: float,
    latencies_ns: Sequence[Sequence[float]],
    served_cores: float | None = None,
    counts_queueing: bool = True,
) -> Effect:
    """Compute what a guest adds.

    :param cpu_shares, mem_shares: (position, share of its CPU time or of its accesses), each
        adding up to 1
    :param stalls_per_ns: its DRAM accesses per second · 1e-9 / MLP, so that a product with
        nanoseconds is in cores
    :param traffic: bytes per second
    :param served_cores: cores that it runs there, which bound what it loses to distance; None:
        ``demand``
    :param counts_queueing: whether its accesses are taken to queue at the memory, and to lengthen
        the queue of others
    """
    terms, lost = [], 0.0
    for m, share in mem_shares:
        away = sum(ran * (latencies_ns[n][m] - latencies_ns[n][n]) for n, ran in cpu_shares)
        lines = share * stalls_per_ns
        lost += lines * away
        terms.append(
            (
                m,
                lines * away,
                lines * QUEUEING_FACTOR * latencies_ns[m][m] if counts_queueing else 0.0,
                share * traffic,
                share * demand if counts_queueing else 0.0,
            )
        )
    within = limit_loss(lost, demand if served_cores is None else served_cores)
    if within != lost:
        terms = [
            (m, distance * within / lost, queueing, served, reaching)
            for m, distance, queueing, served, reaching in terms
        ]
    return Effect(cpus, demand, tuple(terms))


def limit_loss(lost: float, limit: float) -> float:
    """Bound a loss by ``limit`` cores, which it approaches asymptotically from half of them on."""
    return lost if lost <= limit / 2 else limit * (1 - limit / (4 * lost))


def waiting(demand: float, cores: float, burst: float) -> float:
    """Return the cores that wait: max(0, D − C), smoothed by bursts.

    h = (x + √(x² + 4·v²)) / 2, x = D − C. Then h · (h − x) = v²: cores waiting times cores
    idle is kept while the demand changes, so v follows from one interval's measured waiting
    and idling, and v = 0 is the plain maximum.

    :param burst: v [cores]
    """
    excess = demand - cores
    if not burst:
        return excess if excess > 0 else 0.0
    return (excess + sqrt(excess * excess + 4 * burst * burst)) / 2


def crowding(demand: float, cores: float) -> float:
    """Return D·ln(D / C) − (D − C) where D exceeds C, else 0 [cores].

    Waiting alone does not show how it is distributed: six busy guests on two nodes of two cores
    wait for two cores in all whether four or three share the first. −Σ D·ln(served / wanted) is
    what proportional fairness minimises (Kelly, "Charging and rate control for elastic traffic",
    1997). At D = C it grows as fast as waiting; beyond, more crowded nodes count more.
    """
    if demand <= cores or not cores:
        return 0.0
    return demand * log(demand / cores) - (demand - cores)


def burst(demand: float, cores: float, waited: float) -> float:
    """Return v [cores] from what waited at this demand; 0 where that is not more than D − C."""
    idle = waited - (demand - cores)
    return sqrt(waited * idle) if waited > 0 and idle > 0 else 0.0


def level_out(
    demand: list[float], cores: Sequence[float], nodes: Collection[int], amount: float
) -> None:
    """Add ``amount`` cores of demand to ``nodes``, filling those with the lowest D / C first.

    :param demand: changed in place
    """
    if len(nodes) == 2:
        one, two = nodes
        level = (demand[one] + demand[two] + amount) / (cores[one] + cores[two])
        if level * cores[one] < demand[one]:
            demand[two] += amount
        elif level * cores[two] < demand[two]:
            demand[one] += amount
        else:
            demand[one], demand[two] = level * cores[one], level * cores[two]
        return
    order = sorted(nodes, key=lambda n: demand[n] / cores[n])
    wanted, room, level = amount, 0.0, 0.0
    for rank, n in enumerate(order, 1):
        wanted += demand[n]
        room += cores[n]
        level = wanted / room
        if rank == len(order) or level <= demand[order[rank]] / cores[order[rank]]:
            break
    for n in order:
        demand[n] = max(demand[n], level * cores[n])


def _wait(demand: float, cores: float, burst: float) -> float:
    return waiting(demand, cores, burst) + crowding(demand, cores)


class HostLoss:
    """A host's sums, and its loss with some guests elsewhere.

    :ivar demand: by position, cores wanted by guests held to one node and by others
    :ivar spanning: {positions: cores wanted by guests whose CPUs may use all of these}
    """

    def __init__(
        self,
        cores: Sequence[float],
        bandwidth_max: Sequence[float | None] | None,
        demand: Iterable[float],
        traffic: Iterable[float],
        bursts: Sequence[float],
    ) -> None:
        """Start with the load that is not the guests'.

        :param cores: C by position
        :param bandwidth_max: B by position; None: queueing is left out
        :param demand, traffic: D and W of all but the guests, by position
        :param bursts: v by position
        """
        self.cores, self.bandwidth_max, self.bursts = cores, bandwidth_max, bursts
        self.demand = list(demand)
        self.spanning: dict[tuple[int, ...], float] = {}
        self.distance, self.queueing = [0.0] * len(cores), [0.0] * len(cores)
        self.traffic, self.reaching = list(traffic), [0.0] * len(cores)
        self._waits: float | None = None  # cores that wait now; None: not computed yet

    def put(self, added: Effect, sign: int = 1) -> None:
        """Add an effect, or take it away with ``sign`` −1."""
        self._waits = None
        if len(added.cpus) == 1:
            self.demand[added.cpus[0]] += sign * added.demand
        else:
            self.spanning[added.cpus] = self.spanning.get(added.cpus, 0.0) + sign * added.demand
            if self.spanning[added.cpus] < 1e-9:
                del self.spanning[added.cpus]
        for m, distance, queueing, traffic, reaching in added.memory_terms:
            self.distance[m] += sign * distance
            self.queueing[m] += sign * queueing
            self.traffic[m] += sign * traffic
            self.reaching[m] += sign * reaching

    def by_cause(
        self, removed: Iterable[Effect] = (), added: Iterable[Effect] = ()
    ) -> tuple[float, float, float, float]:
        """Return (waiting, distance, queueing, crowding) after exchanging effects [cores].

        The first three add up to the loss; for the last see :func:`crowding`.
        """
        then = self._copy()
        for sign, effects in ((-1, removed), (1, added)):
            for effect in effects:
                then.put(effect, sign)
        queueing = sum(
            then._queue(m, then.queueing[m], then.traffic[m], then.reaching[m])
            for m in range(len(then.cores))
        )
        demand = then.levelled_demand()
        return (
            sum(map(waiting, demand, then.cores, then.bursts)),
            sum(then.distance),
            queueing,
            sum(map(crowding, demand, then.cores)),
        )

    def loss(self) -> float:
        """Return the host's loss [cores]."""
        return sum(self.by_cause()[:3])

    def gain(self, removed: Iterable[Effect], added: Iterable[Effect]) -> float:
        """Return the loss and the crowding now − those with these effects exchanged [cores]."""
        shifted: dict[int, float] = {}
        spanning: dict[tuple[int, ...], float] | None = None
        terms: dict[int, list[float]] = {}
        for sign, effects in ((-1, removed), (1, added)):
            for effect in effects:
                cpus = effect.cpus
                if len(cpus) == 1:
                    n = cpus[0]
                    shifted[n] = shifted.get(n, 0.0) + sign * effect.demand
                else:
                    spanning = dict(self.spanning) if spanning is None else spanning
                    spanning[cpus] = spanning.get(cpus, 0.0) + sign * effect.demand
                for m, distance, queueing, traffic, reaching in effect.memory_terms:
                    was = terms.get(m)
                    if was is None:
                        terms[m] = [
                            sign * distance,
                            sign * queueing,
                            sign * traffic,
                            sign * reaching,
                        ]
                    else:
                        was[0] += sign * distance
                        was[1] += sign * queueing
                        was[2] += sign * traffic
                        was[3] += sign * reaching
        return self._spared_waiting(shifted, spanning) + self._spared_distance(terms)

    def levelled_demand(
        self,
        demand: Iterable[float] | None = None,
        spanning: Mapping[tuple[int, ...], float] | None = None,
    ) -> list[float]:
        """Return the demand by position once the spanning guests have levelled it."""
        demand = list(self.demand if demand is None else demand)
        spanning = self.spanning if spanning is None else spanning
        for nodes in sorted(spanning, key=lambda nodes: (len(nodes), nodes)):
            level_out(demand, self.cores, nodes, max(0.0, spanning[nodes]))
        return demand

    def wait(self, n: int, demand: Sequence[float]) -> float:
        """Return the cores that wait at a position with these demands."""
        return waiting(demand[n], self.cores[n], self.bursts[n])

    def pressure(self, n: int) -> float:
        """Return D / C of a position for guests held to it; 0 without CPUs."""
        return self.demand[n] / self.cores[n] if self.cores[n] else 0.0

    def _copy(self) -> HostLoss:
        other = HostLoss(self.cores, self.bandwidth_max, self.demand, self.traffic, self.bursts)
        other.spanning, other.distance = dict(self.spanning), list(self.distance)
        other.queueing, other.reaching = list(self.queueing), list(self.reaching)
        return other

    def _waiting(self, demand: list[float], spanning: Mapping[tuple[int, ...], float]) -> float:
        if spanning:
            demand = self.levelled_demand(demand, spanning)
        return sum(map(_wait, demand, self.cores, self.bursts))

    def _spared_waiting(
        self, shifted: Mapping[int, float], spanning: Mapping[tuple[int, ...], float] | None
    ) -> float:
        if spanning is None and not self.spanning:
            demand, cores, bursts = self.demand, self.cores, self.bursts
            return sum(
                _wait(demand[n], cores[n], bursts[n]) - _wait(demand[n] + by, cores[n], bursts[n])
                for n, by in shifted.items()
            )
        if self._waits is None:
            self._waits = self._waiting(self.demand, self.spanning)
        then = list(self.demand)
        for n, by in shifted.items():
            then[n] += by
        return self._waits - self._waiting(then, self.spanning if spanning is None else spanning)

    def _spared_distance(self, terms: Mapping[int, Sequence[float]]) -> float:
        spared = 0.0
        for m, (distance, queueing, traffic, reaching) in terms.items():
            spared -= distance
            if self.bandwidth_max is not None:
                spared += self._queue(
                    m, self.queueing[m], self.traffic[m], self.reaching[m]
                ) - self._queue(
                    m,
                    self.queueing[m] + queueing,
                    self.traffic[m] + traffic,
                    self.reaching[m] + reaching,
                )
        return spared

    def _queue(self, m: int, lines: float, traffic: float, reaching: float) -> float:
        """Return the loss to queueing at m; 0 where B is not known."""
        maximum = self.bandwidth_max and self.bandwidth_max[m]
        if not maximum or reaching <= 0:
            return 0.0
        u = traffic / maximum
        if u <= 0:
            return 0.0
        return limit_loss(
            lines * (u / (1 - u) if u <= QUEUEING_KNEE else _KNEE + (u - QUEUEING_KNEE) * _SLOPE),
            reaching,
        )
