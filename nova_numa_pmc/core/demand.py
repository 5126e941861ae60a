# SPDX-License-Identifier: Apache-2.0
"""Keep the demand of guests, and compute the demand on a host's nodes over the longer horizon.

For each guest, and for everything else on each node, two exponential means are kept: one over
minutes, for a load that has changed, and one over a day, for one that comes back. Until something
was measured for as long as that, its mean is a plain one. The clock of the histories counts only
time that was measured: while the agent is stopped, nothing ages. The history of a guest that does
not run (it is paused, suspended or has crashed), or whose demand is unknown in an interval, stays
as it is.

The demand on a node is the sum of the histories of the guests that are there and of everything
else, so that a guest's demand moves with the guest. Decisions about new guests and hosts are based
on it; moves of running guests are based on the last interval.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

from nova_numa_pmc import json_values, model
from nova_numa_pmc.core import pools
from nova_numa_pmc.core.host_view import (
    DEFAULT_INTENSITY,
    INTENSITY,
    NOT_YET_MEASURED_NS,
    capacity_cores_by_node,
    expected_cores,
    intensity_of,
    traffic_per_core,
)
from nova_numa_pmc.core.measurements import bandwidth_by_guest
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.rates import shares
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.core.measurements import GuestSample, NodeSample, PoolSample, Sample

#: The horizons [s].
MINUTES_S, DAY_S = 900.0, 86400.0
#: The lowest demand on a node within this time counts as sustained, whatever it was before [s].
SUSTAINED_S = 120.0
#: Longest time that an interval counts for, so that none outweighs everything before it [s].
INTERVAL_MAX_S = 600.0
#: A guest that was measured for less than this may still be booting, and says nothing about what
#: others will want [s].
REPRESENTATIVE_MIN_S = 300.0
#: Time for which guests that are gone are remembered, because they may come back [s], and the most
#: guests that are remembered.
ABSENT_MAX_S, GUESTS_MAX = 86400.0, 1024
#: The most guests that count in what a host expects of others, so that one host does not decide
#: for all.
EXPECTED_GUESTS_MAX = 50
#: A standard error of a mean over minutes, squared, ÷ the demand [cores]. The variance of demand
#: is taken as twice the demand, as where a loss is estimated, and bursts as a minute long, so that
#: the variance of the mean is 60 ÷ 960 of that.
CHANCE_CORES = 2.0 * 60 / (60 + MINUTES_S)
MAJOR = 3


class Mean(Record):
    """Means of one quantity, None until it was measured.

    :param minutes, day: over the horizons
    :param measured_s: for how long it was measured [s]
    """

    minutes: float | None = None
    day: float | None = None
    measured_s: float = 0.0

    def after(self, value: float | None, elapsed_s: float) -> Mean:
        """Return the means after an interval.

        :param value: the interval's mean, which may be negative by an error of measurement; None:
            unknown
        """
        if value is None:
            return self
        value, measured_s = max(0.0, value), self.measured_s + elapsed_s
        return Mean(
            _moved(self.minutes, value, elapsed_s, measured_s, MINUTES_S),
            _moved(self.day, value, elapsed_s, measured_s, DAY_S),
            measured_s,
        )


def _moved(
    mean: float | None, value: float, elapsed_s: float, measured_s: float, horizon_s: float
) -> float:
    """Return a mean after an interval.

    :param measured_s: for how long the quantity was measured, including the interval
    """
    if mean is None:
        return value
    weight = max(elapsed_s / measured_s, -math.expm1(-elapsed_s / horizon_s))
    return mean + weight * (value - mean)


class UsageHistory(Record):
    """History of one guest, or of everything else on one node.

    :param demand: CPU time that was used and waited for [cores]
    :param bandwidth: DRAM traffic [bytes/s]
    :param vcpus: number of a guest's vCPUs when it was last seen; 0 on CPUs of its own, where what
        it wants says nothing about guests that share theirs
    :param seen_s: time at which it was last seen, by the clock of the histories [s]
    :param cores_by_node: (node id, cores) where it ran over minutes
    """

    demand: Mean = Mean()
    bandwidth: Mean = Mean()
    vcpus: int = 0
    seen_s: float = 0.0
    cores_by_node: tuple[tuple[int, float], ...] = ()

    def after(
        self, cores: float | None, bytes_per_sec: float | None, elapsed_s: float
    ) -> UsageHistory:
        """Return the history after an interval; what is unknown (None) stays as it is."""
        return self._replace(
            demand=self.demand.after(cores, elapsed_s),
            bandwidth=self.bandwidth.after(bytes_per_sec, elapsed_s),
        )


class _Saved(Record):
    """Histories as they are saved."""

    clock_s: float
    guests: tuple[tuple[str, UsageHistory], ...]
    non_guest: tuple[tuple[int, UsageHistory], ...]


@dataclasses.dataclass
class Histories:
    """Histories of one host.

    :ivar clock_s: total time for which the host was measured [s]
    :ivar guests: {uuid: history}, including guests that are gone
    :ivar non_guest: {node id: history of everything except guests}
    :ivar recent: (begin of the interval by ``clock_s``, {node id: its sample}) of the last
        intervals, the newest last; not kept over a restart
    """

    clock_s: float = 0.0
    guests: dict[str, UsageHistory] = dataclasses.field(default_factory=dict)
    non_guest: dict[int, UsageHistory] = dataclasses.field(default_factory=dict)
    recent: list[tuple[float, dict[int, NodeSample]]] = dataclasses.field(default_factory=list)

    def add_sample(
        self,
        sample: Sample,
        guests: Mapping[str, model.Guest],
        promises: Mapping[str, model.Promise],
    ) -> None:
        """Add the sample of an interval, which is longer than 0.

        :param guests: {uuid: running guest}
        :param promises: {uuid: promise}
        """
        elapsed_s = min(sample.elapsed_s, INTERVAL_MAX_S)
        self.recent.append((self.clock_s, {node.id: node for node in sample.nodes}))
        self.clock_s += elapsed_s
        while len(self.recent) > 1 and self.recent[1][0] <= self.clock_s - SUSTAINED_S:
            del self.recent[0]
        bandwidths = bandwidth_by_guest(sample.guests, sample.nodes)
        for guest_sample in sample.guests:
            uuid = guest_sample.uuid
            self._add_guest_sample(
                guest_sample, guests.get(uuid), promises.get(uuid), bandwidths.get(uuid), elapsed_s
            )
        for node, cores, bytes_per_sec in non_guest_loads(sample, promises, bandwidths):
            before = self.non_guest.get(node) or UsageHistory()
            self.non_guest[node] = before.after(cores, bytes_per_sec, elapsed_s)
        latest = sorted(self.guests.items(), key=lambda item: -item[1].seen_s)[:GUESTS_MAX]
        oldest_s = self.clock_s - ABSENT_MAX_S
        self.guests = {uuid: history for uuid, history in latest if history.seen_s >= oldest_s}

    def sustained(self, node: int, figure: str) -> float | None:
        """Return the least that a figure of a node was in any interval of the last two minutes.

        :returns: None if it was unknown in one of them, or if they were not all measured
        """
        values = all_known([getattr(nodes.get(node), figure, None) for _, nodes in self.recent])
        is_long_enough = self.recent[0][0] <= self.clock_s - SUSTAINED_S
        return min(values) if values and is_long_enough else None

    def _add_guest_sample(
        self,
        sample: GuestSample,
        guest: model.Guest | None,
        promise: model.Promise | None,
        bytes_per_sec: float | None,
        elapsed_s: float,
    ) -> None:
        history = self.guests.get(sample.uuid) or UsageHistory()
        definition, vcpus = guest or promise, history.vcpus
        if definition:
            vcpus = definition.vcpus if uses_floating_pool(promise) else 0
        history = history._replace(vcpus=vcpus, seen_s=self.clock_s)
        if sample.demand_cores is not None and not (
            guest and guest.state not in (None, 'running')
        ):
            history = history.after(sample.demand_cores, bytes_per_sec, elapsed_s)
            before, now = dict(history.cores_by_node), dict(sample.cores_by_node)
            cores_by_node = {
                node: _moved(
                    before.get(node, 0.0),
                    now.get(node, 0.0),
                    elapsed_s,
                    history.demand.measured_s,
                    MINUTES_S,
                )
                for node in before.keys() | now.keys()
            }
            history = history._replace(cores_by_node=tuple(sorted(cores_by_node.items())))
        self.guests[sample.uuid] = history

    def expectation(self) -> model.DemandHistory:
        """Return the demand of all guests, from which that of new ones is expected.

        It is rounded to whole guests and 0.01 cores, as in Nova's metrics. Flavors are not
        distinguished, because Nova's metrics have no room for them, and the hook, the agent and
        the scheduler have to expect the same demand.
        """
        known = [
            history.demand.day / history.vcpus
            for history in self.guests.values()
            if history.demand.day is not None
            and history.vcpus
            and history.demand.measured_s >= REPRESENTATIVE_MIN_S
        ]
        if not known:
            return model.DemandHistory()
        guests = min(EXPECTED_GUESTS_MAX, len(known))
        return model.DemandHistory(guests, round(100 * guests * sum(known) / len(known)) / 100)


def encode(histories: Histories) -> bytes:
    """Return histories as the bytes of a file."""
    return json_values.encode(
        _Saved(
            histories.clock_s, tuple(histories.guests.items()), tuple(histories.non_guest.items())
        ),
        MAJOR,
    )


def decode(data: bytes) -> Histories:
    """Return the histories in the bytes of a file.

    :raises ValueError: the data is damaged, or was written by another major version
    """
    saved = json_values.decode(_Saved, data, MAJOR)
    return Histories(saved.clock_s, dict(saved.guests), dict(saved.non_guest))


def uses_floating_pool(promise: model.Promise | None) -> bool:
    """Return whether a guest uses the floating pool rather than CPUs of its own."""
    return promise is None or promise.vcpus > 0


def non_guest_loads(
    sample: Sample, promises: Mapping[str, model.Promise], bandwidths: Mapping[str, float]
) -> list[tuple[int, float | None, float | None]]:
    """Return the load on each node in an interval that did not come from guests.

    It is the load on the node less that of the guests. Demand is unknown for all nodes if it is
    unknown where a guest ran; traffic, if a guest's traffic or the place of its memory is unknown.
    The demand of a guest whose CPU time is unknown remains in it.

    :returns: (node id, cores, bytes/s), the last two None if unknown
    """
    guests = [each for each in sample.guests if uses_floating_pool(promises.get(each.uuid))]
    cores = _sums((each.demand_cores or 0.0, each.cores_by_node) for each in guests)
    bandwidth = _sums((bandwidths.get(each.uuid), each.bytes_by_node) for each in guests)
    return [
        (
            node.id,
            _remainder(node.demand_cores, cores, node.id),
            _remainder(node.bandwidth_bytes_per_sec, bandwidth, node.id),
        )
        for node in sample.nodes
    ]


def _sums(
    amounts: Iterable[tuple[float | None, Iterable[tuple[int, float]]]],
) -> dict[int, float] | None:
    """Return {node id: sum of the amounts there}; None if one is unknown, or where it is.

    :param amounts: (amount, ((node id, part), ...)) of each guest
    """
    sums: dict[int, float] = {}
    for amount, by_node in amounts:
        parts = shares(by_node)
        if amount is None or (amount and not parts):
            return None
        for node, share in parts.items():
            sums[node] = sums.get(node, 0.0) + share * amount
    return sums


def _remainder(total: float | None, sums: Mapping[int, float] | None, node: int) -> float | None:
    return None if total is None or sums is None else max(0.0, total - sums.get(node, 0.0))


class Amount(NamedTuple):
    """Demand or traffic that counts for a guest.

    :param minutes, day: over the horizons
    :param excess: the part that is expected of a young guest, but was not measured
    """

    minutes: float
    day: float
    excess: float = 0.0


class Charge(NamedTuple):
    """What counts for a guest, and on which nodes.

    :param demand: its demand for CPU time
    :param bandwidth: its DRAM traffic; None if unknown
    :param cpu_shares, mem_shares: {node id: share of its demand, or of its traffic}
    """

    demand: Amount
    bandwidth: Amount | None
    cpu_shares: dict[int, float]
    mem_shares: dict[int, float]


def _amount(mean: Mean, expected: float | None) -> Amount | None:
    """Return what counts for a guest; None if it is unknown.

    :param expected: of a young guest, for which it counts until the guest itself was measured for
        long enough, if it is more than what it has wanted; None for others
    """
    if mean.minutes is None or mean.day is None:
        return None if expected is None else Amount(expected, expected, expected)
    if expected is None:
        return Amount(mean.minutes, mean.day)
    lasting = mean.day if mean.measured_s >= REPRESENTATIVE_MIN_S else expected
    charged = max(lasting, mean.minutes)
    return Amount(charged, charged, charged - mean.minutes)


def _compose_demand(
    measured: float | None,
    sustained: float | None,
    non_guest: Mean,
    parts: Sequence[tuple[Amount | None, float]],
    core: float = 1.0,
) -> float | None:
    """Compose the demand on a node over the longer horizon from that of its guests and the rest.

    Of the guests, the sum over a day counts, or that over minutes if it is higher by more than
    chance explains: a load that has appeared counts within minutes, one that has disappeared for
    up to a day, because it may come back. The rest counts by its mean over minutes, because it
    comes and goes with the host's own work.

    :param measured: the demand in the interval; if it is unknown (None), so is the result
    :param sustained: a lower bound of the result; None if unknown
    :param non_guest: the history of everything except guests
    :param parts: (amount, share of it on this node) of each guest; the amount is None if unknown
    :param core: the demand of a core, in the same unit
    """
    if measured is None:
        return None
    known_parts = [(amount, share) for amount, share in parts if amount is not None]
    if non_guest.minutes is None or len(known_parts) < len(parts):
        return measured + sum(share * amount.excess for amount, share in known_parts)
    minutes = sum(share * amount.minutes for amount, share in known_parts)
    day = sum(share * amount.day for amount, share in known_parts)
    lasting = max(day, minutes - math.sqrt(CHANCE_CORES * core * day))
    return max(non_guest.minutes + lasting, sustained or 0.0)


@dataclasses.dataclass
class LastingDemand:
    """Demand on a host's nodes over the longer horizon, composed of the charges of its guests.

    :ivar histories: histories to which the sample has been added
    :ivar guests: {uuid: running guest}
    :ivar promises: {uuid: promise}
    :ivar boottime_ns: CLOCK_BOOTTIME at the end of the sample's interval
    """

    histories: Histories
    sample: Sample
    host: model.Topology
    guests: Mapping[str, model.Guest]
    promises: Mapping[str, model.Promise]
    placement_options: model.PlacementOptions
    boottime_ns: int

    def __post_init__(self) -> None:
        """Prepare what is needed of each guest."""
        self._samples = {guest_sample.uuid: guest_sample for guest_sample in self.sample.guests}
        self._cores = capacity_cores_by_node(self.host, self.placement_options)
        self._expectation = self.histories.expectation()
        self._bytes_per_core_sec = traffic_per_core(
            [node.demand_cores for node in self.sample.nodes if self._cores.get(node.id)],
            [node.bandwidth_bytes_per_sec for node in self.sample.nodes],
        )

    def node_loads(self) -> dict[int, model.NodeLoad]:
        """Return {node id: load} over the longer horizon.

        A figure that is unknown in the interval stays unknown. If the guests' part of a figure is
        unknown, because the source in use does not report their traffic, the figure of the
        interval is used, plus what young guests are expected to add. Otherwise a figure is at
        least what was sustained in the last minutes, so that a sustained load counts in full,
        however short its history is.
        """
        uuids = sorted(self._samples.keys() | self.promises.keys())
        found = [
            self._charge(uuid) for uuid in uuids if uses_floating_pool(self.promises.get(uuid))
        ]
        charges = [charge for charge in found if charge]
        loads = {}
        for node in self.sample.nodes:
            non_guest = self.histories.non_guest.get(node.id) or UsageHistory()
            loads[node.id] = model.NodeLoad(
                _compose_demand(
                    node.demand_cores,
                    self.histories.sustained(node.id, 'demand_cores'),
                    non_guest.demand,
                    [(charge.demand, charge.cpu_shares.get(node.id, 0.0)) for charge in charges],
                ),
                _compose_demand(
                    node.bandwidth_bytes_per_sec,
                    self.histories.sustained(node.id, 'bandwidth_bytes_per_sec'),
                    non_guest.bandwidth,
                    [
                        (charge.bandwidth, charge.mem_shares.get(node.id, 0.0))
                        for charge in charges
                    ],
                    self._bytes_per_core_sec or 0.0,
                ),
                node.bandwidth_max_bytes_per_sec,
                node.link_ratio,
                node.stolen_cores,
            )
        return loads

    def pool_demands(self) -> tuple[PoolSample, ...]:
        """Return the demand on the pools other than the floating pool over the longer horizon.

        It is the demand in the interval, in which the demand of the pool's own guests is replaced
        by that of their histories. Other guests of the host may also use the pool's CPUs; their
        demand is that of the interval.

        :returns: the sample's pools with this demand
        """
        return tuple(self._with_lasting_demand(pool) for pool in self.sample.pools)

    def _with_lasting_demand(self, pool: PoolSample) -> PoolSample:
        demand = dict(pool.demand_by_node)
        for uuid, guest in self.guests.items():
            charge, sample = self._charge(uuid), self._samples.get(uuid)
            own_cpus = None if guest.placed_by else pools.own_cpus(guest, self.host)
            if charge is None or own_cpus != frozenset(pool.cpus):
                continue
            lasting = max(charge.demand.minutes, charge.demand.day)
            measured = (sample.demand_cores if sample else None) or 0.0
            ran = shares(sample.cores_by_node) if sample else {}
            for node, cores in demand.items():
                if cores is not None:
                    change = charge.cpu_shares.get(node, 0.0) * lasting
                    demand[node] = cores + change - ran.get(node, 0.0) * measured
        return pool._replace(
            demand_by_node=tuple(
                (node, None if cores is None else max(0.0, cores))
                for node, cores in demand.items()
            )
        )

    def _charge(self, uuid: str) -> Charge | None:
        """Return a guest's charge; None if its demand is unknown."""
        promise, sample = self.promises.get(uuid), self._samples.get(uuid)
        history = self.histories.guests.get(uuid) or UsageHistory()
        cores, bytes_per_sec = self._expected(uuid, promise)
        demand = _amount(history.demand, cores)
        if demand is None or (sample is None and cores is None):
            return None  # what it uses is part of the history of everything else
        nodes = promise.held_nodes if promise and promise.cpu_nodes else tuple(self._cores)
        # Only on nodes that it is held to, so that its demand follows the promise at once.
        by_node = dict(history.cores_by_node)
        ran = {node: by_node.get(node, 0.0) for node in nodes}
        cpu_shares = shares(ran) or self._shares_by_cores(nodes)
        mem_shares = shares(sample.bytes_by_node if sample else ())
        if not mem_shares and promise and promise.mem_nodes:
            mem_shares = self._shares_by_cores(promise.mem_nodes)
        bandwidth = _amount(history.bandwidth, bytes_per_sec)
        return Charge(demand, bandwidth, cpu_shares, mem_shares or cpu_shares)

    def _expected(
        self, uuid: str, promise: model.Promise | None
    ) -> tuple[float | None, float | None]:
        """Return (demand [cores], traffic [bytes/s]) expected of a young guest, None of others."""
        if promise is None or (
            promise.started and promise.since_ns <= self.boottime_ns - NOT_YET_MEASURED_NS
        ):
            return None, None
        guest = self.guests.get(uuid)
        cores = expected_cores(guest.vcpus if guest else promise.vcpus, self._expectation)
        intensity = intensity_of(guest) if guest else INTENSITY[DEFAULT_INTENSITY]
        return cores, cores * (self._bytes_per_core_sec or 0.0) * intensity

    def _shares_by_cores(self, nodes: Iterable[int]) -> dict[int, float]:
        """Return {node id: share} by the cores of nodes, of all nodes if these are not there."""
        cores = {node: self._cores[node] for node in nodes if node in self._cores}
        return shares(cores or self._cores) or {node: 1 / len(cores) for node in cores}
