# SPDX-License-Identifier: Apache-2.0
"""Compute the demand on the nodes of a host over the longer horizon.

It is the sum of the histories of the guests that are there and of everything else, so that a
guest's demand moves with the guest. Decisions about new guests and hosts are based on it; moves of
running guests are based on the last interval.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import pools
from nova_numa_pmc.core.demand import flavors
from nova_numa_pmc.core.demand.histories import (
    MINUTES_S,
    REPRESENTATIVE_MIN_S,
    GuestHistory,
    Histories,
    Series,
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
)
from nova_numa_pmc.core.rates import shares
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias  # novm: 3.10, and for types only

    from nova_numa_pmc.sample_records import GuestSample, PoolSample, Sample

    #: Demand or traffic that counts for a guest.
    Amount: TypeAlias = 'Series | ExpectedDemand'

#: The mean over minutes counts if it exceeds that over a day by more than this number of standard
#: errors.
SIGNIFICANT_STANDARD_ERRORS = 2.0
#: Assumed length of a burst, to estimate by how much the mean over minutes may differ from that
#: over a day by chance [s].
_BURST_S = 60.0
#: Variance of the mean over minutes ÷ variance of the intervals. With a correlation of
#: exp(-t / burst) and weights of exp(-t / horizon), it is burst / (burst + horizon).
_MEAN_VARIANCE_RATIO = _BURST_S / (_BURST_S + MINUTES_S)


class DemandSum:
    """A sum of demands.

    :ivar minutes, day: sum of their means over minutes and over a day
    :ivar variance: sum of their variances over a day
    """

    __slots__ = ('minutes', 'day', 'variance')

    def __init__(self) -> None:
        self.minutes = self.day = self.variance = 0.0

    def add(self, series: Series, share: float) -> None:
        """Add a share of a series.

        If its mean over minutes is unknown, it is taken to be that over a day.
        """
        day = series.day.mean or 0.0
        minutes = series.minutes.mean
        self.minutes += share * (day if minutes is None else minutes)
        self.day += share * day
        self.variance += share**2 * (series.day.variance or 0.0)

    def add_constant(self, amount: float) -> None:
        """Add an amount that is assumed not to vary."""
        self.minutes += amount
        self.day += amount

    def add_charge(self, amount: Amount, share: float) -> None:
        """Add a share of the amount that a guest is charged."""
        if isinstance(amount, ExpectedDemand):
            self.add_constant(share * amount.charged)
        else:
            self.add(amount, share)

    def lasting(self) -> float:
        """Return the mean over a day, or that over minutes less its error if this is higher.

        A load that has appeared counts within minutes. A load that has disappeared counts for up
        to a day, because it may come back.
        """
        chance_error = SIGNIFICANT_STANDARD_ERRORS * math.sqrt(
            self.variance * _MEAN_VARIANCE_RATIO
        )
        return self.day + max(0.0, self.minutes - self.day - chance_error)


class Charge(Record):
    """The demand and traffic that count for a guest, and on which nodes.

    :param demand: its demand for CPU time
    :param bandwidth: its DRAM traffic; None if unknown
    :param cpu_shares, mem_shares: {node id: share of its demand, or of its traffic}
    """

    demand: Amount
    bandwidth: Amount | None
    cpu_shares: dict[int, float]
    mem_shares: dict[int, float]


def _compose_demand(
    measured: float | None,
    sustained: float | None,
    non_guest: Series,
    parts: Sequence[tuple[Amount | None, float]],
) -> float | None:
    """Compose the demand on a node over the longer horizon from that of its guests and the rest.

    The rest counts by its mean over minutes, because it comes and goes with the host's own work.

    :param measured: the demand in the interval; if it is unknown (None), so is the result
    :param sustained: a lower bound of the result; None if unknown
    :param non_guest: the history of everything except guests
    :param parts: (amount, share of it on this node) of each guest; the amount is None if unknown
    """
    if measured is None:
        return None
    known_parts = [(amount, share) for amount, share in parts if amount is not None]
    if (
        non_guest.minutes.mean is None
        or non_guest.day.mean is None
        or len(known_parts) < len(parts)
    ):
        return measured + sum(
            share * amount.excess
            for amount, share in known_parts
            if isinstance(amount, ExpectedDemand)
        )
    total = DemandSum()
    total.add_constant(non_guest.minutes.mean)
    for amount, share in known_parts:
        if share:
            total.add_charge(amount, share)
    return max(total.lasting(), sustained or 0.0)


class ExpectedDemand:
    """Demand or traffic that counts for a young guest.

    :ivar charged: the larger of its expected and its measured demand
    :ivar excess: the part of this that exceeds its measured demand
    """

    __slots__ = ('charged', 'excess')

    def __init__(self, expected: float, measured: float | None) -> None:
        self.charged = max(expected, measured or 0.0)
        self.excess = self.charged - (measured or 0.0)


class LastingDemand:
    """Demand on a host's nodes over the longer horizon, composed of the charges of its guests."""

    def __init__(
        self,
        histories: Histories,
        sample: Sample,
        host: model.Topology,
        guests: Mapping[str, model.Guest],
        promises: Mapping[str, model.Promise],
        placement_options: model.PlacementOptions,
        boottime_ns: int,
    ) -> None:
        """Prepare to compose the demand at the end of an interval.

        :param histories: histories to which the sample has been added
        :param guests: {uuid: running guest}
        :param promises: {uuid: promise}
        :param boottime_ns: CLOCK_BOOTTIME
        """
        self._sample, self._host = sample, host
        self._histories, self._guests, self._promises = histories, guests, promises
        self._samples = {guest_sample.uuid: guest_sample for guest_sample in sample.guests}
        self._boottime_ns = boottime_ns
        self._flavors: dict[str | None, model.DemandHistory] = {}
        self._cores = capacity_cores_by_node(host, placement_options)

    def node_loads(self) -> dict[int, model.NodeLoad]:
        """Return {node id: load} over the longer horizon.

        A figure that is unknown in the interval stays unknown. If the guests' part of a figure is
        unknown, because the source in use does not report their traffic, the figure of the
        interval is used, plus what young guests are expected to add. Otherwise a figure is at
        least what was sustained in the last minutes, so that a sustained load counts in full,
        however short its history is.
        """
        charges = self._guest_charges()
        loads = {}
        for node in self._sample.nodes:
            non_guest = self._histories.non_guest.get(node.id) or UsageHistory()
            cores, bytes_per_sec = self._histories.sustained_demand(node.id)
            loads[node.id] = model.NodeLoad(
                _compose_demand(
                    node.demand_cores,
                    cores,
                    non_guest.demand,
                    [(charge.demand, charge.cpu_shares.get(node.id, 0.0)) for charge in charges],
                ),
                _compose_demand(
                    node.bandwidth_bytes_per_sec,
                    bytes_per_sec,
                    non_guest.bandwidth,
                    [
                        (charge.bandwidth, charge.mem_shares.get(node.id, 0.0))
                        for charge in charges
                    ],
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
        if not self._sample.pools:
            return ()
        pool_samples = []
        for pool in self._sample.pools:
            member_uuids = [
                uuid
                for uuid, guest in self._guests.items()
                if not guest.placed_by
                and pools.own_cpus(guest, self._host) == frozenset(pool.cpus)
            ]
            excess_by_node = self._excess_over_interval(member_uuids)
            pool_samples.append(
                pool._replace(
                    demand_by_node=tuple(
                        (
                            node,
                            None
                            if cores is None
                            else max(0.0, cores + excess_by_node.get(node, 0.0)),
                        )
                        for node, cores in pool.demand_by_node
                    )
                )
            )
        return tuple(pool_samples)

    def _guest_charges(self) -> list[Charge]:
        """Return the charges of all guests that use the floating pool."""
        charges = []
        for uuid in sorted(self._samples.keys() | self._promises.keys()):
            promise = self._promises.get(uuid)
            if uses_floating_pool(promise):
                charge = self._guest_charge(uuid, promise, self._samples.get(uuid))
                if charge:
                    charges.append(charge)
        return charges

    def _excess_over_interval(self, uuids: Iterable[str]) -> dict[int, float]:
        """Return by how much guests' demand by their histories exceeds that in the interval.

        :returns: {node id: cores}, negative if it is lower
        """
        sums: dict[int, DemandSum] = {}
        interval_cores: dict[int, float] = {}
        for uuid in sorted(uuids):
            sample = self._samples.get(uuid)
            charge = self._guest_charge(uuid, self._promises.get(uuid), sample)
            if charge is None:
                continue
            for node, share in charge.cpu_shares.items():
                sums.setdefault(node, DemandSum()).add_charge(charge.demand, share)
            demand_cores = sample.demand_cores if sample else None
            if sample is None or not demand_cores:
                continue
            for node, share in shares(sample.cores_by_node).items():
                interval_cores[node] = interval_cores.get(node, 0.0) + share * demand_cores
        return {
            node: total.lasting() - interval_cores.get(node, 0.0) for node, total in sums.items()
        }

    def _guest_charge(
        self, uuid: str, promise: model.Promise | None, sample: GuestSample | None
    ) -> Charge | None:
        """Return a guest's charge; None if its demand is unknown."""
        history = self._histories.guests.get(uuid)
        demand: Amount
        bandwidth: Amount | None
        if promise is not None and (
            not promise.started or promise.since_ns > self._boottime_ns - NOT_YET_MEASURED_NS
        ):
            demand, bandwidth = self._expected_demand(uuid, promise, history)
        elif sample is None or history is None or history.demand.day.mean is None:
            return None  # what it uses is part of the history of everything else
        else:
            demand, bandwidth = history.demand, history.bandwidth
            if bandwidth.day.mean is None:
                bandwidth = None
        cpu_shares = self._shares_by_node(
            promise and promise.cpu_nodes, history.run_weights_at(promise) if history else None
        )
        mem_shares = shares(sample.bytes_by_node if sample else ()) or (
            self._shares_by_node(promise and promise.mem_nodes)
            if promise and promise.mem_nodes
            else cpu_shares
        )
        return Charge(demand, bandwidth, cpu_shares, mem_shares)

    def _expected_demand(
        self, uuid: str, promise: model.Promise, history: GuestHistory | None
    ) -> tuple[ExpectedDemand, ExpectedDemand]:
        """Return (demand, traffic) that a young guest is charged.

        They are those of its own history if it was measured for long enough, and otherwise
        expected from the histories of its flavor.
        """
        guest = self._guests.get(uuid)
        flavor = guest.flavor if guest else history.flavor if history else None
        if flavor not in self._flavors:
            self._flavors[flavor] = flavors.of_flavor(self._histories, flavor)
        demand_history = self._flavors[flavor]
        cores = expected_cores(guest.vcpus if guest else promise.vcpus, demand_history)
        bytes_per_sec = 0.0
        if demand_history.bytes_per_core_sec is not None:
            intensity = intensity_of(guest) if guest else INTENSITY[DEFAULT_INTENSITY]
            bytes_per_sec = cores * demand_history.bytes_per_core_sec * intensity
        measured_cores = measured_bandwidth = None
        if history is not None:
            measured_cores = history.demand.minutes.mean
            measured_bandwidth = history.bandwidth.minutes.mean
            if history.measured_s >= REPRESENTATIVE_MIN_S and history.demand.day.mean is not None:
                cores = history.demand.day.mean
                bytes_per_sec = (
                    bytes_per_sec
                    if history.bandwidth.day.mean is None
                    else history.bandwidth.day.mean
                )
        return (
            ExpectedDemand(cores, measured_cores),
            ExpectedDemand(bytes_per_sec, measured_bandwidth),
        )

    def _shares_by_node(
        self, nodes: Iterable[int] | None, run_weights: Mapping[int, float] | None = None
    ) -> dict[int, float]:
        """Return {node id: share} by where a guest ran, or else by the cores of its nodes.

        :param nodes: ids of the promised nodes; all nodes of the host are used if it has none of
            them
        :param run_weights: {node id: weight} of where the guest ran; None or all 0 if unknown
        """
        cores = {node: self._cores[node] for node in nodes or () if node in self._cores}
        return (
            shares(run_weights or ())
            or shares(cores or self._cores)
            or {node: 1 / len(cores) for node in cores}
        )
