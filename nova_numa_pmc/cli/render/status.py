# SPDX-License-Identifier: Apache-2.0
"""Lay out a host's status as tables, lines and plain data. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nova_numa_pmc import model
from nova_numa_pmc.cli.render import page, tables
from nova_numa_pmc.cli.render.tables import memory_text, number, percent, short_number
from nova_numa_pmc.core import eligibility, node_memory, pools
from nova_numa_pmc.cpulist import format_cpulist, format_nodes, name_nodes
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.state import promises_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nova_numa_pmc.cli.host_status import AgentStatus, GuestStatus, HostStatus, NodeStatus
    from nova_numa_pmc.core.demand.histories import GuestHistory

_NODES: tuple[tuple[str, Callable[[NodeStatus], str]], ...] = (
    ('node', lambda node: str(node.id)),
    ('pressure', lambda node: number(node.pressure)),
    ('cpu', lambda node: number(node.cpu_ratio)),
    ('bw', lambda node: number(node.bandwidth_ratio)),
    ('link', lambda node: number(node.link_ratio)),
    ('cores', lambda node: '%s/%s' % (number(node.demand_cores, 1), number(node.cores, 1))),
    ('now', lambda node: number(node.demand_now_cores, 1)),
    ('rem%', lambda node: percent(node.remote_ratio)),
    (
        'promised',
        lambda node: (
            '%s/%s'
            % (short_number(node.promised_bytes, 1024), short_number(node.capacity_bytes, 1024))
        ),
    ),
    ('free', lambda node: short_number(node.free_bytes, 1024)),
    ('guests', lambda node: number(node.guests, 0 if node.guests == int(node.guests) else 1)),
)
#: Columns that a picture of a node shows as well.
_ON_NODES = ('cores', 'promised', 'free')
_LEGEND = (
    'pressure: highest of cpu, bw, link (1 is saturated)   cores: wanted/available   now: '
    'wanted in the last interval   home%: share of memory on the promised nodes   day: cores '
    'wanted, mean and p95   -: unknown'
)


def to_lines(host: HostStatus) -> list[str]:
    """Return the status as lines of text, without the problems."""
    lines = [
        *_agent_lines(host.agent, host.measured),
        *_counting_lines(host.source, host.unavailable),
        'floating pool: CPUs %s, %s'
        % (format_cpulist(host.pool.cpus), pools.TEXTS.get(host.pool.source, host.pool.source)),
        *(
            memory_line(
                node.id, node.memory_bytes, model.NodeMemory(node.memory_kind, node.memory_source)
            )
            for node in host.nodes
            if node.memory_kind != model.HOST_MEMORY
        ),
        '',
        *tables.to_lines(node_table(host.nodes)),
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


def _counting_lines(source: str, unavailable: tuple[str, ...] | None) -> list[str]:
    """Return the line about how memory accesses are known; none if that is unknown."""
    if not source and unavailable is None:
        return []
    lacking = ', '.join(text.partition(':')[0] for text in unavailable or ())
    return [
        'memory accesses: from %s%s'
        % (
            source or 'nothing',
            '; this host has no %s ("nova-numa-rebalance events")' % lacking if lacking else '',
        )
    ]


def _agent_lines(agent: AgentStatus, measured: bool) -> list[str]:
    """Return the lines about the agent.

    :param measured: whether the command has measured the load itself; if so, nothing is said about
        the publication
    """
    running = (
        'running (process %d), rebalance = %s in nova-numa-pmc.conf' % (agent.pid, agent.rebalance)
        if agent.pid
        else 'not running: systemctl start nova-numa-agent'
    )
    lines = ['agent: ' + running]
    if agent.paused:
        since = agent.paused.since_s
        lines.append(
            'agent: %s%s: "nova-numa-rebalance pause --off" ends the pause'
            % (
                printable(str(agent.paused)),
                '' if since is None else ', since ' + tables.clock_time(since),
            )
        )
    if agent.events_source:
        lines.append('agent: learns of changes to guests from ' + printable(agent.events_source))
    if measured:
        return lines
    if agent.published_age_s is None:
        lines.append('load unknown (--interval measures it): ' + agent.problem)
    elif not agent.fresh:
        lines.append(
            'load unknown: the published figures are %s --interval measures it'
            % (
                'dated %s in the future: was the clock set back?' % age(-agent.published_age_s)
                if agent.published_age_s < 0
                else '%s old;' % age(agent.published_age_s)
            )
        )
    else:
        lines.append('load: published %s ago' % age(agent.published_age_s))
    return lines


def memory_line(node_id: int, size_bytes: int | None, memory: model.NodeMemory) -> str:
    """Return the line about a node whose memory is not for guests."""
    return 'node %d: its memory (%s) is %s (%s) and not for guests' % (
        node_id,
        short_number(size_bytes, 1024),
        node_memory.TEXTS[memory.kind],
        printable(memory.source),
    )


def age(seconds: float) -> str:
    """Return an age such as '12 s', '5 min', '3 h' or '9 d'."""
    for unit, size_s in (('d', 86400), ('h', 3600), ('min', 60)):
        if abs(seconds) >= 2 * size_s:
            return '%.0f %s' % (seconds / size_s, unit)
    return '%.0f s' % seconds


def node_table(nodes: Iterable[NodeStatus]) -> tables.Table:
    """Return the nodes as a table."""
    headings = [heading for heading, _ in _NODES]
    rows = [[text(node) for _, text in _NODES] for node in nodes]
    return tables.text_table(headings, rows, title='nodes')


def guest_table(
    guests: Iterable[GuestStatus], realtime_s: float, boottime_s: float
) -> tables.Table:
    """Return the guests as a table.

    :param realtime_s, boottime_s: the time by CLOCK_REALTIME and by CLOCK_BOOTTIME [s]
    """
    headings = ('guest', 'id', 'CPUs on', 'memory on', 'home%', 'day', 'why')
    rows = [
        (
            printable(status.guest.name),
            tables.UNKNOWN if status.guest.id is None else str(status.guest.id),
            _held_text(status.held_nodes),
            tables.UNKNOWN
            if status.bytes_by_node is None
            else memory_text(sorted(status.bytes_by_node.items())) or '0',
            percent(status.home_ratio),
            _demand_text(status.demand_history),
            printable(why(status, realtime_s, boottime_s)),
        )
        for status in guests
    ]
    return tables.text_table(headings, rows, (0, 2, 3, 6), 'guests', (_LEGEND,))


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


def _demand_text(history: GuestHistory | None) -> str:
    if history is None or history.demand.day.mean is None:
        return tables.UNKNOWN
    return '%s/%s' % (number(history.demand.day.mean, 1), number(history.demand.p95()[1], 1))


def to_html(host: HostStatus) -> str:
    """Return the status as a page with a picture of the nodes and their guests."""
    nodes = [
        page.NodeBox(
            node.id,
            node.pressure,
            {'cpu': node.cpu_ratio, 'bandwidth': node.bandwidth_ratio, 'link': node.link_ratio},
            ', '.join('%s %s' % (name, text(node)) for name, text in _NODES if name in _ON_NODES),
        )
        for node in host.nodes
    ]
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
    return page.to_html(
        'Nodes and guests',
        [page.Picture(tables.clock_time(host.realtime_s), nodes, boxes)],
        [node_table(host.nodes), guest_table(host.guests, host.realtime_s, host.boottime_s)],
        _agent_lines(host.agent, host.measured),
    )


def to_data(host: HostStatus) -> dict[str, Any]:
    """Return the status as plain data."""
    agent = dict(host.agent._asdict(), paused=host.agent.paused and host.agent.paused._asdict())
    agent['guests_by'] = agent.pop('events_source')  # as in the publication
    return {
        'agent': agent,
        'nodes': [node._asdict() for node in host.nodes],
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
                'demand_cores': status.demand_history.demand.figures()
                if status.demand_history
                else {},
                'bandwidth_bytes_per_sec': status.demand_history.bandwidth.figures()
                if status.demand_history
                else {},
                'pinned': {name: format_cpulist(cpus) for name, cpus in status.pinned},
                'promise': status.promise and promises_format.to_data(status.promise),
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
    }
