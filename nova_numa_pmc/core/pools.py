# SPDX-License-Identifier: Apache-2.0
"""Determine pools of CPUs. A pool is the set of CPUs that the same guests may use.

The *floating pool* is that of unpinned guests whose XML names no CPUs: Nova's
``cpu_shared_set``, or the usable CPUs without those of dedicated guests, as far as libvirt's
default partition has them. A node's ``cpus`` are those of the floating pool. The pool of a guest
with a ``<vcpu cpuset>`` consists of the usable CPUs of that set; with Nova's ``cpu_shared_set``,
this is the floating pool. If the control groups above a guest do not let it use all of these CPUs
(:mod:`nova_numa_pmc.host.allowed`), its pool consists of those that they do: :func:`own_cpus`.

A CPU is *usable* if it is online and not isolated.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nova_numa_pmc import model

#: Sources of the floating pool's CPUs: Nova's configuration, the guests' XML, only the kernel (all
#: usable CPUs), and the agent's last publication.
NOVA, GUESTS, KERNEL, AGENT = 'nova.conf', 'guests', 'kernel', 'agent'
#: {source of the floating pool: its text for operators}
TEXTS = {
    NOVA: 'from nova.conf',
    GUESTS: "from the guests' XML",
    AGENT: 'as published by the agent',
    KERNEL: 'all that are neither isolated nor withheld from guests',
}

#: Maximum number of pools that are measured besides the floating pool.
_OTHER_POOLS_MAX = 32


class Pool(Record):
    """The floating pool.

    :param cpus: its CPUs; any that are not usable are ignored
    :param source: :data:`NOVA`, :data:`GUESTS`, :data:`KERNEL` or :data:`AGENT`
    """

    cpus: frozenset[int]
    source: str


def floating_pool(
    host: model.Topology,
    guests: tuple[model.Guest, ...],
    shared: frozenset[int] | None = None,
    dedicated: frozenset[int] | None = None,
) -> Pool:
    """Return the floating pool of a host.

    If Nova's configuration does not define it, it is the ``<vcpu cpuset>`` that all unpinned
    guests of Nova have in common. If they have none, or different ones, it consists of the usable
    CPUs without those that dedicated guests are pinned to.

    :param host: a host whose nodes' ``cpus`` are all that the default partition has of the usable
        ones
    :param guests: the running guests
    :param shared: ``cpu_shared_set``, or ``vcpu_pin_set`` in its place; None if not set
    :param dedicated: ``cpu_dedicated_set``; None if not set
    """
    host_cpus = all_cpus(host)
    if shared and shared & host_cpus:
        return Pool(shared & host_cpus, NOVA)
    if dedicated and host_cpus - dedicated:
        return Pool(host_cpus - dedicated, NOVA)
    allowed_sets = {guest.allowed_cpus for guest in guests if guest.flavor and not guest.placed_by}
    if len(allowed_sets) == 1:
        common_cpus = (allowed_sets.pop() or frozenset()) & host_cpus
        if common_cpus:
            return Pool(common_cpus, GUESTS)
    dedicated_to_guests = _cpus_in_one_set(dedicated_cpus(guest) for guest in guests) & host_cpus
    if dedicated_to_guests and host_cpus - dedicated_to_guests:
        return Pool(host_cpus - dedicated_to_guests, GUESTS)
    return Pool(host_cpus, KERNEL)


def dedicated_cpus(guest: model.Guest) -> frozenset[int]:
    """Return the CPUs that are dedicated to a guest: each has exactly one vCPU pinned to it.

    A guest has dedicated CPUs if its flavor's policy says so, or if each of its vCPUs has a CPU of
    its own and either the guest is Nova's or its emulator is also pinned. An operator who pins a
    vCPU by hand does not thereby take the CPU from other guests.
    """
    single_cpus = [
        next(iter(cpus)) for name, cpus in guest.pins if len(cpus) == 1 and name.startswith('vcpu')
    ]
    own_cpus = _cpus_in_one_set(frozenset((cpu,)) for cpu in single_cpus)
    if 'dedicated' in guest.placed_by:
        return own_cpus
    all_have_own = len(own_cpus) >= max(guest.vcpus, 1)
    return (
        own_cpus
        if all_have_own and (guest.flavor or 'emulatorpin' in guest.placed_by)
        else frozenset()
    )


def with_floating_pool(host: model.Topology, pool: Pool | None) -> model.Topology:
    """Return a host whose nodes' ``cpus`` are those of the floating pool.

    A pool without usable CPUs is ignored: its CPUs may have gone offline since it was determined.

    :param host: as for :func:`floating_pool`
    :param pool: the floating pool; None for all CPUs of the nodes
    """
    if pool is None or not any(node.cpus & pool.cpus for node in host.nodes):
        return host
    return _with_cpus(host, lambda node: node.cpus & pool.cpus)


def with_usable_cpus(host: model.Topology) -> model.Topology:
    """Return a host whose nodes' ``cpus`` are all usable ones, whatever pool they are in."""
    return _with_cpus(host, usable_cpus_of)


def own_cpus(guest: model.Guest, host: model.Topology) -> frozenset[int] | None:
    """Return the CPUs that a guest may use: what its XML, its groups and the pools all allow.

    This is the only place where these are combined. A guest of Nova's, and one without a ``<vcpu
    cpuset>``, is given the CPUs of the floating pool: Nova's set may have shrunk since its XML was
    written. If its XML and groups grant it none of these, it is given all usable ones that they do
    grant: it is in a partition of its own. A guest of the operator's keeps the set of its XML.

    :param host: the host with the floating pool
    :returns: None: those of the floating pool
    """
    limit_cpus = guest.limit_cpus
    if limit_cpus is None:
        return None
    usable = limit_cpus & _cpus_in_any_set(map(usable_cpus_of, host.nodes))
    of_operator = guest.allowed_cpus is not None and not guest.flavor
    return usable if of_operator else usable & all_cpus(host) or usable


def with_guest_pool(guest: model.Guest, host: model.Topology) -> model.Topology:
    """Return a host whose nodes' ``cpus`` are those of a guest's pool."""
    cpus = own_cpus(guest, host)
    return host if cpus is None else _with_cpus(host, lambda node: usable_cpus_of(node) & cpus)


def cpus_on(nodes: tuple[int, ...], host: model.Topology, guest: model.Guest) -> frozenset[int]:
    """Return the CPUs that a guest may use on some nodes.

    :param nodes: node ids
    """
    return _cpus_in_any_set(
        node.cpus for node in with_guest_pool(guest, host).nodes if node.id in nodes
    )


def is_large_enough(cpus: frozenset[int], host: model.Topology, guest: model.Guest) -> bool:
    """Return whether a guest can be held to some CPUs: one for each vCPU, or all that it may use.

    :param host: the host with the floating pool
    """
    pool_cpus = all_cpus(with_guest_pool(guest, host))
    return bool(cpus) and len(cpus) >= min(guest.vcpus, len(pool_cpus))


def may_have_memory_on(nodes: Iterable[int], host: model.Topology, guest: model.Guest) -> bool:
    """Return whether a guest's memory may be brought to some nodes.

    Its groups must grant it the memory of each, and a CPU of each that has any: its memory would
    otherwise be remote for good.

    :param nodes: node ids
    """
    nodes = frozenset(nodes)
    return (guest.limit_mems is None or nodes <= guest.limit_mems) and (
        guest.granted_cpus is None
        or all(
            not node.online_cpus or node.online_cpus & guest.granted_cpus
            for node in host.nodes
            if node.id in nodes
        )
    )


def nodes_of(cpus: frozenset[int] | None, host: model.Topology) -> tuple[int, ...]:
    """Return the ids of the nodes that have any of the CPUs; None counts as no CPUs."""
    return tuple(node.id for node in host.nodes if cpus and node.online_cpus & cpus)


def cpus_of_promise(
    promise: model.Promise, host: model.Topology, guest: model.Guest
) -> frozenset[int]:
    """Return the CPUs that a guest is held to by its promise.

    They are those of its promised L3 cache as long as the cache has a CPU for each vCPU on the
    promised nodes, otherwise all that the guest may use there: CPUs may have gone offline or left
    the pool, and the guest may have been moved, widened or got more vCPUs.
    """
    node_cpus = cpus_on(promise.held_nodes, host, guest)
    if promise.widened_nodes:
        return node_cpus
    l3_cpus = node_cpus.intersection(promise.l3_cpus)
    return l3_cpus if l3_cpus and len(l3_cpus) >= guest.vcpus else node_cpus


def avoids_floating_pool(guest: model.Guest, host: model.Topology) -> bool:
    """Return whether a guest may use no CPU of the floating pool, so that it loads other CPUs.

    This is so if it is pinned to CPUs outside of the floating pool, if it has CPUs of its own, or
    if its ``<vcpu cpuset>`` has no CPU of the pool. If only some of its vCPUs are pinned, the
    others may still use all CPUs of its ``<vcpu cpuset>``.
    """
    is_partly_pinned = (
        guest.pins and sum(name.startswith('vcpu') for name, _ in guest.pins) < guest.vcpus
    )
    guest_cpus = (
        own_cpus(guest, host) if is_partly_pinned or not guest.pinned_cpus else guest.pinned_cpus
    )
    if not guest_cpus:
        return False
    return not any(node.cpus & guest_cpus - dedicated_cpus(guest) for node in host.nodes)


def pool_vcpus(guest: model.Guest, host: model.Topology) -> int:
    """Return the number of a guest's vCPUs that may use the floating pool.

    vCPUs that are pinned to CPUs outside of it, or that have a CPU of their own, do not count.
    """
    if avoids_floating_pool(guest, host):
        return 0
    shared_cpus = all_cpus(host) - dedicated_cpus(guest)
    return max(
        0,
        guest.vcpus
        - sum(name.startswith('vcpu') and not cpus & shared_cpus for name, cpus in guest.pins),
    )


def all_cpus(host: model.Topology) -> frozenset[int]:
    """Return the CPUs of all nodes of a host, which are the CPUs of one pool."""
    return _cpus_in_any_set(node.cpus for node in host.nodes)


def other_pools(
    guests: tuple[model.Guest, ...], host: model.Topology
) -> tuple[frozenset[int], ...]:
    """Return the pools of unpinned guests other than the floating pool, ordered by their CPUs.

    If there are more than :data:`_OTHER_POOLS_MAX`, those with the most guests are returned.
    """
    floating_cpus = all_cpus(host)
    counts: dict[frozenset[int], int] = {}
    for guest in guests:
        pool_cpus = None if guest.placed_by else own_cpus(guest, host)
        if pool_cpus and pool_cpus != floating_cpus:
            counts[pool_cpus] = counts.get(pool_cpus, 0) + 1
    pools = sorted(counts, key=lambda pool_cpus: (-counts[pool_cpus], sorted(pool_cpus)))[
        :_OTHER_POOLS_MAX
    ]
    return tuple(sorted(pools, key=sorted))


def usable_cpus_of(node: model.Node) -> frozenset[int]:
    """Return a node's usable CPUs."""
    return node.usable_cpus or node.cpus


def _with_cpus(
    host: model.Topology, choose: Callable[[model.Node], frozenset[int]]
) -> model.Topology:
    return host._replace(nodes=tuple(node._replace(cpus=choose(node)) for node in host.nodes))


def _cpus_in_one_set(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    """Return the CPUs that are in exactly one set."""
    seen_cpus: set[int] = set()
    repeated_cpus: set[int] = set()
    for cpus in sets:
        repeated_cpus |= seen_cpus & cpus
        seen_cpus |= cpus
    return frozenset(seen_cpus - repeated_cpus)


def _cpus_in_any_set(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
