# SPDX-License-Identifier: Apache-2.0
"""Let guests that wait for the CPUs of their L3 cache use all of their nodes.

At its start a guest is held to an L3 cache on which the promised vCPUs leave room
(``core/placement/l3.py``). If demand grows, its guests would wait beside idle CPUs, and do worse
than floating guests. A widened guest stays widened until it is moved or restarted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nova_numa_pmc import model, promises
from nova_numa_pmc.conf.host_options import HostOptions
from nova_numa_pmc.core import pools
from nova_numa_pmc.core.host_view import capacity_cores
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.promises_upkeep import LOCK_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.agent.tick import Tick
    from nova_numa_pmc.sample_records import NodeSample, Sample
    from nova_numa_pmc.state.promises_format import HostPromises

    #: Node ids and CPUs of a promise.
    _Cache = tuple[tuple[int, ...], tuple[int, ...]]

#: A guest is widened once those of its cache have waited this long beside idle CPUs [core-seconds]
#: (assumed: a few times what the cold caches of such a change cost).
WIDEN_AFTER_CORE_SEC = 10.0
#: Waiting on one cache up to this is noise [cores].
NOISE_CORES = 0.1
#: A sample counts for at most this long, however late the next one is [s].
INTERVAL_MAX_S = 60.0


class CacheWidening:
    """Adds up how long the guests of each cache wait beside idle CPUs, and widens them."""

    def __init__(self, options: HostOptions, root: str, log: logging.Logger) -> None:
        self.options = options
        self._root, self._log = root, log
        self._waited: dict[_Cache, float] = {}  # [core-seconds]

    def widen(self, tick: Tick) -> Tick:
        """Widen the guest that waits most on each cache with lasting waits; return the tick.

        :param tick: with sample, host and promises
        :raises StateError: a promise cannot be written
        """
        assert tick.sample is not None and tick.host is not None and tick.host_promises is not None
        waiting = self._waiting(tick.sample, tick.host_promises, tick.host, tick.guests)
        guests: dict[_Cache, list[tuple[float, model.Promise]]] = {}
        for guest, waits in waiting:
            guests.setdefault((guest.cpu_nodes, guest.cpus), []).append((waits, guest))
        elapsed_s = min(tick.sample.elapsed_s or 0.0, INTERVAL_MAX_S)
        cores = dict(
            zip(
                (node.id for node in tick.host.nodes),
                capacity_cores(tick.host, self.options.limits),
            )
        )
        before, self._waited = self._waited, {}
        widened: dict[str, model.Promise] = {}
        for key, waiters in guests.items():
            # This waiting is part of the demand on the nodes, too.
            waits = sum(waiting for waiting, _ in waiters)
            spared = min(waits, max(0.0, self._room(tick.sample.nodes, key[0], cores) + waits))
            waited = max(0.0, before.get(key, 0.0) + (spared - NOISE_CORES) * elapsed_s)
            if waited < WIDEN_AFTER_CORE_SEC:
                self._waited[key] = waited
                continue
            waiting_cores, promise = max(waiters, key=lambda waiter: (waiter[0], waiter[1].uuid))
            after = promise._replace(cpus=())
            promises.record_started(after, self.options, self._root, LOCK_TIMEOUT_S)
            widened[promise.uuid] = after
            self._log.info(
                'guest %s: given all CPUs of %s: it is short of %.1f cores on its L3 cache '
                'while others are idle',
                promise.name,
                name_nodes(promise.cpu_nodes),
                waiting_cores,
            )
        return tick.with_promises(widened)

    @staticmethod
    def _waiting(
        sample: Sample,
        host_promises: HostPromises,
        host: model.Topology,
        running: Iterable[model.Guest],
    ) -> list[tuple[model.Promise, float]]:
        """List (promise, cores that it waits for) of the guests held to a cache, where known.

        One that has grown beyond its cache has all CPUs of its nodes already.
        """
        waiting, waits = [], {guest.uuid: guest.waiting_cores for guest in sample.guests}
        for guest in running:
            promise, cores = host_promises.promises.get(guest.uuid), waits.get(guest.uuid)
            if (
                promise is not None
                and promise.cpus
                and promise.started
                and promise.origin == model.PLACED
                and cores is not None
                and pools.cpus_held(promise, host, guest)
                < pools.cpus_on(promise.cpu_nodes, host, guest)
            ):
                waiting.append((promise, cores))
        return waiting

    @staticmethod
    def _room(
        samples: Iterable[NodeSample], nodes: tuple[int, ...], cores: Mapping[int, float]
    ) -> float:
        """Return the spare capacity of some nodes [cores]; unknown counts as no idle CPUs."""
        room = 0.0
        for node in samples:
            if node.id in nodes:
                if node.demand_cores is None:
                    return float('-inf')
                room += cores.get(node.id, 0.0) - node.demand_cores
        return room
