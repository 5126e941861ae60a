# SPDX-License-Identifier: Apache-2.0
"""Derive a guest's promise from where it is to be, and keep it true to the guest and the host.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility, pools
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: A node that has less than this share of a guest's memory does not count as one of its nodes.
_MEM_NODE_MIN_RATIO = 0.05


def with_topology(guest: model.Guest, host: model.Topology) -> model.Guest:
    """Return the guest with what follows from the host: its pins' nodes and its shared vCPUs."""
    pool_vcpus = pools.pool_vcpus(guest, host)
    if pool_vcpus != guest.vcpus:
        guest = guest._replace(vcpus=pool_vcpus)
    return (
        guest._replace(pinned_nodes=pools.nodes_of(guest.pinned_cpus, host))
        if guest.pinned_cpus
        else guest
    )


def with_cpus_near_memory(guest: model.Guest, host: model.Topology) -> model.Guest:
    """Return a guest that is ours to place on the nodes that numatune alone gives to its memory.

    It is placed as if they were given strictly, on one of them, or on several if need be; but
    memory that is interleaved is on all of them, and so are the CPUs. If these nodes do not have a
    CPU for each of its vCPUs, it stays placed by others.
    """
    if not eligibility.has_only_memory_nodes(guest):
        return guest
    mems = guest.granted_mems
    nodes = tuple(node for node in guest.numatune_nodes if mems is None or node in mems)
    cpus = pools.cpus_on(nodes, host, guest)
    if len(cpus) < guest.vcpus:
        return guest
    if guest.mem_mode == model.INTERLEAVE and guest.policy != model.NONE:
        spread = (model.POLICY_KEY, model.SPREAD)
        guest = guest._replace(extra_specs=(*guest.extra_specs, spread))
    return guest._replace(placed_by=(), allowed_cpus=cpus, mem_mode=model.STRICT)


def promises_in_pool(
    promises: Collection[model.Promise], guest: model.Guest, host: model.Topology
) -> Collection[model.Promise]:
    """Return the promises, with their vCPUs that use the pool of a guest.

    Guests in the floating pool use no CPUs of the pool of a guest that avoids it.
    """
    if not pools.avoids_floating_pool(guest, host):
        return promises
    return [promise._replace(vcpus=0) for promise in promises]


def as_floating(promise: model.Promise) -> model.Promise:
    """Return the promise of a guest that is not held to its place: its size, but no place."""
    return promise._replace(
        cpu_nodes=(),
        mem_nodes=(),
        mem_node_bytes=(),
        l3_cpus=(),
        widened_nodes=(),
        bound=False,
        origin=model.FLOATING,
    )


def updated_promise(
    promise: model.Promise, guest: model.Guest, host: model.Topology
) -> model.Promise:
    """Return a running guest's promise with its current vCPUs, memory and nodes.

    :param guest: the guest as it is after vCPUs or memory were plugged in or unplugged
    """
    guest = with_topology(guest, host)
    if promise.memory_bytes != guest.memory_bytes:
        promise = promise._replace(memory_bytes=guest.memory_bytes, mem_node_bytes=())
    if promise.vcpus != guest.vcpus:
        promise = promise._replace(vcpus=guest.vcpus)
    if (
        promise.origin == model.PLACED
        and guest.placed_by == ('numatune',)
        and not set(promise.cpu_nodes) & set(guest.numatune_nodes)
    ):
        # After virsh numatune --live has bound the memory, the CPUs follow it.
        cpu_nodes = pools.nodes_of(pools.cpus_on(guest.numatune_nodes, host, guest), host)
        if cpu_nodes:
            promise = promise._replace(
                cpu_nodes=cpu_nodes,
                mem_nodes=guest.numatune_nodes,
                mem_node_bytes=(),
                bound=False,
                l3_cpus=(),
            )
    if promise.origin != model.PLACED:
        return promise
    promise = as_granted(promise, guest, host)
    return promise if guest.override == model.PIN else _with_enough_cpus(promise, guest, host)


def _with_enough_cpus(
    promise: model.Promise, guest: model.Guest, host: model.Topology
) -> model.Promise:
    """Return a promise with as many more nodes, the nearest first, as the guest needs CPUs of.

    vCPUs have been plugged in, or groups now grant it fewer CPUs of its nodes, or these are
    offline: on its nodes alone, its vCPUs would wait for each other. Its memory stays. A guest
    that has no CPU left there is not held.
    """
    nodes = promise.cpu_nodes
    if not pools.cpus_on(nodes, host, guest):
        return promise
    positions = [position for position, node in enumerate(host.nodes) if node.id in nodes]
    others = sorted(
        (min(host.distances[own][position] for own in positions), node.id)
        for position, node in enumerate(pools.with_guest_pool(guest, host).nodes)
        if node.cpus and node.id not in nodes
    )
    for _, node_id in others:
        if pools.is_large_enough(pools.cpus_on(nodes, host, guest), host, guest):
            break
        nodes = tuple(sorted((*nodes, node_id)))
    return promise._replace(cpu_nodes=nodes, l3_cpus=()) if nodes != promise.cpu_nodes else promise


def as_granted(promise: model.Promise, guest: model.Guest, host: model.Topology) -> model.Promise:
    """Return a promise without the nodes on which its groups grant the guest no CPU or no memory.

    If they grant it no CPU of the promised nodes in its pool, it runs on those of which they do.
    """
    granted_cpus = guest.granted_cpus
    if granted_cpus is not None:
        # Of these, its <vcpu cpuset> and the pool may exclude some, and some may be isolated.
        own_nodes = pools.nodes_of(pools.own_cpus(guest, host) or granted_cpus, host)
        cpu_nodes = tuple(node for node in promise.cpu_nodes if node in own_nodes) or own_nodes
        if cpu_nodes != promise.cpu_nodes:
            promise = promise._replace(
                cpu_nodes=cpu_nodes,
                mem_nodes=tuple(
                    node.id for node in host.nodes if node.id in cpu_nodes and node.memory_bytes
                ),
                mem_node_bytes=(),
                bound=False,
                l3_cpus=(),
            )
    mems = guest.granted_mems
    if mems is not None and not mems >= set(promise.mem_nodes):
        mem_nodes = tuple(node for node in promise.mem_nodes if node in mems)
        promise = promise._replace(
            mem_nodes=mem_nodes or tuple(sorted(mems)), mem_node_bytes=(), bound=False
        )
    return promise


def following_memory(
    promise: model.Promise,
    vcpus: int,
    bytes_by_node: Mapping[int, int],
    host: model.Topology,
    placement_options: model.PlacementOptions,
) -> tuple[model.Promise, frozenset[int]] | None:
    """Return a promise of the nodes with a guest's memory, and its CPUs there.

    :param vcpus: the number of all its vCPUs
    :param bytes_by_node: {node id: bytes} of the guest's memory
    :param host: the host with the guest's pool
    :returns: None if most of the memory is on nodes that are not for guests, or if too few CPUs
        are near it
    """
    from nova_numa_pmc.core import host_view  # seldom needed

    followed = {
        node.id: bytes_by_node[node.id]
        for node in host.nodes
        if node.id in bytes_by_node and host_view.is_for_guests(node, placement_options)
    }
    total_bytes, chosen_nodes = sum(followed.values()), []
    if 2 * total_bytes <= sum(bytes_by_node.values()):
        return None
    for node_id in sorted(followed, key=lambda node_id: (-followed[node_id], node_id)):
        chosen_nodes.append(node_id)
        cpus = frozenset().union(*(node.cpus for node in host.nodes if node.id in chosen_nodes))
        if len(cpus) >= vcpus:
            break
    else:
        return None
    mem_nodes = tuple(
        sorted(
            node_id
            for node_id, size in followed.items()
            if size >= _MEM_NODE_MIN_RATIO * total_bytes
        )
    )
    return promise._replace(
        cpu_nodes=pools.nodes_of(cpus, host),
        mem_nodes=mem_nodes,
        l3_cpus=(),
        mem_node_bytes=tuple(
            host_view.split_memory(
                promise.memory_bytes,
                [followed[node_id] for node_id in mem_nodes],
                promise.page_bytes,
            )
        ),
    ), cpus
