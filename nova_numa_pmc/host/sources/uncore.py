# SPDX-License-Identifier: Apache-2.0
"""Count the traffic of each node's memory controllers, links and I/O by uncore PMUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import counter_roles, pressure, rates
from nova_numa_pmc.exceptions import SourceUnavailable
from nova_numa_pmc.host import cpu_topology
from nova_numa_pmc.host.perf import counters
from nova_numa_pmc.host.sources import owner_counters
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nova_numa_pmc.host.perf.counters import Wanted
    from nova_numa_pmc.host.perf.events import Event, EventSelection
    from nova_numa_pmc.model import Topology

    #: {node id: {(PMU, CPU): target and events}}
    WantedByNode = dict[int, dict[tuple[str, int], Wanted]]

#: Roles that are used here. A package has dozens of boxes for some of the others.
_ROLES = (*counter_roles.DATA_ROLES, counter_roles.IO_HIT, counter_roles.IO_MISS)


class UncoreUse(Record):
    """Use of one node's uncore; what was not counted is None.

    :param bandwidth_bytes_per_sec: bytes read + ω · bytes written
    :param read_lines_per_sec: lines read for CPUs of any node, without those read for devices
    :param link_bytes_per_sec: bytes sent to other sockets
    :param io_miss_ratio: share of requests of devices that missed the cache
    """

    bandwidth_bytes_per_sec: float | None = None
    read_lines_per_sec: float | None = None
    link_bytes_per_sec: float | None = None
    io_miss_ratio: float | None = None


class Uncore:
    """Counts uncore events, each once per package; not a source itself.

    :param select: function that returns the events that can be counted on this host
    """

    name = 'memory controllers'

    def __init__(self, select: Callable[[], EventSelection], root: str = '/') -> None:
        self._select = select
        self._root = root
        #: The online CPUs of each node for which the targets were chosen.
        self._online: tuple[frozenset[int], ...] | None = None
        self._wanted: WantedByNode = {}
        self._shared: tuple[str, ...] = ()
        self._owners: owner_counters.OwnerCounters[int, tuple[str, int]] = (
            owner_counters.OwnerCounters()
        )
        self.problems: tuple[str, ...] = ()

    def sample(self, host: Topology, elapsed_ns: int) -> dict[int, UncoreUse]:
        """Return {node id: use} of the nodes whose use is known.

        :raises SourceUnavailable: nothing can be counted
        """
        online = tuple(node.online_cpus for node in host.nodes)
        if online != self._online:  # the CPU that counts for a package may have changed
            self._wanted, shared = self._choose_targets(host)
            self._online = online
            self._shared = (
                (
                    'memory controllers: the nodes of a package share its counts, which '
                    'are left out: %s' % ', '.join(sorted(shared)),
                )
                if shared
                else ()
            )
        deltas, problems = self._owners.sample(self._wanted, idle_is_zero=False)
        self.problems = self._shared + problems
        return {node: self._use(node_deltas, elapsed_ns) for node, node_deltas in deltas.items()}

    def _choose_targets(self, host: Topology) -> tuple[WantedByNode, set[str]]:
        """Return (targets and events by node, roles whose counts several nodes share)."""
        uncore_events = tuple(
            event for event in self._select().events if event.cpus and event.role in _ROLES
        )
        if not uncore_events:
            raise SourceUnavailable('the kernel has no PMU for them here')
        wanted: WantedByNode = {node.id: {} for node in host.nodes}
        shared: set[str] = set()
        for (name, cpu), (target, events) in counters.uncore_targets(uncore_events).items():
            events_by_node: dict[int | None, list[Event]] = {}
            for event in events:
                events_by_node.setdefault(self._node(event, cpu, host), []).append(event)
            for node, node_events in events_by_node.items():
                if node is None:
                    shared.update(event.role for event in node_events)
                else:
                    wanted[node][name, cpu] = target, tuple(node_events)
        return wanted, shared

    def _node(self, event: Event, cpu: int, host: Topology) -> int | None:
        """Return the node that an event belongs to; None if several share it or it is unknown."""
        if event.node is not None:
            return event.node if event.node in {node.id for node in host.nodes} else None
        package = cpu_topology.socket(cpu, self._root)
        # If the kernel does not report packages, each node is taken to be one.
        package_nodes = [
            node
            for node in host.nodes
            if cpu in node.online_cpus
            or (
                package is not None
                and node.online_cpus
                and cpu_topology.socket(min(node.online_cpus), self._root) == package
            )
        ]
        if all(node.online_cpus.intersection(event.cpus or ()) for node in package_nodes):
            # The PMU has a box on each die of the package, and each die is a node.
            package_nodes = [node for node in package_nodes if cpu in node.online_cpus]
        return package_nodes[0].id if len(package_nodes) == 1 else None

    def _use(
        self, node_deltas: Mapping[str, rates.CounterDelta | None], elapsed_ns: int
    ) -> UncoreUse:
        """Return a node's use from what its events counted."""
        amounts = {
            role: None if delta is None else delta.value
            for role, delta in ((role, node_deltas.get(role)) for role in _ROLES)
        }
        read, written, traffic = (amounts[role] for role in counter_roles.MEMORY_ROLES)
        bandwidth = rates.per_sec(node_deltas.get(counter_roles.MEM_TRAFFIC), elapsed_ns)
        if traffic is None:
            bandwidth = pressure.bandwidth_bytes_per_sec(read, written, elapsed_ns)
        lines = (
            None
            if read is None or elapsed_ns <= 0
            else max(0.0, read - (amounts[counter_roles.IO_READ] or 0.0))
            * 1e9
            / (pressure.LINE_BYTES * elapsed_ns)
        )
        hit, miss = amounts[counter_roles.IO_HIT], amounts[counter_roles.IO_MISS]
        return UncoreUse(
            bandwidth,
            lines,
            rates.per_sec(node_deltas.get(counter_roles.LINK_TX), elapsed_ns),
            None if hit is None or miss is None else rates.ratio(miss, hit + miss),
        )

    def close(self) -> None:
        """Close the counters; the events are chosen again at the next sample."""
        self._owners.close()
        self._online = None
