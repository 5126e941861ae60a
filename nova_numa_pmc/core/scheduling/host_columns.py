# SPDX-License-Identifier: Apache-2.0
"""Represent a host by columns: one list per quantity, with one item per memory domain.

The scheduler decides on these for a thousand hosts per request. Creating records of nodes would
take as long as the decision itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import memory_domains
from nova_numa_pmc.core.host_view import TRAFFIC_DEMAND_MIN_HUNDREDTHS, traffic_per_core
from nova_numa_pmc.model import MIB

if TYPE_CHECKING:
    from typing import Protocol, TypeGuard  # novm: 3.10, and for types only

    #: Values by position; None if none of them is known.
    Column = list[float | None] | None

    class UniformHostColumns(Protocol):
        """Columns whose ``uniform`` is true: a column is None, or contains no None."""

        cores: list[float]
        cpu_counts: list[int]
        capacity_mib: list[int]
        promised_mib: list[int]
        guests: list[float]
        vcpus: list[float]
        demand_cores: list[float] | None
        bandwidth_bytes_per_sec: list[float] | None
        bandwidth_max_bytes_per_sec: list[float] | None
        link_ratio: list[float] | None
        bytes_per_core_sec: float | None
        distances: tuple[tuple[float, ...], ...]
        rotation: int
        uniform: bool

        def view(self) -> model.HostView: ...


class HostColumns:
    """A host's memory domains (:func:`memory_domains.merge`), by position.

    :ivar cores, cpu_counts, guests, vcpus: as in :class:`model.NodeView`
    :ivar capacity_mib, promised_mib: capacity and promised memory [whole MiB]
    :ivar demand_cores: CPU demand
    :ivar bandwidth_bytes_per_sec, bandwidth_max_bytes_per_sec: DRAM traffic and its maximum
    :ivar link_ratio: utilisation of the busiest socket link
    :ivar members: ids of the nodes of each domain
    :ivar bytes_per_core_sec: measured DRAM traffic per core of demand, which later charges do not
        change; None if it is unknown, see :func:`host_view.traffic_per_core`
    :ivar rotation: number of placements made before, modulo the number of domains; breaks ties
    :ivar uniform: whether each part of pressure is known for all domains or for none, and each
        domain has CPUs and memory, so that the fast path of :func:`outcome.outcome` applies
    """

    __slots__ = (
        'cores',
        'cpu_counts',
        'capacity_mib',
        'promised_mib',
        'guests',
        'vcpus',
        'demand_cores',
        'bandwidth_bytes_per_sec',
        'bandwidth_max_bytes_per_sec',
        'link_ratio',
        'distances',
        'members',
        'uniform',
        'rotation',
        'bytes_per_core_sec',
    )

    def __init__(
        self,
        cores: list[float],
        cpu_counts: list[int],
        capacity_mib: list[int],
        promised_mib: list[int],
        guests: list[float],
        vcpus: list[float],
        demand_cores: Column,
        bandwidth_bytes_per_sec: Column,
        bandwidth_max_bytes_per_sec: Column,
        link_ratio: Column,
        distances: tuple[tuple[float, ...], ...],
        members: tuple[tuple[int, ...], ...],
        uniform: bool | None = None,
        rotation: int = 0,
    ) -> None:
        """Store the columns.

        :param uniform: the value of the attribute, or None if the caller does not know it; if it
            is true, a column without any known value must be None
        """
        self.cores, self.cpu_counts = cores, cpu_counts
        self.capacity_mib, self.promised_mib = capacity_mib, promised_mib
        self.guests, self.vcpus = guests, vcpus
        demand, bandwidth = demand_cores, bandwidth_bytes_per_sec
        bandwidth_max, link = bandwidth_max_bytes_per_sec, link_ratio
        if uniform is None:
            demand, bandwidth, bandwidth_max, link = map(
                _none_if_unknown, (demand, bandwidth, bandwidth_max, link)
            )
            uniform = not (
                0 in cores
                or 0 in capacity_mib
                or (bandwidth_max and 0 in bandwidth_max)
                or any(
                    None in column for column in (demand, bandwidth, bandwidth_max, link) if column
                )
            )
        self.demand_cores, self.bandwidth_bytes_per_sec = demand, bandwidth
        self.bandwidth_max_bytes_per_sec, self.link_ratio = bandwidth_max, link
        self.distances, self.members = distances, members
        self.uniform, self.rotation = uniform, rotation
        self.bytes_per_core_sec = None
        if not demand or not bandwidth:
            return
        if uniform:  # traffic_per_core() inlined, because a call takes longer than this
            hundredths = round(100 * sum(demand))  # type: ignore[arg-type]  # uniform: no None in it
            if hundredths >= TRAFFIC_DEMAND_MIN_HUNDREDTHS:
                self.bytes_per_core_sec = (
                    100
                    * sum(bandwidth)  # type: ignore[arg-type]  # uniform: no None in it
                    / hundredths
                )
        else:  # a resource that a domain lacks is not unknown
            self.bytes_per_core_sec = traffic_per_core(
                [value for value, domain_cores in zip(demand, cores) if domain_cores],
                [value for value, mib in zip(bandwidth, capacity_mib) if mib or value is not None],
            )

    def view(self) -> model.HostView:
        """Return the domains as a :class:`model.HostView`, each with the id of its first node."""
        count = len(self.cores)
        demand, bandwidth, bandwidth_max, link = (
            column or [None] * count
            for column in (
                self.demand_cores,
                self.bandwidth_bytes_per_sec,
                self.bandwidth_max_bytes_per_sec,
                self.link_ratio,
            )
        )
        return model.HostView(
            tuple(
                model.NodeView(
                    self.members[position][0],
                    self.cores[position],
                    self.cpu_counts[position],
                    self.capacity_mib[position] * MIB,
                    self.promised_mib[position] * MIB,
                    self.guests[position],
                    self.vcpus[position],
                    demand[position],
                    bandwidth[position],
                    bandwidth_max[position],
                    link[position],
                )
                for position in range(count)
            ),
            self.distances,
            self.rotation,
        )

    def copy(self) -> HostColumns:
        """Return a copy whose amounts may be changed."""
        copy = HostColumns(
            self.cores,
            self.cpu_counts,
            self.capacity_mib,
            list(self.promised_mib),
            list(self.guests),
            list(self.vcpus),
            self.demand_cores and list(self.demand_cores),
            self.bandwidth_bytes_per_sec and list(self.bandwidth_bytes_per_sec),
            self.bandwidth_max_bytes_per_sec,
            self.link_ratio,
            self.distances,
            self.members,
            self.uniform,
            self.rotation,
        )
        copy.bytes_per_core_sec = self.bytes_per_core_sec
        return copy


def is_uniform(host: HostColumns | UniformHostColumns) -> TypeGuard[UniformHostColumns]:
    """Return :attr:`HostColumns.uniform`, which narrows the type for type checkers."""
    return host.uniform


def to_columns(view: model.HostView) -> HostColumns:
    """Return the columns of a host's memory domains from a view of its nodes.

    Memory is in whole MiB, as in Nova: promised memory is rounded up, capacity down.
    """
    merged, members = memory_domains.merge(view)
    nodes = merged.nodes
    return HostColumns(
        [node.cores for node in nodes],
        [node.cpu_count for node in nodes],
        [node.capacity_bytes // MIB for node in nodes],
        [-(-node.promised_bytes // MIB) for node in nodes],
        [node.guests for node in nodes],
        [node.vcpus for node in nodes],
        [node.demand_cores for node in nodes],
        [node.bandwidth_bytes_per_sec for node in nodes],
        [node.bandwidth_max_bytes_per_sec for node in nodes],
        [node.link_ratio for node in nodes],
        merged.distances,
        tuple(tuple(view.nodes[member].id for member in group) for group in members),
        rotation=view.rotation % len(members) if members else 0,
    )


def _none_if_unknown(column: Column) -> Column:
    """Return a column, or None if it has no known value."""
    if column is None or (column[0] is None and column.count(None) == len(column)):
        return None
    return column
