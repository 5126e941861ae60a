#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside the machine: place guests where a test wants them, in the way of the hook.

Reads one JSON request on standard input: ``{"homes": {guest: node}}``. CPUs and promise are
changed; memory follows as it is touched afterwards, so it is best to pause the guests.
"""

import json
import sys

import labguests

from nova_numa_pmc.conf import host_options
from nova_numa_pmc.host import cgroups, holding, topology
from nova_numa_pmc.host.cpusets import common_set
from nova_numa_pmc.state import promises_file

TIMEOUT_S = 30


def promise(name):
    """Return a guest's promise."""
    recorded = promises_file.read(host_options.read(host_options.PATH), '/').promises
    (promised,) = (promised for promised in recorded.values() if promised.name == name)
    return promised


def place(name, node, host):
    """Hold a guest's CPUs to a node, and promise it that node."""
    groups = cgroups.find(labguests.pids()[name])
    (cpus,) = (node_view.cpus for node_view in host.nodes if node_view.id == node)
    holding.hold(groups, cpus, written_cpus=common_set(groups, 'cpus') or frozenset())
    promises_file.replace_running(
        promise(name)._replace(cpu_nodes=(node,), mem_nodes=(node,)),
        host_options.read(host_options.PATH),
        '/',
        TIMEOUT_S,
    )


if __name__ == '__main__':
    nodes = topology.read()
    for guest, home in json.load(sys.stdin)['homes'].items():
        place(guest, home, nodes)
