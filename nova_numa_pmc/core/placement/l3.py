# SPDX-License-Identifier: Apache-2.0
"""Choose the L3 cache that a guest's CPUs are held to, where a node has several.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, capacity_cores

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Codes of a :class:`model.Reason`.
ONE_L3, L3_CROWDED = 'one_l3', 'l3_crowded'


class Cache:
    """An L3 cache and the load promised to its CPUs.

    :ivar cpus: its online CPUs
    :ivar usable: the CPUs of it that the guest may use; ``cores``: their capacity [cores]
    :ivar vcpus, guests: vCPUs and guests promised there; guests on several caches count in parts
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
    limits: model.PlacementOptions,
) -> tuple[tuple[int, ...], tuple[model.Reason, ...]]:
    """Choose the L3 cache whose CPUs a guest is held to, on the nodes that it has been given.

    It is the one with the fewest promised vCPUs per core, then the fewest guests, then the lowest
    CPU. Memory does not matter: all caches of a place reach it alike. A guest gets all CPUs of its
    nodes if it could want more cores than the cache has, or if it would leave the cache above
    ``limits.pressure_floor`` and more crowded than its nodes together: guests held to fewer CPUs
    must not wait beside idle ones. A cache of which the guest may use a single core is therefore
    never chosen. The demand per vCPU is that of the nodes together, as none is measured per cache.

    :param host: whose nodes' ``cpus`` are those of the guest's pool
    :param view: the same host without the guest
    :param promises: the promises of the other guests
    :param nodes: ids of the nodes of the guest's place
    :returns: (online CPUs of the cache, ascending, empty: hold it to those of the nodes; reasons)
    """
    caches, vcpus = _caches(host, nodes, request, limits), max(1, request.vcpus)
    fitting = [
        cache
        for cache in caches
        if len(cache.usable) >= vcpus <= cache.cores and not is_single_core(cache.usable, host)
    ]
    if len(caches) < 2 or not fitting:
        return (), ()
    _count(caches, host, promises)
    best = min(
        fitting,
        key=lambda cache: (
            round((cache.vcpus + vcpus) / cache.cores, 9),
            round(cache.guests, 9),
            min(cache.usable),
        ),
    )
    homes = [node for node in view.nodes if node.id in nodes]
    per_vcpu, present = _demand(homes)
    added = request.demand_cores
    if added is None:
        added = PRIOR_CORES_PER_VCPU * request.vcpus
    crowding = (per_vcpu * best.vcpus + added) / best.cores
    together = (present + added) / (sum(node.cores for node in homes) or 1.0)
    values = (('caches', len(caches)), ('pressure', crowding))
    if crowding > max(limits.pressure_floor, together) + 1e-9:
        return (), (model.Reason(L3_CROWDED, values),)
    return tuple(sorted(best.cpus)), (model.Reason(ONE_L3, values),)


def is_single_core(cpus: frozenset[int], host: model.Topology) -> bool:
    """Return whether CPUs belong to one physical core, which is too few to hold a guest to.

    QEMU gives each socket of a guest an L3 cache, so a compute host that is itself a guest may
    have as many caches as cores.
    """
    return len(cpus) < 2 or any(cpus <= core for core in host.cores)


def _caches(
    host: model.Topology,
    nodes: tuple[int, ...],
    request: model.Request,
    limits: model.PlacementOptions,
) -> list[Cache]:
    """List the caches that the guest may use CPUs of, with their capacity."""
    usable_by_cache: dict[frozenset[int], frozenset[int]] = {}
    for node, l3s in zip(host.nodes, host.l3s):
        if node.id in nodes:
            allowed = (
                node.cpus if request.allowed_cpus is None else (node.cpus & request.allowed_cpus)
            )
            for cpus in l3s:
                usable_by_cache[cpus] = usable_by_cache.get(cpus, frozenset()) | cpus & allowed
    caches = [Cache(cpus, usable) for cpus, usable in usable_by_cache.items() if usable]
    cores = capacity_cores(
        host._replace(
            nodes=tuple(model.Node(at, cache.usable) for at, cache in enumerate(caches))
        ),
        limits,
    )
    for cache, capacity in zip(caches, cores):
        cache.cores = capacity
    return caches


def _count(caches: list[Cache], host: model.Topology, promises: Iterable[model.Promise]) -> None:
    """Add the promised guests and vCPUs to the caches; a guest's are spread over its CPUs."""
    sums: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, int]] = {}
    for promise in promises:
        key = promise.cpu_nodes, promise.cpus
        vcpus, guests = sums.get(key, (0, 0))
        sums[key] = vcpus + promise.vcpus, guests + 1
    for (nodes, own), (vcpus, guests) in sums.items():
        cpus = frozenset().union(
            *(node.cpus for node in host.nodes if not nodes or node.id in nodes)
        )
        cpus = cpus.intersection(own) or cpus
        for cache in caches:
            share = len(cpus & cache.usable) / len(cpus) if cpus else 0.0
            cache.vcpus += share * vcpus
            cache.guests += share * guests


def _demand(homes: Sequence[model.NodeView]) -> tuple[float, float]:
    """Return a place's (demand per vCPU, demand) [cores], measured or else assumed."""
    vcpus = sum(node.vcpus or 0 for node in homes)
    demands = [node.demand_cores for node in homes if node.cores]
    known = sum(demand or 0 for demand in demands)
    if None in demands or vcpus < 1:
        return PRIOR_CORES_PER_VCPU, max(known, PRIOR_CORES_PER_VCPU * vcpus)
    return known / vcpus, known
