# SPDX-License-Identifier: Apache-2.0
"""Pools of CPUs. A pool is the set of CPUs that the same guests may use.

The *floating pool* is that of unpinned guests whose XML names no CPUs: Nova's
``cpu_shared_set``, or the usable CPUs without those of dedicated guests. A node's ``cpus`` are
those of the floating pool. The pool of a guest with a ``<vcpu cpuset>`` is the usable CPUs of
that set, which under Nova's ``cpu_shared_set`` is the floating pool.

Usable are CPUs that are online, neither isolated nor nohz_full, and in the guests' partition.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Sources of the floating pool's CPUs: Nova's configuration, the guests' XML, the kernel alone
#: (all usable CPUs), the agent's last publication.
NOVA, GUESTS, KERNEL, AGENT = 'nova.conf', 'guests', 'kernel', 'agent'
IN_WORDS = {
    NOVA: 'from nova.conf',
    GUESTS: "from the guests' XML",
    AGENT: 'as published by the agent',
    KERNEL: 'all that are neither isolated nor withheld from guests',
}

#: At most this many pools are measured separately.
_OTHER_POOLS_MAX = 32


class Pool(Record):
    """The floating pool.

    :param cpus: its CPUs; those that are not usable are ignored
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

    Without Nova's configuration it is the ``<vcpu cpuset>`` that all unpinned guests of Nova
    share. Where they have none, or different ones, it is the usable CPUs without those that
    dedicated guests are pinned to.

    :param host: its nodes have their usable CPUs
    :param guests: :class:`model.Guest` that run
    :param shared, dedicated: ``cpu_shared_set`` and ``cpu_dedicated_set``, None: not set
    """
    usable_cpus = _union(usable(node) for node in host.nodes)
    if shared and shared & usable_cpus:
        return Pool(shared & usable_cpus, NOVA)
    if dedicated and usable_cpus - dedicated:
        return Pool(usable_cpus - dedicated, NOVA)
    sets = {guest.allowed_cpus for guest in guests if guest.flavor and not guest.placed_by}
    if len(sets) == 1:
        common = (sets.pop() or frozenset()) & usable_cpus
        if common:
            return Pool(common, GUESTS)
    taken = _once(dedicated_cpus(guest) for guest in guests) & usable_cpus
    if taken and usable_cpus - taken:
        return Pool(usable_cpus - taken, GUESTS)
    return Pool(usable_cpus, KERNEL)


def dedicated_cpus(guest: model.Guest) -> frozenset[int]:
    """Return the CPUs that are dedicated to a guest, each with a vCPU pinned to it.

    A guest is dedicated by its flavor's policy, or if each of its vCPUs has a CPU of its own and
    it is either Nova's or has its emulator pinned as well: an operator who pins a vCPU by hand
    takes no CPU from others.
    """
    single = [
        next(iter(cpus)) for name, cpus in guest.pins if len(cpus) == 1 and name.startswith('vcpu')
    ]
    own = _once(frozenset((cpu,)) for cpu in single)
    if 'dedicated' in guest.placed_by:
        return own
    whole = len(own) >= max(guest.vcpus, 1)
    return own if whole and (guest.flavor or 'emulatorpin' in guest.placed_by) else frozenset()


def with_floating_pool(host: model.Topology, pool: Pool | None) -> model.Topology:
    """Return a host whose nodes' ``cpus`` are those of the floating pool.

    A pool without any usable CPU (one from before a hotplug) is ignored.

    :param pool: the floating pool, None: all usable CPUs
    """
    if pool is None or not any(usable(node) & pool.cpus for node in host.nodes):
        return _with_cpus(host, usable)
    return _with_cpus(host, lambda node: usable(node) & pool.cpus)


def with_guest_pool(guest: model.Guest, host: model.Topology) -> model.Topology:
    """Return a host whose nodes' ``cpus`` are those of the pool that a guest is in."""
    allowed = guest.allowed_cpus
    if allowed is None:
        return host
    return _with_cpus(host, lambda node: usable(node) & allowed)


def cpus_on(nodes: tuple[int, ...], host: model.Topology, guest: model.Guest) -> frozenset[int]:
    """Return the CPUs of some nodes that a guest may use.

    :param nodes: node ids
    """
    return _union(node.cpus for node in with_guest_pool(guest, host).nodes if node.id in nodes)


def nodes_of(cpus: frozenset[int] | None, host: model.Topology) -> tuple[int, ...]:
    """Return the ids of the nodes that have some of the CPUs; None counts as no CPUs."""
    return tuple(node.id for node in host.nodes if cpus and node.online_cpus & cpus)


def cpus_held(promise: model.Promise, host: model.Topology, guest: model.Guest) -> frozenset[int]:
    """Return the CPUs that a guest is held to by its promise.

    They are those of its L3 cache only while this has a CPU for each vCPU on the promised nodes:
    CPUs may have gone offline or left the pool, and the guest may have been moved or grown.
    """
    cpus = cpus_on(promise.cpu_nodes, host, guest)
    own = cpus.intersection(promise.cpus)
    return own if own and len(own) >= guest.vcpus_limit else cpus


def cpus_at(
    nodes: tuple[int, ...], promise: model.Promise, host: model.Topology, guest: model.Guest
) -> frozenset[int]:
    """Return the CPUs that a guest gets on nodes: those of its promise if these are its nodes."""
    if nodes == promise.cpu_nodes:
        return cpus_held(promise, host, guest)
    return cpus_on(nodes, host, guest)


def has_l3s(host: model.Topology, nodes: tuple[int, ...]) -> bool:
    """Return whether some nodes together have several L3 caches."""
    return sum(len(l3s) for node, l3s in zip(host.nodes, host.l3s) if node.id in nodes) > 1


def is_apart(guest: model.Guest, host: model.Topology) -> bool:
    """Return whether a guest may use no CPU of the floating pool: its vCPUs load other CPUs.

    That is a guest pinned to CPUs outside of the floating pool or with CPUs of its own, and one
    whose ``<vcpu cpuset>`` has none of the pool's. Where only some of its vCPUs are pinned, the
    others may use what they could.
    """
    some = guest.pins and sum(name.startswith('vcpu') for name, _ in guest.pins) < guest.vcpus
    own = guest.allowed_cpus if some or not guest.pinned_cpus else guest.pinned_cpus
    if not own:
        return False
    return not any(node.cpus & own - dedicated_cpus(guest) for node in host.nodes)


def loading_vcpus(guest: model.Guest, host: model.Topology) -> int:
    """Return the number of a guest's vCPUs that may load the floating pool.

    Not those that are pinned to CPUs outside of it, nor those that have a CPU of their own.
    """
    if is_apart(guest, host):
        return 0
    shared = cpus_of(host) - dedicated_cpus(guest)
    return max(
        0,
        guest.vcpus
        - sum(name.startswith('vcpu') and not cpus & shared for name, cpus in guest.pins),
    )


def cpus_of(host: model.Topology) -> frozenset[int]:
    """Return the CPUs of all nodes of a host, which are those of one pool."""
    return _union(node.cpus for node in host.nodes)


def other_pools(
    guests: tuple[model.Guest, ...], host: model.Topology
) -> tuple[frozenset[int], ...]:
    """Return the pools that unpinned guests have besides the floating one, by lowest CPUs.

    Of more than :data:`_OTHER_POOLS_MAX` pools, those with most guests.
    """
    pool = cpus_of(host)
    usable_cpus = _union(usable(node) for node in host.nodes)
    counts: dict[frozenset[int], int] = {}
    for guest in guests:
        if guest.allowed_cpus is not None and not guest.placed_by:
            own = guest.allowed_cpus & usable_cpus
            if own and own != pool:
                counts[own] = counts.get(own, 0) + 1
    largest = sorted(counts, key=lambda own: (-counts[own], sorted(own)))[:_OTHER_POOLS_MAX]
    return tuple(sorted(largest, key=sorted))


def usable(node: model.Node) -> frozenset[int]:
    """Return a node's usable CPUs."""
    return node.usable_cpus or node.cpus


def _with_cpus(
    host: model.Topology, choose: Callable[[model.Node], frozenset[int]]
) -> model.Topology:
    return host._replace(nodes=tuple(node._replace(cpus=choose(node)) for node in host.nodes))


def _once(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    """Return the CPUs that are in exactly one of the sets."""
    once: set[int] = set()
    more: set[int] = set()
    for cpus in sets:
        more |= once & cpus
        once |= cpus
    return frozenset(once - more)


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
