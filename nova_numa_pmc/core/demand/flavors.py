# SPDX-License-Identifier: Apache-2.0
"""Derive the demand per vCPU of a flavor from the histories of its present and past guests."""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core.demand.histories import FLAVOR_GUESTS_MAX, Histories
from nova_numa_pmc.core.host_view import TRAFFIC_DEMAND_MIN_HUNDREDTHS


def sums_by_flavor(histories: Histories) -> dict[str | None, tuple[float, float]]:
    """Return {flavor: (number of guests, sum of their cores per vCPU)}.

    The flavor None stands for all guests. Guests that were not measured for long enough do not
    count.
    """
    sums = dict(histories.flavors)
    for history in histories.guests.values():
        cores_per_vcpu = history.cores_per_vcpu
        if cores_per_vcpu is not None:
            for name in {history.flavor, None}:
                count, total = sums.get(name, (0, 0.0))
                sums[name] = count + 1, total + cores_per_vcpu
    return sums


def of_flavor(histories: Histories, flavor: str | None) -> model.DemandHistory:
    """Return the demand history of a flavor, or that of all guests if the flavor has none.

    :param flavor: its name; None if it is not reported
    """
    sums = sums_by_flavor(histories)
    guests, cores_per_vcpu_sum = sums.get(flavor) or sums.get(None, (0, 0.0))
    cores_sum = bandwidth_sum = 0.0
    for history in histories.guests.values():
        if (
            history.cores_per_vcpu is not None  # measured for long enough
            and history.demand.day.mean is not None
            and history.bandwidth.day.mean is not None
        ):
            cores_sum += history.demand.day.mean
            bandwidth_sum += history.bandwidth.day.mean
    return model.DemandHistory(
        guests,
        cores_per_vcpu_sum,
        bandwidth_sum / cores_sum if 100 * cores_sum >= TRAFFIC_DEMAND_MIN_HUNDREDTHS else None,
    )


def of_all_guests(histories: Histories) -> model.DemandHistory:
    """Return the demand history of all guests, as decisions about new guests use it.

    It is rounded to whole guests and 0.01 cores, as in Nova's metrics. At most
    :data:`histories.FLAVOR_GUESTS_MAX` guests count, so that one host does not decide for all.
    Flavors are not distinguished, because Nova's metrics have no room for them, and the hook and
    the scheduler have to expect the same demand.
    """
    count, total = sums_by_flavor(histories).get(None, (0, 0.0))
    guests = min(FLAVOR_GUESTS_MAX, round(count))
    if not guests:
        return model.DemandHistory()
    return model.DemandHistory(guests, round(100 * guests * total / count) / 100)
