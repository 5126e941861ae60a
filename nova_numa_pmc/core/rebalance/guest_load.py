# SPDX-License-Identifier: Apache-2.0
"""Join each guest's sample, promise and definition into the rebalancer's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import traffic
from nova_numa_pmc.core.rebalance import eligibility, placement_order, plan_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.sample_records import GuestSample


def guest_loads(
    samples: Iterable[GuestSample],
    guests: Mapping[str, model.Guest],
    promises: Mapping[str, model.Promise],
    view: model.HostView,
    held: Mapping[str, Iterable[int]] | None = None,
    now_ns: int | None = None,
    host: model.Topology | None = None,
    measured_since_ns: int | None = None,
) -> tuple[plan_records.GuestLoad, ...]:
    """Return the load of each guest.

    :param guests, promises: by uuid
    :param view: its nodes' ``cpus`` show where a guest may run
    :param held: {uuid: node ids that its CPUs are held to now}; absent: those promised
    :param now_ns: CLOCK_BOOTTIME, None: no guest counts as just placed
    :param host, measured_since_ns: as in :func:`eligibility.why_not`
    :returns: in the order of their uuids
    """
    samples = sorted(samples, key=lambda sample: sample.uuid)
    bytes_per_line = traffic.bytes_per_line(samples, view.nodes)
    return tuple(
        _guest_load(
            sample,
            guests.get(sample.uuid),
            promises.get(sample.uuid),
            view,
            bytes_per_line,
            (held or {}).get(sample.uuid),
            now_ns,
            host,
            measured_since_ns,
        )
        for sample in samples
    )


def waiting_cores(samples: Iterable[GuestSample]) -> tuple[tuple[int, float], ...]:
    """Return the cores that guests waited for on each node, for :class:`plan_records.Situation`.

    A guest's waiting is divided over nodes as it ran; a node with unknown waiting is left out.

    :returns: (node id, cores), ascending ids
    """
    waited: dict[int, float] = {}
    unknown = set()
    for sample in samples:
        ran = sum(cores for _, cores in sample.cores_by_node)
        for node, cores in sample.cores_by_node:
            if sample.waiting_cores is None:
                unknown.add(node)
            elif ran > 0:
                waited[node] = waited.get(node, 0.0) + sample.waiting_cores * cores / ran
    return tuple((node, waited[node]) for node in sorted(waited) if node not in unknown)


def _guest_load(
    sample: GuestSample,
    guest: model.Guest | None,
    promise: model.Promise | None,
    view: model.HostView,
    bytes_per_line: float | None,
    held: Iterable[int] | None,
    now_ns: int | None,
    host: model.Topology | None,
    measured_since_ns: int | None,
) -> plan_records.GuestLoad:
    known = promise or model.Promise(sample.uuid, sample.name, (), (), 1, 0)
    return plan_records.GuestLoad(
        uuid=sample.uuid,
        name=sample.name,
        vcpus=known.vcpus if guest is None else guest.vcpus_limit,
        memory_bytes=known.memory_bytes,
        cpu_nodes=known.cpu_nodes if held is None else tuple(held),
        home_nodes=known.cpu_nodes,
        mem_nodes=known.mem_nodes,
        mem_bytes=known.mem_bytes,
        bytes_by_node=sample.bytes_by_node,
        cores_by_node=sample.cores_by_node,
        demand_cores=sample.demand_cores,
        served_cores=sample.cores,
        lines_per_sec=traffic.lines_per_sec(sample),
        remote_ratio=sample.remote_ratio,
        bandwidth_bytes_per_sec=traffic.bytes_per_sec(sample, bytes_per_line),
        allowed_nodes=None if guest is None else _allowed_nodes(guest, view),
        fixed=eligibility.why_not(guest, promise, host, measured_since_ns),
        young=_is_young(promise, now_ns),
    )


def _is_young(promise: model.Promise | None, now_ns: int | None) -> bool:
    return (
        promise is not None
        and now_ns is not None
        and promise.origin == model.PLACED
        and promise.since_ns > now_ns - placement_order.JUST_PLACED_NS
    )


def _allowed_nodes(guest: model.Guest, view: model.HostView) -> tuple[int, ...] | None:
    """List the nodes on which a guest may run; None: on any."""
    if guest.allowed_cpus is None:
        return None
    return tuple(
        node.id for node in view.nodes if node.cpus is not None and guest.allowed_cpus & node.cpus
    )
