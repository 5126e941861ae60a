# SPDX-License-Identifier: Apache-2.0
"""How other projects place guests within a host."""

import itertools
import math

import numpy as np

from tests.arena import parameters as p
from tests.arena.inside import nodes

#: numad's constants: MiB that it leaves free on a node; how much of their share guests should use;
#: guests that use less than these cores or MiB are left alone; the fraction of a guest's memory
#: that should be on its nodes.
MBS_MARGIN, TARGET_UTILIZATION, CPU_THRESHOLD, MEMORY_THRESHOLD, LOCALITY = (
    100,
    0.85,
    0.5,
    300,
    0.9,
)


def floating(fleet, host, guest):
    """Leave the guest and its memory floating over all nodes.

    Source: nova 34.0.0, nova/virt/libvirt/driver.py: a guest without ``hw:numa_nodes`` and
    ``hw:cpu_policy`` has no affinity.
    Formula: CPUs by the nodes' capacity, memory by what is free there.
    Deviations: the kernel's load balancing is perfect, its NUMA balancing is off.
    """
    return nodes.on(fleet, host, guest, range(fleet.hosts.nodes))


# ---- numad -------------------------------------------------------------------------------


def numad(fleet, host, guest):
    """Ask numad for advice once, as libvirt does for ``<vcpu placement='auto'>``.

    Source: numad 20160428, https://github.com/yhaenggi/numad/blob/1cfc731/numad.c (a copy of
    https://pagure.io/numad), ``pick_numa_nodes``; libvirt calls ``numad -w vCPUs:MiB`` and
    binds CPUs and memory (strict) to the answer.
    Formula: :func:`numad_nodes` of the nodes' idle CPUs and free memory.
    Deviations: idle CPUs are based on a minute's mean instead of a fraction of a second; a sibling
    is worth 25 % of a core as in the rest of the arena, not 20; memory counts as used once it is
    promised, so that numad also sees what guests have not touched yet.
    """
    idle = nodes.used(fleet, host, nodes.shared_guests(fleet, host))[1]
    wanted = int(fleet.trace.vcpus[guest]), int(fleet.trace.memory_mib[guest])
    free = list(zip(idle.tolist(), fleet.free_mib(host).tolist()))
    return nodes.on(fleet, host, guest, numad_nodes(fleet, host, free, wanted))


def numad_daemon(fleet, guests):
    """Move guests as numad's daemon does, examining each once in five minutes.

    Source: as :func:`numad`, ``manage_loads`` and ``bind_process_and_migrate_memory``.
    Formula: those that use more than half a CPU and 300 MiB, CPUs · MiB descending, ask
    :func:`numad_nodes` for what they use / 85 % (at most their vCPUs); what they have on a node
    counts as free there, memory 5/4 fold; they move if the answer is another or more than 10 % of
    their memory is elsewhere.
    Deviations: no move is made in the first five minutes; guests that are within 20 % of each
    other are not ordered by when they moved; libvirt's cpusets do not hold numad back.
    """
    for host in np.unique(fleet.host[guests]):
        there = nodes.shared_guests(fleet, host)
        size = nodes.used(fleet, host, there)[0] * fleet.trace.memory_mib[there]
        for guest in there[np.argsort(-size, kind='stable')]:
            used, idle = nodes.used(fleet, host, there)
            cores, mib = float(used[there == guest][0]), int(fleet.trace.memory_mib[guest])
            if cores <= CPU_THRESHOLD or mib <= MEMORY_THRESHOLD:
                continue
            now, own_mib = fleet.cpu_parts[guest] > 0, fleet.memory_parts[guest] * mib
            free = _free_with_own(fleet, host, idle, now, own_mib, cores)
            cpus = min(cores / TARGET_UTILIZATION, int(fleet.trace.vcpus[guest]))
            enough = fleet.wanted[there].sum() <= fleet.hosts.cores[host].sum()
            enough = enough or cpus > sum(has for has, _ in free)
            wanted = cpus, mib / TARGET_UTILIZATION
            flex = (1 - TARGET_UTILIZATION) / 2 * fleet.hosts.cores[host, 0]
            picked = numad_nodes(fleet, host, free, wanted, flex, enough)
            local = fleet.memory_parts[guest, picked].sum() >= LOCALITY
            if set(picked) != {*np.flatnonzero(now).tolist()} or not local:
                fleet.move(guest, *nodes.on(fleet, host, guest, picked, own_mib))


def _free_with_own(fleet, host, idle, now, own_mib, cores):
    """Return (CPUs, MiB) of nodes as numad sees them for a guest that runs there."""
    free_mib, total_mib = fleet.free_mib(host), fleet.hosts.memory_mib[host]
    if now.all():
        idle, free_mib = idle + cores * own_mib / own_mib.sum(), free_mib + own_mib * 17 / 16
    else:
        idle = np.where(now, (cores + idle[now].sum()) / now.sum(), idle)
        free_mib = free_mib + own_mib * 5 / 4
    idle = np.clip(idle, 0.01, fleet.hosts.cores[host])
    return list(zip(idle.tolist(), np.minimum(free_mib, total_mib).tolist()))


def numad_nodes(fleet, host, free, wanted, flex=0.0, enough=False):
    """Return the nodes that numad picks, in its order.

    Magnitude = (10 · needed MiB + 4 · excess MiB) · (6 · needed CPUs + excess CPUs). The first
    node is that of the largest Σ magnitude / distance² over as many nodes as the request fills, by
    whole nodes; the nearest follow until CPUs (``flex`` may lack, all where ``enough``) and
    memory are there.

    :param free: (CPUs, MiB) of each node
    :param wanted: (CPUs, MiB) of the guest
    """
    cpus, mib = wanted
    magnitude = [
        (10 * min(has_mib, mib) + 4 * max(0, has_mib - mib))
        * (6 * min(has, cpus) + max(0, has - cpus))
        for has, has_mib in ((max(0.01, has), has_mib) for has, has_mib in free)
    ]
    filled = max(
        math.ceil(mib / fleet.hosts.memory_mib[host, 0]),
        math.ceil((cpus - flex) / fleet.hosts.cores[host, 0]),
    )
    orders = [
        sorted(range(len(free)), key=lambda node: (row[node], -magnitude[node]))
        for row in fleet.distance_rows
    ]
    totals = [
        sum(magnitude[node] / row[node] ** 2 for node in order[:filled])
        for order, row in zip(orders, fleet.distance_rows)
    ]
    picked = []
    for node in orders[totals.index(max(totals))]:
        if len(picked) >= filled and mib <= 0 and (cpus <= flex or enough):
            break
        picked.append(node)
        has, has_mib = free[node]
        cpus -= min(cpus, has)
        mib = 0 if has_mib >= mib + MBS_MARGIN else mib - (has_mib - MBS_MARGIN)
    return picked


# ---- By promises -------------------------------------------------------------------------


def xen(fleet, host, guest):
    """Take the fewest nodes with room and, among these, the ones with the fewest vCPUs.

    Source: xen-project/xen 41aea82,
    https://github.com/xen-project/xen/blob/41aea82/tools/libs/light/libxl_numa.c,
    ``libxl__get_numa_candidate``, and ``numa_cmpf`` in libxl_dom.c next to it.
    Formula: candidates are sets of nodes with enough free memory and as many CPUs as the guest has
    vCPUs, the smallest sets only; fewest vCPUs that may run there (each counts on every node of
    its guest), then most free memory; none: all nodes.
    Deviations: the answer is a hard affinity; Xen's is soft, so that its vCPUs run elsewhere
    while a node is full.
    """
    trace, cpus, free_mib = fleet.trace, fleet.hosts.threads[host], fleet.free_mib(host)
    there = nodes.shared_guests(fleet, host)
    vcpus_on = trace.vcpus[there] @ (fleet.cpu_parts[there] > 0)
    everywhere = range(len(cpus))
    candidates = [
        ids
        for count in everywhere
        for ids in map(list, itertools.combinations(everywhere, count + 1))
        if free_mib[ids].sum() >= trace.memory_mib[guest] and cpus[ids].sum() >= trace.vcpus[guest]
    ] or [list(everywhere)]
    best = min(candidates, key=lambda ids: (len(ids), vcpus_on[ids].sum(), -free_mib[ids].sum()))
    return nodes.on(fleet, host, guest, best)


def incus_balanced(fleet, host, guest):
    """Take the node with the fewest instances: Incus' ``limits.cpu.nodes = balanced``.

    Source: lxc/incus v7.3 (be7afc5),
    https://github.com/lxc/incus/blob/v7.3.0/internal/server/instance/drivers/driver_common.go,
    ``balanceNUMANodes``.
    Formula: nodes by how many instances have them, the first of them; of a guest with more
    vCPUs than a node has CPUs the first ⌈vCPUs / CPUs of a node⌉.
    Deviations: memory for which the node has no room lies elsewhere, as Incus does not look at
    memory and QEMU is bound; stopped instances, which Incus counts, do not exist here.
    """
    there = nodes.shared_guests(fleet, host)
    instances = (fleet.cpu_parts[there] > 0).sum(0)
    order = np.argsort(instances, kind='stable')
    cpus_of_node = fleet.hosts.threads[host].sum() // fleet.hosts.nodes
    count = min(math.ceil(fleet.trace.vcpus[guest] / cpus_of_node), fleet.hosts.nodes)
    return nodes.on(fleet, host, guest, order[:count].tolist())


def katalyst_like(fleet, host, guest):
    """Take the node with the most unrequested CPUs left, if guest and memory fit on one.

    Source: kubewharf/katalyst-core d8c28ea,
    https://github.com/kubewharf/katalyst-core/blob/d8c28ea/pkg/agent/qrm-plugins/cpu/dynamicpolicy/hintoptimizer/policy/canonical/optimizer.go,
    its default, ``spreading``, for ``shared_cores`` with ``numa_binding``.
    Formula: of nodes with available CPUs (all − Σ requests) ≥ the request and with memory the one
    with most CPUs available, the first of equals.
    Deviations: Katalyst binds pods and refuses where none fits, here the guest floats; a vCPU
    requests 1 / ``cpu_allocation_ratio`` CPU; requests of guests that float count by their parts.
    Its ``dedicated_cores``, advisor and evictions are not modelled.
    """
    there = nodes.shared_guests(fleet, host)
    requested = fleet.trace.vcpus[there] @ fleet.cpu_parts[there]
    left = fleet.hosts.threads[host] * p.CPU_RATIO - requested - fleet.trace.vcpus[guest]
    fits = (left >= 0) & (fleet.free_mib(host) >= fleet.trace.memory_mib[guest])
    if not fits.any():
        return floating(fleet, host, guest)
    best = int(np.where(fits, left, -1).argmax())
    return nodes.on(fleet, host, guest, (best,))
