# SPDX-License-Identifier: Apache-2.0
"""Compute the hosts' penalties from what guests would lose there.

A penalty depends on the loss on its own host alone. Apart from jitter it is 0 where nothing would
be lost, and it is at most 1. Nova subtracts it, times the multiplier, from the host's weight. If
it were normalised over the hosts, as Nova does with other weights, one host with odd values would
decide for all.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.core.scheduling.added_loss import AddedLoss


class PenaltyOptions(Record):
    """How the operator wants losses to count; see ``conf/scheduler.py``.

    :param floor: loss up to which there is no penalty
    :param jitter: from the floor on, the weight of :func:`random_part` in a penalty; the loss
        above the floor has the rest
    """

    floor: float = 0.0
    jitter: float = 0.02


def penalty(
    loss: AddedLoss, options: PenaltyOptions, host: str, instance_uuid: str | None = None
) -> float:
    """Return the penalty of a host, 0 to 1.

    :param host, instance_uuid: for which jitter is drawn
    """
    floor, jitter = options
    if loss.cpu_ratio == math.inf:
        return 1.0
    exact = min(1.0, loss.loss_ratio) - floor  # NaN counts as 1.0
    if exact < 0.0:
        return 0.0
    if not jitter:
        return exact
    return exact * (1.0 - jitter) + jitter * random_part(instance_uuid, host)


def random_part(instance_uuid: str | None, host: str) -> float:
    """Return a number of 0 to 1 that is random, but the same for the same instance and host.

    Concurrent requests see the same figures of the same hosts. If all ordered the hosts alike, the
    first host would get all guests before any of them is counted.
    """
    key = ('%s/%s' % (instance_uuid, host)).encode(errors='replace')
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), 'big') / 0xFFFFFFFF
