# SPDX-License-Identifier: Apache-2.0
"""The loss of guests to waiting and to distance, according to two models that share no formula.

Both take the running guests with their parts on the nodes of their hosts, and return what each
guest wanted and could not use [cores].
"""

import numpy as np

from nova_numa_pmc.core import pressure
from tests.arena import parameters as p

LINE_BYTES = 64


class Running:
    """The guests that are running.

    :ivar guests: their numbers
    :ivar hosts: their hosts
    :ivar cpus: parts of their CPUs on the nodes of these hosts, nodes × guests
    :ivar memory: likewise of their memory
    :ivar want: what each wants [cores]
    :ivar waits: whether it shares its CPUs; a dedicated guest does not wait
    """

    def __init__(self, fleet, trace, guests, want):
        """Take the guests from the arrays of a fleet."""
        self.guests, self.want = guests, want
        self.hosts = fleet.host[guests]
        # numpy takes rows several times as fast as it indexes them.
        self.cpus = np.ascontiguousarray(fleet.cpu_parts.take(guests, 0).T)
        self.memory = np.ascontiguousarray(fleet.memory_parts.take(guests, 0).T)
        self.far_ns = fleet.far_ns[guests]
        self.lines, self.vcpus = trace.lines[guests], trace.vcpus[guests]
        self.waits = ~trace.dedicated[guests]

    def on_nodes(self, amounts, parts, count):
        """Sum amounts of guests over the nodes of so many hosts, hosts × nodes."""
        return np.array([np.bincount(self.hosts, amounts * part, count) for part in parts]).T

    def of_guests(self, values, parts):
        """Average the values of nodes, hosts × nodes, for each guest by its parts."""
        return sum(part * column[self.hosts] for part, column in zip(parts, values.T))


def waiting(excess, sigma):
    """Return E[max(0, x + σZ)], x the excess: what waits for CPUs, bursts included [cores].

    This is h of pressure.md: there v² is waiting · idle of an interval, which for a normal
    demand are exactly these means. It is 0 if no guest wants anything.
    """
    z = excess / np.maximum(sigma, 1e-12)
    clipped = np.clip(z, -8, 8)
    # Φ to 1e-4 (Page 1977): no erf in numpy.
    below = 1 / (1 + np.exp(-2 * clipped * (0.7988 + 0.03516 * clipped**2)))
    density = np.exp(-(clipped**2) / 2) * 0.3989422804014327
    found = np.maximum(0.0, sigma * density + excess * below)
    return np.where(z > 8, excess, np.where(z < -8, 0.0, found))


def by_pressure(running, hosts):
    """Return (lost by each guest, traffic of nodes [bytes/s]) by the project's definitions.

    Demand that exceeds the capacity waits, equally for all guests of a node; lines from n to m
    take ℓ_nm(u_m) − ℓ_nn longer, at most the time that the guest runs.
    """
    shared = np.where(running.waits, running.want, 0.0)
    demand = running.on_nodes(shared, running.cpus, hosts.count)
    busy = running.want / running.vcpus
    variance = shared * (1 - busy) * (1 + p.BURST * (running.vcpus - 1))
    sigma = np.sqrt(running.on_nodes(variance, running.cpus, hosts.count))
    waits = waiting(demand - hosts.cores, sigma) / np.maximum(demand, 1e-9)
    waited = shared * np.minimum(1.0, running.of_guests(waits, running.cpus))
    served = running.want - waited
    lines = served * running.lines
    traffic = running.on_nodes(lines * LINE_BYTES, running.memory, hosts.count)
    used = traffic / hosts.bandwidth
    knee = np.minimum(used, pressure.QUEUEING_KNEE)
    queueing = knee / (1 - knee) + (used - knee) / (1 - knee) ** 2
    queueing_ns = pressure.QUEUEING_FACTOR * p.LOCAL_NS * queueing
    extra_ns = running.far_ns + running.of_guests(queueing_ns, running.memory)
    distance = np.minimum(served, lines * extra_ns * 1e-9 / p.MLP)
    return waited + distance, traffic


class ProcessorSharing:
    """The second model: nodes serve in proportion, stalls stretch work, traffic lags behind.

    Written independently of the definitions, as tests/sim/host.py is: several draws of bursts per
    tick; an overloaded node serves all in proportion; of what a guest is served, a part is
    stalled waiting for remote or busy memory; the rest makes the traffic of the next draw.
    """

    DRAWS = 2

    def __init__(self, hosts):
        """Start with idle memory."""
        self._hosts = hosts
        self._used = np.zeros(hosts.bandwidth.shape)
        self._turn = 0

    def lost(self, running, bursts):
        """Return what each guest lost, as the mean of this tick's draws."""
        total = np.zeros(len(running.guests))
        for _ in range(self.DRAWS):
            self._turn += 1
            factor = bursts[running.guests, self._turn % bursts.shape[1]]
            total += self._draw(running, np.minimum(running.vcpus, running.want * factor))
        return total / self.DRAWS

    def _draw(self, running, asked):
        capacity, count = self._hosts.cores, self._hosts.count
        wanted = running.on_nodes(asked * running.waits, running.cpus, count)
        scale = np.minimum(1.0, capacity / np.maximum(wanted, 1e-9))
        granted = np.where(running.waits, running.of_guests(scale, running.cpus), 1.0)
        got = asked * np.minimum(1.0, granted)
        # An open queue up to 0.9, then a line: deliberately a different curve from the
        # definitions'.
        level = np.minimum(self._used, 0.9)
        slower_ns = 0.15 * p.LOCAL_NS * (level / (1 - level) + 100 * (self._used - level))
        stall_ns = running.far_ns + running.of_guests(slower_ns, running.memory)
        done = got / (1 + running.lines * stall_ns * 1e-9 / p.MLP)
        sent = running.on_nodes(done * running.lines * 64, running.memory, count)
        self._used += 0.5 * (sent / self._hosts.bandwidth - self._used)
        return asked - done
