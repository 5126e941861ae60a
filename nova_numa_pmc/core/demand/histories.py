# SPDX-License-Identifier: Apache-2.0
"""Histories of the demand of each guest, and of all else on each node, over minutes and a day.

Their clock counts measured time only: while the agent is stopped, nothing ages.
A guest that is paused, or unknown in an interval, keeps what is known of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.demand.streams import Horizon, Stream, bin_of
from nova_numa_pmc.core.traffic import traffic_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc.sample_records import GuestSample, Sample

#: The horizons: minutes, for a load that has changed, and a day, for what lasts [s].
MINUTES_S, DAY_S = 900.0, 86400.0
#: The least demand on a node within this time counts as sustained, whatever came before [s].
SUSTAINED_S = 120.0
#: No interval counts for longer than this, lest one figure outweigh everything before it [s].
INTERVAL_MAX_S = 600.0
#: A guest measured for less than this is still booting and not representative of its flavor [s].
KNOWN_S = 300.0
#: How long guests that are gone are remembered, as they may come back [s]; how many at most.
KEEP_S, GUESTS_MAX = 86400.0, 1024
#: Most flavors kept of forgotten guests; most forgotten guests that count in one flavor.
FLAVORS_MAX, FLAVOR_GUESTS_MAX = 256, 50
#: Where the bins of quantiles begin.
CORES_UNIT, BYTES_UNIT = 0.01, 1e6


class Series:
    """One quantity over both horizons."""

    __slots__ = ('unit', 'minutes', 'day')

    def __init__(
        self, unit: float, minutes: Stream | None = None, day: Stream | None = None
    ) -> None:
        self.unit = unit
        self.minutes, self.day = minutes or Stream(), day or Stream()

    def add(self, value: float, weights: tuple[float, float]) -> None:
        """Add an interval's mean, with its weights over minutes and over a day."""
        value = max(0.0, value)
        index = bin_of(value, self.unit)
        self.minutes.add(value, weights[0], index)
        self.day.add(value, weights[1], index)

    def p95(self) -> tuple[float | None, float | None]:
        """Return the 95th percentiles over minutes and over a day, None: unknown."""
        return self.minutes.quantile(0.95, self.unit), self.day.quantile(0.95, self.unit)

    def figures(self) -> dict[str, dict[str, float | None]]:
        """Return {horizon: {figure: value}}, plain data; {}: nothing was measured."""
        return (
            {}
            if self.day.mean is None
            else {
                name: {'mean': stream.mean, 'variance': stream.variance, 'p95': p95}
                for name, stream, p95 in zip(
                    ('minutes', 'day'), (self.minutes, self.day), self.p95()
                )
            }
        )


class UsageHistory:
    """Demand of one guest, or of all else on one node.

    :ivar demand: CPU time that it ran and waited for [cores]
    :ivar traffic: DRAM traffic [bytes/s]
    """

    __slots__ = ('demand', 'traffic')

    def __init__(self, demand: Series | None = None, traffic: Series | None = None) -> None:
        self.demand = demand or Series(CORES_UNIT)
        self.traffic = traffic or Series(BYTES_UNIT)

    def streams(self) -> tuple[Stream, ...]:
        """Return all streams."""
        return self.demand.minutes, self.demand.day, self.traffic.minutes, self.traffic.day


class GuestHistory(UsageHistory):
    """Demand of one guest.

    :ivar flavor: name of its flavor, None: not reported
    :ivar vcpus: its vCPUs when it was last seen
    :ivar seen_s: when it was last seen, by the clock of the histories [s]
    :ivar measured_s: total time for which its demand was measured [s], without the time on CPUs of
        its own, which says nothing about guests that share theirs
    :ivar ran: {node id: weight} of where it ran since it got its place, over minutes
    """

    __slots__ = ('flavor', 'vcpus', 'seen_s', 'measured_s', 'ran', '_place')

    def __init__(
        self,
        flavor: str | None = None,
        vcpus: int = 0,
        seen_s: float = 0.0,
        measured_s: float = 0.0,
        demand: Series | None = None,
        traffic: Series | None = None,
    ) -> None:
        super().__init__(demand, traffic)
        self.flavor, self.vcpus, self.seen_s = flavor, vcpus, seen_s
        self.measured_s = measured_s
        self.ran: dict[int, float] = {}
        self._place: tuple[int, tuple[int, ...]] | None = None

    @property
    def is_representative(self) -> bool:
        """Return whether it was measured for long enough to represent its flavor."""
        return self.cores_per_vcpu is not None

    @property
    def cores_per_vcpu(self) -> float | None:
        """Return the mean demand per vCPU over a day; None: not measured for long enough."""
        mean = self.demand.day.mean
        return (
            None
            if mean is None or self.vcpus <= 0 or self.measured_s < KNOWN_S
            else (mean / self.vcpus)
        )

    def take_place(self, promise: model.Promise | None) -> bool:
        """Record its promised place; return whether the place has changed since the last call."""
        moved = self._place is not None and self._place != _place(promise)
        self._place = _place(promise)
        if moved:
            self.ran = {}
        return moved

    def ran_at(self, promise: model.Promise | None) -> dict[int, float]:
        """Return ``ran``, {} if the guest's place has changed since."""
        return self.ran if self._place == _place(promise) else {}


class Histories:
    """The histories of one host.

    :ivar clock_s: total time for which the host was measured [s]
    :ivar guests: {uuid: history}, including guests that are gone
    :ivar others: {node id: history} of all but guests
    :ivar recent: (end of the interval by ``clock_s``, {node id: cores}, {node id: bytes/s}) of the
        last intervals, the newest last; not kept over a restart
    :ivar flavors: {name: (guests, sum of their cores per vCPU)} of forgotten guests; the name
        None: of all of them
    """

    def __init__(self, clock_s: float = 0.0) -> None:
        self.clock_s = clock_s
        self.minutes, self.day = Horizon(MINUTES_S), Horizon(DAY_S)
        self.guests: dict[str, GuestHistory] = {}
        self.others: dict[int, UsageHistory] = {}
        self.flavors: dict[str | None, tuple[float, float]] = {}
        self.recent: list[tuple[float, dict[int, float | None], dict[int, float | None]]] = [
            (clock_s, {}, {})
        ]

    def feed(
        self,
        sample: Sample,
        guests: Mapping[str, model.Guest],
        promises: Mapping[str, model.Promise],
    ) -> None:
        """Add one interval.

        :param guests: by uuid, those that run
        :param promises: by uuid
        """
        seconds = min(sample.elapsed_s, INTERVAL_MAX_S)
        if not seconds > 0:
            return
        self.clock_s += seconds
        weights = self.minutes.advance(seconds), self.day.advance(seconds)
        traffic = traffic_of(sample.guests, sample.nodes)
        for guest_sample in sample.guests:
            self._feed_guest(
                guest_sample,
                guests.get(guest_sample.uuid),
                promises.get(guest_sample.uuid),
                traffic.get(guest_sample.uuid),
                weights,
                seconds,
            )
        for node, cores, bytes_per_sec in others_of(sample, promises, traffic):
            history = self.others.setdefault(node, UsageHistory())
            if cores is not None:
                history.demand.add(cores, weights)
            if bytes_per_sec is not None:
                history.traffic.add(bytes_per_sec, weights)
        self.recent.append(
            (
                self.clock_s,
                {node.id: node.demand_cores for node in sample.nodes},
                {node.id: node.bandwidth_bytes_per_sec for node in sample.nodes},
            )
        )
        while self.recent[1][0] <= self.clock_s - SUSTAINED_S:
            del self.recent[0]
        self._rescale()
        self._forget()

    def sustained_demand(self, node: int) -> tuple[float | None, float | None]:
        """Return the least demand on a node in the last minutes: (cores, bytes/s).

        None: unknown in one of the intervals, or not measured for this long.
        """
        if self.recent[0][0] > self.clock_s - SUSTAINED_S:
            return None, None
        return (
            _least([cores.get(node) for _, cores, _ in self.recent[1:]]),
            _least([traffic.get(node) for _, _, traffic in self.recent[1:]]),
        )

    def _feed_guest(
        self,
        sample: GuestSample,
        guest: model.Guest | None,
        promise: model.Promise | None,
        bytes_per_sec: float | None,
        weights: tuple[float, float],
        seconds: float,
    ) -> None:
        history = self.guests.get(sample.uuid)
        if history is None:
            history = self.guests[sample.uuid] = GuestHistory()
        history.seen_s = self.clock_s
        known = guest or promise
        if known:
            history.vcpus = known.vcpus
        if guest and guest.flavor:
            history.flavor = guest.flavor
        moved = history.take_place(promise)
        wanted = sample.demand_cores
        if wanted is None or (guest and guest.state == 'paused'):
            return
        if loads_floating_pool(promise):
            history.measured_s += seconds
        history.demand.add(wanted, weights)
        if bytes_per_sec is not None:
            history.traffic.add(bytes_per_sec, weights)
        if not moved:  # else it ran here for a part of the interval only
            for node, cores in sample.cores_by_node:
                history.ran[node] = history.ran.get(node, 0.0) + weights[0] * cores

    def _rescale(self) -> None:
        for horizon, index in ((self.minutes, 0), (self.day, 1)):
            factor = horizon.overflow()
            if factor is None:
                continue
            for history in (*self.guests.values(), *self.others.values()):
                for stream in history.streams()[index::2]:
                    stream.rescale(factor)
                if index == 0 and isinstance(history, GuestHistory):
                    history.ran = {node: weight * factor for node, weight in history.ran.items()}

    def _forget(self) -> None:
        """Forget guests that are gone for good, and add them to their flavors' sums."""
        gone = sorted(
            (history.seen_s, uuid)
            for uuid, history in self.guests.items()
            if history.seen_s < self.clock_s
        )
        over = len(self.guests) - GUESTS_MAX
        for rank, (seen_s, uuid) in enumerate(gone):
            if rank < over or seen_s < self.clock_s - KEEP_S:
                self._sum_up(self.guests.pop(uuid))

    def _sum_up(self, history: GuestHistory) -> None:
        cores_per_vcpu = history.cores_per_vcpu
        if cores_per_vcpu is None:
            return
        for name in {history.flavor, None}:
            count, total = self.flavors.pop(name, (0, 0.0))
            kept_share = min(1.0, (FLAVOR_GUESTS_MAX - 1) / count) if count else 1.0
            self.flavors[name] = count * kept_share + 1, total * kept_share + cores_per_vcpu
        while len(self.flavors) > FLAVORS_MAX:
            del self.flavors[next(name for name in self.flavors if name is not None)]


def _place(promise: model.Promise | None) -> tuple[int, tuple[int, ...]] | None:
    return promise and (promise.since_ns, promise.cpu_nodes)


def loads_floating_pool(promise: model.Promise | None) -> bool:
    """Return whether a guest loads the floating pool, rather than CPUs of its own."""
    return promise is None or promise.vcpus > 0


def others_of(
    sample: Sample, promises: Mapping[str, model.Promise], traffic: Mapping[str, float]
) -> list[tuple[int, float | None, float | None]]:
    """Return (node id, cores, bytes/s) of the load that was not the guests' in an interval.

    It is the load of the node less that of the guests. None: unknown; unknown for all nodes if it
    is unknown where a guest ran, or what its traffic was. A guest whose CPU time is unknown counts
    among the others.
    """
    cores: dict[int, float] | None = {node.id: 0.0 for node in sample.nodes}
    served: dict[int, float] | None = {node.id: 0.0 for node in sample.nodes}
    for guest in sample.guests:
        if not loads_floating_pool(promises.get(guest.uuid)):
            continue
        wanted, bytes_per_sec = guest.demand_cores, traffic.get(guest.uuid)
        ran = sum(part for _, part in guest.cores_by_node)
        if wanted and not ran:
            cores = None
        if cores is not None and wanted and ran:
            for node, part in guest.cores_by_node:
                cores[node] = cores.get(node, 0.0) + wanted * part / ran
        resident_bytes = sum(size for _, size in guest.bytes_by_node)
        if bytes_per_sec is None or (bytes_per_sec and not resident_bytes):
            served = None
        if served is not None and bytes_per_sec is not None and resident_bytes:
            for node, size in guest.bytes_by_node:
                served[node] = served.get(node, 0.0) + bytes_per_sec * size / resident_bytes
    return [
        (
            node.id,
            _rest(node.demand_cores, cores, node.id),
            _rest(node.bandwidth_bytes_per_sec, served, node.id),
        )
        for node in sample.nodes
    ]


def _least(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else min(known)


def _rest(total: float | None, taken: Mapping[int, float] | None, node: int) -> float | None:
    return None if total is None or taken is None else max(0.0, total - taken[node])
