# SPDX-License-Identifier: Apache-2.0
"""Records that the rebalancer takes and returns: a host's situation, its options, a plan.

Kept out of :mod:`nova_numa_pmc.model`, because the libvirt hook loads that module at
every guest start and never moves a running guest. Cores are core-seconds per second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.model import PlacementOptions, Reason
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.model import HostView

#: Kinds of a :class:`Move`: to another node, two guests that change places, more
#: nodes for the CPUs, fewer, only the memory (to where the CPUs are).
MOVE, SWAP, WIDEN, NARROW, FETCH = 'move', 'swap', 'widen', 'narrow', 'fetch'
KINDS = (MOVE, SWAP, WIDEN, NARROW, FETCH)
#: Code of a move's :class:`model.Reason` where it was requested: with ('why', text). It is older
#: than its name, and a member in --json.
REQUESTED = 'asked'
#: Value of 'rate' in a reason 'distance' where a guest's accesses are not counted.
ASSUMED = 'assumed'


class GuestLoad(Record):
    """One guest: its place, its load, and whether it may be moved.

    :param vcpus: the most it may have; a node needs a thread for each
    :param memory_bytes: what it may grow to: its promise
    :param cpu_nodes: ids of the nodes that its CPUs are held to now; empty: it floats over all
    :param home_nodes: node ids that were promised; narrower than ``cpu_nodes`` while widened
    :param mem_nodes, mem_bytes: where its memory is promised, as in :class:`model.Promise`
    :param bytes_by_node: (node id, bytes of its memory there); empty: unknown
    :param cores_by_node: (node id, cores it ran there); empty: unknown
    :param demand_cores: CPU time that it ran and waited for [cores]; None: unknown, not moved
    :param served_cores: cores that it got, None: unknown
    :param lines_per_sec: DRAM accesses; None: unknown, for the distance a low rate is assumed
    :param remote_ratio: remote accesses over all, None: taken from where its pages lie
    :param bandwidth_bytes_per_sec: DRAM traffic, None: unknown
    :param allowed_nodes: ids of the nodes where it may run on a thread per vCPU; None: any
    :param fixed: why it must not be touched (a code such as 'pinned'); '': it may
    :param young: it was just placed, and stays unless placement prefers another node
        (:mod:`placement_order`)
    """

    uuid: str
    name: str
    vcpus: int
    memory_bytes: int
    cpu_nodes: tuple[int, ...] = ()
    home_nodes: tuple[int, ...] = ()
    mem_nodes: tuple[int, ...] = ()
    mem_bytes: tuple[int, ...] = ()
    bytes_by_node: tuple[tuple[int, int], ...] = ()
    cores_by_node: tuple[tuple[int, float], ...] = ()
    demand_cores: float | None = None
    served_cores: float | None = None
    lines_per_sec: float | None = None
    remote_ratio: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    allowed_nodes: tuple[int, ...] | None = None
    fixed: str = ''
    young: bool = False


class Situation(Record):
    """A host and its guests over one interval.

    :param view: the host, with what was measured of each node
    :param latencies_ns: unloaded latencies by *position*, rows from the CPUs
    :param waiting_cores: (node id, cores) that waited there in the same interval
        while others may have idled; a node that is absent waits for what exceeds its cores
    :param free_bytes: (node id, bytes free now); absent: only promises are looked at
    :param mlp: misses that a core waits for together (``core/pressure.py``)
    :param limits: the limits of placements
    """

    view: HostView
    guests: tuple[GuestLoad, ...]
    latencies_ns: tuple[tuple[float, ...], ...]
    waiting_cores: tuple[tuple[int, float], ...] = ()
    free_bytes: tuple[tuple[int, int], ...] = ()
    mlp: float = 1.0
    limits: PlacementOptions = PlacementOptions()


class RebalanceOptions(Record):
    """The operator's options of the rebalancer: what moves cost, and how many there may be.

    :param bytes_per_tick: memory that one plan may move. A larger guest is moved alone,
        and the following plans wait until their shares have paid for it
    :param moves_per_hour: guests whose memory is moved
    :param changes_per_hour: guests of which only the CPUs are changed (widen, narrow)
    :param bytes_per_sec: limit on the rate of a move
    :param page_s: CPU time to move a page of 4 KiB [s] (assumed)
    :param change_core_sec: what a change of CPUs costs in cold caches and stalled writes
        [core-seconds] (assumed)
    :param min_gain_cores: a gain below this is noise; it is taken off each gain before it
        adds to the regret
    :param reserve_bytes: free memory that a move leaves on its target
    :param tick_max_s: a sample counts for at most this long, however late the next one is
    :param narrow_below_ratio: a widened guest goes home only where it leaves less CPU
        wanted ÷ capacity than this
    :param widen: whether CPUs may be widened at all
    """

    bytes_per_tick: int = 4 << 30
    moves_per_hour: int = 20
    changes_per_hour: int = 120
    bytes_per_sec: float = 256 << 20
    page_s: float = 2e-6
    change_core_sec: float = 0.5
    min_gain_cores: float = 0.05
    reserve_bytes: int = 256 << 20
    tick_max_s: float = 60.0
    narrow_below_ratio: float = 0.9
    widen: bool = True


class PlanPart(Record):
    """Part of a planned move: the new place of one guest.

    :param from_nodes, to_nodes: node ids for its CPUs; ``from_nodes`` empty: it floats
    :param mem_nodes: node ids that its memory is brought to; empty: it stays where it is
    :param bytes: memory to be moved for that
    """

    uuid: str
    name: str
    from_nodes: tuple[int, ...]
    to_nodes: tuple[int, ...]
    mem_nodes: tuple[int, ...]
    bytes: int


class Move(Record):
    """One change: all of its parts are made, or none.

    :param kind: one of :data:`KINDS`
    :param parts: one for each guest; those of a swap are done together
    :param gain_cores: loss and crowding now − after (``core/rebalance/losses.py``)
    :param cost_core_sec: its one-time cost [core-seconds]
    :param regret_core_sec: loss so far from not having made it [core-seconds]
    :param reasons: the largest contribution to the gain first:
        'waiting', 'distance', 'bandwidth', 'crowding' and 'bursts' with (name, value) pairs;
        'distance' has ('rate', :data:`ASSUMED`) where accesses of a guest were not counted
    """

    kind: str
    parts: tuple[PlanPart, ...]
    gain_cores: float
    cost_core_sec: float
    regret_core_sec: float
    bytes: int
    reasons: tuple[Reason, ...] = ()


def requested_move(kind: str, parts: tuple[PlanPart, ...], why: str) -> Move:
    """Return a requested move: nothing was weighed."""
    size_bytes = sum(part.bytes for part in parts)
    return Move(kind, parts, 0.0, 0.0, 0.0, size_bytes, (Reason(REQUESTED, (('why', why),)),))


class Plan(Record):
    """The moves to make now.

    :param moves: the due moves, in the order in which to make them
    :param loss_cores, loss_after_cores: the host's loss now and once the moves are made
    :param reasons: about the whole: budgets that held moves
        back, parts that are unknown
    """

    moves: tuple[Move, ...] = ()
    loss_cores: float = 0.0
    loss_after_cores: float = 0.0
    reasons: tuple[Reason, ...] = ()
