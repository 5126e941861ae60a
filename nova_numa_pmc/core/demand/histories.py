# SPDX-License-Identifier: Apache-2.0
"""Keep the demand of each guest, and of everything else on each node, over minutes and a day.

The clock of these histories counts only time that was measured: while the agent is stopped,
nothing ages. The history of a guest that does not run (it is paused, suspended or has crashed), or
whose demand is unknown in an interval, stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.demand.streams import Horizon, Stream, bin_of
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.rates import shares
from nova_numa_pmc.core.traffic import bandwidth_by_guest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc import model
    from nova_numa_pmc.sample_records import GuestSample, Sample

#: The horizons: minutes, for a load that has changed, and a day, for one that lasts [s].
MINUTES_S, DAY_S = 900.0, 86400.0
#: The lowest demand on a node within this time counts as sustained, whatever it was before [s].
SUSTAINED_S = 120.0
#: Longest time that an interval counts for, so that none outweighs everything before it [s].
INTERVAL_MAX_S = 600.0
#: A guest that was measured for less than this may still be booting, and does not represent its
#: flavor [s].
REPRESENTATIVE_MIN_S = 300.0
#: Time for which guests that are gone are remembered, because they may come back [s], and the most
#: guests that are remembered.
ABSENT_MAX_S, GUESTS_MAX = 86400.0, 1024
#: Maximum number of flavors of forgotten guests that are kept, and of forgotten guests that count
#: in one of them.
FLAVORS_MAX, FLAVOR_GUESTS_MAX = 256, 50
#: Ends of the first bin of quantiles of demand [cores] and traffic [bytes/s].
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
        """Return the 95th percentiles (over minutes, over a day); None if unknown."""
        return self.minutes.quantile(0.95, self.unit), self.day.quantile(0.95, self.unit)

    def figures(self) -> dict[str, dict[str, float | None]]:
        """Return {horizon: {figure: value}} as plain data; empty if nothing was measured."""
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
    """History of one guest, or of everything else on one node.

    :ivar demand: CPU time that was used and waited for [cores]
    :ivar bandwidth: DRAM traffic [bytes/s]
    """

    __slots__ = ('demand', 'bandwidth')

    def __init__(self, demand: Series | None = None, bandwidth: Series | None = None) -> None:
        self.demand = demand or Series(CORES_UNIT)
        self.bandwidth = bandwidth or Series(BYTES_UNIT)

    def streams(self) -> tuple[Stream, ...]:
        """Return all streams."""
        return self.demand.minutes, self.demand.day, self.bandwidth.minutes, self.bandwidth.day


class GuestHistory(UsageHistory):
    """History of one guest.

    :ivar flavor: name of its flavor; None if it is not reported
    :ivar vcpus: number of its vCPUs when it was last seen
    :ivar seen_s: time at which it was last seen, by the clock of the histories [s]
    :ivar measured_s: total time for which its demand was measured [s], without the time on CPUs of
        its own, which says nothing about guests that share theirs
    :ivar run_weights: {node id: weight} of where it ran over minutes, since it was given its place
    """

    __slots__ = ('flavor', 'vcpus', 'seen_s', 'measured_s', 'run_weights', '_promised_place')

    def __init__(
        self,
        flavor: str | None = None,
        vcpus: int = 0,
        seen_s: float = 0.0,
        measured_s: float = 0.0,
        demand: Series | None = None,
        bandwidth: Series | None = None,
    ) -> None:
        super().__init__(demand, bandwidth)
        self.flavor, self.vcpus, self.seen_s = flavor, vcpus, seen_s
        self.measured_s = measured_s
        self.run_weights: dict[int, float] = {}
        self._promised_place: tuple[int, tuple[int, ...]] | None = None

    @property
    def cores_per_vcpu(self) -> float | None:
        """Return the mean demand per vCPU over a day [cores].

        It is None if the guest was not measured for long enough.
        """
        mean = self.demand.day.mean
        return (
            None
            if mean is None or self.vcpus <= 0 or self.measured_s < REPRESENTATIVE_MIN_S
            else (mean / self.vcpus)
        )

    def record_place(self, promise: model.Promise | None) -> bool:
        """Record the promised place, and return whether it has changed since the last call."""
        moved = self._promised_place is not None and self._promised_place != _promised_place(
            promise
        )
        self._promised_place = _promised_place(promise)
        if moved:
            self.run_weights = {}
        return moved

    def run_weights_at(self, promise: model.Promise | None) -> dict[int, float]:
        """Return ``run_weights``; {} if they are of a place other than the promised one."""
        return self.run_weights if self._promised_place == _promised_place(promise) else {}


class Histories:
    """Histories of one host.

    :ivar clock_s: total time for which the host was measured [s]
    :ivar guests: {uuid: history}, including guests that are gone
    :ivar non_guest: {node id: history of everything except guests}
    :ivar recent: (end of the interval by ``clock_s``, {node id: cores}, {node id: bytes/s}) of the
        last intervals, the newest last; not kept over a restart
    :ivar flavors: {flavor: (number of guests, sum of their cores per vCPU)} of forgotten guests;
        the flavor None stands for all of them
    """

    def __init__(self, clock_s: float = 0.0) -> None:
        self.clock_s = clock_s
        self.minutes, self.day = Horizon(MINUTES_S), Horizon(DAY_S)
        self.guests: dict[str, GuestHistory] = {}
        self.non_guest: dict[int, UsageHistory] = {}
        self.flavors: dict[str | None, tuple[float, float]] = {}
        self.recent: list[tuple[float, dict[int, float | None], dict[int, float | None]]] = [
            (clock_s, {}, {})
        ]

    def add_sample(
        self,
        sample: Sample,
        guests: Mapping[str, model.Guest],
        promises: Mapping[str, model.Promise],
    ) -> None:
        """Add the sample of an interval.

        :param guests: {uuid: running guest}
        :param promises: {uuid: promise}
        """
        elapsed_s = min(sample.elapsed_s, INTERVAL_MAX_S)
        if not elapsed_s > 0:
            return
        self.clock_s += elapsed_s
        weights = self.minutes.advance(elapsed_s), self.day.advance(elapsed_s)
        bandwidths = bandwidth_by_guest(sample.guests, sample.nodes)
        for guest_sample in sample.guests:
            self._add_guest_sample(
                guest_sample,
                guests.get(guest_sample.uuid),
                promises.get(guest_sample.uuid),
                bandwidths.get(guest_sample.uuid),
                weights,
                elapsed_s,
            )
        for node, cores, bytes_per_sec in non_guest_loads(sample, promises, bandwidths):
            history = self.non_guest.setdefault(node, UsageHistory())
            if cores is not None:
                history.demand.add(cores, weights)
            if bytes_per_sec is not None:
                history.bandwidth.add(bytes_per_sec, weights)
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
        self._forget_guests()

    def sustained_demand(self, node: int) -> tuple[float | None, float | None]:
        """Return the lowest demand and traffic of a node in any interval of the last two minutes.

        :returns: (cores, bytes/s), each None if it is unknown in one of the intervals, or if the
            node has not been measured for that long
        """
        if self.recent[0][0] > self.clock_s - SUSTAINED_S:
            return None, None
        return (
            _minimum([cores.get(node) for _, cores, _ in self.recent[1:]]),
            _minimum([bandwidths.get(node) for _, _, bandwidths in self.recent[1:]]),
        )

    def _add_guest_sample(
        self,
        sample: GuestSample,
        guest: model.Guest | None,
        promise: model.Promise | None,
        bytes_per_sec: float | None,
        weights: tuple[float, float],
        elapsed_s: float,
    ) -> None:
        history = self.guests.get(sample.uuid)
        if history is None:
            history = self.guests[sample.uuid] = GuestHistory()
        history.seen_s = self.clock_s
        definition = guest or promise
        if definition:
            history.vcpus = definition.vcpus
        if guest and guest.flavor:
            history.flavor = guest.flavor
        moved = history.record_place(promise)
        demand_cores = sample.demand_cores
        if demand_cores is None or (guest and guest.state not in (None, 'running')):
            return
        if uses_floating_pool(promise):
            history.measured_s += elapsed_s
        history.demand.add(demand_cores, weights)
        if bytes_per_sec is not None:
            history.bandwidth.add(bytes_per_sec, weights)
        if not moved:  # a guest that moved was at its place for only a part of the interval
            for node, cores in sample.cores_by_node:
                history.run_weights[node] = history.run_weights.get(node, 0.0) + weights[0] * cores

    def _rescale(self) -> None:
        for horizon, index in ((self.minutes, 0), (self.day, 1)):
            factor = horizon.overflow()
            if factor is None:
                continue
            for history in (*self.guests.values(), *self.non_guest.values()):
                for stream in history.streams()[index::2]:
                    stream.rescale(factor)
                if index == 0 and isinstance(history, GuestHistory):
                    history.run_weights = {
                        node: weight * factor for node, weight in history.run_weights.items()
                    }

    def _forget_guests(self) -> None:
        """Forget guests that have been gone for long, after adding them to their flavors' sums."""
        absent_guests = sorted(
            (history.seen_s, uuid)
            for uuid, history in self.guests.items()
            if history.seen_s < self.clock_s
        )
        excess_count = len(self.guests) - GUESTS_MAX
        for rank, (seen_s, uuid) in enumerate(absent_guests):
            if rank < excess_count or seen_s < self.clock_s - ABSENT_MAX_S:
                self._add_to_flavors(self.guests.pop(uuid))

    def _add_to_flavors(self, history: GuestHistory) -> None:
        cores_per_vcpu = history.cores_per_vcpu
        if cores_per_vcpu is None:
            return
        for name in {history.flavor, None}:
            count, total = self.flavors.pop(name, (0, 0.0))
            kept_share = min(1.0, (FLAVOR_GUESTS_MAX - 1) / count) if count else 1.0
            self.flavors[name] = count * kept_share + 1, total * kept_share + cores_per_vcpu
        while len(self.flavors) > FLAVORS_MAX:
            del self.flavors[next(name for name in self.flavors if name is not None)]


def _promised_place(promise: model.Promise | None) -> tuple[int, tuple[int, ...]] | None:
    return promise and (promise.since_ns, promise.cpu_nodes)


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
    guest_cores: dict[int, float] | None = {node.id: 0.0 for node in sample.nodes}
    guest_bandwidths: dict[int, float] | None = {node.id: 0.0 for node in sample.nodes}
    for guest in sample.guests:
        if not uses_floating_pool(promises.get(guest.uuid)):
            continue
        demand_cores, bytes_per_sec = guest.demand_cores, bandwidths.get(guest.uuid)
        cpu_shares, mem_shares = shares(guest.cores_by_node), shares(guest.bytes_by_node)
        if demand_cores and not cpu_shares:
            guest_cores = None
        if guest_cores is not None and demand_cores:
            for node, share in cpu_shares.items():
                guest_cores[node] = guest_cores.get(node, 0.0) + share * demand_cores
        if bytes_per_sec is None or (bytes_per_sec and not mem_shares):
            guest_bandwidths = None
        if guest_bandwidths is not None and bytes_per_sec is not None:
            for node, share in mem_shares.items():
                guest_bandwidths[node] = guest_bandwidths.get(node, 0.0) + share * bytes_per_sec
    return [
        (
            node.id,
            _remainder(node.demand_cores, guest_cores, node.id),
            _remainder(node.bandwidth_bytes_per_sec, guest_bandwidths, node.id),
        )
        for node in sample.nodes
    ]


def _minimum(values: list[float | None]) -> float | None:
    known_values = all_known(values)
    return None if known_values is None else min(known_values)


def _remainder(
    total: float | None, used_by_guests: Mapping[int, float] | None, node: int
) -> float | None:
    return (
        None if total is None or used_by_guests is None else max(0.0, total - used_by_guests[node])
    )
