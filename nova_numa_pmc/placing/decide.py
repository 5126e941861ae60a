# SPDX-License-Identifier: Apache-2.0
"""Reconcile the promises with the running guests, decide on a place, and record it.

Everything between reading the promises and writing them happens under their lock, so that no two
starts decide from the same view. Otherwise, guests that start at the same time would all go to the
node that was best before the first of them.
"""

from __future__ import annotations

import contextlib
import os

from nova_numa_pmc import model
from nova_numa_pmc.conf import host_options as host_options_conf
from nova_numa_pmc.core import eligibility, pools, promising
from nova_numa_pmc.core.placement import reasons
from nova_numa_pmc.cpulist import format_cpulist, name_nodes
from nova_numa_pmc.exceptions import CpusetError, StateError
from nova_numa_pmc.host import allowed, files, guests, host_devices, topology
from nova_numa_pmc.record import TYPE_CHECKING, Record
from nova_numa_pmc.state import promises_file, publication

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nova_numa_pmc.conf.host_options import HostOptions


class Decision(Record):
    """A decision for a guest, whose promise is recorded.

    :param cpus: CPUs to hold the guest to; None: leave its CPUs alone
    :param why: the reasons, as text
    :param problems: problems to log
    :param has_no_place: the guest was ours to place, and no place was found
    :param view, request: the host without the guest, and the request that was decided on; None:
        it was recorded at the start
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


def host_with_pool_cpus(root: str, pool: pools.Pool | None = None) -> model.Topology:
    """Read the topology, with the floating pool's CPUs as its nodes' ``cpus`` (:mod:`pools`).

    :param pool: the floating pool; None: the one that the agent has published
    :raises TopologyError: the host cannot be read
    """
    host = allowed.host_with_usable_cpus(root)
    return pools.with_floating_pool(host, pool or published_pool(root))


def published_pool(root: str) -> pools.Pool | None:
    """Return the floating pool that the agent last published since boot, or None."""
    try:
        published = publication.read_optional(
            host_options_conf.read_under_root(root).state_path(root)
        )
    except StateError:
        return None  # the code that reads the loads reports why
    if published is None or not published.pools or published.boot_id != files.read_boot_id(root):
        return None
    return pools.Pool(published.pools[0].cpus, pools.AGENT)


def decide_promise(
    guest: model.Guest,
    host_options: HostOptions,
    root: str,
    timeout_s: float,
    bytes_by_node: Mapping[int, int] | None = None,
    given_draft: promises_file.HostPromises | None = None,
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
    from nova_numa_pmc.core.placement import l3, placement

    host = host_with_pool_cpus(root)
    nodes = [host_devices.node_of(each, root) for each in guest.devices if each.locks_memory]
    device_nodes = tuple(sorted({node for node in nodes if node is not None}))
    problems = _extra_spec_problems(guest.extra_specs)
    placement_options = host_options.placement_options
    guest = promising.with_cpus_near_memory(guest, host)
    pool_host = pools.with_guest_pool(guest, host)
    promises = (
        promises_file.locked(host_options, root, timeout_s)
        if given_draft is None
        else contextlib.nullcontext(given_draft)
    )
    with promises as draft:
        problems += reconcile(draft, host, host_options, root, guest)
        draft.forget(guest.name, guest.uuid)
        evidence = publication.read_evidence(
            host_options.state_path(root),
            files.read_boot_id(root),
            files.boottime_ns(),
            pools.all_cpus(pool_host),
            pools.avoids_floating_pool(guest, host),
        )
        others = promising.promises_in_pool(draft.promises.values(), guest, host)
        view, request = _view_and_request(
            guest, device_nodes, host, others, placement_options, evidence, draft.rotation
        )
        placed = placement.place(view, request, placement_options)
        l3_cpus: tuple[int, ...] = ()
        if placed.cpus is not None and placed.reasons[0].code == reasons.ON_ONE_NODE:
            l3_cpus, l3_reasons = l3.choose(
                pool_host, view, others, placed.cpu_nodes, request, placement_options
            )
            placed = placed._replace(
                cpus=placed.cpus.intersection(l3_cpus) or placed.cpus,
                reasons=placed.reasons + l3_reasons,
            )
        promise = placement.new_promise(
            promising.with_topology(guest, host), placed, files.boottime_ns(), l3_cpus
        )
        cpus, why = placed.cpus, reasons.explain(placed)
        if bytes_by_node and placed.cpu_nodes:
            following = promising.following_memory(
                promise, guest.vcpus, bytes_by_node, pool_host, placement_options
            )
            if following:
                promise, cpus = following
                why = '%s: with its memory (%s)' % (
                    name_nodes(promise.cpu_nodes),
                    ', '.join(
                        '%d MiB on %d' % (bytes_by_node[node_id] >> 20, node_id)
                        for node_id in promise.mem_nodes
                    ),
                )
        draft.put(promise)
        draft.rotation += 1
    if not request.why_alone:
        why = '; '.join((why, *_limits(guest, host, root), 'based on %s' % evidence.summary))
    return Decision(
        promise,
        cpus,
        why,
        (*problems, *evidence.problems),
        promise.origin == model.FLOATING and not request.why_alone,
        view,
        request,
        evidence,
    )


def _limits(guest: model.Guest, host: model.Topology, root: str) -> list[str]:
    """Return, as text, what takes CPUs or memory from a guest that it would have else."""
    wanted_cpus = guest.allowed_cpus or host.online_cpus
    isolated = [
        '%s keeps guests off CPUs %s' % (why, format_cpulist(cpus & wanted_cpus))
        for why, cpus in topology.isolated_cpus(root).items()
        if cpus & wanted_cpus
    ]
    if guest.granted_mems is None and pools.all_cpus(
        pools.with_guest_pool(guest, host)
    ) == pools.all_cpus(pools.with_guest_pool(guest._replace(granted_cpus=None), host)):
        return isolated
    return isolated + allowed.limits(guest, root)


def reconcile(
    draft: promises_file.HostPromises,
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
            guest = promising.with_topology(guest, host)
            draft.put(_implied_promise(guest, host, host_options, root))
    return problems


def without_gone_guests(
    promises: Mapping[str, model.Promise], host_options: HostOptions, root: str, boottime_ns: int
) -> tuple[dict[str, model.Promise], frozenset[str]]:
    """Return the promises of guests that are not gone, and the names of guests without a promise.

    :param boottime_ns: CLOCK_BOOTTIME
    :raises StateError: the running guests cannot be listed
    """
    names = guests.active_names(root)
    # Starts may be in progress, also those recorded after the caller had read the clock.
    started_before_ns = boottime_ns - host_options_conf.START_GRACE_S * 10**9
    remaining = {
        uuid: promise
        for uuid, promise in promises.items()
        if promise.name in names or (not promise.started and promise.since_ns > started_before_ns)
    }
    return remaining, names - {promise.name for promise in remaining.values()}


def _implied_promise(
    guest: model.Guest, host: model.Topology, host_options: HostOptions, root: str
) -> model.Promise:
    """Return a promise for a running guest without one, by the CPUs that it is held to."""
    from nova_numa_pmc.core.placement import placement

    guest = promising.with_cpus_near_memory(guest, host)
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
        return cpusets.held_cpus(groups), cpusets.common_set(groups, 'mems') or frozenset()
    except CpusetError:
        return None, frozenset()


def _extra_spec_problems(specs: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the problems of a flavor's extra specs that the decision ignores."""
    if not specs:
        return []
    from nova_numa_pmc.core import extra_specs  # few flavors have any

    return ["the flavor's " + problem for problem in extra_specs.parse(specs).problems]


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
