# SPDX-License-Identifier: Apache-2.0
"""Plan which guests should leave their hosts, and for which, by the loss that the weigher uses.

A host levels its demand out by itself: its agent moves guests among its nodes. What is left once
it is spread evenly is what only a guest's leaving can relieve. A host is relieved if it is
saturated even then, of the guest whose leaving gains most for what it takes of the budgets, until
it no longer is.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import insort
from collections import Counter
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import loss
from nova_numa_pmc.core.placement.placement import place
from nova_numa_pmc.model import HostView  # noqa: TC001 -- json_values looks it up
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nova_numa_pmc.core.demand import UsageHistory

#: A host is relieved above this pressure, and no guest may bring its new host above the other.
SOURCE_RATIO, TARGET_RATIO_MAX = 0.85, 0.75
#: The least gain that is worth a migration [cores]; within this time it has to exceed the cost.
GAIN_MIN_CORES, PAYBACK_S = 0.1, 600.0
#: Assumed of a migration: a link of 10 Gbit/s, and a busy core on either host.
LINK_BYTES_PER_SEC, COST_CORES = 1e9, 2.0
#: A guest that came to its host later than this may have been moved, or may soon end; it stays.
SETTLED_S = 86400.0
#: Figures that are older than this are not used.
STALE_S = 900.0
#: The least pressed hosts with room that are compared for a guest.
_TRIED = 8
#: How much a move's share of the budget of bytes weighs, compared with its share of that of moves:
#: which of the two binds is known only afterwards, so the best plan counts.
_BYTE_WEIGHTS = (0.1, 0.25, 1.0)

#: Codes of reasons for which a guest or a host is left alone.
ARRIVED, UNMEASURED = 'arrived', 'unmeasured'
STALE, RELIEVES_ITSELF, NONE_PAYS, BUDGET = 'stale', 'relieves_itself', 'none_pays', 'budget'
TEXTS = {
    STALE: 'its figures are too old',
    UNMEASURED: 'what its guests want is unknown',
    RELIEVES_ITSELF: 'its own agent can relieve it',
    NONE_PAYS: 'no guest that may leave has a host with room where it gains enough',
    BUDGET: 'the budget of moves or of bytes is used up',
}


class FleetGuest(Record):
    """A guest of a fleet.

    :param demand_cores, bandwidth_bytes_per_sec: over the longer horizon; None: unknown
    :param why_fixed: code of the reason why it stays; empty: it may leave
    """

    uuid: str
    name: str
    vcpus: int
    memory_bytes: int
    demand_cores: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    why_fixed: str = ''


class FleetHost(Record):
    """A host of a fleet.

    :param taken_s: CLOCK_REALTIME of its figures [s since the epoch]
    """

    taken_s: float
    view: HostView
    guests: tuple[FleetGuest, ...] = ()


class FleetMove(Record):
    """A guest that should be migrated.

    :param source, target: names of hosts
    :param gain_cores: what the guests of both hosts lose less
    :param source_ratios, target_ratios: pressures before and after, levelled out within the host
    """

    uuid: str
    name: str
    source: str
    target: str
    gain_cores: float
    memory_bytes: int
    duration_s: float
    source_ratios: tuple[float, float]
    target_ratios: tuple[float, float]


class FleetPlan(Record):
    """The moves in the order in which they should be made, and the hosts that are left alone.

    :param left_alone: (host, code of the reason) of pressed hosts, and of those without figures
    """

    moves: tuple[FleetMove, ...]
    left_alone: tuple[tuple[str, str], ...]


class Budgets(Record):
    """The most that a plan may do."""

    moves: int
    memory_bytes: int


def of_guest(
    guest: model.Guest, why_fixed: str, history: UsageHistory | None, boottime_s: float
) -> FleetGuest:
    """Return a guest as a fleet sees it.

    :param why_fixed: code of the reason why it is not moved within its host; empty: none
    :param boottime_s: CLOCK_BOOTTIME [s]
    """
    if not why_fixed and (guest.start_ns is None or boottime_s - guest.start_ns / 1e9 < SETTLED_S):
        why_fixed = ARRIVED
    return FleetGuest(
        guest.uuid,
        guest.name,
        guest.vcpus,
        guest.memory_bytes,
        history and history.demand.day,
        history and history.bandwidth.day,
        why_fixed,
    )


class Relief(Record):
    """What moving a guest to another host would relieve, and moves within its host cannot.

    :param lost_cores, regained_cores: what the guest loses, and what its host's guests regain if
        it leaves; None: unknown
    :param may_move: whether it may leave (1) or not (0); other fields as in :class:`FleetGuest`
    """

    uuid: str
    name: str
    vcpus: int
    memory_bytes: int
    demand_cores: float | None
    may_move: int
    lost_cores: float | None = None
    regained_cores: float | None = None


def reliefs(host: FleetHost) -> list[Relief]:
    """Return what each guest of a host would relieve."""
    columns = loss.columns(host.view)[0]
    wanted_cores, capacity = sum(columns.demand) or 1.0, sum(columns.cores) or 1.0
    waiting_ratio = sum(
        loss.mean_waiting_cores(wanted_cores * cores / capacity, cores) / wanted_cores
        for cores in columns.cores
    )
    found = []
    for guest in host.guests:
        demand_cores = guest.demand_cores if _is_measured(host.view) else None
        relief = Relief(*guest[:4], demand_cores, int(not guest.why_fixed))
        if demand_cores is not None:
            relief = relief._replace(
                lost_cores=demand_cores * min(1.0, waiting_ratio),
                regained_cores=_regained(columns, guest),
            )
        found.append(relief)
    return found


def plan(hosts: Mapping[str, FleetHost], budgets: Budgets, realtime_s: float) -> FleetPlan:
    """Plan moves within the budgets.

    :param hosts: {name: host}
    :param realtime_s: CLOCK_REALTIME [s since the epoch]
    """
    # A guest that is being moved is on two hosts; and no host can speak for another's guests.
    counts = Counter(guest.uuid for host in hosts.values() for guest in host.guests)
    repeated = {uuid for uuid, count in counts.items() if count > 1}
    plans = [
        _Planner(hosts, repeated, budgets, realtime_s, weight).plan() for weight in _BYTE_WEIGHTS
    ]
    return max(plans, key=lambda one: sum(move.gain_cores for move in one.moves))


class _Offer(Record):
    """The host that is best for a guest: what is gained [cores], and its place there."""

    gain_cores: float
    target: str
    place: model.Placement


class _Planner:
    """The hosts with the moves that were planned so far.

    :ivar repeated: uuids of guests that are listed more than once, which stay
    :ivar views, columns, ratios: of the hosts that take part, by name
    :ivar targets: (pressure, name) of the hosts that may get guests, ascending
    :ivar homeless: (memory, demand) of guests for which no host has room, nor will have
    """

    def __init__(
        self,
        hosts: Mapping[str, FleetHost],
        repeated: set[str],
        budgets: Budgets,
        realtime_s: float,
        byte_weight: float,
    ) -> None:
        self.hosts, self.byte_weight, self.budgets = hosts, byte_weight, budgets
        self.repeated = repeated
        self.left_alone: dict[str, str] = {}
        self.homeless: list[tuple[int, float]] = []
        self.columns: dict[str, loss.Columns] = {}
        self.views: dict[str, HostView] = {}
        self.ratios: dict[str, float] = {}
        for name, host in hosts.items():
            if abs(realtime_s - host.taken_s) > STALE_S:
                self.left_alone[name] = STALE
            elif not _is_measured(host.view):
                self.left_alone[name] = UNMEASURED
            else:
                self._update(name, host.view, loss.columns(host.view)[0])
        self.targets = sorted(
            (ratio, name) for name, ratio in self.ratios.items() if ratio < TARGET_RATIO_MAX
        )

    def plan(self) -> FleetPlan:
        """Choose moves, the best first."""
        queue = [
            (self._order(gain_cores, guest), name, guest)
            for name in self.ratios
            if self._is_pressed(name)
            for guest in self.hosts[name].guests
            if not guest.why_fixed and guest.demand_cores and guest.uuid not in self.repeated
            for gain_cores in (_regained(self.columns[name], guest),)
            if gain_cores >= _gain_min_cores(guest)
        ]
        heapq.heapify(queue)
        moves: list[FleetMove] = []
        bytes_left = self.budgets.memory_bytes
        while queue:
            _, source, guest = heapq.heappop(queue)
            if self.ratios[source] < SOURCE_RATIO:
                continue
            if len(moves) == self.budgets.moves or guest.memory_bytes > bytes_left:
                self.left_alone[source] = BUDGET
                continue
            # Source and targets may have changed since it was queued, and never for the better.
            offer = self._best_offer(source, guest)
            if offer is None:
                continue
            order = self._order(offer.gain_cores, guest)
            if queue and order > queue[0][0]:
                heapq.heappush(queue, (order, source, guest))
                continue
            moves.append(self._make(source, guest, offer))
            bytes_left -= guest.memory_bytes
        return FleetPlan(tuple(moves), tuple(sorted(self.left_alone.items())))

    def _is_pressed(self, name: str) -> bool:
        """Return whether a host needs relief; say why, for the time being, it gets none."""
        if self.ratios[name] >= SOURCE_RATIO:
            self.left_alone[name] = NONE_PAYS
            return True
        if _peak(self.columns[name]) >= SOURCE_RATIO:
            self.left_alone[name] = RELIEVES_ITSELF
        return False

    def _order(self, gain_cores: float, guest: FleetGuest) -> float:
        """Return minus the gain, relative to what the move takes of both budgets."""
        byte_share = guest.memory_bytes / self.budgets.memory_bytes
        return -gain_cores / (1 / self.budgets.moves + self.byte_weight * byte_share)

    def _best_offer(self, source: str, guest: FleetGuest) -> _Offer | None:
        """Return the best host for a guest; None if its move would not pay."""
        size, demand_cores = guest.memory_bytes, guest.demand_cores or 0.0
        if any(size >= other and demand_cores >= wanted for other, wanted in self.homeless):
            return None
        request = model.Request(
            guest.vcpus,
            guest.memory_bytes,
            demand_cores=guest.demand_cores,
            bandwidth_bytes_per_sec=guest.bandwidth_bytes_per_sec,
        )
        regained_cores, best = _regained(self.columns[source], guest), None
        for name in self._with_room(guest):
            placement = place(self.views[name], request, model.PlacementOptions())
            if not placement.mem_nodes:
                continue
            nodes = [node.id for node in self.views[name].nodes]
            cpus = [nodes.index(node) for node in placement.cpu_nodes]
            memory = [nodes.index(node) for node in placement.mem_nodes]
            lost_cores = _lost(_half_level(self.columns[name]), cpus, memory, guest)
            offer = _Offer(regained_cores - lost_cores, name, placement)
            if best is None or offer.gain_cores > best.gain_cores:
                best = offer
        if best is None:
            self.homeless.append((size, demand_cores))
        return best if best and best.gain_cores >= _gain_min_cores(guest) else None

    def _with_room(self, guest: FleetGuest) -> Iterator[str]:
        """Yield the least pressed hosts with a node that has room for a guest."""
        names = (
            name
            for _, name in self.targets
            if _free_bytes(self.views[name]) >= guest.memory_bytes
            and _ratio(_changed(self.columns[name], guest, 1)) <= TARGET_RATIO_MAX
        )
        return itertools.islice(names, _TRIED)

    def _make(self, source: str, guest: FleetGuest, offer: _Offer) -> FleetMove:
        """Assume that a move is made, and return it."""
        target, (_, _, _, mem_nodes, sizes) = offer.target, offer.place
        before = self.ratios[source], self.ratios[target]
        self.targets.remove((self.ratios[target], target))
        size_of = dict(zip(mem_nodes, sizes or (guest.memory_bytes,)))
        nodes = tuple(
            node._replace(promised_bytes=node.promised_bytes + size_of.get(node.id, 0))
            for node in self.views[target].nodes
        )
        view = self.views[target]._replace(nodes=nodes)
        self._update(source, self.views[source], _changed(self.columns[source], guest, -1))
        self._update(target, view, _changed(self.columns[target], guest, 1))
        insort(self.targets, (self.ratios[target], target))
        if self.ratios[source] < SOURCE_RATIO:
            del self.left_alone[source]
        return FleetMove(
            guest.uuid,
            guest.name,
            source,
            target,
            offer.gain_cores,
            guest.memory_bytes,
            guest.memory_bytes / LINK_BYTES_PER_SEC,
            (before[0], self.ratios[source]),
            (before[1], self.ratios[target]),
        )

    def _update(self, name: str, view: HostView, columns: loss.Columns) -> None:
        self.views[name], self.columns[name] = view, columns
        self.ratios[name] = _ratio(columns)


def _gain_min_cores(guest: FleetGuest) -> float:
    """Return what a guest's move has to gain."""
    cost_core_sec = COST_CORES * guest.memory_bytes / LINK_BYTES_PER_SEC
    return max(GAIN_MIN_CORES, cost_core_sec / PAYBACK_S)


def _is_measured(view: HostView) -> bool:
    return any(node.cores for node in view.nodes) and all(
        node.demand_cores is not None for node in view.nodes if node.cores
    )


def _free_bytes(view: HostView) -> int:
    """Return the memory of the emptiest node that may still be promised."""
    return max(node.capacity_bytes - node.promised_bytes for node in view.nodes)


def _ratio(columns: loss.Columns) -> float:
    """Return a host's pressure once its load is level; traffic counts if its maximum is known."""
    parts = ((columns.demand, columns.cores), (columns.bandwidth, columns.bandwidth_max))
    return max(sum(used) / sum(capacity) for used, capacity in parts if any(capacity))


def _peak(columns: loss.Columns) -> float:
    """Return the pressure of a host's most pressed node."""
    parts = ((columns.demand, columns.cores), (columns.bandwidth, columns.bandwidth_max))
    return max(used / capacity for part in parts for used, capacity in zip(*part) if capacity)


def _changed(columns: loss.Columns, guest: FleetGuest, sign: int) -> loss.Columns:
    """Return a host's columns, level, with a guest's load added (1) or taken away (−1)."""
    return columns._replace(
        demand=_spread(columns.demand, columns.cores, sign * (guest.demand_cores or 0.0)),
        bandwidth=_spread(
            columns.bandwidth, columns.bandwidth_max, sign * (guest.bandwidth_bytes_per_sec or 0.0)
        ),
    )


def _spread(amounts: loss._Column, weights: loss._Column, added: float) -> list[float]:
    level = max(0.0, sum(amounts) + added) / (sum(weights) or 1.0)
    return [level * weight for weight in weights]


def _regained(columns: loss.Columns, guest: FleetGuest) -> float:
    """Return what guests of a host lose due to one of them, once its load is level [cores].

    It is the loss that the guest would cause if it came to the host as it is without it.
    """
    everywhere = [position for position, cores in enumerate(columns.cores) if cores]
    # Without distances: it asks for no memory elsewhere than where it already has it.
    near = [[1.0] * len(columns.cores)] * len(columns.cores)
    without = _changed(columns, guest, -1)._replace(distances=near, link=[])
    return _lost(without, everywhere, (), guest)


def _half_level(columns: loss.Columns) -> loss.Columns:
    """Return a host's columns as the weigher takes them, between what they are and level."""

    def mixed(amounts: loss._Column, weights: loss._Column) -> list[float]:
        return [
            loss.met_on_host(level, amount)
            for level, amount in zip(_spread(amounts, weights, 0.0), amounts)
        ]

    return columns._replace(
        demand=mixed(columns.demand, columns.cores),
        bandwidth=mixed(columns.bandwidth, columns.bandwidth_max),
    )


def _lost(
    columns: loss.Columns, cpus: list[int], memory: list[int] | tuple[()], guest: FleetGuest
) -> float:
    """Return what guests lose due to one at a place, at most what it wants [cores]."""
    cores = guest.demand_cores or 0.0
    lines = loss.guest_lines(cores, guest.bandwidth_bytes_per_sec)
    lost = loss.of_place(columns, cpus, memory, math.inf, cores, lines, is_smallest=False)
    return min(1.0, lost) * max(cores, loss.DEMAND_MIN_CORES)
