# SPDX-License-Identifier: Apache-2.0
"""Keep the demand of each guest, and of everything else on each node: two exponential means.

One is over minutes, for a load that has changed, and one over a day, for one that comes back.
Until something was measured for as long as that, its mean is a plain one. The clock of the
histories counts only time that was measured: while the agent is stopped, nothing ages. The history
of a guest that does not run (it is paused, suspended or has crashed), or whose demand is unknown
in an interval, stays as it is.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values, model
from nova_numa_pmc.core.build_sample import bandwidth_by_guest
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.rates import shares
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.core.sample_records import GuestSample, NodeSample, Sample

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
