# SPDX-License-Identifier: Apache-2.0
"""Choose the L3 cache that a guest is held to on a node with several.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, capacity_cores, demand_or_prior
from nova_numa_pmc.core.placement.reasons import L3_CROWDED, ONE_L3
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Cache:
    """An L3 cache with the vCPUs and guests that are promised its CPUs.

    :ivar cpus: its online CPUs
    :ivar usable: those of its CPUs that the guest may use
    :ivar cores: the capacity of the usable CPUs [cores]
    :ivar vcpus, guests: vCPUs and guests promised there; a guest on several caches counts in part
        on each
    """

    __slots__ = ('cpus', 'usable', 'cores', 'vcpus', 'guests')

    def __init__(self, cpus: frozenset[int], usable: frozenset[int]) -> None:
        self.cpus, self.usable = cpus, usable
        self.cores = self.vcpus = self.guests = 0.0


def choose(
    host: model.Topology,
    view: model.HostView,
    promises: Iterable[model.Promise],
    nodes: tuple[int, ...],
    request: model.Request,
    placement_options: model.PlacementOptions,
) -> tuple[tuple[int, ...], tuple[model.Reason, ...]]:
    """Choose the L3 cache that a guest is held to, among those of the nodes that it was given.

    It is the cache with the fewest promised vCPUs per core, then the fewest guests, then the
    lowest CPU. Memory does not matter, because all caches of a place reach it equally well. No
    cache is chosen, and the guest gets all CPUs of its nodes, if these are in several memory
    domains, if it could want more cores than the
    cache has, or if it would leave the cache above ``pressure_floor`` and more crowded than its
    nodes are together: guests that are held to fewer CPUs must not wait while others are idle. A
    cache of which the guest may use only a single core is therefore never chosen. The demand per
    vCPU is that of the nodes together, because it is not measured for each cache.

    :param host: a host whose nodes' ``cpus`` are those of the guest's pool
    :param view: a view of the same host without the guest
    :param promises: the promises of the other guests
    :param nodes: ids of the nodes of the guest's place
    :returns: (online CPUs of the cache in ascending order, or empty if none was chosen; reasons)
    """
    domains = {
        view.domains[position] if view.domains else position
        for position, node in enumerate(view.nodes)
        if node.id in nodes
    }
    if len(domains) != 1:
        return (), ()
    caches = _usable_caches(host, nodes, request, placement_options)
    vcpus = max(1, request.vcpus)
    fitting_caches = [
        cache
        for cache in caches
        if vcpus <= min(len(cache.usable), cache.cores) and not is_single_core(cache.usable, host)
    ]
    if len(caches) < 2 or not fitting_caches:
        return (), ()
    _add_promises(caches, host, promises)
    best_cache = min(
        fitting_caches,
        key=lambda cache: (
            round((cache.vcpus + vcpus) / cache.cores, 9),
            round(cache.guests, 9),
            min(cache.usable),
        ),
    )
    place_nodes = [node for node in view.nodes if node.id in nodes]
    per_vcpu, place_demand = _place_demand(place_nodes)
    guest_demand = demand_or_prior(request)
    cache_pressure = (per_vcpu * best_cache.vcpus + guest_demand) / best_cache.cores
    place_pressure = (place_demand + guest_demand) / (
        sum(node.cores for node in place_nodes) or 1.0
    )
    values = (('caches', len(caches)), ('pressure', cache_pressure))
    if cache_pressure > max(placement_options.pressure_floor, place_pressure) + 1e-9:
        return (), (model.Reason(L3_CROWDED, values),)
    return tuple(sorted(best_cache.cpus)), (model.Reason(ONE_L3, values),)


def is_single_core(cpus: frozenset[int], host: model.Topology) -> bool:
    """Return whether all CPUs belong to one core, which is too little to hold a guest to.

    QEMU gives each socket of a guest an L3 cache, so that a compute host that is itself a guest
    may have as many caches as cores.
    """
    return len(cpus) < 2 or any(cpus <= core for core in host.cores)


def _usable_caches(
    host: model.Topology,
    nodes: tuple[int, ...],
    request: model.Request,
    placement_options: model.PlacementOptions,
) -> list[Cache]:
    """List the caches of which the guest may use CPUs, with their capacity."""
    usable_by_cache: dict[frozenset[int], frozenset[int]] = {}
    for node, l3s in zip(host.nodes, host.l3s):
        if node.id in nodes:
            allowed_cpus = request.allowed_among(node.cpus)
            for cpus in l3s:
                usable_by_cache[cpus] = (
                    usable_by_cache.get(cpus, frozenset()) | cpus & allowed_cpus
                )
    caches = [Cache(cpus, usable) for cpus, usable in usable_by_cache.items() if usable]
    cores = capacity_cores(
        host._replace(
            nodes=tuple(
                model.Node(position, cache.usable) for position, cache in enumerate(caches)
            )
        ),
        placement_options,
    )
    for cache, capacity in zip(caches, cores):
        cache.cores = capacity
    return caches


def _add_promises(
    caches: list[Cache], host: model.Topology, promises: Iterable[model.Promise]
) -> None:
    """Add the promised guests and vCPUs to the caches, spread over the CPUs of each guest."""
    sums_by_place: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, int]] = {}
    for promise in promises:
        place = promise.cpu_nodes, promise.l3_cpus
        vcpus, guests = sums_by_place.get(place, (0, 0))
        sums_by_place[place] = vcpus + promise.vcpus, guests + 1
    for (nodes, promised_cpus), (vcpus, guests) in sums_by_place.items():
        cpus = frozenset().union(
            *(node.cpus for node in host.nodes if not nodes or node.id in nodes)
        )
        cpus = cpus.intersection(promised_cpus) or cpus
        for cache in caches:
            share = len(cpus & cache.usable) / len(cpus) if cpus else 0.0
            cache.vcpus += share * vcpus
            cache.guests += share * guests


def _place_demand(place_nodes: Sequence[model.NodeView]) -> tuple[float, float]:
    """Return (demand per vCPU, demand) of a place [cores], as measured or else assumed."""
    vcpus = sum(node.vcpus for node in place_nodes)
    demands = [node.demand_cores for node in place_nodes if node.cores]
    known_demand = sum(demand or 0 for demand in demands)
    if None in demands or vcpus < 1:
        return PRIOR_CORES_PER_VCPU, max(known_demand, PRIOR_CORES_PER_VCPU * vcpus)
    return known_demand / vcpus, known_demand
