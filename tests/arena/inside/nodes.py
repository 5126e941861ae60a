# SPDX-License-Identifier: Apache-2.0
"""Parts of a guest by node, as all ways compute them for the nodes that they chose."""

import numpy as np

from tests.arena import fleet as fleets, parameters as p


def parts(nodes, weights):
    """Divide a guest among nodes in proportion to weights."""
    row = np.zeros(len(weights))
    if len(nodes) == 1:
        row[nodes[0]] = 1.0
        return row
    for node in nodes:
        row[node] = max(weights[node], p.RESERVED_MIB * 1e-6)
    return row / row.sum()


def on(fleet, host, guest, nodes, own_mib=0):
    """Return parts on nodes: CPUs by their capacity, memory by what is free.

    Memory that does not fit there is on the other nodes.

    :param own_mib: the guest's memory on each node so far
    """
    free_mib = fleet.free_mib(host) + own_mib
    memory_mib = free_mib * parts(nodes, np.ones(len(free_mib))).astype(bool)
    short_mib = fleet.trace.memory_mib[guest] - memory_mib.sum()
    if short_mib > 0:
        rest_mib = np.where(memory_mib, 0, free_mib)
        memory_mib = memory_mib + short_mib * rest_mib / max(1, rest_mib.sum())
    return parts(nodes, fleet.hosts.cores[host]), memory_mib / memory_mib.sum()


def dedicated(fleet, host):
    """Give a guest CPUs of its own on the node with the most free memory, as Nova pins it."""
    best = (int(np.argmax(fleet.free_mib(host))),)
    row = parts(best, fleet.hosts.cores[host])
    return row, row


def shared_guests(fleet, host):
    """Return the guests that run on a host, except for dedicated ones."""
    runs = (fleet.host == host) & (fleet.state == fleets.RUNS)
    return np.flatnonzero(runs & ~fleet.trace.dedicated)


def used(fleet, host, guests):
    """Return what a host's guests use and what is idle on its nodes, as last measured [cores].

    An overloaded node serves all of its guests in proportion.
    """
    wanted, cpus = fleet.wanted[guests], fleet.cpu_parts[guests]
    cores, on_nodes = fleet.hosts.cores[host], wanted @ cpus
    scale = np.minimum(1.0, cores / np.maximum(on_nodes, 1e-9))
    return wanted * (cpus @ scale), np.maximum(0.0, cores - on_nodes)
