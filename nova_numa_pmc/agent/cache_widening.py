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
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

    from nova_numa_pmc.agent.agent import Tick
    from nova_numa_pmc.conf.host_options import HostOptions

#: A guest is widened once it has waited this long while CPUs were idle [core-seconds] (assumed: a
#: few times the cost of cold caches after such a change).
WIDEN_AFTER_CORE_SEC = 10.0
#: Waiting of one guest up to this amount is treated as noise [cores].
NOISE_CORES = 0.1
#: A sample counts for at most this time, however long its interval was [s].
INTERVAL_MAX_S = 60.0


class CacheWidening:
    """Adds up how long guests wait for their cache while other CPUs are idle, and widens them."""

    def __init__(self, host_options: HostOptions, root: str, log: logging.Logger) -> None:
        self.host_options = host_options
        self._root = root
        self._log = log
        self._waited_core_sec: dict[str, float] = {}  # by uuid

    def widen(self, tick: Tick) -> None:
        """Widen the guest that has waited most, if it has for long enough.

        How long the others have waited is then added up anew, as they may wait less without it.

        :param tick: a tick with a sample, the host and its promises; changed ones are replaced
        :raises StateError: a promise cannot be written
        """
        assert tick.sample is not None and tick.host is not None and tick.host_promises is not None
        waiters = list(self._waiters(tick))
        room_cores = {
            node.id: node.capacity_cores - node.demand_cores
            for node in tick.sample.nodes
            if node.capacity_cores is not None and node.demand_cores is not None
        }
        elapsed_s = min(tick.sample.elapsed_s or 0.0, INTERVAL_MAX_S)
        before, self._waited_core_sec = self._waited_core_sec, {}
        for promise, waiting_cores in waiters:
            idle_cores = sum(room_cores.get(node, float('-inf')) for node in promise.cpu_nodes)
            # What waits for a cache is included in the demand on the nodes.
            idle_cores += sum(
                cores for other, cores in waiters if other.cpu_nodes == promise.cpu_nodes
            )
            excess_cores = min(waiting_cores, max(0.0, idle_cores)) - NOISE_CORES
            self._waited_core_sec[promise.uuid] = max(
                0.0, before.get(promise.uuid, 0.0) + excess_cores * elapsed_s
            )
        if max(self._waited_core_sec.values(), default=0.0) < WIDEN_AFTER_CORE_SEC:
            return
        promise, waiting_cores = max(
            waiters, key=lambda waiter: (self._waited_core_sec[waiter[0].uuid], waiter[0].uuid)
        )
        self._waited_core_sec = {}
        widened_promise = promises_file.update_running(
            promise, self.host_options, self._root, l3_cpus=()
        )
        if widened_promise is not None:
            tick.host_promises.put(widened_promise)
            self._log.info(
                'guest %s: given all CPUs of %s: it is short of %.1f cores on its L3 cache '
                'while other CPUs are idle',
                promise.name,
                name_nodes(promise.cpu_nodes),
                waiting_cores,
            )

    @staticmethod
    def _waiters(tick: Tick) -> Iterator[tuple[model.Promise, float]]:
        """Yield (promise, cores waited for) of the guests held to a cache, where this is known.

        A guest that has grown beyond its cache has all CPUs of its nodes already. Guests
        that are not held, and those of which others have pinned vCPUs, are left out.
        """
        assert tick.sample is not None and tick.host is not None and tick.host_promises is not None
        waiting_cores = {guest.uuid: guest.waiting_cores for guest in tick.sample.guests}
        for guest in tick.guests:
            promise = tick.host_promises.promises.get(guest.uuid)
            cores = waiting_cores.get(guest.uuid)
            if (
                promise is not None
                and promise.l3_cpus
                and promise.started
                and promise.origin == model.PLACED
                and not eligibility.why_not(eligibility.HOLD, guest)
                and guest.pinned_cpus is None
                and cores is not None
                and pools.cpus_of_promise(promise, tick.host, guest)
                < pools.cpus_on(promise.cpu_nodes, tick.host, guest)
            ):
                yield promise, cores
