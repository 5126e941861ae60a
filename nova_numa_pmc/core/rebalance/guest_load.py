# SPDX-License-Identifier: Apache-2.0
"""Combine what is known of each guest into the rebalancer's input, now and as it lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import build_sample, eligibility, rates
from nova_numa_pmc.core.demand.histories import Mean
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.rates import shares
from nova_numa_pmc.core.rebalance import plan_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.core.demand.histories import UsageHistory
    from nova_numa_pmc.core.rebalance.plan_records import Situation
    from nova_numa_pmc.core.sample_records import GuestSample, Sample


def guest_loads(
    sample: Sample,
    guests: Mapping[str, model.Guest],
    promises: Mapping[str, model.Promise],
    view: model.HostView,
    host: model.Topology | None = None,
    measured_since_ns: int | None = None,
    histories: Mapping[str, UsageHistory] | None = None,
) -> tuple[plan_records.GuestLoad, ...]:
    """Return the load of each guest of a sample, in the order of their uuids.

    :param guests, promises: {uuid: guest} and {uuid: promise}
    :param view: a view whose nodes' ``cpus`` show where a guest may run
    :param host, measured_since_ns: as in :func:`eligibility.why_fixed`
    :param histories: {uuid: history of its demand}; None: unknown
    """
    bandwidth_by_guest = build_sample.bandwidth_by_guest(sample.guests, sample.nodes)
    return tuple(
        _guest_load(
            guest_sample,
            guests.get(guest_sample.uuid),
            promises.get(guest_sample.uuid),
            view,
            bandwidth_by_guest.get(guest_sample.uuid),
            host,
            measured_since_ns,
            (histories or {}).get(guest_sample.uuid),
        )
        for guest_sample in sorted(sample.guests, key=lambda guest_sample: guest_sample.uuid)
    )


def waiting_cores(samples: Iterable[GuestSample]) -> tuple[tuple[int, float], ...]:
    """Return the cores that guests waited for on each node, for :class:`plan_records.Situation`.

    A guest's waiting is divided over nodes in proportion to how it ran there. A node is left out
    if the waiting of a guest that ran there is unknown.

    :returns: (node id, cores), in ascending order
    """
    waiting_by_node: dict[int, float] = {}
    unknown_nodes = set[int]()
    for sample in samples:
        if sample.waiting_cores is None:
            unknown_nodes.update(node for node, _ in sample.cores_by_node)
            continue
        for node, share in rates.shares(sample.cores_by_node).items():
            waiting_by_node[node] = waiting_by_node.get(node, 0.0) + share * sample.waiting_cores
    return tuple(
        (node, waiting_by_node[node])
        for node in sorted(waiting_by_node)
        if node not in unknown_nodes
    )


def _guest_load(
    sample: GuestSample,
    guest: model.Guest | None,
    promise: model.Promise | None,
    view: model.HostView,
    bytes_per_sec: float | None,
    host: model.Topology | None,
    measured_since_ns: int | None,
    history: UsageHistory | None,
) -> plan_records.GuestLoad:
    mean = history.demand if history else Mean()
    means = all_known([mean.minutes, mean.day])
    known_promise = promise or model.Promise(sample.uuid, sample.name, (), (), 1, 0)
    return plan_records.GuestLoad(
        uuid=sample.uuid,
        name=sample.name,
        vcpus=known_promise.vcpus if guest is None else guest.vcpus,
        memory_bytes=known_promise.memory_bytes,
        held_nodes=known_promise.held_nodes,
        home_nodes=known_promise.cpu_nodes,
        mem_nodes=known_promise.mem_nodes,
        mem_node_bytes=known_promise.mem_node_bytes,
        bytes_by_node=sample.bytes_by_node,
        cores_by_node=sample.cores_by_node,
        demand_cores=sample.demand_cores,
        served_cores=sample.cores,
        mean_cores=tuple(means or ()),
        measured_s=mean.measured_s,
        stalled_ratio=sample.stalled_ratio,
        lines_per_sec=sample.lines_per_sec,
        remote_ratio=sample.remote_ratio,
        bandwidth_bytes_per_sec=bytes_per_sec,
        allowed_cpu_counts=None if guest is None else _allowed_cpu_counts(guest, view),
        why_fixed=eligibility.why_not(eligibility.MOVE, guest, promise, host, measured_since_ns),
    )


def _allowed_cpu_counts(
    guest: model.Guest, view: model.HostView
) -> tuple[tuple[int, int], ...] | None:
    """Return (node id, number of its CPUs that a guest may use); None if it may use all."""
    limit_cpus = guest.limit_cpus
    if limit_cpus is None:
        return None
    counts = (
        (node.id, len(limit_cpus & node.cpus)) for node in view.nodes if node.cpus is not None
    )
    return tuple((node, count) for node, count in counts if count)


#: Why a guest is not moved that was not measured for long enough.
YOUNG = 'young'


def as_it_lasts(situation: Situation, horizon: int, measured_min_s: float) -> Situation:
    """Return a situation at the guests' mean demands.

    Guests are where they are: what widening has taken away already is no gain of a move. They
    access memory in proportion to their CPU time, as in the interval. What waited in the interval
    is left out: it says nothing about another demand by itself.

    :param horizon: index of :attr:`GuestLoad.mean_cores`
    :param measured_min_s: guests that were measured for less than this stay where they are [s]
    """
    demand_changes: dict[int, float] = {}
    bandwidth_changes: dict[int, float] = {}
    guests = []
    for guest in situation.guests:
        known_demand = guest.demand_cores
        if not guest.mean_cores or known_demand is None or guest.measured_s < measured_min_s:
            guests.append(guest._replace(why_fixed=guest.why_fixed or YOUNG))
            continue
        demand_cores = guest.mean_cores[horizon]
        ratio = demand_cores / guest.served_cores if guest.served_cores else 0.0
        bandwidth = guest.bandwidth_bytes_per_sec
        guests.append(
            guest._replace(
                demand_cores=demand_cores,
                served_cores=demand_cores,
                lines_per_sec=_scaled(guest.lines_per_sec, ratio),
                bandwidth_bytes_per_sec=_scaled(bandwidth, ratio),
            )
        )
        _add(demand_changes, guest.cores_by_node, demand_cores - known_demand)
        _add(bandwidth_changes, guest.bytes_by_node, (ratio - 1) * (bandwidth or 0.0))
    nodes = tuple(
        node._replace(
            demand_cores=_changed(node.demand_cores, demand_changes.get(node.id, 0.0)),
            bandwidth_bytes_per_sec=_changed(
                node.bandwidth_bytes_per_sec, bandwidth_changes.get(node.id, 0.0)
            ),
        )
        for node in situation.view.nodes
    )
    return situation._replace(
        view=situation.view._replace(nodes=nodes), guests=tuple(guests), waiting_cores=()
    )


def _scaled(value: float | None, ratio: float) -> float | None:
    return None if value is None else ratio * value


def _add(sums: dict[int, float], by_node: Iterable[tuple[int, float]], amount: float) -> None:
    for node, share in shares(by_node).items():
        sums[node] = sums.get(node, 0.0) + share * amount


def _changed(value: float | None, change: float) -> float | None:
    return None if value is None else max(0.0, value + change)
