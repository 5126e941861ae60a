# SPDX-License-Identifier: Apache-2.0
"""Decide whether the filter refuses a host.

This module imports nothing from Nova, so that commands can decide as the filter does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view, memory_domains
from nova_numa_pmc.core.placement import candidates, placement
from nova_numa_pmc.model import MIB
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nova_numa_pmc.compute.metrics_decoder import HostMetrics
    from nova_numa_pmc.scheduler.hosts import Host
    from nova_numa_pmc.scheduler.request import Guest, GuestRequest


class FilterOptions(Record):
    """Options that determine when a host is refused; see ``conf/scheduler.py``.

    :param max_pressure: the highest pressure allowed on the nodes that the guest would use; 0
        means no limit
    """

    one_node: bool = False
    max_pressure: float = 0.0


def filter_options(guest_request: GuestRequest, conf: Mapping[str, Any]) -> FilterOptions:
    """Return the operator's options, as changed by the flavor's extra specs.

    Of a guest that has to leave its host, only the flavor's demand for one node counts: any other
    host is better than none. ``require_one_node`` does not apply to a flavor that asks for all
    nodes.

    :param conf: {option: value} of the group ``[numa_pmc]``
    """
    flavor_specs = guest_request.flavor_specs
    policy, max_pressure = flavor_specs.policy, flavor_specs.max_pressure
    if guest_request.is_move:
        return FilterOptions(policy == model.ONE_NODE)
    if max_pressure is None:
        max_pressure = conf['max_pressure']
    return FilterOptions(
        policy == model.ONE_NODE or (conf['require_one_node'] and policy != model.SPREAD),
        max_pressure,
    )


def why_refused(host: Host, guest_request: GuestRequest, options: FilterOptions) -> str:
    """Return why a host is refused; empty if it passes.

    A host whose figures are unknown passes: that is no reason to end a server in ERROR. Every host
    passes for a guest that is not weighed or that Nova pins.
    """
    guest, metrics = guest_request.guest, host.metrics
    if guest is None or guest_request.why_not_weighed or guest_request.why_pinned:
        return ''
    if metrics is None:
        return ''
    if options.one_node and not _may_fit_on_one_node(host, metrics.view, guest):
        return 'the guest does not fit on one node'
    # A demand that is not measured is no reason to refuse a host.
    if options.max_pressure and metrics.figures.demand_cores is not None:
        pressure = pressure_with(host, guest)
        if pressure > options.max_pressure:
            return 'above max_pressure %g: %.2f' % (options.max_pressure, pressure)
    return ''


def pressure_with(host: Host, guest: Guest) -> float:
    """Return the highest pressure that a guest would leave on its nodes on a known host."""
    assert host.metrics is not None
    inputs = candidates.PlacementInput(
        with_arrivals(host, host.metrics), placement_request(host.metrics, guest)
    )
    return placement.pressure_with(inputs, model.PlacementOptions())


def placement_request(
    metrics: HostMetrics, guest: Guest, memory_mib: float | None = None
) -> model.Request:
    """Return the request by which the host itself will place a guest.

    :param memory_mib: the memory that it needs there, if not all of its own
    """
    demand_cores = host_view.expected_per_vcpu(*(metrics.history or (0, 0.0))) * guest.vcpus
    nodes = memory_domains.merge(metrics.view)[0].nodes
    return model.Request(
        int(guest.vcpus),
        math.ceil(guest.memory_mib if memory_mib is None else memory_mib) * MIB,
        policy=guest.policy,
        demand_cores=demand_cores,
        bandwidth_bytes_per_sec=host_view.expected_bandwidth(
            demand_cores, guest.intensity, host_view.node_traffic_per_core(nodes)
        ),
    )


def with_arrivals(host: Host, metrics: HostMetrics) -> model.HostView:
    """Return a host's nodes with the guests that arrived since, and without the guest itself.

    On which nodes they are is not known, so they are spread over these in proportion to cores.
    """
    view = metrics.view
    vcpus, mib = host.arrived_vcpus - host.own_vcpus, host.arrived_mib - host.own_mib
    cores = sum([node.cores for node in view.nodes])
    if not cores or not (vcpus or mib):
        return view
    counted = {node.id: node.vcpus for node in view.nodes}
    promised = {node.id: max(0.0, node.vcpus + vcpus * node.cores / cores) for node in view.nodes}
    guests, total = metrics.history or (0, 0.0)
    view = host_view.with_arrivals_and_departures(
        view, promised, counted, model.DemandHistory(guests, total)
    )
    return view._replace(
        nodes=tuple(
            node._replace(
                vcpus=promised[node.id],
                promised_bytes=max(0, node.promised_bytes + round(mib * node.cores / cores) * MIB),
            )
            for node in view.nodes
        )
    )


def _may_fit_on_one_node(host: Host, view: model.HostView, guest: Guest) -> bool:
    """Return whether one node may have the CPUs and the memory that a guest needs.

    On which nodes guests have arrived or freed memory since the metrics were recorded is not
    known, nor where the guest itself is. Freed memory may be on any node, and so may the guest's.
    If the vCPUs and memory of the arrivals are those of ``count`` guests of the requested size,
    each of these is on one node as well, so the nodes must have had room for more than ``count``.
    Otherwise it is certain only that as much memory is no longer free.

    :param view: the host as reported, without the arrivals and with the guest if it is there
    """
    assert host.metrics is not None
    memory_mib, freed_mib = max(1, guest.memory_mib), math.ceil(host.freed_mib + host.own_mib)
    inputs = candidates.PlacementInput(
        view, placement_request(host.metrics, guest, memory_mib - freed_mib)
    )
    nodes = inputs.view_by_domain.nodes
    free_mib = [max(0, node.capacity_bytes - node.promised_bytes) // MIB for node in nodes]
    fitting = sum(
        (free_mib[position] + freed_mib) // memory_mib
        for position in {
            candidate.mem_positions[0] for candidate in candidates.single_node_candidates(inputs)
        }
    )
    count, rest_mib = divmod(host.arrived_mib, memory_mib)
    if rest_mib or host.arrived_vcpus != count * guest.vcpus:
        count = 0
    return fitting > count and sum(free_mib) + freed_mib >= host.arrived_mib + memory_mib
