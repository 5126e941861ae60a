# SPDX-License-Identifier: Apache-2.0
"""Decide whether the filter refuses a host.

This module imports nothing from Nova, so that commands can decide as the filter does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import candidates, reasons
from nova_numa_pmc.core.scheduling import outcome
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nova_numa_pmc.core.scheduling.host_columns import HostColumns
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest
    from nova_numa_pmc.scheduler.host_estimate import HostEstimate
    from nova_numa_pmc.scheduler.request import GuestRequest


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


def why_refused(
    estimate: HostEstimate, guest_request: GuestRequest, options: FilterOptions
) -> str:
    """Return why a host is refused; empty if it passes.

    A host whose pressure is unknown passes: that is no reason to end a server in ERROR. Every host
    passes for a guest that is not weighed or that Nova pins.
    """
    guest = guest_request.guest
    if guest is None or guest_request.why_not_weighed or guest_request.why_pinned:
        return ''
    host, host_outcome = estimate.reported_host, estimate.outcome
    if host is None or host_outcome is None:
        return ''
    # Without arrivals, the outcome is no guess, and testing the nodes again would take longer.
    is_certain = host_outcome.code == reasons.ON_ONE_NODE and not estimate.arrived_mib
    if options.one_node and not is_certain and not _may_fit_on_one_node(host, estimate, guest):
        return 'the guest does not fit on one node'
    # An estimate without measurements is no reason to refuse a host.
    max_pressure = options.max_pressure
    if max_pressure and estimate.measured and host_outcome.pressures[0] > max_pressure:
        return 'above max_pressure %g' % max_pressure
    return ''


def _may_fit_on_one_node(host: HostColumns, estimate: HostEstimate, guest: ExpectedGuest) -> bool:
    """Return whether one node may have the CPUs and the memory that a guest needs.

    On which nodes guests have arrived or freed memory since the metrics were recorded is not
    known, nor where the guest itself is. Freed memory may be on any node, and so may the guest's.
    If the vCPUs and memory of the arrivals are those of ``count`` guests of the requested size,
    each of these is on one node as well, so the nodes must have had room for more than ``count``.
    Otherwise it is certain only that as much memory is no longer free.

    :param host: the host as reported, without the arrivals and with the guest if it is there
    """
    memory_mib, freed_mib = max(1, guest.memory_mib), math.ceil(estimate.freed_mib)
    remaining_guest = guest._replace(memory_mib=memory_mib - freed_mib)
    inputs = candidates.PlacementInput(host.view(), outcome.request(host, remaining_guest))
    free_mib = [
        max(0, capacity - promised)
        for capacity, promised in zip(host.capacity_mib, host.promised_mib)
    ]
    fitting = sum(
        (free_mib[position] + freed_mib) // memory_mib
        for position in {
            candidate.mem_positions[0] for candidate in candidates.single_node_candidates(inputs)
        }
    )
    count, rest_mib = divmod(estimate.arrived_mib, memory_mib)
    if rest_mib or estimate.arrived_vcpus != count * guest.vcpus:
        count = 0
    return fitting > count and sum(free_mib) + freed_mib >= estimate.arrived_mib + memory_mib
