# SPDX-License-Identifier: Apache-2.0
"""Shapes of hosts, as arrays of hosts × nodes.

Wherever there are arrays of hosts × nodes, each node's column is contiguous (numpy's order F):
numpy is up to ten times as fast along many hosts as along the few nodes of each.
"""

import numpy as np

from tests.arena import parameters as p

SHAPES = ('equal', 'generations', 'subnuma', 'pools')
#: ``Hosts.broken``: 0 is sound; otherwise, it is one more than the position in BROKEN_KINDS.
SOUND, ABSURD, STALE, ZERO, SKEWED = range(5)


def some(columns, at):
    """Return the rows of some hosts, whose columns are contiguous as well.

    :param columns: hosts, or hosts × nodes
    """
    return columns[at] if columns.ndim == 1 else columns.T.take(at, 1).T


class Hosts:
    """The hosts of a region, which do not change.

    :ivar cores: capacity of the CPUs that guests share [cores], hosts × nodes, as are
    :ivar threads: these CPUs
    :ivar dedicated: CPUs for dedicated guests
    :ivar memory_mib: memory
    :ivar bandwidth: of its memory [bytes/s]
    :ivar vcpus: ``threads`` of all nodes of each host, which is Nova's ``vcpus_total``; also of
        each host are
    :ivar cpus: all threads, the dedicated ones included
    :ivar ram_mib: memory
    :ivar agent: whether our agent publishes figures
    :ivar broken: in which way these figures are wrong
    :ivar phase: of its audits
    :ivar distances: SLIT, nodes × nodes: one for all
    :ivar far_ns: additional latency of the memory there, compared with local; likewise
    """

    def __init__(self, shape, count, rng, without_agent=p.WITHOUT_AGENT):
        """Create this number of hosts of a shape.

        :param rng: draws which hosts have no agent, which are broken, when audits are
        :param without_agent: fraction of hosts without an agent
        """
        kinds = {'generations': p.MIXED, 'subnuma': p.SUBNUMA}.get(shape, p.EQUAL)
        rows = [kinds[at % len(kinds)] for at in range(count)]
        nodes = rows[0][0]
        ones = np.ones((count, nodes), order='F')
        cores = ones * np.array([row[1] for row in rows])[:, None]
        self.count, self.nodes, self.shape = count, nodes, shape
        shared = 1 - p.DEDICATED_RATIO if shape == 'pools' else 1.0
        whole = np.floor(cores * shared)
        self.threads = (whole * p.THREADS_PER_CORE).astype(np.int64)
        self.dedicated = ((cores - whole) * p.THREADS_PER_CORE).astype(np.int64)
        # Rounded to hundredths, as it is published.
        self.cores = np.round(whole * (1 + p.SMT_RATIO * (p.THREADS_PER_CORE - 1)), 2)
        self.memory_mib = (ones * np.array([row[2] for row in rows])[:, None]).astype(np.int64)
        self.bandwidth = ones * np.array([row[3] for row in rows])[:, None]
        self.vcpus = self.threads.sum(1)
        self.cpus = self.vcpus + self.dedicated.sum(1)
        self.ram_mib = self.memory_mib.sum(1)
        self.distances = _distances(nodes)
        self.far_ns = (self.distances - p.DISTANCES[0]) * p.NS_PER_DISTANCE
        self._draw_agents(rng, without_agent)

    def _draw_agents(self, rng, without_agent):
        order = rng.permutation(self.count)
        blind = round(without_agent * self.count)
        wrong = min(
            max(1, round(p.BROKEN * self.count)), int(p.BROKEN_OF_KNOWN * (self.count - blind))
        )
        self.agent = np.ones(self.count, bool)
        self.agent[order[:blind]] = False
        self.broken = np.zeros(self.count, np.int64)
        first = int(rng.integers(len(p.BROKEN_KINDS)))
        for at, host in enumerate(order[blind : blind + wrong]):
            self.broken[host] = 1 + (first + at) % len(p.BROKEN_KINDS)
        self.phase = rng.integers(p.PHASES, size=self.count)


def _distances(nodes):
    """Return SLIT distances of two sockets with half of the nodes each."""
    own, socket, other = p.DISTANCES
    at = np.arange(nodes)
    half = at // max(1, nodes // 2)
    found = np.where(half[:, None] == half[None, :], socket, other)
    return np.where(at[:, None] == at[None, :], own, found).astype(float)
