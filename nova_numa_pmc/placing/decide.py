# SPDX-License-Identifier: Apache-2.0
"""Reconcile the promises with the running guests, decide on a place, and record it.

Everything between reading the promises and writing them happens under their lock, so that no two
starts decide from the same view. Otherwise, guests that start at the same time would all go to the
node that was best before the first of them.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.conf.host_options import START_GRACE_S
from nova_numa_pmc.core import eligibility, pools
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import CpusetError, StateError
from nova_numa_pmc.host import allowed, files, guests, host_devices
from nova_numa_pmc.placing.host_cpus import host_with_pool_cpus
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import promises_file, publication
from nova_numa_pmc.state.promises_file import HostPromises

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from nova_numa_pmc.conf.host_options import HostOptions


#: How long the agent and the commands wait for the promises file's lock [s]; a short time, because
#: starts of guests take precedence.
LOCK_TIMEOUT_S = 0.25
#: A node that has less than this share of a guest's memory does not count as one of its nodes.
_MEM_NODE_MIN_RATIO = 0.05


class Decision(Record):
    """A decision for a guest, whose promise is recorded.

    :param cpus: CPUs to hold the guest to; None: leave its CPUs alone
    :param why: the reasons, as text
    :param problems: problems to log
    :param has_no_place: the guest was ours to place, and no place was found
    :param view, request: the host without the guest, and the request that was decided on; None:
        it is a :func:`recorded_decision`
    :param evidence: the measurements that it is based on; None: it is a recorded decision
    """

    promise: model.Promise
    cpus: frozenset[int] | None
    why: str
    problems: tuple[str, ...]
    has_no_place: bool = False
    view: model.HostView | None = None
    request: model.Request | None = None
    evidence: publication.PlacementEvidence | None = None


def locked(
    host_options: HostOptions, root: str, timeout_s: float = LOCK_TIMEOUT_S
) -> promises_file.locked:
    """Return :class:`promises_file.locked` for the promises of the host at ``root``."""
    return promises_file.locked(host_options.state_path(root), timeout_s, files.read_boot_id(root))


def read(host_options: HostOptions, root: str) -> HostPromises:
    """Read the promises of the host at ``root`` without a lock.

    :raises StateError: the promises cannot be read
    """
    return (
        promises_file.read(host_options.state_path(root), files.read_boot_id(root))
        or HostPromises()
    )


def recorded_decision(guest: model.Guest, host_options: HostOptions, root: str) -> Decision | None:
    """Return the decision recorded at the guest's start, or None if there is none.

    Its ``cpus`` are not recorded, but follow from the promise and the host.
    """
    try:
        promise = promises_file.read_one(
            host_options.state_path(root), guest.uuid, files.read_boot_id(root)
        )
    except StateError:
        return None  # a new decision creates the file again, and reports the error
    if not promise:
        return None
    return Decision(promise, None, '%s: as promised' % name_nodes(promise.cpu_nodes), ())


def decide_promise(
    guest: model.Guest,
    host_options: HostOptions,
    root: str,
    timeout_s: float,
    bytes_by_node: Mapping[int, int] | None = None,
    given_draft: promises_file.HostPromisesDraft | None = None,
) -> Decision:
    """Decide on a guest's place and promise it, replacing the guest's earlier promise.

    :param guest: with the operator's override
    :param timeout_s: how long to wait for the promises file's lock [s]
    :param bytes_by_node: {node id: bytes} of memory that the guest has already and that stays
        where it is, so that the CPUs follow it; None: the memory is not allocated yet
    :param given_draft: the promises to decide with; None: those of the host, locked
    :raises NumaPmcError: there is no decision, and nothing was recorded
    """
    # Not needed for a recorded decision.
    from nova_numa_pmc.core.placement import explain, placement

    host = host_with_pool_cpus(root)
    nodes_by_device, problems = host_devices.read_nodes(
        [device for device in guest.devices if device.locks_memory], root
    )
    device_nodes = tuple(sorted({node for node in nodes_by_device.values() if node is not None}))
    problems += (*host.problems, *_extra_spec_problems(guest.extra_specs))
    placement_options = host_options.placement_options
    guest = _with_cpus_near_bound_memory(guest, host)
    guest_in_pool, pool_host = _with_topology(guest, host), pools.with_guest_pool(guest, host)
    with given_draft or locked(host_options, root, timeout_s) as draft:
        problems += reconcile(draft, host, host_options, root, guest)
        _drop(draft, guest.name, guest.uuid)
        evidence = _evidence(
            pools.all_cpus(pool_host), pools.avoids_floating_pool(guest, host), host_options, root
        )
        others = _promises_in_pool(draft.promises.values(), guest, host)
        view, request = _view_and_request(
            guest, device_nodes, host, others, placement_options, evidence, draft.rotation
        )
        placed = placement.place(view, request, placement_options)
        placed, cpus = _narrow_to_l3(placed, pool_host, view, others, request, placement_options)
        promise = placement.new_promise(guest_in_pool, placed, files.boottime_ns(), cpus)
        decision = Decision(
            promise,
            placed.cpus,
            explain.explain(placed),
            problems=(),
            has_no_place=promise.origin == model.FLOATING and not request.why_alone,
        )
        if bytes_by_node and placed.cpu_nodes:
            followable = _followable_bytes(bytes_by_node, host, placement_options)
            decision = _follow(request, decision, pool_host, followable)
        draft.put(decision.promise)
        draft.rotation += 1
    if not request.why_alone:
        decision = decision._replace(
            why='; '.join(
                (decision.why, *_limits(guest, host, root), 'based on %s' % evidence.summary)
            )
        )
    return decision._replace(
        problems=(*problems, *evidence.problems), view=view, request=request, evidence=evidence
    )


def _limits(guest: model.Guest, host: model.Topology, root: str) -> list[str]:
    """Return, as text, which groups take CPUs or memory from a guest that it would have else."""
    if guest.granted_mems is None and pools.all_cpus(
        pools.with_guest_pool(guest, host)
    ) == pools.all_cpus(pools.with_guest_pool(guest._replace(granted_cpus=None), host)):
        return []
    return allowed.limits(guest, root)


def _with_cpus_near_bound_memory(guest: model.Guest, host: model.Topology) -> model.Guest:
    """Return a guest that is ours to place on the nodes to which numatune alone binds its memory.

    If these nodes do not have a CPU for each of its vCPUs, it stays placed by others.
    """
    if not _is_only_bound(guest):
        return guest
    cpus = pools.cpus_on(tuple(guest.limit_mems or ()), host, guest)
    if len(cpus) < guest.vcpus:
        return guest
    return guest._replace(placed_by=(), allowed_cpus=cpus)


def _is_only_bound(guest: model.Guest) -> bool:
    """Return whether others have bound a guest's memory to nodes and done nothing else to it."""
    return guest.mem_bound and guest.placed_by == ('numatune',)


def is_left_alone(guest: model.Guest) -> bool:
    """Return whether a guest is left alone, whatever its host and the promises look like.

    :param guest: with the operator's override
    """
    if _is_only_bound(guest):
        guest = guest._replace(placed_by=())
    return bool(eligibility.why_not(eligibility.PLACE, guest))


def _view_and_request(
    guest: model.Guest,
    device_nodes: tuple[int, ...],
    host: model.Topology,
    others: Collection[model.Promise],
    placement_options: model.PlacementOptions,
    evidence: publication.PlacementEvidence,
    rotation: int,
) -> tuple[model.HostView, model.Request]:
    """Return the view of the guest's pool without the guest, and the guest's request.

    :param host: the host with the floating pool
    """
    from nova_numa_pmc.core import host_view
    from nova_numa_pmc.core.placement import placement

    pool_host = pools.with_guest_pool(guest, host)
    view = host_view.view(pool_host, others, placement_options, dict(evidence.loads), rotation)
    view = host_view.with_memory_on(view, guest.limit_mems)
    # The agent spreads the vCPUs of guests on several nodes by the floating pool's cores.
    is_same = not evidence.vcpus or pool_host == host
    floating_view = view if is_same else host_view.view(host, others, placement_options)
    request = host_view.request(
        guest,
        placement_options,
        device_nodes,
        placement.with_traffic_per_core(evidence.history, view),
    )
    return host_view.with_arrivals_and_departures(
        view,
        {node.id: node.vcpus for node in floating_view.nodes},
        dict(evidence.vcpus),
        evidence.history,
    ), request


def _narrow_to_l3(
    placed: model.Placement,
    host: model.Topology,
    view: model.HostView,
    promises: Collection[model.Promise],
    request: model.Request,
    placement_options: model.PlacementOptions,
) -> tuple[model.Placement, tuple[int, ...]]:
    """Narrow a placement on one node to one of the node's L3 caches, if it has several.

    :returns: the placement, and the CPUs of the cache; no CPUs if it was not narrowed
    """
    from nova_numa_pmc.core.placement.reasons import ON_ONE_NODE

    if (
        placed.cpus is None
        or placed.reasons[0].code != ON_ONE_NODE
        or not pools.has_several_l3s(host, placed.cpu_nodes)
    ):
        return placed, ()
    from nova_numa_pmc.core.placement import l3  # few hosts have several L3 caches on a node

    cpus, reasons = l3.choose(
        host, view, tuple(promises), placed.cpu_nodes, request, placement_options
    )
    return placed._replace(
        cpus=placed.cpus.intersection(cpus) or placed.cpus, reasons=placed.reasons + reasons
    ), cpus


def replace_running(
    promise: model.Promise,
    host_options: HostOptions,
    root: str,
    timeout_s: float = LOCK_TIMEOUT_S,
    started: bool = True,
) -> bool:
    """Replace the whole promise of a running guest, as :func:`update_running` does some fields.

    :param started: False: its start is still in progress
    :returns: whether it was recorded
    """
    changes = promise._replace(started=started)._asdict()
    return update_running(promise, host_options, root, timeout_s, **changes) is not None


def update_running(
    promise: model.Promise,
    host_options: HostOptions,
    root: str,
    timeout_s: float = LOCK_TIMEOUT_S,
    **changes: Any,
) -> model.Promise | None:
    """Change some fields of a running guest's promise, and keep what others have recorded.

    Nothing is recorded if the guest has ended or been started again since ``promise`` was read,
    which a late child process would not have noticed.

    :param promise: as it was read
    :param timeout_s: how long to wait for the promises file's lock [s]
    :param changes: the new values of the fields
    :returns: the current promise; None: nothing was recorded
    :raises StateError: the promise cannot be written
    """
    with locked(host_options, root, timeout_s) as draft:
        current = draft.promises.get(promise.uuid)
        if current is None or current.since_ns != promise.since_ns:
            return None
        current = current._replace(**changes)
        draft.put(current)
    return current


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
    guest = _with_topology(guest, host)
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


def forget(name: str, host_options: HostOptions, root: str, timeout_s: float) -> None:
    """Drop the promise of the guest with this name."""
    with locked(host_options, root, timeout_s) as draft:
        _drop(draft, name)


def _drop(draft: promises_file.HostPromisesDraft, name: str, uuid: str | None = None) -> None:
    """Drop the promises of the guests with this name or this uuid."""
    for promise_uuid, promise in list(draft.promises.items()):
        if promise_uuid == uuid or promise.name == name:
            draft.drop(promise_uuid)


def reconcile(
    draft: promises_file.HostPromisesDraft,
    host: model.Topology,
    host_options: HostOptions,
    root: str,
    starting: model.Guest | None = None,
    boottime_ns: int | None = None,
) -> list[str]:
    """Drop the promises of guests that are gone, and add those of guests that have none.

    A guest runs without a promise if it was started while the hook was not installed, was disabled
    or failed. If the promises were lost, no guest has one.

    :param draft: the promises to change; those of the host must be locked
    :param starting: the guest that is being decided on, for which no promise is added
    :param boottime_ns: CLOCK_BOOTTIME; None: now
    :returns: problems
    :raises StateError: the running guests cannot be listed, so that any decision might break
        the promise of an unknown guest
    """
    problems = [draft.problem] if draft.problem else []
    draft.promises, unknown_names = without_gone_guests(
        draft.promises,
        host_options,
        root,
        files.boottime_ns() if boottime_ns is None else boottime_ns,
    )
    if starting:
        unknown_names -= {starting.name}
    if not unknown_names:
        return problems
    running, read_problems = guests.read_running(root)
    problems += read_problems
    for guest in running:
        if guest.name in unknown_names:
            draft.put(_implied_promise(_with_topology(guest, host), host, host_options, root))
    return problems


def without_gone_guests(
    promises: Mapping[str, model.Promise], host_options: HostOptions, root: str, boottime_ns: int
) -> tuple[dict[str, model.Promise], frozenset[str]]:
    """Return the promises of guests that are not gone, and the names of guests without a promise.

    :param boottime_ns: CLOCK_BOOTTIME
    :raises StateError: the running guests cannot be listed
    """
    names = guests.active_names(root)
    running = [uuid for uuid, promise in promises.items() if promise.name in names]
    remaining = promises_file.prune(promises, running, boottime_ns, START_GRACE_S * 10**9)
    return remaining, names - {promise.name for promise in remaining.values()}


def _promises_in_pool(
    promises: Collection[model.Promise], guest: model.Guest, host: model.Topology
) -> Collection[model.Promise]:
    """Return the promises, with their vCPUs that use the pool of a guest.

    Guests in the floating pool use no CPUs of the pool of a guest that avoids it.
    """
    if not pools.avoids_floating_pool(guest, host):
        return promises
    return [promise._replace(vcpus=0) for promise in promises]


def _followable_bytes(
    bytes_by_node: Mapping[int, int],
    host: model.Topology,
    placement_options: model.PlacementOptions,
) -> dict[int, int]:
    """Return the part of {node id: bytes} on nodes for guests; {} if most of it is elsewhere."""
    from nova_numa_pmc.core import node_memory

    followable = {
        node.id: bytes_by_node[node.id]
        for node in host.nodes
        if node.id in bytes_by_node and node_memory.is_for_guests(node, placement_options)
    }
    return followable if 2 * sum(followable.values()) > sum(bytes_by_node.values()) else {}


def _follow(
    request: model.Request,
    decision: Decision,
    host: model.Topology,
    bytes_by_node: Mapping[int, int],
) -> Decision:
    """Change a decision so that the CPUs follow the memory, unless too few CPUs are near it."""
    from nova_numa_pmc.core.host_view import split_memory

    total_bytes, chosen_nodes = sum(bytes_by_node.values()), []
    for node_id in sorted(bytes_by_node, key=lambda node_id: (-bytes_by_node[node_id], node_id)):
        chosen_nodes.append(node_id)
        cpus = frozenset().union(*(node.cpus for node in host.nodes if node.id in chosen_nodes))
        if len(cpus) >= request.vcpus:
            break
    else:
        return decision
    mem_nodes = tuple(
        sorted(
            node_id
            for node_id in bytes_by_node
            if bytes_by_node[node_id] >= _MEM_NODE_MIN_RATIO * total_bytes
        )
    )
    cpu_nodes = pools.nodes_of(cpus, host)
    why = '%s: with its memory (%s)' % (
        name_nodes(cpu_nodes),
        ', '.join(
            '%d MiB on %d' % (bytes_by_node[node_id] >> 20, node_id) for node_id in mem_nodes
        ),
    )
    promise = decision.promise._replace(
        cpu_nodes=cpu_nodes,
        mem_nodes=mem_nodes,
        l3_cpus=(),
        mem_node_bytes=tuple(
            split_memory(
                decision.promise.memory_bytes,
                [bytes_by_node[node_id] for node_id in mem_nodes],
                decision.promise.page_bytes,
            )
        ),
    )
    return Decision(promise, cpus, why, ())


def _evidence(
    cpus: frozenset[int], avoids_floating_pool: bool, host_options: HostOptions, root: str
) -> publication.PlacementEvidence:
    """Return the evidence for the CPUs that a guest may use."""
    return publication.read_evidence(
        host_options.state_path(root),
        files.read_boot_id(root),
        files.boottime_ns(),
        cpus,
        avoids_floating_pool,
    )


def _implied_promise(
    guest: model.Guest, host: model.Topology, host_options: HostOptions, root: str
) -> model.Promise:
    """Return a promise for a running guest without one, by the CPUs that it is held to."""
    from nova_numa_pmc.core.placement import placement

    guest = _with_cpus_near_bound_memory(guest, host)
    cpus, mems = (None, frozenset[int]()) if guest.placed_by else _held_sets(guest, root)
    nodes = pools.nodes_of(cpus, host)
    if len(nodes) == sum(1 for node in host.nodes if node.cpus):
        nodes = ()
    with_memory = frozenset(node.id for node in host.nodes if node.memory_bytes)
    # Unbound memory may come from more nodes than the guest has, if not from all that have any.
    is_bound = bool(mems) and len(mems) <= len(nodes) and mems < with_memory
    held = model.Placement(
        nodes, mem_nodes=tuple(sorted(mems if is_bound else with_memory.intersection(nodes)))
    )
    boottime_ns = files.boottime_ns()
    start_ns = files.process_start_ns(guest.pid, root)
    promise = placement.new_promise(guest, held, min(boottime_ns, start_ns or boottime_ns))
    # Nothing was recorded at its start: the hook was not installed, or failed.
    return promise._replace(
        started=True,
        bound=is_bound,
        missed=(
            promise.origin == model.FLOATING
            and not eligibility.why_not(eligibility.PLACE, guest)
            and host_options.enabled
            and start_ns is not None
            and _began_after_hook_installation(start_ns, guest.pid, root)
        ),
    )


def _began_after_hook_installation(start_ns: int, pid: int | None, root: str) -> bool:
    """Return whether a guest began after the hook was installed; False if there is no hook.

    The hook may be in the container of libvirt and QEMU.
    """
    for base in ('proc/%d/root' % (pid or 0), ''):
        try:
            hook_ns = files.changed_ns(os.path.join(root, base, files.HOOKS, files.OUR_HOOK))
        except OSError:
            continue
        return start_ns > hook_ns
    return False


def _held_sets(guest: model.Guest, root: str) -> tuple[frozenset[int] | None, frozenset[int]]:
    """Return the CPUs and mems that a running guest's groups hold it to.

    :returns: CPUs, or None if they are unknown, and mems, empty if they are unknown or differ
    """
    from nova_numa_pmc.host import cgroups, cpusets  # seldom needed, and slow to import

    try:
        groups = cgroups.of_guest(guest, root)
        return cpusets.held_cpus(groups), cpusets.common_mems(groups)
    except CpusetError:
        return None, frozenset()


def _extra_spec_problems(specs: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the problems of a flavor's extra specs that the decision ignores."""
    if not specs:
        return []
    from nova_numa_pmc.core import extra_specs  # few flavors have any

    return ["the flavor's " + problem for problem in extra_specs.parse(specs).problems]


def _with_topology(guest: model.Guest, host: model.Topology) -> model.Guest:
    """Return the guest with what follows from the host: its pins' nodes and its shared vCPUs."""
    pool_vcpus = pools.pool_vcpus(guest, host)
    if pool_vcpus != guest.vcpus:
        guest = guest._replace(vcpus=pool_vcpus)
    return (
        guest._replace(pinned_nodes=pools.nodes_of(guest.pinned_cpus, host))
        if guest.pinned_cpus
        else guest
    )
