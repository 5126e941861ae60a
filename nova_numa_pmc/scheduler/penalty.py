# SPDX-License-Identifier: Apache-2.0
"""Compute a host's penalty from the pressure that a guest would leave on it.

A penalty is a function of one host's pressure: 0 where the nodes have room, at most 1. Nova
subtracts it, times the multiplier, from the host's weight. If it were normalised over the hosts,
as Nova does with other weights, one host with odd values would decide for all.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.scheduler.host_estimate import HostStateLike

#: Pressure assumed of a host whose pressure is unknown, at this many promised vCPUs per CPU; it is
#: scaled with their number. It is neither the best nor the worst: 0 would draw all guests there.
ASSUMED_PRESSURE, ASSUMED_VCPUS_PER_CPU = 0.3, 0.625


class PenaltyOptions(Record):
    """How the operator wants pressure to count; see ``conf/scheduler.py``.

    :param floor: pressure up to which there is no penalty
    :param step: pressures count in whole steps of it
    :param jitter: from the floor on, this share of a penalty is :func:`random_part`
    """

    floor: float = 0.0
    step: float = 0.05
    jitter: float = 0.15


def penalty(pressure: float, options: PenaltyOptions) -> float:
    """Return the penalty of a host, 0 to 1.

    :param pressure: of :func:`comparison.pressures`; infinite: no CPU that guests may use
    """
    floor, step, _ = options
    if not pressure < floor + 1.0:  # NaN as well
        return 1.0
    # 1e-9 and nine digits: a rounding error neither costs a whole step nor leaves a penalty.
    return min(1.0, max(0.0, round(int(pressure / step + 1e-9) * step - floor, 9)))


def host_penalty(
    host: HostStateLike,
    pressure: float | None,
    options: PenaltyOptions,
    instance_uuid: str | None = None,
) -> float:
    """Return the penalty of a host, 0 to 1; an unknown pressure is assumed from Nova's counts.

    :param pressure: as :func:`penalty`, None: unknown
    :param instance_uuid: of the guest for which jitter is drawn
    """
    if pressure is None:
        pressure = assumed_pressure(host.vcpus_used, host.vcpus_total)
    exact = penalty(pressure, options)
    if not options.jitter or not options.floor <= pressure < math.inf:
        return exact
    varied = options.jitter * random_part(instance_uuid, host.host)
    return exact * (1.0 - options.jitter) + varied  # saturated hosts differ as well


def random_part(instance_uuid: str | None, host: str) -> float:
    """Return a number of 0 to 1 that is random, but the same for the same instance and host.

    Concurrent requests see the same figures of the same hosts. If all ordered the hosts alike, the
    first host would get all guests before any of them is counted.
    """
    key = ('%s/%s' % (instance_uuid, host)).encode(errors='replace')
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), 'big') / 0xFFFFFFFF


def assumed_pressure(vcpus_used: float, vcpus_total: float) -> float:
    """Return the pressure to assume of a host whose pressure is unknown.

    :param vcpus_used, vcpus_total: vCPUs of its guests, and its CPUs; 0: not known
    """
    if vcpus_total <= 0:
        return ASSUMED_PRESSURE
    return ASSUMED_PRESSURE * max(0.0, vcpus_used) / (ASSUMED_VCPUS_PER_CPU * vcpus_total)
