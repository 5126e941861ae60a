# SPDX-License-Identifier: Apache-2.0
"""Derive the pressure of each NUMA node, and what that costs its guests.

Pure. Units: cores are core-seconds per second, lines are cache lines of 64
bytes, latencies are nanoseconds. Nodes are positions 0…N−1 in every sequence.
``None`` is unknown, never 0: an unknown part is left out, not assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    _Thread = TypeVar('_Thread')

LINE_BYTES = 64
#: Latency of local memory where nothing was measured (two-socket servers: 60 to 100 ns).
LOCAL_LATENCY_NS = 80.0
#: Memory-level parallelism, the misses that a core has outstanding at a time: 1 for events of
#: demand loads, 4 for events that count prefetches too (assumed: the worst case and a usual one).
MLP_DEMAND, MLP_WITH_PREFETCH = 1, 4
#: Queueing adds this part of the local latency at u/(1 − u) = 1 (assumed, an M/M/1
#: shape; Intel's Memory Latency Checker shows such curves).
QUEUEING_FACTOR = 0.15
#: Above this utilisation the latency goes on along its tangent, so that it stays finite.
QUEUEING_KNEE = 0.95

_FIT_ROUNDS = 100
_FIT_TOLERANCE = 1e-9


class NodePressure(Record):
    """A node's utilisations and the highest known one: 0 idle, 1 saturated, above 1 overloaded."""

    cpu_ratio: float | None
    bandwidth_ratio: float | None
    link_ratio: float | None
    pressure: float | None


class Loss(Record):
    """Loss of a node's guests, to waiting for CPUs and to the latency of memory [cores]."""

    waiting_cores: float | None
    distance_cores: float | None


def bandwidth_bytes_per_sec(
    read_bytes: float | None, write_bytes: float | None, elapsed_ns: int, write_weight: float = 1.0
) -> float | None:
    """Return a memory controller's traffic, (read + ω·write) / Δt; None: unknown.

    :param write_weight: ω, the cost of a written byte relative to a read one
    """
    if read_bytes is None or write_bytes is None or elapsed_ns <= 0:
        return None
    return (read_bytes + write_weight * write_bytes) * 1e9 / elapsed_ns


def node_pressure(
    cpu_ratio: float | None, bandwidth_ratio: float | None, link_ratio: float | None
) -> NodePressure:
    """Return the utilisations with the maximum of the known ones; None: none is known.

    Without a maximum a utilisation is unknown, as none is ever assumed: "the highest seen" would
    give 1.0 on an idle host.

    Remote accesses are a loss and not a utilisation, and promised memory is a constraint, so
    neither is part of it.
    """
    known = [part for part in (cpu_ratio, bandwidth_ratio, link_ratio) if part is not None]
    return NodePressure(cpu_ratio, bandwidth_ratio, link_ratio, max(known, default=None))


def slit_latencies_ns(
    distances: Sequence[Sequence[float]], local_ns: float
) -> tuple[tuple[float, ...], ...]:
    """Return unloaded latencies from SLIT distances, ℓ_nm = local · d_nm / d_nn [ns].

    This is an estimate, for where nothing was measured: label it as one.
    """
    return tuple(
        tuple(local_ns * distance / row[n] for distance in row) for n, row in enumerate(distances)
    )


def loaded_latency_ns(
    unloaded_ns: float, local_ns: float, utilisation_ratio: float | None
) -> float:
    """Return ℓ_nm(u) = ℓ_nm + 0.15·ℓ_mm·u/(1 − u) [ns], along its tangent above u = 0.95.

    :param unloaded_ns: ℓ_nm, from the CPUs to that memory
    :param local_ns: ℓ_mm, of that memory from its own CPUs
    :param utilisation_ratio: u of that memory; None: taken as idle
    """
    u = max(0.0, utilisation_ratio or 0.0)
    knee = min(u, QUEUEING_KNEE)
    queueing = knee / (1 - knee) + (u - knee) / (1 - knee) ** 2
    return unloaded_ns + QUEUEING_FACTOR * local_ns * queueing


def losses(
    demands: Sequence[float | None],
    capacities: Sequence[float | None],
    traffic: Sequence[Sequence[float | None] | None] | None,
    latencies_ns: Sequence[Sequence[float]] | None,
    utilisations: Sequence[float | None],
    mlp: float = MLP_DEMAND,
) -> tuple[Loss, ...]:
    """Return each node's :class:`Loss`, in order.

    L_n = max(0, D_n − C_n) + Σ_m x_nm·(ℓ_nm(u_m) − ℓ_nn) / MLP, m = n with it:
    a saturated local node costs too.

    :param demands, capacities: D_n, C_n [cores]; None: unknown, then so is the waiting
    :param traffic: x, lines per second by rows, None: unknown, then so is the distance
    :param utilisations: u_m of each memory, None: unknown
    """
    node_losses = []
    for n, (demand, capacity) in enumerate(zip(demands, capacities)):
        waiting = None if demand is None or capacity is None else max(0.0, demand - capacity)
        node_losses.append(
            Loss(waiting, _distance_cores(n, traffic, latencies_ns, utilisations, mlp))
        )
    return tuple(node_losses)


def _distance_cores(
    n: int,
    traffic: Sequence[Sequence[float | None] | None] | None,
    latencies_ns: Sequence[Sequence[float]] | None,
    utilisations: Sequence[float | None],
    mlp: float,
) -> float | None:
    row = traffic[n] if traffic else None
    if row is None or latencies_ns is None:
        return None
    known = [lines for lines in row if lines is not None]
    if len(known) < len(row):
        return None
    extra_ns = (
        loaded_latency_ns(latencies_ns[n][m], latencies_ns[m][m], utilisations[m])
        - latencies_ns[n][n]
        for m in range(len(row))
    )
    return sum(lines * extra for lines, extra in zip(known, extra_ns)) * 1e-9 / mlp


def attribute(
    local: Sequence[float],
    remote: Sequence[float],
    guests: Sequence[tuple[Sequence[float], Sequence[float]]],
    incoming: Sequence[float | None] | None = None,
) -> tuple[tuple[float, ...], ...]:
    """Return each node's remote accesses by target node.

    Counters count how many accesses of a node's CPUs were remote, not where to. The
    seed spreads each guest's by where its pages are,
    x_nm = Σ_g remote_gn · bytes_gm / Σ_{k≠n} bytes_gk, and is fitted to the
    rows (remote of n's CPUs) and, where memory controllers are counted, to the
    columns by iterative proportional fitting (Deming & Stephan, 1940). The
    columns only spread what the rows counted: they see prefetches and writebacks too.

    :param local: accesses per second of each node's CPUs to their own memory
    :param remote: accesses per second of each node's CPUs to other nodes' memory
    :param guests: of each guest (its remote accesses per second by node of
        its CPUs, its bytes by node)
    :param incoming: reads per second that each node's controllers served beyond
        its own CPUs' and devices'; None, or None in it: not counted
    :returns: lines per second; rows: from a node's CPUs; columns: to a node's memory
    """
    nodes = range(len(remote))
    rows = [_scale(row, total) for row, total in zip(_seed(guests, remote), remote)]
    seen = [max(0.0, column) for column in incoming or () if column is not None]
    if incoming is not None and len(seen) == len(incoming):
        rows = _fit(rows, remote, seen)
    return tuple(tuple(float(local[n]) if m == n else rows[n][m] for m in nodes) for n in nodes)


def _seed(
    guests: Sequence[tuple[Sequence[float], Sequence[float]]], remote: Sequence[float]
) -> list[list[float]]:
    """Return rows by where each guest's pages are; evenly where that is unknown."""
    nodes = range(len(remote))
    rows = [[0.0] * len(remote) for _ in nodes]
    for guest_remote, guest_bytes in guests:
        for n in nodes:
            elsewhere = sum(guest_bytes) - guest_bytes[n]
            if elsewhere > 0:
                for m in nodes:
                    if m != n:
                        rows[n][m] += guest_remote[n] * guest_bytes[m] / elsewhere
    return [
        row if sum(row) > 0 else [0.0 if m == n else 1.0 for m in nodes]
        for n, row in enumerate(rows)
    ]


def _scale(values: Sequence[float], total: float) -> list[float]:
    current = sum(values)
    return [value * total / current for value in values] if current > 0 else [0.0] * len(values)


def _fit(
    rows: list[list[float]], row_sums: Sequence[float], column_sums: Sequence[float]
) -> list[list[float]]:
    """Scale columns and rows in turn until the rows are exact and the values converge."""
    columns = _scale(column_sums, sum(row_sums))
    for _ in range(_FIT_ROUNDS):
        sums = [sum(row[m] for row in rows) for m in range(len(columns))]
        factors = [column / total if total > 0 else 1.0 for column, total in zip(columns, sums)]
        fitted = [
            _scale([value * factor for value, factor in zip(row, factors)], total)
            for row, total in zip(rows, row_sums)
        ]
        # A row whose only targets received nothing cannot be fitted: it keeps its seed.
        fitted = [
            new if sum(new) > 0 or total <= 0 else old
            for new, old, total in zip(fitted, rows, row_sums)
        ]
        moved = max(
            (abs(a - b) for new, old in zip(fitted, rows) for a, b in zip(new, old)), default=0.0
        )
        rows = fitted
        if moved <= _FIT_TOLERANCE * sum(row_sums):
            break
    return rows
