# SPDX-License-Identifier: Apache-2.0
"""Combine each guest's sample, promise and definition into the rebalancer's input."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility, rates, traffic
from nova_numa_pmc.core.demand.histories import Mean
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.rebalance import placement_order, plan_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.core.demand.histories import UsageHistory
    from nova_numa_pmc.core.sample_records import GuestSample, Sample


def guest_loads(
    sample: Sample,
    guests: Mapping[str, model.Guest],
    promises: Mapping[str, model.Promise],
    view: model.HostView,
    boottime_ns: int | None = None,
    host: model.Topology | None = None,
    measured_since_ns: int | None = None,
    histories: Mapping[str, UsageHistory] = MappingProxyType({}),
) -> tuple[plan_records.GuestLoad, ...]:
    """Return the load of each guest of a sample, in the order of their uuids.

    :param guests, promises: {uuid: guest} and {uuid: promise}
    :param view: a view whose nodes' ``cpus`` show where a guest may run
    :param boottime_ns: CLOCK_BOOTTIME; None if no guest is to count as just placed
    :param host, measured_since_ns: as in :func:`eligibility.why_fixed`
    :param histories: {uuid: history of its demand}
    """
    bandwidth_by_guest = traffic.bandwidth_by_guest(sample.guests, sample.nodes)
    return tuple(
        _guest_load(
            guest_sample,
            guests.get(guest_sample.uuid),
            promises.get(guest_sample.uuid),
            view,
            bandwidth_by_guest.get(guest_sample.uuid),
            boottime_ns,
            host,
            measured_since_ns,
            histories.get(guest_sample.uuid),
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
    boottime_ns: int | None,
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
        lines_per_sec=traffic.lines_per_sec(sample),
        remote_ratio=sample.remote_ratio,
        bandwidth_bytes_per_sec=bytes_per_sec,
        allowed_cpu_counts=None if guest is None else _allowed_cpu_counts(guest, view),
        why_fixed=eligibility.why_not(eligibility.MOVE, guest, promise, host, measured_since_ns),
        just_placed=_is_just_placed(promise, boottime_ns),
    )


def _is_just_placed(promise: model.Promise | None, boottime_ns: int | None) -> bool:
    return (
        promise is not None
        and boottime_ns is not None
        and promise.origin == model.PLACED
        and promise.since_ns > boottime_ns - placement_order.JUST_PLACED_NS
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
