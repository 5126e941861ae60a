# SPDX-License-Identifier: Apache-2.0
"""Count the traffic of each node's memory controllers, links and I/O by uncore PMUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nova_numa_pmc.core import rates
from nova_numa_pmc.core.measurements import NodeSample
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.exceptions import SourceUnavailable
from nova_numa_pmc.host import firmware, topology
from nova_numa_pmc.host.perf import counters, event_table, perf_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nova_numa_pmc.host.perf.counters import Wanted
    from nova_numa_pmc.host.perf.events import Event, EventSelection
    from nova_numa_pmc.model import Topology

    #: A node's id, and the name of one of its links; '' for all but the links.
    Owner = tuple[int, str]
    #: {owner: {(PMU, CPU): target and events}}
    WantedByOwner = dict[Owner, dict[tuple[str, int], Wanted]]

#: PMUs that have a box for each memory channel.
_CHANNEL_PMU = re.compile(r'(uncore_imc_|amd_umc_|hisi_sccl\d+_ddrc)\d+')
_CHANNELS_MAX = 64


class Uncore:
    """Counts uncore events, each once per package; not a source itself.

    :param select: function that returns the events that can be counted on this host
    :ivar channels: {node id: number of its memory channels}, where it is known
    """

    name = 'memory controllers'

    def __init__(self, select: Callable[[], EventSelection], root: str = '/') -> None:
        self._select = select
        self._root = root
        #: The online CPUs of each node for which the targets were chosen.
        self._online: tuple[frozenset[int], ...] | None = None
        self._wanted: WantedByOwner = {}
        self._shared: tuple[str, ...] = ()
        self._owners: counters.OwnerCounters[Owner, tuple[str, int]] = counters.OwnerCounters()
        self._clock_max: dict[int, float] = {}
        self.channels: dict[int, int] = {}
        self.problems: tuple[str, ...] = ()

    def sample(self, host: Topology) -> dict[int, NodeSample]:
        """Return {node id: what its uncore counted}, with what its clocks allow as the maximum.

        :raises SourceUnavailable: nothing can be counted
        """
        online = tuple(node.online_cpus for node in host.nodes)
        if online != self._online:  # the CPU that counts for a package may have changed
            selection = self._select()
            self._wanted, shared = self._choose_targets(host, selection.events)
            self._online = online
            row_max = selection.row.channels_max if selection.row else None
            self.channels = _channels(self._wanted, row_max or _CHANNELS_MAX)
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
        return {
            node: self._use(node, node_deltas, self._owners.counted_ns[node, link])._replace(
                link_ratio=self._busiest_link_ratio(node, deltas)
            )
            for (node, link), node_deltas in deltas.items()
            if link == ''
        }

    def _busiest_link_ratio(
        self, node: int, deltas: Mapping[Owner, counters.Deltas]
    ) -> float | None:
        """Return the highest utilisation of a node's links; None if one of them is unknown."""
        ratios = [
            _link_ratio(
                self._wanted[owner], deltas.get(owner, {}), self._owners.counted_ns.get(owner, 0)
            )
            for owner in self._wanted
            if owner[0] == node and owner[1] != ''
        ]
        known_ratios = all_known(ratios)
        return max(known_ratios) if known_ratios else None

    def _choose_targets(
        self, host: Topology, selected: Iterable[Event]
    ) -> tuple[WantedByOwner, set[str]]:
        """Return (targets and events by owner, roles whose counts several nodes share)."""
        uncore_events = tuple(
            event for event in selected if event.cpus and event.role in rates.UNCORE_ROLES
        )
        if not uncore_events:
            raise SourceUnavailable('the kernel has no PMU for them here')
        wanted: WantedByOwner = {(node.id, ''): {} for node in host.nodes}
        shared: set[str] = set()
        for event in uncore_events:
            for cpu in event.cpus or ():
                node = self._node(event, cpu, host)
                if node is None:
                    shared.add(event.role)
                    continue
                targets = wanted.setdefault((node, _link(event)), {})
                # Each box is read once per package, on the CPU that its ``cpumask`` names.
                target, others = targets.get((event.pmu, cpu), (perf_event.on_cpu(cpu), ()))
                targets[event.pmu, cpu] = target, (*others, event)
        return wanted, shared

    def _node(self, event: Event, cpu: int, host: Topology) -> int | None:
        """Return the node that an event belongs to; None if several share it or it is unknown."""
        if event.node is not None:
            return event.node if event.node in {node.id for node in host.nodes} else None
        package = topology.socket(cpu, self._root)
        # If the kernel does not report packages, each node is taken to be one.
        package_nodes = [
            node
            for node in host.nodes
            if cpu in node.online_cpus
            or (
                package is not None
                and node.online_cpus
                and topology.socket(min(node.online_cpus), self._root) == package
            )
        ]
        if event_table.NODE_OF_CPU in event.caveats or all(
            node.online_cpus.intersection(event.cpus or ()) for node in package_nodes
        ):
            # The PMU has a box on each die of the package, and each die is a node.
            package_nodes = [node for node in package_nodes if cpu in node.online_cpus]
        return package_nodes[0].id if len(package_nodes) == 1 else None

    def _use(
        self, node: int, node_deltas: Mapping[str, rates.CounterDelta | None], elapsed_ns: int
    ) -> NodeSample:
        """Return a node's use from what its events counted.

        What the clocks of its memory controllers allow is at the highest frequency that they have
        had. It does not change, but in a package's sleep (C3 and deeper) they have no clock (Intel
        329468, *POWER_SELF_REFRESH*).
        """
        per_sec = {
            role: rates.per_sec(node_deltas.get(role), elapsed_ns) for role in rates.UNCORE_ROLES
        }
        read, written, bandwidth = (per_sec[role] for role in rates.MEMORY_ROLES)
        if bandwidth is None and read is not None and written is not None:
            bandwidth = read + written
        clock_max = per_sec[rates.MEM_MAX]
        if clock_max is not None:
            self._clock_max[node] = max(self._clock_max.get(node, 0.0), clock_max)
        hit, miss = per_sec[rates.IO_HIT], per_sec[rates.IO_MISS]
        return NodeSample(
            node,
            bandwidth_bytes_per_sec=bandwidth,
            bandwidth_max_bytes_per_sec=self._clock_max.get(node),
            io_miss_ratio=None if hit is None or miss is None else rates.ratio(miss, hit + miss),
        )

    def close(self) -> None:
        """Close the counters; the events are chosen again at the next sample."""
        self._owners.close()
        self._online = None


def _link(event: Event) -> str:
    """Return the name of the link that an event counts; '' if it counts something else.

    A link has a box of its own, unless its maximum is rated: one box counts all of AMD's links.
    """
    if event.role not in rates.LINK_ROLES:
        return ''
    return event.name if event.rated_bytes_per_sec else event.pmu


def _link_ratio(
    targets: Mapping[tuple[str, int], Wanted], deltas: counters.Deltas, elapsed_ns: int
) -> float | None:
    """Return a link's utilisation; 0 if its clock stands still because it is not connected."""
    sent, possible = (deltas.get(role) for role in rates.LINK_ROLES)
    rated_bytes_per_sec = max(
        event.rated_bytes_per_sec or 0.0 for _, events in targets.values() for event in events
    )
    possible_bytes = possible.value if possible else rated_bytes_per_sec * elapsed_ns / 1e9
    if sent is None or (possible is None and not possible_bytes):
        return None
    return rates.ratio(sent.value, firmware.EFFICIENCY * possible_bytes) or 0.0


def _channels(wanted: WantedByOwner, channels_max: int) -> dict[int, int]:
    """Return {node id: number of channels}, each with a box or, on AMD's fabric, an event."""
    channels: dict[int, int] = {}
    for (node, _), targets in wanted.items():
        for (pmu, _), (_, events) in targets.items():
            roles = [event.role for event in events]
            number = roles.count(rates.MEM_TRAFFIC)
            if rates.MEM_READ in roles and _CHANNEL_PMU.fullmatch(pmu):
                number = 1
            if number:
                channels[node] = min(channels_max, channels.get(node, 0) + number)
    return channels
