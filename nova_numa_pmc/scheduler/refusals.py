# SPDX-License-Identifier: Apache-2.0
"""Decide whether the filter refuses a host.

This module imports nothing from Nova, so that commands can decide as the filter does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.placement import reasons
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nova_numa_pmc.scheduler.host_estimate import HostEstimate
    from nova_numa_pmc.scheduler.request import GuestRequest


class FilterOptions(Record):
    """Options that determine when a host is refused; see ``conf/scheduler.py``.

    :param max_pressure: the highest pressure allowed on the nodes that the guest would use; 0
        means no limit
    """

    one_node: bool = False
    max_pressure: float = 0.0
    refuse_unknown: bool = False


def filter_options(guest_request: GuestRequest, conf: Mapping[str, Any]) -> FilterOptions:
    """Return the operator's options, as changed by the flavor's extra specs.

    ``max_pressure`` does not apply to a guest that has to leave its host: a saturated host is
    better than none.

    :param conf: {option: value} of the group ``[numa_pmc]``
    """
    flavor_specs = guest_request.flavor_specs
    max_pressure = flavor_specs.max_pressure
    if max_pressure is None:
        max_pressure = conf['max_pressure']
    return FilterOptions(
        conf['require_one_node'] or flavor_specs.policy == model.ONE_NODE,
        0.0 if guest_request.is_move else max_pressure,
        conf['refuse_unknown'],
    )


def why_refused(estimate: HostEstimate, options: FilterOptions) -> str:
    """Return why a host is refused; empty if it passes.

    A host whose pressure is unknown passes unless ``refuse_unknown`` is set.
    """
    if estimate.outcome is None:
        return 'its pressure is unknown' if options.refuse_unknown else ''
    if options.one_node and estimate.outcome.code != reasons.ON_ONE_NODE:
        return 'the guest does not fit on one node'
    # An estimate without measurements is no reason to refuse a host.
    max_pressure = options.max_pressure
    if max_pressure and estimate.measured and estimate.outcome.pressures[0] > max_pressure:
        return 'above max_pressure %g' % max_pressure
    return ''
