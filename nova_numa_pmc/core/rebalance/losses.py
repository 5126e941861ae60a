# SPDX-License-Identifier: Apache-2.0
"""Compute the losses of a host's guests from sums to which each guest adds.

L = Σ_n waiting_n + Σ_m [ A_m + R_m · q(W_m / B_m) ] cores. This is the loss of
``core/pressure.py``, but summed by the node of the *memory*:

* A_m = Σ_n x_nm · (ℓ_nm − ℓ_nn) / MLP is the loss to the unloaded distance.
* R_m = Σ_n x_nm · 0.15 · ℓ_mm / MLP is multiplied by the queueing at m, q(u) = u / (1 − u).
* W_m is the traffic that m's controllers serve, and B_m its maximum.

A guest stalls for no longer than it runs. S_m is the guests' demand [cores], split among the
nodes that their accesses go to. With s = R·q / S, the loss to queueing is s·S up to s = ½, and
above that (1 − 1/4s)·S, which approaches S. In the same way, the loss of a guest to distance
approaches the cores that it uses.

Each guest adds to A, R, W and S of the nodes of its memory, and to the demand on the nodes of its
CPUs. Evaluating a move therefore takes a few additions, and not a pass over the whole host.
"""

from __future__ import annotations

from math import log, sqrt
from typing import TYPE_CHECKING

from nova_numa_pmc.core.pressure import QUEUEING_FACTOR, queueing_at
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    #: (position, share of a guest's CPU time or of its accesses) pairs.
    Shares = Sequence[tuple[int, float]]
    #: (position, A, R, W, S) of one guest.
    MemoryTerms = tuple[int, float, float, float, float]


class Effect(Record):
    """Demand and traffic that one guest adds to its host at one place.

    :param cpu_positions: positions that its CPUs may use, in ascending order
    :param demand_cores: its demand
    :param memory_terms: (position, A, R, W, S) for each node that it accesses memory of
    """

    cpu_positions: tuple[int, ...]
    demand_cores: float
    memory_terms: tuple[MemoryTerms, ...]


def effect_at(
    cpu_positions: tuple[int, ...],
    demand_cores: float,
    cpu_shares: Shares,
    mem_shares: Shares,
    stalls_per_ns: float,
    bandwidth_bytes_per_sec: float,
    latencies_ns: Sequence[Sequence[float]],
    served_cores: float | None = None,
    counts_queueing: bool = True,
) -> Effect:
    """Return what a guest adds to its host at a place.

    :param cpu_positions: positions that its CPUs may use, in ascending order
    :param demand_cores: its demand
    :param cpu_shares, mem_shares: (position, share of its CPU time, or of its accesses) pairs; the
        shares add up to 1
    :param stalls_per_ns: its DRAM accesses per second · 1e-9 / MLP, so that its product with
        nanoseconds is in cores
    :param bandwidth_bytes_per_sec: its DRAM traffic
    :param served_cores: cores that it uses there, which limit its loss to distance; None for
        ``demand_cores``
    :param counts_queueing: whether its own accesses are assumed to lose time to queueing at the
        memory
    """
    terms, distance_cores = [], 0.0
    for m, share in mem_shares:
        extra_ns = sum(
            cpu_share * (latencies_ns[n][m] - latencies_ns[n][n]) for n, cpu_share in cpu_shares
        )
        node_stalls_per_ns = share * stalls_per_ns
        distance_cores += node_stalls_per_ns * extra_ns
        terms.append(
            (
                m,
                node_stalls_per_ns * extra_ns,
                node_stalls_per_ns * QUEUEING_FACTOR * latencies_ns[m][m]
                if counts_queueing
                else 0.0,
                share * bandwidth_bytes_per_sec,
                share * demand_cores if counts_queueing else 0.0,
            )
        )
    limited_cores = limit_loss(
        distance_cores, demand_cores if served_cores is None else served_cores
    )
    if limited_cores != distance_cores:
        terms = [
            (
                m,
                distance * limited_cores / distance_cores,
                queueing,
                served_bandwidth,
                accessing_cores,
            )
            for m, distance, queueing, served_bandwidth, accessing_cores in terms
        ]
    return Effect(cpu_positions, demand_cores, tuple(terms))


def limit_loss(lost: float, limit: float) -> float:
    """Return a loss limited to ``limit`` cores, which it approaches asymptotically.

    A loss of up to half of the limit is returned as it is.
    """
    return lost if lost <= limit / 2 else limit * (1 - limit / (4 * lost))


def waiting(demand: float, cores: float, burst_cores: float) -> float:
    """Return the cores that wait, which are max(0, D − C) smoothed by bursts.

    They are h = (x + √(x² + 4·v²)) / 2 with x = D − C. Because h · (h − x) = v², the product of
    waiting and idle cores stays the same while demand changes: v follows from the waiting and idle
    cores measured in one interval. If v = 0, h is max(0, D − C).

    :param burst_cores: v [cores]
    """
    excess = demand - cores
    if not burst_cores:
        return excess if excess > 0 else 0.0
    return (excess + sqrt(excess * excess + 4 * burst_cores * burst_cores)) / 2


def crowding(demand: float, cores: float) -> float:
    """Return D·ln(D / C) − (D − C) if D exceeds C, otherwise 0 [cores].

    Waiting does not show how it is distributed: if six busy guests are on two nodes of two cores
    each, two cores wait in all, whether there are three guests or four on the first node. The sum
    of waiting and crowding is −Σ D·ln(served / wanted), which proportional fairness minimises
    (Kelly, "Charging and rate control for elastic traffic", 1997). At D = C it grows as fast as
    waiting; above that, it grows faster on more crowded nodes.
    """
    if demand <= cores or not cores:
        return 0.0
    return demand * log(demand / cores) - (demand - cores)


def burst(demand: float, cores: float, waited: float) -> float:
    """Return v [cores] from the cores that waited at a demand.

    It is 0 if these are not more than D − C.
    """
    idle = waited - (demand - cores)
    return sqrt(waited * idle) if waited > 0 and idle > 0 else 0.0


def level_out(
    demand: list[float], cores: Sequence[float], positions: Collection[int], amount: float
) -> None:
    """Add ``amount`` cores of demand to ``positions``, to those with the lowest D / C first.

    :param demand: D by position, which is changed in place
    :param cores: C by position
    """
    order = sorted(positions, key=lambda n: demand[n] / cores[n])
    total_demand, total_cores, level = amount, 0.0, 0.0
    for rank, n in enumerate(order, 1):
        total_demand += demand[n]
        total_cores += cores[n]
        level = total_demand / total_cores
        if rank == len(order) or level <= demand[order[rank]] / cores[order[rank]]:
            break
    for n in order:
        demand[n] = max(demand[n], level * cores[n])


class Causes(Record):
    """The parts of a host's loss, or of what a move saves of it, and crowding [cores]."""

    waiting: float
    distance: float
    queueing: float
    crowding: float

    @property
    def kinds(self) -> tuple[float, float, float]:
        """Return the parts by kind of claim; crowding is waiting, which it divides."""
        return self.waiting + self.crowding, self.distance, self.queueing


class HostLoss:
    """The sums of a host, and its loss with these or with some guests elsewhere.

    :ivar trust_ratios: share of a gain in waiting, distance and queueing that counts
    :ivar cores, bandwidth_max_bytes_per_sec, burst_cores: C, B and v by position
    :ivar demand_cores: D by position, of the guests held to a single node and of everything but
        guests
    :ivar spanning_cores: {positions: demand of the guests whose CPUs may use all of these}
    :ivar distance_cores, queueing_cores, bandwidth_bytes_per_sec, accessing_cores: A, R, W and S
        by position
    """

    def __init__(
        self,
        cores: Sequence[float],
        bandwidth_max_bytes_per_sec: Sequence[float | None] | None,
        demand_cores: Iterable[float],
        bandwidth_bytes_per_sec: Iterable[float],
        burst_cores: Sequence[float],
    ) -> None:
        """Start with the load that is not the guests'.

        :param cores: C by position
        :param bandwidth_max_bytes_per_sec: B by position; None if queueing is to be left out
        :param demand_cores, bandwidth_bytes_per_sec: D and W of everything but guests, by position
        :param burst_cores: v by position
        """
        self.cores, self.burst_cores = cores, burst_cores
        self.bandwidth_max_bytes_per_sec = bandwidth_max_bytes_per_sec
        self.demand_cores = list(demand_cores)
        self.spanning_cores: dict[tuple[int, ...], float] = {}
        self.distance_cores, self.queueing_cores = [0.0] * len(cores), [0.0] * len(cores)
        self.bandwidth_bytes_per_sec = list(bandwidth_bytes_per_sec)
        self.accessing_cores = [0.0] * len(cores)
        self.trust_ratios: Sequence[float] = (1.0, 1.0, 1.0)
        # Loss to waiting and crowding now; None if not computed yet.
        self._cpu_loss_now: tuple[float, float] | None = None

    def add_effect(self, added: Effect, sign: int = 1) -> None:
        """Add an effect, or subtract it if ``sign`` is −1."""
        self._cpu_loss_now = None
        positions = added.cpu_positions
        if len(positions) == 1:
            self.demand_cores[positions[0]] += sign * added.demand_cores
        else:
            self.spanning_cores[positions] = (
                self.spanning_cores.get(positions, 0.0) + sign * added.demand_cores
            )
            if self.spanning_cores[positions] < 1e-9:
                del self.spanning_cores[positions]
        for m, distance, queueing, bandwidth, accessing_cores in added.memory_terms:
            self.distance_cores[m] += sign * distance
            self.queueing_cores[m] += sign * queueing
            self.bandwidth_bytes_per_sec[m] += sign * bandwidth
            self.accessing_cores[m] += sign * accessing_cores

    def by_cause(self) -> Causes:
        """Return the host's loss by its causes, and its crowding."""
        waiting_cores, crowding_cores = self._waiting_and_crowding(self.levelled_demand())
        return Causes(
            waiting_cores,
            sum(self.distance_cores),
            sum(self._queueing_loss(m) for m in range(len(self.cores))),
            crowding_cores,
        )

    def loss(self) -> float:
        """Return the host's loss [cores]."""
        return sum(self.by_cause()[:3])

    def saved(self, removed: Effect | None, added: Effect | None) -> Causes:
        """Return by how much the parts of the loss fall if an effect is replaced."""
        demand_changes: dict[int, float] = {}
        spanning = self.spanning_cores
        terms: dict[int, tuple[float, ...]] = {}
        for sign, effect in ((-1, removed), (1, added)):
            if effect is None:
                continue
            positions, demand_cores = effect.cpu_positions, sign * effect.demand_cores
            if len(positions) == 1:
                n = positions[0]
                demand_changes[n] = demand_changes.get(n, 0.0) + demand_cores
            else:
                others = spanning.get(positions, 0.0)
                spanning = {**spanning, positions: others + demand_cores}
            for m, *values in effect.memory_terms:
                sums = terms.get(m, (0.0, 0.0, 0.0, 0.0))
                terms[m] = tuple([a + sign * b for a, b in zip(sums, values)])
        waiting_cores, crowding_cores = self._saved_cpu_loss(demand_changes, spanning)
        queueing_cores = 0.0
        if self.bandwidth_max_bytes_per_sec is not None:
            queueing_cores = sum(
                [
                    self._queueing_loss(m) - self._queueing_loss(m, *change)
                    for m, (_, *change) in terms.items()
                ]
            )
        distance_cores = -sum([distance for distance, *_ in terms.values()])
        return Causes(waiting_cores, distance_cores, queueing_cores, crowding_cores)

    def gain(self, removed: Effect | None, added: Effect | None) -> float:
        """Return what :meth:`saved` returns as far as it is trusted; losses count in full."""
        return sum(
            part * (ratio if part > 0 else 1)
            for part, ratio in zip(self.saved(removed, added).kinds, self.trust_ratios)
        )

    def levelled_demand(
        self,
        demand_cores: Iterable[float] | None = None,
        spanning_cores: Mapping[tuple[int, ...], float] | None = None,
    ) -> list[float]:
        """Return D by position, including the guests on several nodes, which level it out.

        :param demand_cores: D without these guests; None for that of now
        :param spanning_cores: the demand of these guests; None for that of now
        """
        demand = list(self.demand_cores if demand_cores is None else demand_cores)
        spanning = self.spanning_cores if spanning_cores is None else spanning_cores
        for positions in sorted(spanning, key=lambda positions: (len(positions), positions)):
            level_out(demand, self.cores, positions, max(0.0, spanning[positions]))
        return demand

    def waiting_at(self, n: int, demand_cores: Sequence[float]) -> float:
        """Return the cores that wait at position ``n`` if D is ``demand_cores``."""
        return waiting(demand_cores[n], self.cores[n], self.burst_cores[n])

    def cpu_ratio(self, n: int) -> float:
        """Return D / C of a position, without guests on several nodes; 0 if it has no CPUs."""
        return self.demand_cores[n] / self.cores[n] if self.cores[n] else 0.0

    def _waiting_and_crowding(
        self, demand: Sequence[float], positions: Iterable[int] | None = None
    ) -> tuple[float, float]:
        waiting_cores = crowding_cores = 0.0
        for n in range(len(demand)) if positions is None else positions:
            waiting_cores += self.waiting_at(n, demand)
            crowding_cores += crowding(demand[n], self.cores[n])
        return waiting_cores, crowding_cores

    def _saved_cpu_loss(
        self, demand_changes: Mapping[int, float], spanning: Mapping[tuple[int, ...], float]
    ) -> tuple[float, float]:
        """Return by how much waiting and crowding fall."""
        demand = list(self.demand_cores)
        for n, change in demand_changes.items():
            demand[n] += change
        if not spanning:
            before = self._waiting_and_crowding(self.demand_cores, demand_changes)
            after = self._waiting_and_crowding(demand, demand_changes)
        else:
            if self._cpu_loss_now is None:
                self._cpu_loss_now = self._waiting_and_crowding(self.levelled_demand())
            before = self._cpu_loss_now
            after = self._waiting_and_crowding(self.levelled_demand(demand, spanning))
        return before[0] - after[0], before[1] - after[1]

    def _queueing_loss(
        self, m: int, queueing: float = 0.0, bandwidth: float = 0.0, accessing: float = 0.0
    ) -> float:
        """Return the loss to queueing at m if R, W and S change [cores]; 0 if B is unknown."""
        maximum = self.bandwidth_max_bytes_per_sec and self.bandwidth_max_bytes_per_sec[m]
        accessing_cores = self.accessing_cores[m] + accessing
        if not maximum or accessing_cores <= 0:
            return 0.0
        u = (self.bandwidth_bytes_per_sec[m] + bandwidth) / maximum
        queueing_cores = self.queueing_cores[m] + queueing
        return limit_loss(queueing_cores * queueing_at(u), accessing_cores) if u > 0 else 0.0
