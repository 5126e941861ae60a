# SPDX-License-Identifier: Apache-2.0
"""Read the state of a host without measuring: its agent, its nodes, and where each guest is."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.agent import demand_file
from nova_numa_pmc.cli import context, pinned_threads
from nova_numa_pmc.core import eligibility, host_view, node_memory, pools, pressure, rates
from nova_numa_pmc.exceptions import CpusetError, StateError
from nova_numa_pmc.host import cgroups, guests, services
from nova_numa_pmc.host.page_moves import hugetlb
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import history, move_lock, overrides, pause, publication

if TYPE_CHECKING:
    from nova_numa_pmc.core.demand.histories import GuestHistory
    from nova_numa_pmc.sample_records import Sample
    from nova_numa_pmc.state.publication import Publication


#: Fields of :class:`NodeStatus` that a node's sample has under the same names.
_MEASURED = (
    'pressure',
    'cpu_ratio',
    'bandwidth_ratio',
    'link_ratio',
    'demand_cores',
    'remote_ratio',
)
_UNKNOWN_LOAD: dict[str, float | None] = dict.fromkeys((*_MEASURED, 'demand_now_cores'))


class AgentStatus(Record):
    """State of the agent as seen from outside its process.

    :param pid: its process id, or None if it is not running
    :param rebalance: value of the option ``rebalance`` in the file, which the agent may not have
        read yet
    :param paused: since when and why it is paused, or None if it is not
    :param published_age_s: age of the publication, or None without one
    :param fresh: whether there is a publication that is not stale
    :param problem: why there is no publication; empty if there is one
    :param events_source: as in :class:`publication.Publication`; empty if that is stale
    """

    pid: int | None
    rebalance: str
    paused: pause.Paused | None
    published_age_s: float | None
    fresh: bool
    problem: str
    events_source: str = ''


class NodeStatus(Record):
    """State of a node; what is unknown is None.

    :param cores: capacity, without stolen time if it was measured or published
    :param demand_cores: demand over the measured interval or, if the command did not measure, over
        the longer horizon, as published
    :param demand_now_cores: demand over the last interval
    :param memory_kind, memory_source: as in :class:`model.NodeMemory`, from the operator's options
        or else from the kernel
    :param memory_bytes: all memory of the node (MemTotal)
    """

    id: int
    pressure: float | None
    cpu_ratio: float | None
    bandwidth_ratio: float | None
    link_ratio: float | None
    demand_cores: float | None
    cores: float | None
    remote_ratio: float | None
    promised_bytes: int
    capacity_bytes: int
    free_bytes: int | None
    guests: float
    demand_now_cores: float | None = None
    memory_kind: str = model.HOST_MEMORY
    memory_source: str = ''
    memory_bytes: int | None = None


class GuestStatus(Record):
    """State of a guest.

    :param promise: its promise, or None if it has none
    :param held_nodes: ids of the nodes that its CPUs are held to, as :func:`context.held_nodes`
        returns them; None if unknown
    :param bytes_by_node: {node id: bytes of its memory there}, or None if unknown
    :param home_ratio: share of its memory that is on the promised nodes, or None if unknown
    :param why_fixed: code of the reason why it is not moved, as in
        :class:`plan_records.GuestLoad`; empty if it may be moved
    :param moved: the move that brought it to its place, or None if it started there
    :param problem: why its cpusets or memory could not be read, or ''
    :param demand_history: its demand history as the agent last saved it, or None
    :param pinned: (name of a thread's group, such as 'vcpu0'; its CPUs) of the threads that others
        have pinned since the guest was placed
    :param is_held: whether its CPUs are held to just its promised nodes; None if unknown
    """

    guest: model.Guest
    promise: model.Promise | None
    held_nodes: tuple[int, ...] | None
    bytes_by_node: dict[int, int] | None
    home_ratio: float | None
    why_fixed: str
    moved: history.HistoryEntry | None = None
    problem: str = ''
    demand_history: GuestHistory | None = None
    pinned: tuple[tuple[str, frozenset[int]], ...] = ()
    is_held: bool | None = None


class HostStatus(Record):
    """State of a host.

    :param absent: overrides of guests that are not running
    :param problems: what could not be read or measured
    :param pool: the floating pool, with the source that the agent published if it is the agent's
    :param measured: whether the load was measured, and not taken from the publication
    :param realtime_s, boottime_s: the time by CLOCK_REALTIME and by CLOCK_BOOTTIME [s]
    :param source: the source of memory accesses in use; empty: none, or unknown
    :param unavailable: the measurements that the host lacks something for, with what it lacks;
        None if the load was not measured
    """

    agent: AgentStatus
    nodes: tuple[NodeStatus, ...]
    guests: tuple[GuestStatus, ...]
    absent: tuple[overrides.Override, ...]
    problems: tuple[str, ...]
    pool: pools.Pool
    measured: bool
    realtime_s: float
    boottime_s: float
    source: str = ''
    unavailable: tuple[str, ...] | None = None


def read(command: context.CommandContext, observed: context.ObservedHost) -> HostStatus:
    """Return the status of a host.

    :raises StateError: the file of overrides cannot be read, or the running guests not listed
    """
    agent, published = _read_agent(command)
    guest_statuses, problems = _read_guests(command, observed)
    running = {guest.uuid for guest in observed.guests} | observed.host_promises.promises.keys()
    unread_names = guests.active_names(command.root) - {guest.name for guest in observed.guests}
    source = published.source if published and agent.fresh else ''
    if observed.sample:
        source = observed.sample.source
    pool = observed.pool
    if published and published.pool_source and pool.source == pools.AGENT:
        pool = pool._replace(source=published.pool_source)
    return HostStatus(
        agent=agent,
        nodes=_read_nodes(command, observed, published if agent.fresh else None),
        guests=guest_statuses,
        absent=tuple(
            override
            for override in overrides.read(command.root)[0].values()
            if override.uuid not in running and override.name not in unread_names
        ),
        problems=(
            *observed.problems,
            *problems,
            *map(move_lock.lapsed_text, move_lock.read_lapsed(command.directory)),
        ),
        pool=pool,
        measured=observed.sample is not None,
        source=source,
        unavailable=observed.sample and observed.sample.unavailable,
        realtime_s=time.time(),
        boottime_s=time.clock_gettime(time.CLOCK_BOOTTIME),
    )


def _read_agent(command: context.CommandContext) -> tuple[AgentStatus, Publication | None]:
    """Read the state of the agent.

    :returns: (the agent's status, its last publication or None if that cannot be read)
    """
    process, problem = services.search(command.root, services.AGENT)
    published, age_s = None, None
    realtime_s = time.time()
    try:
        published = publication.read(command.directory)
        age_s = realtime_s - published.taken_s
    except StateError as error:
        problem = str(error)
        if process and not os.path.exists(os.path.join(command.directory, publication.FILE)):
            problem = 'the agent has published nothing yet'
    fresh = (
        published is not None and publication.freshness(published, realtime_s) == publication.FRESH
    )
    return AgentStatus(
        process and process.pid,
        command.options.rebalance,
        pause.read(command.directory),
        age_s,
        fresh,
        problem,
        published.events_source if published and fresh else '',
    ), published


def _read_nodes(
    command: context.CommandContext, observed: context.ObservedHost, published: Publication | None
) -> tuple[NodeStatus, ...]:
    """Return the status of the nodes, from the sample or else from the publication.

    :param published: the agent's publication, or None if there is no fresh one
    """
    view = host_view.view(
        observed.host,
        observed.host_promises.promises.values(),
        command.options.host_options.placement_options,
    )
    loads = (
        _loads_of_sample(observed.sample) if observed.sample else _loads_of_publication(published)
    )
    statuses = []
    for node, host_node in zip(view.nodes, observed.host.nodes):
        memory = node_memory.memory_of(host_node, command.options.host_options.placement_options)
        load = {**_UNKNOWN_LOAD, 'cores': node.cores, **loads.get(node.id, {})}
        statuses.append(
            NodeStatus(
                id=node.id,
                promised_bytes=node.promised_bytes,
                capacity_bytes=node.capacity_bytes,
                free_bytes=host_node.free_bytes,
                guests=node.guests,
                memory_kind=memory.kind,
                memory_source=memory.source,
                memory_bytes=host_node.memory_bytes,
                **load,
            )
        )
    return tuple(statuses)


def _loads_of_sample(sample: Sample) -> dict[int, dict[str, float | None]]:
    return {
        node.id: dict(
            {name: getattr(node, name) for name in _MEASURED},
            cores=node.capacity_cores,
            demand_now_cores=node.demand_cores,
        )
        for node in sample.nodes
    }


def _loads_of_publication(published: Publication | None) -> dict[int, dict[str, float | None]]:
    loads: dict[int, dict[str, float | None]] = {}
    if published is None:
        return loads
    for node, remote_ratio, demand_now_cores in published.by_node():
        parts = pressure.node_pressure(
            rates.ratio(node.demand_cores, node.cores),
            rates.ratio(node.bandwidth_bytes_per_sec, node.bandwidth_max_bytes_per_sec),
            node.link_ratio,
        )
        loads[node.id] = dict(
            parts._asdict(),
            cores=node.cores,
            demand_cores=node.demand_cores,
            remote_ratio=remote_ratio,
            demand_now_cores=demand_now_cores,
        )
    return loads


def _read_guests(
    command: context.CommandContext, observed: context.ObservedHost
) -> tuple[tuple[GuestStatus, ...], list[str]]:
    """Return (the status of each running guest, sorted by name, problems)."""
    try:
        entries, unreadable_count = history.read(command.root)
        problems = (
            ['unreadable lines of the history: %d' % unreadable_count] if unreadable_count else []
        )
    except StateError as error:
        entries, problems = [], [str(error)]
    try:
        histories = demand_file.read(command.root)
        demand_histories = histories.guests if histories else {}
    except StateError as error:
        demand_histories = {}
        problems.append(str(error))
    entry_by_place = {
        (part.uuid, part.since_ns, part.after): entry
        for entry in entries
        if entry.is_in_effect
        for part in entry.parts
        if part.before != part.after
    }
    return tuple(
        _guest_status(command, observed, guest, entry_by_place)._replace(
            demand_history=demand_histories.get(guest.uuid)
        )
        for guest in sorted(observed.guests, key=lambda guest: guest.name)
    ), problems


def _guest_status(
    command: context.CommandContext,
    observed: context.ObservedHost,
    guest: model.Guest,
    entry_by_place: dict[tuple[str, int, history.PromisedPlace], history.HistoryEntry],
) -> GuestStatus:
    """Return a guest's status, without its demand history.

    :param entry_by_place: {(uuid, ``since_ns`` of the promise, place): the move to that place}
    """
    promise = observed.host_promises.promises.get(guest.uuid)
    held_nodes: tuple[int, ...] | None = None
    bytes_by_node: dict[int, int] | None = None
    pinned: dict[str, frozenset[int]] = {}
    problem = ''
    try:
        groups = cgroups.of_guest(guest, command.root)
        held_nodes = context.held_nodes(groups, observed.host)
        bytes_by_node = cgroups.read_memory_by_node(groups)
        if guest.page_bytes:
            bytes_by_node = hugetlb.add_huge_pages(bytes_by_node or {}, guest.pid, command.root)
        pinned = pinned_threads.find(guest, promise, observed.host, command.root)
    except CpusetError as error:
        problem = str(error)
    with_cpus = {node.id for node in observed.host.nodes if node.online_cpus}
    is_held = None
    if promise and held_nodes is not None:
        is_held = (set(held_nodes) or with_cpus) == set(promise.cpu_nodes) & with_cpus
    home_ratio, total = None, sum((bytes_by_node or {}).values())
    if bytes_by_node and total and promise and promise.mem_nodes:
        home_ratio = sum(bytes_by_node.get(node, 0) for node in promise.mem_nodes) / total
    return GuestStatus(
        guest=guest,
        promise=promise,
        held_nodes=held_nodes,
        bytes_by_node=bytes_by_node,
        home_ratio=home_ratio,
        why_fixed=eligibility.why_not(eligibility.MOVE, guest, promise, observed.host),
        moved=promise
        and entry_by_place.get((guest.uuid, promise.since_ns, history.place_of(promise))),
        problem=problem,
        pinned=tuple(pinned.items()),
        is_held=is_held,
    )
