# SPDX-License-Identifier: Apache-2.0
"""Build the rebalancer's input for a host, in a tick of the agent or for a command."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility, host_view, measurements, pools, rates
from nova_numa_pmc.core.demand import Mean
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import PageMoveError
from nova_numa_pmc.host.page_moves import node_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.agent.sampling import Sampler
    from nova_numa_pmc.core.demand import UsageHistory
    from nova_numa_pmc.core.measurements import GuestSample, Sample
    from nova_numa_pmc.state.promises_file import HostPromises


def situation(
    sample: Sample,
    host: model.Topology,
    host_promises: HostPromises,
    guests: Iterable[model.Guest],
    sampler: Sampler,
    placement_options: model.PlacementOptions,
    root: str,
    measured_since_ns: int | None = None,
    histories: Mapping[str, UsageHistory] | None = None,
) -> plan_records.Situation:
    """Return the rebalancer's input, from a sample and the observed guests.

    It includes the room on the nodes, as a move of pages reads it.

    :param sampler: the sampler that took the sample
    :param measured_since_ns: CLOCK_BOOTTIME at the beginning of the interval; a guest placed since
        then is left where it is. None to consider all guests
    :param histories: {uuid: history of its demand}; None: unknown
    """
    promised = host_promises.promises
    running = {guest.uuid: guest for guest in guests}
    sample, pool_samples = _in_pool(sample, running, host)
    view = host_view.view(
        host,
        promised.values(),
        placement_options,
        {node.id: node for node in sample.nodes},
        host_promises.rotation,
    )
    loads = guest_loads(sample, running, promised, view, host, measured_since_ns, histories)
    room_bytes: tuple[tuple[int, int], ...] = ()
    with contextlib.suppress(PageMoveError):
        room_bytes = tuple(
            (node, memory.room_bytes) for node, memory in node_room.read(root).items()
        )
    return plan_records.Situation(
        view,
        loads,
        sampler.latencies_ns(host),
        waiting_cores(pool_samples),
        room_bytes,
        sampler.mlp,
    )


def _in_pool(
    sample: Sample, running: Mapping[str, model.Guest], host: model.Topology
) -> tuple[Sample, list[GuestSample]]:
    """Return (sample, samples of the guests in the floating pool).

    In the sample, the CPU time of all other guests is None, because the CPU demand of the nodes is
    that of the floating pool. The memory of these guests still counts.
    """
    guest_samples, pool_samples = [], []
    for guest_sample in sample.guests:
        guest = running.get(guest_sample.uuid)
        if guest and (
            not eligibility.is_in_pool(guest, host) or pools.avoids_floating_pool(guest, host)
        ):
            guest_samples.append(guest_sample._replace(cores=None, waiting_cores=None))
        else:
            guest_samples.append(guest_sample)
            pool_samples.append(guest_sample)
    return sample._replace(guests=tuple(guest_samples)), pool_samples


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
    :param host, measured_since_ns: as in :func:`eligibility.why_not`
    :param histories: {uuid: history of its demand}; None: unknown
    """
    bandwidth_by_guest = measurements.bandwidth_by_guest(sample.guests, sample.nodes)
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
