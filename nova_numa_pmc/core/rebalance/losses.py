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
    from collections.abc import Collection, Iterable, Sequence

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
    distances = [
        share
        * stalls_per_ns
        * sum(
            [cpu_share * (latencies_ns[n][m] - latencies_ns[n][n]) for n, cpu_share in cpu_shares]
        )
        for m, share in mem_shares
    ]
    lost_cores = sum(distances)
    limited_cores = limit_loss(lost_cores, demand_cores if served_cores is None else served_cores)
    scale = limited_cores / lost_cores if lost_cores else 1.0
    queueing_per_ns = stalls_per_ns * QUEUEING_FACTOR if counts_queueing else 0.0
    accessing_cores = demand_cores if counts_queueing else 0.0
    terms = [
        (
            m,
            distance * scale,
            share * queueing_per_ns * latencies_ns[m][m],
            share * bandwidth_bytes_per_sec,
            share * accessing_cores,
        )
        for (m, share), distance in zip(mem_shares, distances)
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
        self._causes: Causes | None = None  # None if not computed yet

    def with_change(self, removed: Effect | None, added: Effect | None) -> HostLoss:
        """Return a copy in which an effect is replaced."""
        changed = HostLoss(
            self.cores,
            self.bandwidth_max_bytes_per_sec,
            self.demand_cores,
            self.bandwidth_bytes_per_sec,
            self.burst_cores,
        )
        changed.spanning_cores = dict(self.spanning_cores)
        changed.distance_cores, changed.queueing_cores = (
            self.distance_cores[:],
            self.queueing_cores[:],
        )
        changed.accessing_cores = self.accessing_cores[:]
        if removed:
            changed.add_effect(removed, -1)
        if added:
            changed.add_effect(added)
        return changed

    def add_effect(self, added: Effect, sign: int = 1) -> None:
        """Add an effect, or subtract it if ``sign`` is −1."""
        self._causes = None
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
        if self._causes is None:
            demand = self.levelled_demand()
            positions = range(len(self.cores))
            self._causes = Causes(
                sum([self.waiting_at(n, demand) for n in positions]),
                sum(self.distance_cores),
                sum([self._queueing_loss(m) for m in positions]),
                sum([crowding(demand[n], self.cores[n]) for n in positions]),
            )
        return self._causes

    def loss(self) -> float:
        """Return the host's loss [cores]."""
        return sum(self.by_cause()[:3])

    def saved(self, removed: Effect | None, added: Effect | None) -> Causes:
        """Return by how much the parts of the loss fall if an effect is replaced."""
        after = self.with_change(removed, added).by_cause()
        return Causes(*[now - then for now, then in zip(self.by_cause(), after)])

    def gain(self, removed: Effect | None, added: Effect | None) -> float:
        """Return what :meth:`saved` returns as far as it is trusted; losses count in full."""
        return sum(
            part * (ratio if part > 0 else 1)
            for part, ratio in zip(self.saved(removed, added).kinds, self.trust_ratios)
        )

    def levelled_demand(self) -> list[float]:
        """Return D by position, including the guests on several nodes, which level it out."""
        demand, spanning = list(self.demand_cores), self.spanning_cores
        for positions in sorted(spanning, key=lambda positions: (len(positions), positions)):
            level_out(demand, self.cores, positions, spanning[positions])
        return demand

    def waiting_at(self, n: int, demand_cores: Sequence[float]) -> float:
        """Return the cores that wait at position ``n`` if D is ``demand_cores``."""
        return waiting(demand_cores[n], self.cores[n], self.burst_cores[n])

    def _queueing_loss(self, m: int) -> float:
        """Return the loss to queueing at m [cores]; 0 if B is unknown."""
        maximum = self.bandwidth_max_bytes_per_sec and self.bandwidth_max_bytes_per_sec[m]
        if not maximum or self.accessing_cores[m] <= 0:
            return 0.0
        u = self.bandwidth_bytes_per_sec[m] / maximum
        queueing_cores = self.queueing_cores[m] * queueing_at(u) if u > 0 else 0.0
        return limit_loss(queueing_cores, self.accessing_cores[m])
