# SPDX-License-Identifier: Apache-2.0
"""Let guests that wait for the CPUs of their L3 cache use all CPUs of their nodes.

At its start, a guest is held to an L3 cache on which the promised vCPUs leave room
(``core/placement/l3.py``). If demand grows, the guests of the cache would wait while CPUs are
idle, and do worse than floating guests. A widened guest stays widened until it is moved or
restarted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility, pools
from nova_numa_pmc.core.host_view import capacity_cores_by_node
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.agent.tick import Tick
    from nova_numa_pmc.conf.host_options import HostOptions
    from nova_numa_pmc.core.sample_records import NodeSample, Sample
    from nova_numa_pmc.state.promises_file import HostPromises

    #: The node ids and the CPUs of a promise, which identify a cache.
    _Cache = tuple[tuple[int, ...], tuple[int, ...]]

#: A guest is widened once the guests of its cache have waited this long while CPUs were idle
#: [core-seconds] (assumed: a few times the cost of cold caches after such a change).
WIDEN_AFTER_CORE_SEC = 10.0
#: Waiting on one cache up to this amount is treated as noise [cores].
NOISE_CORES = 0.1
#: A sample counts for at most this time, however long its interval was [s].
INTERVAL_MAX_S = 60.0


class CacheWidening:
    """Adds up how long the guests of each cache wait while CPUs are idle, and widens guests."""

    def __init__(self, host_options: HostOptions, root: str, log: logging.Logger) -> None:
        self.host_options = host_options
        self._root = root
        self._log = log
        self._waited_core_sec: dict[_Cache, float] = {}

    def widen(self, tick: Tick) -> None:
        """Widen the guest that waits most, on each cache on which waiting persists.

        :param tick: a tick with a sample, the host and its promises; changed ones are replaced
        :raises StateError: a promise cannot be written
        """
        assert tick.sample is not None and tick.host is not None and tick.host_promises is not None
        waiting = self._waiting(tick.sample, tick.host_promises, tick.host, tick.guests)
        waiters_by_cache: dict[_Cache, list[tuple[float, model.Promise]]] = {}
        for promise, waiting_cores in waiting:
            cache = (promise.cpu_nodes, promise.l3_cpus)
            waiters_by_cache.setdefault(cache, []).append((waiting_cores, promise))
        elapsed_s = min(tick.sample.elapsed_s or 0.0, INTERVAL_MAX_S)
        cores = capacity_cores_by_node(tick.host, self.host_options.placement_options)
        before, self._waited_core_sec = self._waited_core_sec, {}
        for cache, waiters in waiters_by_cache.items():
            # The waiting is also included in the demand on the nodes, so it is added to the room.
            total_cores = sum(waiting_cores for waiting_cores, _ in waiters)
            room_cores = max(
                0.0, self._room_cores(tick.sample.nodes, cache[0], cores) + total_cores
            )
            excess_cores = min(total_cores, room_cores) - NOISE_CORES
            waited_core_sec = max(0.0, before.get(cache, 0.0) + excess_cores * elapsed_s)
            if waited_core_sec < WIDEN_AFTER_CORE_SEC:
                self._waited_core_sec[cache] = waited_core_sec
                continue
            waiting_cores, promise = max(waiters, key=lambda waiter: (waiter[0], waiter[1].uuid))
            widened_promise = promises_file.update_running(
                promise, self.host_options, self._root, l3_cpus=()
            )
            if widened_promise is None:
                continue
            tick.host_promises.put(widened_promise)
            self._log.info(
                'guest %s: given all CPUs of %s: it is short of %.1f cores on its L3 cache '
                'while other CPUs are idle',
                promise.name,
                name_nodes(promise.cpu_nodes),
                waiting_cores,
            )

    @staticmethod
    def _waiting(
        sample: Sample,
        host_promises: HostPromises,
        host: model.Topology,
        running: Iterable[model.Guest],
    ) -> list[tuple[model.Promise, float]]:
        """List (promise, cores waited for) for the guests held to a cache, where this is known.

        A guest that has grown beyond its cache has all CPUs of its nodes already. Guests
        that are not held, and those of which others have pinned vCPUs, are left out.
        """
        waiting, waiting_cores = [], {guest.uuid: guest.waiting_cores for guest in sample.guests}
        for guest in running:
            promise, cores = host_promises.promises.get(guest.uuid), waiting_cores.get(guest.uuid)
            if (
                promise is not None
                and promise.l3_cpus
                and promise.started
                and promise.origin == model.PLACED
                and not eligibility.why_not(eligibility.HOLD, guest)
                and guest.pinned_cpus is None
                and cores is not None
                and pools.cpus_of_promise(promise, host, guest)
                < pools.cpus_on(promise.cpu_nodes, host, guest)
            ):
                waiting.append((promise, cores))
        return waiting

    @staticmethod
    def _room_cores(
        samples: Iterable[NodeSample], nodes: tuple[int, ...], cores: Mapping[int, float]
    ) -> float:
        """Return the spare capacity of some nodes [cores]; -inf if a demand is unknown."""
        room_cores = 0.0
        for node in samples:
            if node.id in nodes:
                if node.demand_cores is None:
                    return float('-inf')
                room_cores += cores.get(node.id, 0.0) - node.demand_cores
        return room_cores
