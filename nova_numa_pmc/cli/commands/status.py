# SPDX-License-Identifier: Apache-2.0
"""Show this host's nodes and guests: where each guest is, and why.

It answers at once, with the load that the agent last published; with --interval, the
load is measured instead. The row of a guest shows the nodes that its CPUs are held to,
the nodes that its memory is on, and what brought it there: its start, or a move and
the reason for it. The agent need not be running. It is what nova-numa-rebalance does
without a command; "plan" shows which moves would pay.

examples:
  nova-numa-rebalance status
  nova-numa-rebalance status --interval 5
  nova-numa-rebalance status --html /tmp/status.html
  nova-numa-rebalance status --json | jq '.guests[] | {name, held_nodes, why}'

exit codes: 0 shown; 1 a problem; 64 usage error
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.agent import demand_file
from nova_numa_pmc.cli import arguments, context, page, tables
from nova_numa_pmc.cli.tables import memory_line, memory_text, number, percent, short_number
from nova_numa_pmc.core import eligibility, fleet, host_view, pools, pressure
from nova_numa_pmc.core.measurements import NodeSample
from nova_numa_pmc.cpulist import format_cpulist, format_nodes, name_nodes
from nova_numa_pmc.exceptions import CpusetError, StateError
from nova_numa_pmc.host import cgroups, cpusets, guests, services
from nova_numa_pmc.json_values import printable, to_json
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import history, move_lock, overrides, pause, publication

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable
    from typing import Any

    from nova_numa_pmc.core.demand import UsageHistory
    from nova_numa_pmc.state.publication import Publication


class AgentStatus(Record):
    """State of the agent as seen from outside its process.

    :param pid: its process id, or None if it is not running
    :param rebalance: value of the option ``rebalance`` in the file, which the agent may not have
        read yet
    :param paused: since when and why it is paused, or None if it is not
    :param published_age_s: age of the publication, or None without one
    :param fresh: whether there is a publication that is not stale
    :param problem: why there is no fresh publication; empty if there is one
    """

    pid: int | None
    rebalance: str
    paused: pause.Paused | None
    published_age_s: float | None
    fresh: bool
    problem: str


class NodeStatus(Record):
    """State of a node; what is unknown is None.

    :param measured: what was measured over the interval or, if the command did not measure, what
        the agent published of it; the memory is that of now
    :param view: what is promised there
    :param lasting_demand_cores: demand over the longer horizon, as published
    :param memory_withheld: whether its memory is not for guests
    """

    measured: NodeSample
    view: model.NodeView
    lasting_demand_cores: float | None
    memory_withheld: bool


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
    demand_history: UsageHistory | None = None
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
    :param published: the agent's publication; None if there is no fresh one
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
    published: Publication | None = None


def _measured_column(heading: str) -> tuple[str, Callable[[NodeStatus], str]]:
    text = dict(tables.NODES)[heading]
    return heading, lambda node: text(node.measured)


_NODES: tuple[tuple[str, Callable[[NodeStatus], str]], ...] = (
    *map(_measured_column, ('node', 'pressure', 'cpu', 'bw', 'link', 'cores')),
    ('lasting', lambda node: number(node.lasting_demand_cores, 1)),
    *map(_measured_column, ('rem%', 'free')),
    (
        'promised',
        lambda node: (
            '%s/%s'
            % (
                short_number(node.view.promised_bytes, 1024),
                short_number(node.view.capacity_bytes, 1024),
            )
        ),
    ),
    ('guests', lambda node: '%.3g' % node.view.guests),
)
_LEGEND = (
    'pressure: highest of cpu, bw, link (1 is saturated)   cores: wanted/available in the last '
    'interval   lasting: wanted over the longer horizon   home%: share of memory on the promised '
    'nodes   wanted: cores over minutes and over a day   -: unknown'
)


OPTIONS = (
    arguments.interval(None, 'show the published load'),
    arguments.option(
        '--html', metavar='FILE', help='also write a page with a picture of nodes and guests'
    ),
    arguments.ROOT,
    arguments.JSON,
)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show the host's status; return the exit code."""
    command = command or context.CommandContext(args.root)
    observed = command.measure(args.interval) if args.interval else command.read_host()
    host = read(command, observed)
    if args.html:
        page.write(args.html, to_html(host))
    tables.show(args.json, to_data(host), to_lines(host), host.problems)
    return arguments.OK


def read(command: context.CommandContext, observed: context.ObservedHost) -> HostStatus:
    """Return the status of a host.

    :raises StateError: the file of overrides cannot be read, or the running guests not listed
    """
    agent, published = _read_agent(command)
    guest_statuses, problems = _read_guests(command, observed)
    running = {guest.uuid for guest in observed.guests} | observed.host_promises.promises.keys()
    unread_names = guests.active_names(command.root) - {guest.name for guest in observed.guests}
    source = published.source if published else ''
    if observed.sample:
        source = observed.sample.source
    pool = observed.pool
    if published and published.pool_source and pool.source == pools.AGENT:
        pool = pool._replace(source=published.pool_source)
    return HostStatus(
        agent=agent,
        nodes=_read_nodes(command, observed, published),
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
        published=published,
    )


def _read_agent(command: context.CommandContext) -> tuple[AgentStatus, Publication | None]:
    """Read the state of the agent.

    :returns: (the agent's status, its last publication or None if that cannot be used)
    """
    process = services.find(command.root, services.AGENT)
    published, age_s, problem = None, None, ''
    realtime_s = time.time()
    try:
        published = publication.read(command.directory)
        age_s = realtime_s - published.taken_s
        if publication.freshness(published, realtime_s) != publication.FRESH:
            published, problem = None, 'the published figures are %s old' % age(age_s)
    except StateError as error:
        problem = str(error)
        if process and not os.path.exists(os.path.join(command.directory, publication.FILE)):
            problem = 'the agent has published nothing yet'
    agent = AgentStatus(
        process and process.pid,
        command.options.rebalance,
        pause.read(command.root),
        age_s,
        published is not None,
        problem,
    )
    return agent, published


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
    withheld = host_view.list_withheld(
        observed.host.nodes, command.options.host_options.placement_options
    )
    shared = published.view.nodes if published else ()
    lasting_cores = {node.id: node.demand_cores for node in shared}
    taken = observed.sample.nodes if observed.sample else map(_published_sample, shared)
    samples = {sample.id: sample for sample in taken}
    return tuple(
        NodeStatus(
            samples.get(node.id, NodeSample(node.id, capacity_cores=node.cores))._replace(
                memory_bytes=host_node.memory_bytes, free_bytes=host_node.free_bytes
            ),
            node,
            lasting_cores.get(node.id),
            host_node in withheld,
        )
        for node, host_node in zip(view.nodes, observed.host.nodes)
    )


def _published_sample(node: model.NodeView) -> NodeSample:
    """Return what the publication has of a node's measurements."""
    return NodeSample(
        node.id,
        capacity_cores=node.cores,
        demand_cores=node.demand_now_cores,
        bandwidth_bytes_per_sec=node.bandwidth_bytes_per_sec,
        bandwidth_max_bytes_per_sec=node.bandwidth_max_bytes_per_sec,
        remote_ratio=node.remote_ratio,
        **pressure.view_pressure(node)._asdict(),
    )


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
        (entry.uuid, entry.since_ns, entry.after): entry
        for entry in entries
        if entry.is_in_effect and entry.before != entry.after
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
        held_nodes = _nodes_held_to(groups, observed.host)
        bytes_by_node = cgroups.memory_by_node(guest.pid, command.root, guest.page_bytes)
        pinned = _pinned_threads(guest, promise, observed.host, command.root)
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


def _nodes_held_to(groups: cgroups.GuestGroups, host: model.Topology) -> tuple[int, ...]:
    """Return the ids of the nodes that a guest's CPUs are held to.

    :returns: the ids; empty if the guest is not held, or may run on every node with CPUs
    :raises CpusetError: the guest's cpusets cannot be read
    """
    nodes = pools.nodes_of(cpusets.held_cpus(groups), host)
    return () if len(nodes) == sum(1 for node in host.nodes if node.online_cpus) else nodes


def _pinned_threads(
    guest: model.Guest, promise: model.Promise | None, host: model.Topology, root: str = '/'
) -> dict[str, frozenset[int]]:
    """Return {name of a thread's group: its CPUs} of the threads that others have pinned.

    :param promise: the guest's promise, or None if it has none and we do not hold it
    :raises CpusetError: the guest's control groups cannot be read
    """
    is_ours = promise is not None and promise.origin == model.PLACED
    if promise is None or not is_ours or eligibility.is_placed_as_a_whole(guest):
        return {}
    promised_cpus = pools.cpus_of_promise(promise, host, guest)
    online = host.online_cpus
    cpus_by_group = cpusets.thread_sets(cgroups.of_guest(guest, root), 'cpus')
    # If all threads have the same CPUs, these are an earlier or widened place and not pins.
    distinct_sets = {cpus & online for cpus in cpus_by_group.values()}
    pinned_groups = (
        {}
        if len(distinct_sets) == 1
        else {
            directory.rpartition('/')[2]: cpus & online
            for directory, cpus in cpus_by_group.items()
            if cpus & online and not cpus & online >= promised_cpus
        }
    )
    return dict(sorted({**pinned_groups, **dict(guest.pins)}.items()))


def to_lines(host: HostStatus) -> list[str]:
    """Return the status as lines of text, without the problems."""
    lines = [
        *_agent_lines(host.agent, host.measured),
        *_counting_lines(host),
        'floating pool: CPUs %s, %s'
        % (format_cpulist(host.pool.cpus), pools.TEXTS.get(host.pool.source, host.pool.source)),
        *(
            memory_line(node.view.id, node.measured.memory_bytes)
            for node in host.nodes
            if node.memory_withheld
        ),
        '',
        *tables.to_lines(tables.columns_table(_NODES, host.nodes)),
    ]
    if host.guests:
        lines += ['', *tables.to_lines(guest_table(host.guests, host.realtime_s, host.boottime_s))]
    if host.absent:
        lines += [
            '',
            'not running: '
            + ', '.join(
                '%s %s (%s)' % (override.name, override.uuid, override.kind)
                for override in host.absent
            ),
        ]
    return lines


def _counting_lines(host: HostStatus) -> list[str]:
    """Return the line about what is counted; none if that is unknown."""
    if not host.source and host.unavailable is None:
        return []
    measured = {node.view.id: node.measured for node in host.nodes if node.view.cores}
    bandwidth = [n for n, node in measured.items() if node.bandwidth_ratio is not None]
    links = [n for n, node in measured.items() if node.link_ratio is not None]
    text = 'counted: memory accesses from %s; bandwidth of %s; links of %s' % (
        host.source or 'nothing',
        name_nodes(bandwidth) if bandwidth else 'no node',
        name_nodes(links) if links else 'no node',
    )
    lacking = ', '.join(name.partition(':')[0] for name in host.unavailable or ())
    if lacking:
        text += '; this host has no %s ("nova-numa-rebalance check --events")' % lacking
    return [text]


def _agent_lines(agent: AgentStatus, measured: bool) -> list[str]:
    """Return the lines about the agent.

    :param measured: whether the command has measured the load itself; if so, nothing is said about
        the publication
    """
    lines = ['agent: not running: systemctl start nova-numa-agent']
    if agent.pid:
        text = 'agent: running (process %d), rebalance = %s in nova-numa-pmc.conf'
        lines = [text % (agent.pid, agent.rebalance)]
    if agent.paused:
        paused = printable(str(agent.paused))
        lines.append('agent: %s: "nova-numa-rebalance pause --off" ends the pause' % paused)
    if agent.problem and not measured:
        lines.append('load unknown (--interval measures it): ' + agent.problem)
    elif agent.fresh and agent.published_age_s is not None and not measured:
        lines.append('load: published %s ago' % age(agent.published_age_s))
    return lines


def age(seconds: float) -> str:
    """Return an age such as '12 s', '5 min', '3 h' or '9 d'."""
    for unit, size_s in (('d', 86400), ('h', 3600), ('min', 60)):
        if abs(seconds) >= 2 * size_s:
            return '%.0f %s' % (seconds / size_s, unit)
    return '%.0f s' % seconds


def guest_table(
    guests: Iterable[GuestStatus], realtime_s: float, boottime_s: float
) -> tables.Table:
    """Return the guests as a table.

    :param realtime_s, boottime_s: the time by CLOCK_REALTIME and by CLOCK_BOOTTIME [s]
    """
    columns: tuple[tuple[str, Callable[[GuestStatus], str]], ...] = (
        ('guest', lambda one: printable(one.guest.name)),
        ('id', lambda one: tables.UNKNOWN if one.guest.id is None else str(one.guest.id)),
        ('CPUs on', lambda one: _held_text(one.held_nodes)),
        (
            'memory',
            lambda one: (
                tables.UNKNOWN
                if one.bytes_by_node is None
                else memory_text(sorted(one.bytes_by_node.items())) or '0'
            ),
        ),
        ('home%', lambda one: percent(one.home_ratio)),
        ('wanted', lambda one: _demand_text(one.demand_history)),
        ('why', lambda one: printable(why(one, realtime_s, boottime_s))),
    )
    return tables.columns_table(columns, guests, (_LEGEND,))


def why(status: GuestStatus, realtime_s: float, boottime_s: float) -> str:
    """Return one line on why a guest is where it is, and what keeps it there.

    :param realtime_s, boottime_s: as for :func:`guest_table`
    """
    promise = status.promise
    if status.problem:
        return status.problem
    if promise is None:
        return 'no promise'
    reasons = [_origin_text(status, promise, realtime_s, boottime_s)]
    if status.pinned:
        reasons.append(
            'pinned by others and left alone: '
            + ', '.join('%s on %s' % (name, format_cpulist(cpus)) for name, cpus in status.pinned)
        )
    elif status.is_held is False and promise.origin == model.PLACED:
        is_widened = not status.held_nodes or set(status.held_nodes) > set(promise.cpu_nodes)
        reasons.append(
            ('widened from ' if is_widened else 'not on ') + name_nodes(promise.cpu_nodes)
        )
    guest = status.guest
    if guest.vcpus_max or guest.memory_max_bytes:
        reasons.append(
            'may grow to %d vCPUs and %s, of which %d and %s are promised'
            % (
                guest.vcpus_max or guest.vcpus,
                tables.short_number(guest.memory_max_bytes or guest.memory_bytes, 1024),
                promise.vcpus,
                tables.short_number(promise.memory_bytes, 1024),
            )
        )
    if status.why_fixed and status.why_fixed not in (
        eligibility.PLACED_BY_OTHERS,
        eligibility.UNKNOWN,
    ):
        reasons.append(eligibility.TEXTS[status.why_fixed])
    return '; '.join(reasons)


def _origin_text(
    status: GuestStatus, promise: model.Promise, realtime_s: float, boottime_s: float
) -> str:
    if promise.origin == model.BY_OTHERS or (status.guest.placed_by and not status.pinned):
        return model.ORIGIN_TEXTS[model.BY_OTHERS] + (
            ': ' + ', '.join(status.guest.placed_by) if status.guest.placed_by else ''
        )
    if status.moved:
        return 'moved by %s %s ago: %s' % (
            status.moved.mover,
            age(realtime_s - status.moved.taken_s),
            status.moved.why,
        )
    if promise.origin == model.FLOATING or not promise.cpu_nodes:
        return 'floats'
    return 'placed %s ago' % age(boottime_s - promise.since_ns / 1e9)


def _held_text(nodes: tuple[int, ...] | None) -> str:
    if nodes is None:
        return tables.UNKNOWN
    return format_nodes(nodes) or 'any'


def _demand_text(history: UsageHistory | None) -> str:
    if history is None or history.demand.day is None:
        return tables.UNKNOWN
    return '%s/%s' % (number(history.demand.minutes, 1), number(history.demand.day, 1))


def _means(history: UsageHistory | None, quantity: str) -> dict[str, float | None]:
    mean = getattr(history, quantity, None)
    return {} if not mean or mean.day is None else {'minutes': mean.minutes, 'day': mean.day}


def to_html(host: HostStatus) -> str:
    """Return the status as a page with a picture of the nodes and their guests."""
    boxes = [
        page.GuestBox(
            status.guest.name,
            status.held_nodes or (),
            status.guest.vcpus,
            status.guest.memory_bytes,
            status.bytes_by_node or {},
            why(status, host.realtime_s, host.boottime_s),
        )
        for status in host.guests
    ]
    title = tables.clock_time(host.realtime_s)
    return page.to_html(
        'Nodes and guests',
        [page.Picture(title, [node.measured for node in host.nodes], boxes)],
        [
            tables.columns_table(_NODES, host.nodes),
            guest_table(host.guests, host.realtime_s, host.boottime_s),
        ],
        _agent_lines(host.agent, host.measured),
    )


def to_data(host: HostStatus) -> dict[str, Any]:
    """Return the status as plain data."""
    return {
        'agent': to_json(host.agent),
        'nodes': [
            {
                **node.measured._asdict(),
                'lasting_demand_cores': node.lasting_demand_cores,
                'promised_bytes': node.view.promised_bytes,
                'capacity_bytes': node.view.capacity_bytes,
                'guests': node.view.guests,
                'memory_withheld': node.memory_withheld,
            }
            for node in host.nodes
        ],
        'guests': [
            {
                'uuid': status.guest.uuid,
                'name': status.guest.name,
                'id': status.guest.id,
                'held_nodes': status.held_nodes,
                'bytes_by_node': status.bytes_by_node,
                'home_ratio': status.home_ratio,
                'override': status.guest.override,
                'why_fixed': status.why_fixed,
                'lasting_demand_cores': _means(status.demand_history, 'demand'),
                'lasting_bandwidth_bytes_per_sec': _means(status.demand_history, 'bandwidth'),
                'pinned': {name: format_cpulist(cpus) for name, cpus in status.pinned},
                'promise': status.promise and to_json(status.promise),
                'moved': status.moved and status.moved.id,
                'why': why(status, host.realtime_s, host.boottime_s),
            }
            for status in host.guests
        ],
        'not_running': [override._asdict() for override in host.absent],
        'problems': list(host.problems),
        'source': host.source,
        'unavailable': host.unavailable,
        'pool': {'cpus': sorted(host.pool.cpus), 'source': host.pool.source},
        'fleet': host.published and to_json(_fleet_host(host, host.published)),
    }


def _fleet_host(host: HostStatus, published: Publication) -> fleet.FleetHost:
    """Return the host as the command ``fleet`` reads it."""
    return fleet.FleetHost(
        published.taken_s,
        published.view,
        tuple(
            fleet.of_guest(status.guest, status.why_fixed, status.demand_history, host.boottime_s)
            for status in host.guests
        ),
    )
