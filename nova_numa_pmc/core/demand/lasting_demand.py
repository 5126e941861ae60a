# SPDX-License-Identifier: Apache-2.0
"""Compute the demand on the nodes of a host over the longer horizon.

It is the sum of the histories of the guests that are there and of everything else, so that a
guest's demand moves with the guest. Decisions about new guests and hosts are based on it; moves of
running guests are based on the last interval.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

from nova_numa_pmc import model
from nova_numa_pmc.core import pools
from nova_numa_pmc.core.demand.histories import (
    MINUTES_S,
    REPRESENTATIVE_MIN_S,
    Histories,
    Mean,
    UsageHistory,
    uses_floating_pool,
)
from nova_numa_pmc.core.host_view import (
    DEFAULT_INTENSITY,
    INTENSITY,
    NOT_YET_MEASURED_NS,
    capacity_cores_by_node,
    expected_cores,
    intensity_of,
    traffic_per_core,
)
from nova_numa_pmc.core.rates import shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.core.sample_records import PoolSample, Sample

#: A standard error of a mean over minutes, squared, ÷ the demand [cores]. The variance of demand
#: is taken as twice the demand, as where a loss is estimated, and bursts as a minute long, so that
#: the variance of the mean is 60 ÷ 960 of that.
CHANCE_CORES = 2.0 * 60 / (60 + MINUTES_S)


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
