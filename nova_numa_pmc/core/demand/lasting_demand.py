# SPDX-License-Identifier: Apache-2.0
"""Demand for the nodes of a host over the longer horizon.

It sums the histories of the guests there and of everything else, so that a guest's demand
moves with the guest. Placements and choices of hosts use it; moves use the last interval.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import pools
from nova_numa_pmc.core.demand import flavors
from nova_numa_pmc.core.demand.histories import (
    KNOWN_S,
    MINUTES_S,
    GuestHistory,
    Histories,
    Series,
    UsageHistory,
    loads_floating_pool,
)
from nova_numa_pmc.core.host_view import (
    DEFAULT_INTENSITY,
    INTENSITY,
    NOT_YET_MEASURED_NS,
    capacity_cores,
    expected_cores,
    intensity_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias  # novm: 3.10, and for types only

    from nova_numa_pmc.sample_records import GuestSample, PoolSample, Sample

    #: Demand or traffic that a guest is charged with.
    Amount: TypeAlias = 'Series | ExpectedDemand'

#: The mean over minutes counts where it exceeds the day's by more than this many standard errors.
SIGNIFICANT_ERRORS = 2.0
#: Assumed length of a burst, to estimate by how much a mean over minutes may differ from the day's
#: by chance [s].
_BURST_S = 60.0
#: The variance of a mean over the horizon of minutes, as a part of that of its intervals: with
#: correlation exp(-t / burst) and weights exp(-t / horizon) it is burst / (burst + horizon).
_MEAN_VARIANCE_RATIO = _BURST_S / (_BURST_S + MINUTES_S)


class DemandSum:
    """A sum of demands: their means over minutes and over a day, and the day's variance."""

    __slots__ = ('minutes', 'day', 'variance')

    def __init__(self) -> None:
        self.minutes = self.day = self.variance = 0.0

    def add(self, series: Series, share: float) -> None:
        """Add a share of a series; the day's mean replaces a missing mean over minutes."""
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
        """Add a share of a guest's charge: of a series or of :class:`ExpectedDemand`."""
        if isinstance(amount, ExpectedDemand):
            self.add_constant(share * amount.charged)
        else:
            self.add(amount, share)

    def lasting(self) -> float:
        """Return the mean over the day, or the mean over minutes less its error if that is higher.

        A load that has appeared counts within minutes. One that has vanished counts for up to a
        day, as it may come back.
        """
        chance = SIGNIFICANT_ERRORS * math.sqrt(self.variance * _MEAN_VARIANCE_RATIO)
        return self.day + max(0.0, self.minutes - self.day - chance)


class Charge:
    """Demand that one guest counts for, by node.

    :ivar traffic: None: unknown
    :ivar cpus, mems: {node id: share}
    """

    __slots__ = ('demand', 'traffic', 'cpus', 'mems')

    def __init__(
        self,
        demand: Amount,
        traffic: Amount | None,
        cpus: dict[int, float],
        mems: dict[int, float],
    ) -> None:
        self.demand, self.traffic, self.cpus, self.mems = demand, traffic, cpus, mems


def _compose(
    measured: float | None,
    sustained: float | None,
    others: Series,
    parts: Sequence[tuple[Amount | None, float]],
) -> float | None:
    """Return a node's demand: that of its guests and of the rest; None: nothing was measured.

    The rest counts over minutes, as it comes and goes with the host's own work.

    :param measured: the demand in the interval; None: unknown
    :param sustained: a lower bound of the result; None: unknown
    :param others: the history of all but guests
    :param parts: (amount, share of it on this node) of each guest; amount None: unknown
    """
    if measured is None:
        return None
    known = [(amount, share) for amount, share in parts if amount is not None]
    if others.minutes.mean is None or others.day.mean is None or len(known) < len(parts):
        return measured + sum(
            share * amount.excess for amount, share in known if isinstance(amount, ExpectedDemand)
        )
    total = DemandSum()
    total.add_constant(others.minutes.mean)
    for amount, share in known:
        if share:
            total.add_charge(amount, share)
    return max(total.lasting(), sustained or 0.0)


class ExpectedDemand:
    """The charge of a young guest: the larger of its expected and its measured demand.

    :ivar charged: the larger of the two; ``excess``: how much of it exceeds the measured demand
    """

    __slots__ = ('charged', 'excess')

    def __init__(self, expected: float, measured: float | None) -> None:
        self.charged = max(expected, measured or 0.0)
        self.excess = self.charged - (measured or 0.0)


class LastingDemand:
    """Composes the demand on a host's nodes from the charges of its guests."""

    def __init__(
        self,
        histories: Histories,
        sample: Sample,
        host: model.Topology,
        guests: Mapping[str, model.Guest],
        promises: Mapping[str, model.Promise],
        limits: model.PlacementOptions,
        now_ns: int,
    ) -> None:
        """Prepare for an interval.

        :param histories: fed with this sample
        :param guests: by uuid, those that run
        :param promises: by uuid
        :param now_ns: CLOCK_BOOTTIME
        """
        self._sample, self._host = sample, host
        self._histories, self._guests, self._promises = histories, guests, promises
        self._samples = {guest_sample.uuid: guest_sample for guest_sample in sample.guests}
        self._now_ns = now_ns
        self._flavors: dict[str | None, model.DemandHistory] = {}
        self._cores = dict(zip((node.id for node in host.nodes), capacity_cores(host, limits)))

    def node_loads(self) -> dict[int, model.NodeLoad]:
        """Return {node id: load} over the longer horizon.

        A figure that is unknown in the interval stays unknown. Where the guests' part of it is
        unknown (the source in use does not report their traffic), the interval's figure is taken,
        plus what young guests are expected to add. A figure is never below what was sustained in
        the last minutes: a load that has come and stays counts, however short its history.
        """
        charges = self._guest_charges()
        loads = {}
        for node in self._sample.nodes:
            others = self._histories.others.get(node.id) or UsageHistory()
            cores, bytes_per_sec = self._histories.sustained_demand(node.id)
            loads[node.id] = model.NodeLoad(
                _compose(
                    node.demand_cores,
                    cores,
                    others.demand,
                    [(charge.demand, charge.cpus.get(node.id, 0.0)) for charge in charges],
                ),
                _compose(
                    node.bandwidth_bytes_per_sec,
                    bytes_per_sec,
                    others.traffic,
                    [(charge.traffic, charge.mems.get(node.id, 0.0)) for charge in charges],
                ),
                node.bandwidth_max_bytes_per_sec,
                node.link_ratio,
                node.stolen_cores,
            )
        return loads

    def pool_demands(self) -> tuple[PoolSample, ...]:
        """Return the demand of the pools other than the floating one over the longer horizon.

        In a pool's demand the histories of the guests whose pool it is stand for what they wanted
        in the interval; the rest, which others of the host's guests may share, is the interval's.

        :returns: as in the sample
        """
        if not self._sample.pools:
            return ()
        usable = frozenset[int]().union(*map(pools.usable, self._host.nodes))
        composed = []
        for pool in self._sample.pools:
            members = [
                uuid
                for uuid, guest in self._guests.items()
                if guest.allowed_cpus is not None
                and not guest.placed_by
                and guest.allowed_cpus & usable == frozenset(pool.cpus)
            ]
            more = self._beyond_the_interval(members)
            composed.append(
                pool._replace(
                    demand_by_node=tuple(
                        (node, None if cores is None else max(0.0, cores + more.get(node, 0.0)))
                        for node, cores in pool.demand_by_node
                    )
                )
            )
        return tuple(composed)

    def _guest_charges(self) -> list[Charge]:
        """Return each guest's charge."""
        charges = []
        for uuid in sorted(self._samples.keys() | self._promises.keys()):
            promise = self._promises.get(uuid)
            if loads_floating_pool(promise):
                charge = self._guest_charge(uuid, promise, self._samples.get(uuid))
                if charge:
                    charges.append(charge)
        return charges

    def _beyond_the_interval(self, uuids: Iterable[str]) -> dict[int, float]:
        """Return {node id: cores} by which guests' histories exceed the interval's demand."""
        sums: dict[int, DemandSum] = {}
        now: dict[int, float] = {}
        for uuid in sorted(uuids):
            sample = self._samples.get(uuid)
            charge = self._guest_charge(uuid, self._promises.get(uuid), sample)
            if charge is None:
                continue
            for node, share in charge.cpus.items():
                sums.setdefault(node, DemandSum()).add_charge(charge.demand, share)
            wanted = sample.demand_cores if sample else None
            if sample is None or not wanted:
                continue
            ran = sum(cores for _, cores in sample.cores_by_node)
            for node, cores in sample.cores_by_node if ran else ():
                now[node] = now.get(node, 0.0) + wanted * cores / ran
        return {node: total.lasting() - now.get(node, 0.0) for node, total in sums.items()}

    def _guest_charge(
        self, uuid: str, promise: model.Promise | None, sample: GuestSample | None
    ) -> Charge | None:
        history = self._histories.guests.get(uuid)
        demand: Amount
        traffic: Amount | None
        if promise is not None and (
            not promise.started or promise.since_ns > self._now_ns - NOT_YET_MEASURED_NS
        ):
            demand, traffic = self._expected_demand(uuid, promise, history)
        elif sample is None or history is None or history.demand.day.mean is None:
            return None  # it could not be measured: its demand is within that of the others
        else:
            demand, traffic = history.demand, history.traffic
            if traffic.day.mean is None:
                traffic = None
        cpus = self._where(
            promise and promise.cpu_nodes, history.ran_at(promise) if history else None
        )
        resident_bytes = sum(size for _, size in sample.bytes_by_node) if sample else 0
        if sample and resident_bytes:
            mems = {node: size / resident_bytes for node, size in sample.bytes_by_node}
        else:
            mems = (
                self._where(promise and promise.mem_nodes)
                if promise and promise.mem_nodes
                else cpus
            )
        return Charge(demand, traffic, cpus, mems)

    def _expected_demand(
        self, uuid: str, promise: model.Promise, history: GuestHistory | None
    ) -> tuple[ExpectedDemand, ExpectedDemand]:
        """Return a young guest's charges (demand, traffic), from its own history if it has one."""
        guest = self._guests.get(uuid)
        flavor = guest.flavor if guest else history.flavor if history else None
        if flavor not in self._flavors:
            self._flavors[flavor] = flavors.of_flavor(self._histories, flavor)
        known = self._flavors[flavor]
        cores = expected_cores(guest.vcpus if guest else promise.vcpus, known)
        bytes_per_sec = 0.0
        if known.bytes_per_core_sec is not None:
            intensity = intensity_of(guest) if guest else INTENSITY[DEFAULT_INTENSITY]
            bytes_per_sec = cores * known.bytes_per_core_sec * intensity
        measured = wanted = None
        if history is not None:
            measured, wanted = history.demand.minutes.mean, history.traffic.minutes.mean
            if history.measured_s >= KNOWN_S and history.demand.day.mean is not None:
                cores = history.demand.day.mean
                bytes_per_sec = (
                    bytes_per_sec if history.traffic.day.mean is None else history.traffic.day.mean
                )
        return ExpectedDemand(cores, measured), ExpectedDemand(bytes_per_sec, wanted)

    def _where(
        self, nodes: Iterable[int] | None, ran: Mapping[int, float] | None = None
    ) -> dict[int, float]:
        """Return {node id: share}: where the guest ran, else the promised nodes by their cores."""
        weights = (
            ran
            if ran and sum(ran.values()) > 0
            else {node: self._cores[node] for node in nodes or () if node in self._cores}
        )
        total = sum((weights or self._cores).values())
        if not total:
            return {node: 1 / len(weights) for node in weights} if weights else {}
        return {node: weight / total for node, weight in (weights or self._cores).items()}
