# SPDX-License-Identifier: Apache-2.0
"""A host and a guest as the decision sees them: aggregates per node, shares per guest.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import cache_hierarchy
from nova_numa_pmc.core.missing import has_memory

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.sample_records import NodeSample

#: Cores per vCPU of a guest without history, and how many guests that prior counts for.
PRIOR_CORES_PER_VCPU, PRIOR_GUESTS = 0.5, 5
#: Steps of a core to which an estimate per vCPU is rounded, a power of two: sums of it are then
#: the same in whatever order guests are charged.
_STEPS_PER_CORE = 64
#: Extra specs of a flavor that influence a placement.
POLICY_KEY = model.EXTRA_SPEC_PREFIX + 'policy'
INTENSITY_KEY = model.EXTRA_SPEC_PREFIX + 'memory_intensity'
#: ``numa_pmc:memory_intensity``: bandwidth relative to the host's mean per core.
INTENSITY = {'low': 0.3, 'medium': 1.0, 'high': 3.0}
#: Its value for a flavor that has none.
DEFAULT_INTENSITY = 'medium'
#: A guest younger than this is charged its expected demand on top of the measurements [ns].
NOT_YET_MEASURED_NS = 120 * 10**9
#: Traffic per core is not derived from less demand than this, as it would be noise [0.01 cores].
HUNDREDTHS_MIN = 50

MIB, MB = 1 << 20, 10**6

_UNMEASURED = model.NodeLoad()
#: The least share of a capacity that stolen time leaves: without cores a node would count as
#: memory only.
_CAPACITY_MIN_RATIO = 0.05


def view(
    host: model.Topology,
    promises: Iterable[model.Promise],
    limits: model.PlacementOptions,
    loads: Mapping[int, model.NodeLoad | NodeSample] | None = None,
    rotation: int = 0,
    now_ns: int | None = None,
) -> model.HostView:
    """Aggregate a host per node, in the units of :func:`quantise`.

    Memory on one node counts there, over several as it was divided when promised; where
    that is not recorded it fills what is left of them in proportion. A floating guest's
    is spread over all nodes in proportion to their capacity. A node whose memory is not for
    guests (:mod:`node_memory`) has none here. Huge pages count against
    their pools only. vCPUs are spread over their CPU nodes in proportion to cores.

    :param loads: {node id: its measured load}; None, or a node that is absent: not measured
    :param rotation: how many placements came before
    :param now_ns: CLOCK_BOOTTIME; if given, guests younger than 120 s add their expected share
        to the measured demand, which does not show them fully yet (an upper bound: taking the
        larger of the two would need each guest's own measurement)
    """
    nodes = with_guest_memory(host.nodes, limits)
    promises = list(promises)
    cores = capacity_cores(host, limits)
    capacity = [capacity_bytes(node, limits) for node in nodes]
    promised, huge = _sum_promises(nodes, capacity, promises)
    guests, vcpus, young = _vcpus(nodes, cores, promises, now_ns)
    views = []
    for at, node in enumerate(nodes):
        load = (loads or {}).get(node.id) or _UNMEASURED
        demand = load.demand_cores
        cores[at] = less_stolen(cores[at], _hundredths(load.stolen_cores or 0.0))
        if demand is not None:
            demand += PRIOR_CORES_PER_VCPU * young[at]
        views.append(
            model.NodeView(
                id=node.id,
                cores=cores[at],
                threads=len(node.cpus),
                capacity_bytes=capacity[at],
                promised_bytes=promised[at],
                guests=guests[at],
                vcpus=vcpus[at],
                demand_cores=demand,
                bandwidth_bytes_per_sec=load.bandwidth_bytes_per_sec,
                bandwidth_max_bytes_per_sec=load.bandwidth_max_bytes_per_sec,
                link_ratio=load.link_ratio,
                huge_free_bytes=_huge_free(node, huge[at]),
                cpus=node.cpus,
            )
        )
    return quantise(
        model.HostView(
            tuple(views),
            cache_hierarchy.distances(host),
            rotation,
            cache_hierarchy.domains(host, limits),
        )
    )


def with_guest_memory(
    nodes: tuple[model.Node, ...], limits: model.PlacementOptions
) -> tuple[model.Node, ...]:
    """Return the nodes, leaving out memory that is not for guests."""
    if any(node.memory_bytes and not node.cpus for node in nodes):
        from nova_numa_pmc.core import node_memory  # few hosts have such nodes

        nodes = node_memory.without_withheld(nodes, limits)
    return nodes


def quantise(host_view: model.HostView) -> model.HostView:
    """Round a host's view to the units of Nova's metrics, so that all callers decide alike.

    The units are 0.01 cores, guests and vCPUs, whole MB/s and 0.001 of a link. Memory is in whole
    MiB, as in Nova: promised memory is rounded up, capacity down.
    """
    return host_view._replace(
        nodes=tuple(
            node._replace(
                cores=_hundredths(node.cores),
                capacity_bytes=node.capacity_bytes // MIB * MIB,
                promised_bytes=-(-node.promised_bytes // MIB) * MIB,
                guests=_hundredths(node.guests),
                vcpus=_hundredths(node.vcpus),
                demand_cores=None if node.demand_cores is None else _hundredths(node.demand_cores),
                bandwidth_bytes_per_sec=_megabytes(node.bandwidth_bytes_per_sec),
                bandwidth_max_bytes_per_sec=_megabytes(node.bandwidth_max_bytes_per_sec),
                link_ratio=None
                if node.link_ratio is None
                else round(1000 * node.link_ratio) / 1000,
            )
            for node in host_view.nodes
        )
    )


def _hundredths(value: float) -> float:
    return round(100 * value) / 100


def _megabytes(value: float | None) -> float | None:
    return None if value is None else round(value / MB) * MB


def charge_since(
    host_view: model.HostView,
    counted: Mapping[int, float],
    history: model.DemandHistory | None = None,
) -> model.HostView:
    """Charge nodes for guests that came since the measurement; credit them for guests that left.

    The charge is the expected demand of the vCPUs, and the host's mean traffic per core of it.

    :param host_view: with the vCPUs that are promised now
    :param counted: {node id: vCPUs of the guests that were measured}; a node that is not there
        stays as it is
    :param history: of all guests, None: none
    """
    cores_per_vcpu = expected_cores(1, history or model.DemandHistory())
    changes = {
        node.id: cores_per_vcpu * (node.vcpus - counted[node.id])
        for node in host_view.nodes
        if node.id in counted
    }
    if not any(changes.values()):
        return host_view
    rate = bytes_per_core_sec(host_view.nodes) or 0.0
    return host_view._replace(
        nodes=tuple(
            node._replace(
                demand_cores=_add_change(node.demand_cores, changes.get(node.id, 0)),
                bandwidth_bytes_per_sec=_add_change(
                    node.bandwidth_bytes_per_sec, rate * changes.get(node.id, 0)
                ),
            )
            for node in host_view.nodes
        )
    )


def _add_change(amount: float | None, change: float) -> float | None:
    return None if amount is None else max(0, amount + change)


def bytes_per_core_sec(nodes: Sequence[model.NodeView]) -> float | None:
    """Return a host's DRAM traffic per core of demand [bytes/core-second].

    :returns: None where that is not known of each node, or too few cores are wanted
    """
    return traffic_rate(
        [node.demand_cores for node in nodes if node.cores],
        [node.bandwidth_bytes_per_sec for node in nodes if has_memory(node)],
    )


def traffic_rate(
    demands: Sequence[float | None], bandwidths: Sequence[float | None]
) -> float | None:
    """Return Σ bandwidth / Σ demand [bytes/core-second]; None: a part or the ratio is unknown.

    :param demands: CPU demand of each node with CPUs [cores]
    :param bandwidths: DRAM traffic of each node with memory [bytes/s]
    """
    wanted = [value for value in demands if value is not None]
    served = [value for value in bandwidths if value is not None]
    if not wanted or not served or (len(wanted) < len(demands) or len(served) < len(bandwidths)):
        return None
    # In whole hundredths: the sum must not depend on how nodes are merged into domains.
    hundredths = round(100 * sum(wanted))
    return 100 * sum(served) / hundredths if hundredths >= HUNDREDTHS_MIN else None


def expected_traffic(demand_cores: float, intensity: float, rate: float | None) -> float | None:
    """Return a guest's expected traffic [bytes/s]; None: unknown.

    :param intensity: its traffic relative to the host's mean per core
    :param rate: :func:`bytes_per_core_sec`
    """
    return None if rate is None else demand_cores * rate * intensity


def request(
    guest: model.Guest,
    limits: model.PlacementOptions,
    device_nodes: Iterable[int] = (),
    history: model.DemandHistory | None = None,
) -> model.Request:
    """Turn a guest into a request.

    The expected demand of an unmeasured guest is ĉ = :func:`expected_cores`; its expected traffic
    is ĉ · (host's bytes per core-second) · {low 0.3, medium 1, high 3}. Unknown values of a hint
    are ignored.

    :param device_nodes: node ids of its host devices
    :param history: of the host's guests, None: there is none
    """
    history = history or model.DemandHistory()
    demand = expected_cores(guest.vcpus, history)
    return model.Request(
        guest.vcpus_limit,
        guest.memory_bytes,
        guest.page_bytes,
        guest.allowed_cpus,
        tuple(device_nodes),
        model.NONE if guest.override == model.IGNORE else policy_of(guest),
        demand,
        expected_traffic(demand, intensity_of(guest), history.bytes_per_core_sec),
        guest.placed_by,
    )


def policy_of(guest: model.Guest) -> str:
    """Return the placement policy of a guest's flavor; an unknown one counts as not given."""
    policy = dict(guest.extra_specs).get(POLICY_KEY)
    return policy if policy in model.POLICIES else model.AUTO


def intensity_of(guest: model.Guest) -> float:
    """Return a guest's bandwidth per core, relative to the host's mean, by its flavor."""
    intensity = dict(guest.extra_specs).get(INTENSITY_KEY, '')
    return INTENSITY.get(intensity, INTENSITY[DEFAULT_INTENSITY])


def expected_cores(vcpus: int, history: model.DemandHistory) -> float:
    """Return the expected demand of a guest without measurements [cores].

    ĉ = vCPUs · (5 · 0.5 + Σκ) / (5 + N)

    :param history: the demand history; its weight equals the prior's at five guests
    """
    return vcpus * expected_per_vcpu(history.guests, history.cores_per_vcpu_sum)


def expected_per_vcpu(guests: float, cores_per_vcpu_sum: float) -> float:
    """Return the expected demand of one vCPU [cores], rounded to 1/64.

    :param guests, cores_per_vcpu_sum: as in :class:`model.DemandHistory`
    """
    return (
        round(
            _STEPS_PER_CORE
            * (PRIOR_GUESTS * PRIOR_CORES_PER_VCPU + cores_per_vcpu_sum)
            / (PRIOR_GUESTS + guests)
        )
        / _STEPS_PER_CORE
    )


def capacity_bytes(node: model.Node, limits: model.PlacementOptions) -> int:
    """Return a node's promisable bytes in normal pages.

    ram_ratio · (MemTotal − huge page pools − unreclaimable − reserve), never negative.
    """
    pools = sum(pool.page_bytes * pool.total for pool in node.huge_pages)
    usable = node.memory_bytes - pools - node.unreclaimable_bytes - limits.reserve_bytes
    return max(0, int(limits.ram_ratio * usable))


def capacity_cores(host: model.Topology, limits: model.PlacementOptions) -> list[float]:
    """Return the capacity C_n of each node by position [cores].

    It is the node's cores, plus s for each further usable SMT sibling.

    A busy sibling adds far less than a core: with threads counted as cores, XAPI's guests lost
    more CPU time than they gained by locality.
    """
    position_of_cpu = {cpu: at for at, node in enumerate(host.nodes) for cpu in node.cpus}
    cores = [0.0] * len(host.nodes)
    for siblings in host.cores:
        seen = set()
        for cpu in siblings:
            at = position_of_cpu.pop(cpu, None)
            if at is not None:
                cores[at] += limits.smt_ratio if at in seen else 1.0
                seen.add(at)
    for at in position_of_cpu.values():  # CPUs that no core names
        cores[at] += 1.0
    return cores


def less_stolen(cores: float, stolen_cores: float | None) -> float:
    """Return a capacity less the stolen cores, at least :data:`_CAPACITY_MIN_RATIO` of it.

    :param stolen_cores: taken by other guests of the host's own hypervisor; None: unknown, counts
        as 0
    """
    return max(_CAPACITY_MIN_RATIO * cores, cores - (stolen_cores or 0.0))


def _sum_promises(
    nodes: Sequence[model.Node], capacity: Sequence[int], promises: Sequence[model.Promise]
) -> tuple[list[int], list[dict[int, int]]]:
    """Sum promised bytes by position: in normal pages, and {page_bytes: bytes} in huge ones."""
    normal = [0] * len(nodes)
    huge: list[dict[int, int]] = [{} for _ in nodes]
    several: list[tuple[tuple[int, ...], int]] = []
    floating: list[tuple[tuple[int, ...], int]] = []
    with_memory = tuple(at for at, node in enumerate(nodes) if node.memory_bytes)
    for promise, homes in zip(
        promises, _homes(nodes, [p.mem_nodes for p in promises], with_memory)
    ):
        recorded = len(promise.mem_bytes) == len(homes) == len(promise.mem_nodes)
        if promise.page_bytes:
            _promise_huge(nodes, huge, homes, promise, promise.page_bytes, recorded)
        elif recorded:
            _add(normal, homes, promise.mem_bytes)
        elif len(homes) == 1:
            normal[homes[0]] += promise.memory_bytes
        else:
            (several if promise.mem_nodes else floating).append((homes, promise.memory_bytes))
    for homes, memory_bytes in several:
        left = [max(0, capacity[at] - normal[at]) for at in homes]
        if sum(left) < memory_bytes:
            left = [capacity[at] for at in homes]
        _add(normal, homes, split_bytes(memory_bytes, left))
    for homes, memory_bytes in floating:
        _add(normal, homes, split_bytes(memory_bytes, [capacity[at] for at in homes]))
    return normal, huge


def _promise_huge(
    nodes: Sequence[model.Node],
    huge: Sequence[dict[int, int]],
    homes: tuple[int, ...],
    promise: model.Promise,
    page_bytes: int,
    recorded: bool,
) -> None:
    shares = (
        promise.mem_bytes
        if recorded
        else split_bytes(
            promise.memory_bytes,
            [
                sum(
                    pool.page_bytes * pool.total
                    for pool in nodes[at].huge_pages
                    if pool.page_bytes == page_bytes
                )
                for at in homes
            ],
        )
    )
    for at, share in zip(homes, shares):
        huge[at][page_bytes] = huge[at].get(page_bytes, 0) + share


def _homes(
    nodes: Sequence[model.Node],
    wanted: Iterable[tuple[int, ...]],
    everywhere: tuple[int, ...] = (),
) -> list[tuple[int, ...]]:
    """Turn tuples of node ids into positions; if none exists, ``everywhere`` or else all."""
    position = {node.id: at for at, node in enumerate(nodes)}
    everywhere = everywhere or tuple(range(len(nodes)))
    return [tuple(position[n] for n in ids if n in position) or everywhere for ids in wanted]


def _add(amounts: list[int], homes: tuple[int, ...], shares: Sequence[int]) -> None:
    for at, share in zip(homes, shares):
        amounts[at] += share


def _huge_free(node: model.Node, promised: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """List (page_bytes, bytes free): free pages, less what promised guests have yet to take."""
    return tuple(
        (
            pool.page_bytes,
            max(
                0,
                min(
                    pool.page_bytes * pool.free,
                    pool.page_bytes * pool.total - promised.get(pool.page_bytes, 0),
                ),
            ),
        )
        for pool in node.huge_pages
    )


def _vcpus(
    nodes: Sequence[model.Node],
    cores: Sequence[float],
    promises: Sequence[model.Promise],
    now_ns: int | None,
) -> tuple[list[float], list[float], list[float]]:
    """Count guests, vCPUs and young guests' vCPUs by position."""
    guests, vcpus, young = ([0.0] * len(nodes) for _ in range(3))
    for promise, homes in zip(promises, _homes(nodes, [p.cpu_nodes for p in promises])):
        shares = _shares([cores[at] for at in homes]) if len(homes) > 1 else [1.0]
        is_young = now_ns is not None and promise.since_ns > now_ns - NOT_YET_MEASURED_NS
        for at, share in zip(homes, shares):
            guests[at] += share
            vcpus[at] += share * promise.vcpus
            if is_young:
                young[at] += share * promise.vcpus
    return guests, vcpus, young


def split_bytes(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide whole bytes in proportion to whole weights; evenly when all are 0.

    No share exceeds its weight as long as the amount fits: rounding must not overfill a node.
    """
    if not sum(weights):
        weights = [1] * len(weights)
    total, cumulated, given, shares = sum(weights), 0, 0, []
    for weight in weights:
        cumulated += weight
        shares.append(amount * cumulated // total - given)
        given += shares[-1]
    return shares


def _shares(weights: Sequence[float]) -> list[float]:
    """Divide 1 in proportion to weights; evenly when all are 0."""
    total = sum(weights)
    return [weight / total if total else 1 / len(weights) for weight in weights]
