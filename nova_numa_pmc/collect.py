# SPDX-License-Identifier: Apache-2.0
"""Measure a host: read everything once a tick, difference it with the tick before.

:class:`Sampler` is the one door for ``top``, ``record`` and the agent.
"""

import time

from nova_numa_pmc import counting, promises
from nova_numa_pmc.core import pressure, samples, view
from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host import cpu_times, events, pfm, running, topology
from nova_numa_pmc.host.sources import Tick, cpu_counters, guest_counters, ladder, pages
from nova_numa_pmc.sample import Sample


class Sampler:
    """Read a host again and again; each reading is over the time since the one before.

    :param options: :class:`counting.Options`; None: the defaults
    :param root: where proc, sys and run are (tests)
    """

    def __init__(self, options=None, root='/'):
        self._options = options or counting.Options()
        self._root = root
        self._guests = running.Guests(root)
        self._cpus = cpu_counters.CpuCounters(self._select, root)
        self._trials = ladder.Trials()
        self._ladder = ladder.Ladder(self._rungs())
        self._libpfm = None
        self._before_ns = None
        self._times = (None, None)  # busy and waiting ns by CPU
        self._devices = {}          # PCI address → node id or None

    def sample(self, now_ns=None, taken_s=None):
        """Return what was measured since the last call; all rates of a first one are None.

        It never sleeps and never raises for what can't be read: that is in ``problems``.

        :param now_ns: CLOCK_MONOTONIC; None: now
        :param taken_s: CLOCK_REALTIME [s]; None: now
        :rtype: nova_numa_pmc.sample.Sample
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        taken_s = time.time() if taken_s is None else taken_s
        before_ns, self._before_ns = self._before_ns, now_ns
        elapsed_ns = 0 if before_ns is None else max(0, now_ns - before_ns)
        try:
            host = promises.usable_host(self._root)
        except TopologyError as error:
            return Sample(taken_s, elapsed_ns / 1e9, '', problems=(str(error),))
        guests, problems = self._guests.read(host, now_ns, elapsed_ns)
        busy, waiting = self._cpu_use(host, elapsed_ns)
        counts = self._count_cpus(host, elapsed_ns, problems)
        found = self._ladder.sample(Tick(before_ns, now_ns, host, guests, busy, counts))
        problems += found.problems
        told = tuple(samples.guest_sample(
            one, found.evidence.get(one.guest.uuid), self._device_nodes(one.guest, problems))
            for one in guests)
        uses = [_use(node, busy, waiting, counts, guests) for node in host.nodes]
        nodes, _ = samples.node_samples(host.nodes, uses, self._abilities(host), told)
        return Sample(taken_s, elapsed_ns / 1e9, found.source, nodes, told,
                      tuple(dict.fromkeys(problems)))

    def _rungs(self):
        make = {
            counting.GUESTS: lambda: guest_counters.GuestCounters(
                self._select, self._options.scope, self._root),
            counting.CPUS: cpu_counters.CpuShare,
            counting.PAGES: pages.Pages,
        }
        names = [name for name in self._options.sources if name in make and (
            self._options.enabled or name not in (counting.GUESTS, counting.CPUS))]
        return [make[name]() for name in names]

    def _select(self):
        """Choose the events of this host."""
        if self._libpfm is None:
            self._libpfm = pfm.load()
        return events.select(self._root, overrides=dict(self._options.events),
                             libpfm=self._libpfm)

    def _cpu_use(self, host, elapsed_ns):
        """Return ({node id: cores busy}, {node id: cores waited for}); None in them: unknown."""
        before = self._times
        self._times = cpu_times.busy_ns(self._root), cpu_times.waiting_ns(self._root)
        return tuple(
            {node: None if passed is None or not elapsed_ns else passed / elapsed_ns
             for node, passed in cpu_times.by_node(old, new, host).items()}
            for old, new in zip(before, self._times))

    def _count_cpus(self, host, elapsed_ns, problems):
        if not self._options.enabled:
            return {}
        return self._trials.sample(self._cpus, problems, host, elapsed_ns) or {}

    def _device_nodes(self, guest, problems):
        found = []
        for address in guest.devices:
            if address not in self._devices:
                try:
                    self._devices[address] = topology.device_node(address, self._root)
                except TopologyError as error:
                    problems.append(str(error))
            found.append((address, self._devices.get(address)))
        return found

    def _abilities(self, host):
        options = self._options
        return samples.Abilities(
            view.capacity_cores(host, options.limits),
            _by_position(host, options.bandwidth_max), _by_position(host, options.link_max),
            self._latencies(host), pressure.MLP_DEMAND)

    def _latencies(self, host):
        rows = _by_position(host, self._options.latencies_ns)
        if all(row is not None and len(row) == len(host.nodes) for row in rows):
            return rows
        return pressure.slit_latencies_ns(host.distances, self._options.local_latency_ns)

    def close(self):
        """Close what is open."""
        self._ladder.close()
        self._cpus.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _by_position(host, pairs):
    values = dict(pairs)
    return tuple(values.get(node.id) for node in host.nodes)


def _use(node, busy, waiting, counts, guests):
    """Return a node's :class:`samples.NodeUse`.

    D_n is the time its CPUs were busy and that threads waited for them. Where the kernel does
    not tell the waiting, it is that of the guests, where they ran.
    """
    wait = waiting[node.id]
    if wait is None:
        wait = sum((one.waiting_cores or 0.0) * one.cores_by_node.get(node.id, 0.0) / one.cores
                   for one in guests if one.cores)
    demand = None if busy[node.id] is None else busy[node.id] + wait
    told = counts.get(node.id)
    if not node.online_cpus:
        return samples.NodeUse(demand, busy[node.id], 0.0, 0.0)  # memory only
    if told is None:
        return samples.NodeUse(demand, busy[node.id])
    return samples.NodeUse(demand, busy[node.id], told.local_per_sec, told.remote_per_sec,
                           told.cycles_per_sec, told.instructions_per_sec)
