# SPDX-License-Identifier: Apache-2.0
"""Reconcile the promises with the running guests, decide on a place, and record it.

Everything between reading the promises and writing them happens under their lock,
so that no two starts decide from the same view. Otherwise, guests that start together would
all go to the node that was best before the first of them.
"""

from __future__ import annotations

import os
import time

from nova_numa_pmc import model
from nova_numa_pmc.core import pools
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import CpusetError, StateError, TopologyError
from nova_numa_pmc.host import files, guests, topology
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import pool_loads, promises_file
from nova_numa_pmc.state.promises_format import HostPromises
from nova_numa_pmc.usable_cpus import host_with_pool_cpus

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nova_numa_pmc.conf.host_options import HostOptions


#: A node with less than this share of a guest's memory does not count as holding it.
_HOLDS_RATIO = 0.05


class Decision(Record):
    """Decision for a guest, recorded.

    :param cpus: CPUs to hold it to; None: leave its CPUs alone
    :param why: the reasons, rendered
    :param problems: what is to be logged
    :param failed: it was ours to place, and there is no place for it
    :param view, request: the host without the guest, and the request decided on; None: the
        decision was recalled
    :param evidence: the measurements it is based on; None: the decision was recalled
    """

    promise: model.Promise
    cpus: frozenset[int] | None
    why: str
    problems: tuple[str, ...]
    failed: bool = False
    view: model.HostView | None = None
    request: model.Request | None = None
    evidence: pool_loads.PlacementEvidence | None = None


def locked(options: HostOptions, root: str, timeout_s: float) -> promises_file.locked:
    """Return :class:`promises_file.locked` for the promises of the host at ``root``."""
    return promises_file.locked(options.state_path(root), timeout_s, files.read_boot_id(root))


def read(options: HostOptions, root: str) -> HostPromises:
    """Read the promises of the host at ``root`` without a lock.

    :raises StateError: names the file and the remedy
    """
    return promises_file.read(options.state_path(root), files.read_boot_id(root)) or HostPromises()


def recall(guest: model.Guest, options: HostOptions, root: str) -> Decision | None:
    """Return the decision recorded at the guest's start; None: there is none.

    Its ``cpus`` are not recorded: :func:`promised_cpus` reads them from the host.
    """
    try:
        promise = promises_file.read_one(
            options.state_path(root), guest.uuid, files.read_boot_id(root)
        )
    except StateError:
        return None  # the decision creates the file again, and reports why
    if not promise:
        return None
    return Decision(promise, None, '%s: as promised' % name_nodes(promise.cpu_nodes), ())


def promised_cpus(promise: model.Promise, guest: model.Guest, root: str) -> frozenset[int]:
    """Return the CPUs to hold a guest to by its promise.

    :raises TopologyError: the host cannot be read
    """
    return pools.cpus_held(promise, host_with_pool_cpus(root), guest)


def decide_promise(
    guest: model.Guest,
    options: HostOptions,
    root: str,
    timeout_s: float,
    by_node: Mapping[int, int] | None = None,
    host_promises: promises_file.HostPromisesDraft | None = None,
) -> Decision:
    """Decide where a guest belongs and promise it, in place of its earlier promise.

    :param timeout_s: how long to wait for the promises file's lock [s]
    :param by_node: {node id: bytes} of memory that is there already and stays there: the CPUs
        follow it. None: its memory is still to come
    :param host_promises: the promises to decide with; None: those of the host, locked
    :raises NumaPmcError: there is no decision, and nothing was recorded
    """
    # Not where the decision is recalled.
    from nova_numa_pmc.core.placement import explain, placement, promise_limit

    host = host_with_pool_cpus(root)
    devices, problems = _device_nodes(guest, root)
    problems += (*host.problems, *_extra_spec_problems(guest.extra_specs))
    guest, unread = _with_override(guest, root)
    guest, beyond = promise_limit.limit_memory(guest, host, options.limits)
    located, own_host = _with_pool_load(guest, host), pools.with_guest_pool(guest, host)
    problems += (*unread, *beyond)
    host_promises = host_promises or locked(options, root, timeout_s)
    with host_promises:
        problems += reconcile(host_promises, host, options, root, guest)
        _drop(host_promises, guest.name, guest.uuid)
        evidence = _evidence(pools.cpus_of(own_host), pools.is_apart(guest, host), options, root)
        loading = _loading_promises(host_promises.promises.values(), guest, host)
        view, request = _view_and_request(
            guest, devices, own_host, loading, options.limits, evidence, host_promises.rotation
        )
        placed = placement.place(view, request, options.limits)
        placed, cpus = _narrow_to_l3(placed, own_host, view, loading, request, options.limits)
        promise = placement.promise(located, placed, files.boottime_ns())._replace(cpus=cpus)
        decision = Decision(
            promise,
            placed.cpus,
            explain.explain(placed),
            problems=(),
            failed=promise.origin == model.FLOATING and request.policy != model.NONE,
        )
        if by_node and placed.nodes:
            followable = _followable_bytes(by_node, host, options.limits)
            decision = _follow(request, decision, own_host, followable)
        host_promises.put(decision.promise)
        host_promises.rotation += 1
    if promise.origin != model.PINNED and request.policy != model.NONE:
        decision = decision._replace(why='%s; by %s' % (decision.why, evidence.summary))
    return decision._replace(
        problems=(*problems, *evidence.problems), view=view, request=request, evidence=evidence
    )


def _view_and_request(
    guest: model.Guest,
    device_nodes: tuple[int, ...],
    host: model.Topology,
    loading: Collection[model.Promise],
    limits: model.PlacementOptions,
    evidence: pool_loads.PlacementEvidence,
    rotation: int,
) -> tuple[model.HostView, model.Request]:
    """Return (the host's view without the guest, the guest's request), using the evidence."""
    from nova_numa_pmc.core import host_view
    from nova_numa_pmc.core.placement import placement

    view = host_view.view(host, loading, limits, dict(evidence.loads), rotation)
    request = host_view.request(
        guest, limits, device_nodes, placement.with_traffic_rate(evidence.history, view)
    )
    return host_view.charge_since(view, dict(evidence.vcpus), evidence.history), request


def _narrow_to_l3(
    placed: model.Placement,
    host: model.Topology,
    view: model.HostView,
    promises: Collection[model.Promise],
    request: model.Request,
    limits: model.PlacementOptions,
) -> tuple[model.Placement, tuple[int, ...]]:
    """Narrow a placement to an L3 cache of its one place; return it and the cache's CPUs."""
    if (
        placed.cpus is None
        or placed.reasons[0].code != 'one_node'
        or not pools.has_l3s(host, placed.nodes)
    ):
        return placed, ()
    from nova_numa_pmc.core.placement import l3  # few hosts have several on a node

    cpus, reasons = l3.choose(host, view, tuple(promises), placed.nodes, request, limits)
    return placed._replace(
        cpus=placed.cpus.intersection(cpus) or placed.cpus, reasons=placed.reasons + reasons
    ), cpus


def record_started(
    promise: model.Promise, options: HostOptions, root: str, timeout_s: float
) -> None:
    """Record that a guest has started, and its place.

    If the guest has ended meanwhile, and may have been started again, a late worker leaves the
    promise as it is.
    """
    with locked(options, root, timeout_s) as host_promises:
        now = host_promises.promises.get(promise.uuid)
        if now and now.since_ns == promise.since_ns:
            host_promises.put(promise._replace(started=True))


def updated_promise(
    promise: model.Promise,
    guest: model.Guest,
    host: model.Topology,
    limits: model.PlacementOptions,
) -> model.Promise:
    """Return a running guest's promise with the vCPUs and the memory that it has now, and where.

    :param guest: read since vCPUs or memory were plugged or taken out
    """
    from nova_numa_pmc.core.placement import promise_limit

    guest = _with_pool_load(promise_limit.limit_memory(guest, host, limits)[0], host)
    if promise.memory_bytes != guest.memory_bytes:
        promise = promise._replace(memory_bytes=guest.memory_bytes, mem_bytes=())
    if promise.vcpus != guest.vcpus:
        promise = promise._replace(vcpus=guest.vcpus)
    if (
        promise.origin == model.PLACED
        and guest.placed_by == ('numatune',)
        and not set(promise.cpu_nodes) & set(guest.mem_nodes)
    ):
        # virsh numatune --live: where the memory is bound, the CPUs follow it.
        beside = pools.nodes_of(pools.cpus_on(guest.mem_nodes, host, guest), host)
        if beside:
            promise = promise._replace(
                cpu_nodes=beside, mem_nodes=guest.mem_nodes, mem_bytes=(), bound=False, cpus=()
            )
    return promise


def forget(name: str, options: HostOptions, root: str, timeout_s: float) -> None:
    """Free what was promised to the guest of this name."""
    with locked(options, root, timeout_s) as host_promises:
        _drop(host_promises, name)


def _drop(
    host_promises: promises_file.HostPromisesDraft, name: str, uuid: str | None = None
) -> None:
    """Drop what was promised to a guest of this name or this uuid."""
    for other, promise in list(host_promises.promises.items()):
        if other == uuid or promise.name == name:
            host_promises.drop(other)


def reconcile(
    host_promises: promises_file.HostPromisesDraft,
    host: model.Topology,
    options: HostOptions,
    root: str,
    starting: model.Guest | None = None,
    now_ns: int | None = None,
) -> list[str]:
    """Drop promises of guests that are gone, and count those that run without a promise.

    The latter were started while the hook was not installed, was disabled or failed; if the
    promises were lost, these are all guests.

    :param host_promises: locked, where they are those of the host
    :param starting: the guest that is being decided on; it is not counted
    :param now_ns: CLOCK_BOOTTIME; None: now
    :returns: problems
    :raises StateError: the running guests cannot be listed: with them unknown, any decision
        might break a promise
    """
    problems = [host_promises.problem] if host_promises.problem else []
    host_promises.promises, unknown = remaining(
        host_promises.promises, options, root, files.boottime_ns() if now_ns is None else now_ns
    )
    if starting:
        unknown -= {starting.name}
    if not unknown:
        return problems
    from nova_numa_pmc.core.placement import promise_limit

    found, unread = guests.read_running(root)
    problems += unread
    for guest in found:
        if guest.name in unknown:
            guest, beyond = promise_limit.limit_memory(guest, host, options.limits)
            problems += ['guest %s: %s' % (guest.name, problem) for problem in beyond]
            host_promises.put(_implied_promise(_with_pool_load(guest, host), host, options, root))
    return problems


def remaining(
    promises: Mapping[str, model.Promise], options: HostOptions, root: str, now_ns: int
) -> tuple[dict[str, model.Promise], frozenset[str]]:
    """Return the promises without those of guests that are gone, and the names of guests without.

    :param now_ns: CLOCK_BOOTTIME
    :raises StateError: the running guests cannot be listed
    """
    names = guests.active_names(root)
    running = [uuid for uuid, promise in promises.items() if promise.name in names]
    kept = promises_file.prune(promises, running, now_ns, options.start_grace_s * 10**9)
    return kept, names - {promise.name for promise in kept.values()}


def _loading_promises(
    promises: Collection[model.Promise], guest: model.Guest, host: model.Topology
) -> Collection[model.Promise]:
    """Return the promises as they load the CPUs of a guest's pool.

    Those of guests in the floating pool load none of a pool apart from it.
    """
    if not pools.is_apart(guest, host):
        return promises
    return [promise._replace(vcpus=0) for promise in promises]


def _followable_bytes(
    by_node: Mapping[int, int], host: model.Topology, limits: model.PlacementOptions
) -> dict[int, int]:
    """Return the part of {node id: bytes} on nodes for guests; {}: most of it lies elsewhere."""
    from nova_numa_pmc.core import node_memory

    followable = {
        node.id: by_node[node.id]
        for node in host.nodes
        if node.id in by_node and node_memory.is_for_guests(node, limits)
    }
    return followable if 2 * sum(followable.values()) > sum(by_node.values()) else {}


def _follow(
    request: model.Request, decision: Decision, host: model.Topology, by_node: Mapping[int, int]
) -> Decision:
    """Hold a guest to the CPUs beside its memory; as decided before where they are too few."""
    from nova_numa_pmc.core.host_view import split_bytes

    total, homes = sum(by_node.values()), []
    for node in sorted(by_node, key=lambda node: (-by_node[node], node)):
        homes.append(node)
        beside = frozenset().union(*(node.cpus for node in host.nodes if node.id in homes))
        if len(beside) >= request.vcpus:
            break
    else:
        return decision
    holding = tuple(sorted(node for node in by_node if by_node[node] >= _HOLDS_RATIO * total))
    cpu_nodes = pools.nodes_of(beside, host)
    why = '%s: with its memory (%s)' % (
        name_nodes(cpu_nodes),
        ', '.join('%d MiB on %d' % (by_node[node] >> 20, node) for node in holding),
    )
    promise = decision.promise._replace(
        cpu_nodes=cpu_nodes,
        mem_nodes=holding,
        cpus=(),
        mem_bytes=tuple(
            split_bytes(decision.promise.memory_bytes, [by_node[node] for node in holding])
        ),
    )
    return Decision(promise, beside, why, ())


def _evidence(
    cpus: frozenset[int], apart: bool, options: HostOptions, root: str
) -> pool_loads.PlacementEvidence:
    """Return the evidence of the CPUs that a guest may use."""
    return pool_loads.evidence(
        options.state_path(root), files.read_boot_id(root), files.boottime_ns(), cpus, apart
    )


def _implied_promise(
    guest: model.Guest, host: model.Topology, options: HostOptions, root: str
) -> model.Promise:
    """Return the promise that a running guest without one amounts to."""
    from nova_numa_pmc.core import host_view
    from nova_numa_pmc.core.placement import placement

    nodes = () if guest.placed_by else pools.nodes_of(_held_cpus(guest.pid, root), host)
    if len(nodes) == sum(1 for node in host.nodes if node.cpus):
        nodes = ()
    held = model.Placement(
        nodes,
        mem_nodes=tuple(node.id for node in host.nodes if node.id in nodes and node.memory_bytes),
    )
    promise = placement.promise(guest, held, files.boottime_ns())._replace(started=True)
    # Its own start recorded nothing: the hook was not there, or failed.
    return promise._replace(
        missed=(
            promise.origin == model.FLOATING
            and not guest.placed_by
            and options.enabled
            and host_view.policy_of(guest) != model.NONE
            and _began_after_hook(guest.pid, root)
        )
    )


def _began_after_hook(pid: int | None, root: str) -> bool:
    """Return whether a process began after the hook was installed; False where unknown."""
    if pid is None:
        return False
    try:
        stat = files.read_kernel_file(os.path.join(root, 'proc/%d/stat' % pid))
        age_s = files.boottime_ns() / 1e9 - files.start_ticks(stat) / os.sysconf('SC_CLK_TCK')
        hook = os.stat(os.path.join(root, files.HOOKS, files.OUR_HOOK))
        return time.time() - age_s > hook.st_ctime
    except (OSError, ValueError, IndexError):
        return False


def _held_cpus(pid: int | None, root: str) -> frozenset[int] | None:
    """Return the CPUs a running guest's groups hold it to, None where that is unknown."""
    from nova_numa_pmc.host import cgroups, held  # seldom needed, and slow to import

    try:
        return held.held_cpus(cgroups.find(pid, root))
    except CpusetError:
        return None


def _extra_spec_problems(specs: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the problems of a flavor's extra specs; the decision ignores these specs."""
    if not specs:
        return []
    from nova_numa_pmc import extra_specs  # few flavors have any

    return ["the flavor's " + problem for problem in extra_specs.parse(specs).problems]


def _with_override(guest: model.Guest, root: str) -> tuple[model.Guest, list[str]]:
    """Return the guest with the operator's override; without the file it is as any other."""
    from nova_numa_pmc.state import overrides  # not where the decision is recalled

    try:
        (guest,), problems = overrides.with_overrides((guest,), root)
    except StateError as error:
        return guest, [str(error)]
    return guest, problems


def _device_nodes(guest: model.Guest, root: str) -> tuple[tuple[int, ...], list[str]]:
    nodes, problems = set(), []
    for address in guest.pci_devices:
        try:
            node = topology.pci_device_node(address, root)
        except TopologyError as error:
            problems.append(str(error))
        else:
            if node is not None:
                nodes.add(node)
    return tuple(sorted(nodes)), problems


def _with_pool_load(guest: model.Guest, host: model.Topology) -> model.Guest:
    """Return the guest with its pins' nodes, and only the vCPUs that load the floating pool."""
    loading = pools.loading_vcpus(guest, host)
    if loading != guest.vcpus:
        guest = guest._replace(vcpus=loading)
    return (
        guest._replace(cpu_nodes=pools.nodes_of(guest.pinned_cpus, host))
        if guest.pinned_cpus
        else guest
    )
