# SPDX-License-Identifier: Apache-2.0
"""Records that the rebalancer takes and returns, and a plan in words.

They are not in :mod:`nova_numa_pmc.model`, because the libvirt hook loads that module at every
guest start and never moves a running guest. Cores are core-seconds per second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.placement import reasons
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.model import GIB, MIB, Reason
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nova_numa_pmc.model import HostView

#: Kinds of a :class:`Move`: a guest moves to another node; it may use the CPUs of more nodes; or
#: of fewer; only its memory moves, to where its CPUs are.
MOVE, WIDEN, NARROW, FETCH = 'move', 'widen', 'narrow', 'fetch'
KINDS = (MOVE, WIDEN, NARROW, FETCH)
#: Codes of the reasons of a move, the parts that its gain consists of.
WAITING, DISTANCE, BANDWIDTH, CROWDING = 'waiting', 'distance', 'bandwidth', 'crowding'
BURSTS, AWAY = 'bursts', 'away'
#: Value of 'rate' in a reason 'distance' if a guest's accesses are not counted.
ASSUMED = 'assumed'
#: Codes of remarks on a plan: the day's budget is used up; nodes have unknown demand. Another is
#: :data:`reasons.BANDWIDTH_DROPPED`.
BUDGET, DEMAND_UNKNOWN = 'budget', 'demand_unknown'
#: Code of a remark: the last moves cost more than they gained, so that no more are to be made for
#: a day.
DO_NOT_PAY = 'do_not_pay'


class GuestLoad(Record):
    """The place and the load of one guest, and whether it may be moved.

    :param vcpus: the most vCPUs that it may have; its nodes need a CPU for each
    :param memory_bytes: promised memory
    :param held_nodes: ids of the nodes that its CPUs are held to now; empty if it floats
    :param home_nodes: ids of the nodes that it was promised, which are fewer than ``held_nodes``
        while it is widened
    :param mem_nodes, mem_node_bytes: where its memory is promised, as in :class:`model.Promise`
    :param bytes_by_node: (node id, bytes of its memory there); empty if unknown
    :param cores_by_node: (node id, cores that it used there); empty if unknown
    :param demand_cores: CPU time that it used and waited for [cores]; None if unknown, and then it
        is not moved
    :param served_cores: CPU time that it used [cores]; None if unknown
    :param mean_cores: its demand as a mean over minutes and over a day; empty if unknown, and
        then the agent does not move its memory
    :param measured_s: for how long it was measured [s]
    :param stalled_ratio: share of its cycles in which it stalled; None if not counted
    :param lines_per_sec: DRAM accesses per second; None if unknown, and then a low rate is assumed
        for its loss to distance
    :param remote_ratio: remote share of its accesses; None if it is to be derived from where its
        pages are
    :param bandwidth_bytes_per_sec: DRAM traffic; None if unknown
    :param allowed_cpu_counts: (node id, number of CPUs that it may use), for nodes that have any;
        None if it may use all
    :param why_fixed: code of the reason why it must not be touched, such as 'placed_by_others';
        empty if it may be
    """

    uuid: str
    name: str
    vcpus: int
    memory_bytes: int
    held_nodes: tuple[int, ...] = ()
    home_nodes: tuple[int, ...] = ()
    mem_nodes: tuple[int, ...] = ()
    mem_node_bytes: tuple[int, ...] = ()
    bytes_by_node: tuple[tuple[int, int], ...] = ()
    cores_by_node: tuple[tuple[int, float], ...] = ()
    demand_cores: float | None = None
    served_cores: float | None = None
    mean_cores: tuple[float, ...] = ()
    measured_s: float = 0.0
    stalled_ratio: float | None = None
    lines_per_sec: float | None = None
    remote_ratio: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    allowed_cpu_counts: tuple[tuple[int, int], ...] | None = None
    why_fixed: str = ''


class Situation(Record):
    """A host and its guests over one interval.

    :param view: the host with the measurements of each node
    :param latencies_ns: unloaded latencies by *position*, with a row for each node's CPUs
    :param waiting_cores: (node id, cores that waited there in the interval), even if other CPUs
        were idle; on a node that is left out, the demand above its capacity is assumed to wait
    :param available_bytes: (node id, free memory above its watermarks, without the page cache); on
        a node that is left out, only promises limit what fits
    :param mlp: number of cache misses that a core waits for at the same time
        (``core/pressure.py``)
    """

    view: HostView
    guests: tuple[GuestLoad, ...]
    latencies_ns: tuple[tuple[float, ...], ...]
    waiting_cores: tuple[tuple[int, float], ...] = ()
    available_bytes: tuple[tuple[int, int], ...] = ()
    mlp: float = 1.0


class RebalanceOptions(Record):
    """The costs and limits of moves: the operator's options, and the planner's assumptions.

    :param bytes_per_tick: memory that is fetched at once for guests that were just started
    :param moved_ratio_per_day: share of the guests' memory that the agent moves in a day, but at
        least what takes a minute, so that small hosts are repaired, too; 0: none
    :param may_move: whether memory is moved; otherwise, guests are only widened
    :param measured_min_s: the memory of a guest that was measured for less than this stays [s]
    :param memory_every_s: how often moves of memory are evaluated [s]: the means that they go by
        change over minutes
    :param bytes_per_sec: the highest rate of a move
    :param cpu_s_per_page: CPU time to move a page of 4 KiB [s] (assumed)
    :param change_core_sec: cost of changing a guest's CPUs, in cold caches and stalled writes
        [core-seconds] (assumed)
    :param min_gain_cores: a gain below this is noise. It is subtracted from each gain by the load
        of an interval before the gain is added to the regret
    :param reserve_bytes: available memory that a move leaves on its target
    :param interval_max_s: the longest time that a sample counts for, however late the next one is
    :param narrow_below_ratio: a widened guest goes home only if the CPU demand there, with the
        guest, is at most this share of the capacity
    :param widen: whether guests may be widened
    :param go_home: whether widened guests may go home
    """

    bytes_per_tick: int = 4 << 30
    moved_ratio_per_day: float = 0.1
    may_move: bool = True
    measured_min_s: float = 120.0
    memory_every_s: float = 60.0
    bytes_per_sec: float = 256 << 20
    cpu_s_per_page: float = 2e-6
    change_core_sec: float = 0.5
    min_gain_cores: float = 0.05
    reserve_bytes: int = 256 << 20
    interval_max_s: float = 60.0
    narrow_below_ratio: float = 0.9
    widen: bool = True
    go_home: bool = True


class Move(Record):
    """A planned or requested move of one guest.

    :param kind: one of :data:`KINDS`
    :param from_nodes: ids of the nodes that its CPUs are held to; empty if it floats
    :param to_nodes: ids of the nodes that its CPUs will be held to
    :param mem_nodes: ids of the nodes that its memory is moved to; empty if it stays where it is
    :param to_move_bytes: memory to be moved
    :param why: why it was requested; empty if it was planned
    :param gain_cores: loss and crowding now less those after the move
        (``core/rebalance/losses.py``); 0 if it was requested, and so are cost and regret
    :param cost_core_sec: cost of making the move once [core-seconds]
    :param regret_core_sec: cost so far of not having made it [core-seconds]
    :param reasons: contributions to the gain, the largest first: 'waiting', 'distance',
        'bandwidth', 'crowding', 'bursts' and 'away' with (name, value) pairs. 'away' is what a
        widened guest is assumed to lose by memory that it would allocate away from home.
        'distance' has ('rate', :data:`ASSUMED`) if accesses of the guest were not counted
    """

    kind: str
    uuid: str
    name: str
    from_nodes: tuple[int, ...]
    to_nodes: tuple[int, ...]
    mem_nodes: tuple[int, ...]
    to_move_bytes: int
    why: str = ''
    gain_cores: float = 0.0
    cost_core_sec: float = 0.0
    regret_core_sec: float = 0.0
    reasons: tuple[Reason, ...] = ()


class Plan(Record):
    """The moves to make now.

    :param moves: the moves that are due, in the order in which to make them
    :param loss_cores, loss_after_cores: the host's loss now, and after the moves
    :param remarks: on the whole plan: budgets that held moves back, and parts that are unknown
    """

    moves: tuple[Move, ...] = ()
    loss_cores: float = 0.0
    loss_after_cores: float = 0.0
    remarks: tuple[Reason, ...] = ()


#: {code of a reason, or a budget: its text for operators}
TEXTS = {
    WAITING: 'waiting for CPUs',
    DISTANCE: 'distance to memory',
    BANDWIDTH: 'saturated memory',
    CROWDING: 'unevenly crowded nodes',
    BURSTS: 'bursts absorbed by idle CPUs elsewhere',
    AWAY: 'work away from home',
}


def explain_move(move: Move) -> str:
    """Return one line that states what is moved and why it pays.

    :returns: a line without a newline, such as ``web moves from node 0 to node 1 (1.0 GiB): gains
        4 cores (waiting for CPUs 4), costs 5.0 core-seconds, 19.8 lost so far``
    """
    return '%s: %s' % (_what(move), explain_why(move))


def explain_why(move: Move) -> str:
    """Return why a move is made, without its guest and nodes."""
    if move.why:
        return move.why
    causes = [(_values(reason)['cores'], _cause(reason)) for reason in move.reasons]
    shown = ', '.join('%s %.2g' % (cause, cores) for cores, cause in causes if abs(cores) >= 0.005)
    return (
        'gains %.2g cores' % move.gain_cores
        + (' (%s)' % shown if shown else '')
        + ', costs %.1f core-seconds' % move.cost_core_sec
        + (', %.1f lost so far' % move.regret_core_sec if move.regret_core_sec else '')
    )


def _cause(reason: Reason) -> str:
    cause = TEXTS.get(reason.code, reason.code)
    if dict(reason.values).get('rate') == ASSUMED:
        cause += ', at an assumed rate of accesses,'
    return cause


def explain_remark(reason: Reason) -> str:
    """Return a remark on a plan as one line: what held moves back, or what was unknown."""
    values = _values(reason)
    if reason.code == BUDGET:
        return 'held back: %s of memory were moved within a day (moved_percent_per_day)' % _size(
            values['used']
        )
    if reason.code == DO_NOT_PAY:
        return 'the last %d moves cost more than they gained' % values['moves']
    if reason.code == DEMAND_UNKNOWN:
        return 'no CPU moves from or to %s: CPU demand is unknown there' % _nodes(values['nodes'])
    if reason.code == reasons.BANDWIDTH_DROPPED:
        return 'bandwidth left out: traffic or maximum is unknown on some nodes'
    return reason.code


def _values(reason: Reason) -> dict[str, Any]:
    return dict(reason.values)


def _what(move: Move) -> str:
    size = ' (%s)' % _size(move.to_move_bytes) if move.to_move_bytes else ''
    if move.kind == FETCH:
        return '%s fetches its memory%s to %s' % (move.name, size, _nodes(move.mem_nodes))
    if move.kind == NARROW:
        return '%s is narrowed to %s%s' % (move.name, _nodes(move.to_nodes), size)
    verb = 'is widened' if move.kind == WIDEN else 'moves'
    nodes = _nodes(move.from_nodes), _nodes(move.to_nodes)
    return '%s %s from %s to %s%s' % (move.name, verb, *nodes, size)


def _nodes(ids: Sequence[int]) -> str:
    return name_nodes(ids) if ids else 'all nodes'


def _size(size: int) -> str:
    return '%.1f GiB' % (size / GIB) if size >= GIB else '%.0f MiB' % (size / MIB)
