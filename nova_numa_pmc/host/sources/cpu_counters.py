# SPDX-License-Identifier: Apache-2.0
"""Counters on each CPU, with a node's counts attributed to guests by their run time there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import rates
from nova_numa_pmc.core.build_sample import attribute_accesses_of_nodes
from nova_numa_pmc.core.evidence import Evidence
from nova_numa_pmc.core.sample_records import ATTRIBUTED
from nova_numa_pmc.exceptions import SourceUnavailable
from nova_numa_pmc.host.perf import perf_event
from nova_numa_pmc.host.sources import owner_counters

if TYPE_CHECKING:
    from collections.abc import Callable

    from nova_numa_pmc.core.build_sample import CpuRates
    from nova_numa_pmc.host.perf.events import Event, EventSelection
    from nova_numa_pmc.host.sources import SourceTick
    from nova_numa_pmc.model import Topology


class CpuCounters:
    """Counters of all that runs on each node's CPUs; not a source itself.

    :param select: function that returns the events that can be counted on this host
    :ivar roles: roles that may be counted
    """

    name = 'CPUs'

    def __init__(self, select: Callable[[], EventSelection], root: str = '/') -> None:
        self._select = select
        self._root = root
        self._events: tuple[Event, ...] | None = None
        self.roles: tuple[str, ...] = owner_counters.ROLES
        # The owners are nodes, and the keys are their CPUs.
        self._owners: owner_counters.OwnerCounters[int, int] = owner_counters.OwnerCounters()
        self.problems: tuple[str, ...] = ()

    def count_only(self, roles: tuple[str, ...]) -> None:
        """Count only these roles from now on."""
        if roles != self.roles:
            self.close()
            self.roles = roles

    def sample(self, host: Topology, elapsed_ns: int) -> dict[int, CpuRates]:
        """Return {node id: rates} of the nodes whose counts are known.

        :raises SourceUnavailable: nothing can be counted on any CPU
        """
        owner_counters.refuse_mediated_vpmu(self._root)
        events = self._events
        if events is None:
            events = self._events = tuple(
                event
                for event in owner_counters.core_events(self._select())
                if event.role in self.roles
            )
        deltas, problems = self._owners.sample(
            {
                node.id: {cpu: (perf_event.on_cpu(cpu), events) for cpu in node.online_cpus}
                for node in host.nodes
            },
            idle_is_zero=False,
        )
        self.problems = problems
        return {
            node: owner_counters.owner_rates(events, node_deltas, elapsed_ns)
            for node, node_deltas in deltas.items()
        }

    @property
    def with_prefetch(self) -> bool:
        """Return whether the counted accesses include prefetches."""
        return owner_counters.include_prefetches(self._events)

    def close(self) -> None:
        """Close the counters; the events are chosen again at the next sample."""
        self._owners.close()
        self._events = None


class CpuAttribution:
    """The source ``cpus``.

    A guest's share of a node's accesses is taken to be its share of the node's busy time.
    """

    name = 'cpus'
    problems: tuple[str, ...] = ()

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, as if all that ran on a node accessed memory at the same rate.

        :raises SourceUnavailable: the CPUs are not counted
        """
        if tick.before_ns is None:
            return {}
        counted = [
            node_rates
            for node_rates in tick.cpu_rates.values()
            if node_rates.local_per_sec is not None and node_rates.remote_per_sec is not None
        ]
        if not counted:
            raise SourceUnavailable('the CPUs are not counted')
        counted_ratio = min(
            (
                node_rates.counted_ratio
                for node_rates in counted
                if node_rates.counted_ratio is not None
            ),
            default=None,
        )
        evidence = {}
        for running in tick.guests:
            attributed = attribute_accesses_of_nodes(
                running.cores_by_node, tick.cpu_rates, tick.busy_cores
            )
            if attributed is None:
                continue
            local, remote = attributed
            evidence[running.guest.uuid] = Evidence(
                self.name,
                ATTRIBUTED,
                local,
                remote,
                rates.remote_ratio(local, remote),
                counted_ratio=counted_ratio,
            )
        return evidence

    def close(self) -> None:
        """Do nothing, since the counters belong to the sampler."""
