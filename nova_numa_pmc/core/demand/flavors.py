# SPDX-License-Identifier: Apache-2.0
"""Demand per vCPU of a flavor's guests, from the histories of present and past guests."""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core.demand.histories import FLAVOR_GUESTS_MAX, Histories

#: Traffic per core-second is not derived from fewer cores: it would be noise.
_CORES_MIN = 0.5


def per_vcpu(histories: Histories) -> dict[str | None, tuple[float, float]]:
    """Return {name of a flavor: (guests, sum of their cores per vCPU)}; None: of all guests.

    Guests that were not measured for long enough are left out.
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
    """Return the demand history of a flavor, or of all guests where it has none.

    :param flavor: its name, None: not reported
    """
    known = per_vcpu(histories)
    cores = traffic = 0.0
    for history in histories.guests.values():
        if (
            history.is_representative
            and history.demand.day.mean is not None
            and history.traffic.day.mean is not None
        ):
            cores += history.demand.day.mean
            traffic += history.traffic.day.mean
    return model.DemandHistory(
        *(known.get(flavor) or known.get(None, (0, 0.0))),
        traffic / cores if cores >= _CORES_MIN else None,
    )


def of_all_guests(histories: Histories) -> model.DemandHistory:
    """Return the demand history of all guests that decisions use, rounded as in Nova's metrics.

    That is to whole guests and 0.01 cores. At most :data:`histories.FLAVOR_GUESTS_MAX` guests
    count, so that one host does not decide for all. Flavors are left out: Nova's metrics have no
    room for them, and the hook and the scheduler have to expect the same.
    """
    count, total = per_vcpu(histories).get(None, (0, 0.0))
    guests = min(FLAVOR_GUESTS_MAX, round(count))
    if not guests:
        return model.DemandHistory()
    return model.DemandHistory(guests, round(100 * guests * total / count) / 100)
