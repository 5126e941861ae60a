# SPDX-License-Identifier: Apache-2.0
"""Decide whether the filter refuses a host.

This module imports nothing from Nova, so that commands can decide as the filter does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nova_numa_pmc.scheduler.host_estimate import HostEstimate
    from nova_numa_pmc.scheduler.request import GuestRequest


class FilterOptions(Record):
    """Options that determine when a host is refused; see ``conf/scheduler.py``.

    :param ceiling: the highest pressure allowed on the nodes that the guest would use; 0 means no
        ceiling
    """

    one_node: bool = False
    ceiling: float = 0.0
    refuse_unknown: bool = False


def filter_options(guest_request: GuestRequest, conf: Mapping[str, Any]) -> FilterOptions:
    """Return the operator's options, as changed by the flavor's extra specs.

    There is no ceiling for a guest that has to leave its host: a saturated host is better than
    none.

    :param conf: {option: value} of the group ``[numa_pmc]``
    """
    flavor_specs = guest_request.flavor_specs
    ceiling = (
        conf['max_pressure'] if flavor_specs.max_pressure is None else flavor_specs.max_pressure
    )
    return FilterOptions(
        conf['require_one_node'] or flavor_specs.policy == model.ONE_NODE,
        0.0 if guest_request.is_move else ceiling,
        conf['refuse_unknown'],
    )


def objection(estimate: HostEstimate, options: FilterOptions) -> str:
    """Return why a host is refused; empty if it passes.

    A host whose pressure is unknown passes unless ``refuse_unknown`` is set.
    """
    if estimate.outcome is None:
        return 'its pressure is unknown' if options.refuse_unknown else ''
    if options.one_node and estimate.outcome.code != 'one_node':
        return 'the guest does not fit on one node'
    # An estimate without measurements is no reason to refuse a host.
    if options.ceiling and estimate.measured and estimate.outcome.used[0] > options.ceiling:
        return 'above the ceiling of %g' % options.ceiling
    return ''
