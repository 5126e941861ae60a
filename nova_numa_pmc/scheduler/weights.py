# SPDX-License-Identifier: Apache-2.0
"""From what a guest would leave of each host to the hosts' weights.

Nova sorts hosts by a sum of numbers, so an order has to become one number: digits of
falling worth, whole steps of pressure each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.conf.scheduler import MEAN
from nova_numa_pmc.core.placement.ranking import ABSURD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.scheduling.outcome import Outcome

#: Bits of the digits; together a float's 53. With steps of 0.05, pressures up to 12.75 are told
#: apart, on the nodes used up to 409.
_HIGHEST_BITS, _TIER_BITS, _STEP_BITS, _NEW_BITS = 13, 2, 8, 14
_HIGHEST_MAX, _TIER_MAX, _STEPS_MAX, _NEW_MAX = (
    (1 << bits) - 1 for bits in (_HIGHEST_BITS, _TIER_BITS, _STEP_BITS, _NEW_BITS)
)
#: New vCPUs per core: one on a thousand cores, and up to 16 on each.
_NEW_STEPS = 1024
#: What a step of the highest pressure counts.
UNIT = 1 << (_TIER_BITS + 3 * _STEP_BITS + _NEW_BITS)
#: Beyond any key.
HOPELESS = UNIT << 64
#: Of outcomes; whatever isn't here floats.
_TIER = {'one_node': 0, 'span': 1, 'spread': 1, 'cpus_only': 2}


def key(outcome: Outcome, newcomers: float, step: float) -> int:
    """Return what hosts are ordered by, the lowest first: a whole number.

    In this order: the highest pressure that the guest would leave on the nodes it uses;
    whether these are one node, several, hold its CPUs only, or it floats; the mean pressure of
    these nodes; the highest and the mean pressure of the others; vCPUs per core that came since
    the host was measured. Pressures count in whole steps, so that noise of the measurement
    doesn't decide; newcomers are counted by Nova, and make equal hosts take turns.

    :param newcomers: vCPUs per core that came since
    :param step: of pressure
    :returns: :data:`HOPELESS` for a host without a CPU that guests may use
    """
    used, rest = outcome.used, outcome.rest
    if used[0] >= ABSURD:
        return HOPELESS
    highest = int(min(_HIGHEST_MAX, used[0] / step + 1e-9))
    mean = highest if len(used) == 1 else int(min(_STEPS_MAX, sum(used) / len(used) / step + 1e-9))
    others = others_mean = 0
    if rest:
        others = int(min(_STEPS_MAX, rest[0] / step + 1e-9))
        others_mean = (
            others if len(rest) == 1 else int(min(_STEPS_MAX, sum(rest) / len(rest) / step + 1e-9))
        )
    return (
        (
            (
                (highest << _TIER_BITS | _TIER.get(outcome.code, _TIER_MAX)) << _STEP_BITS
                | min(mean, _STEPS_MAX)
            )
            << _STEP_BITS
            | others
        )
        << _STEP_BITS
        | others_mean
    ) << _NEW_BITS | int(min(_NEW_MAX, newcomers * _NEW_STEPS))


def weights(keys: Sequence[int | None], unknown: str = MEAN) -> list[float]:
    """Turn keys into weights, the highest best; equal keys get equal weights.

    A hopeless host is one step behind the last of the others: were it as far behind as it
    should be, Nova's stretching would make all others equal.

    :param keys: of :func:`key`, None for hosts of unknown pressure
    :param unknown: :data:`options.MEAN` or :data:`options.WORST`: a plain 0 beside negative
        weights would make them the best
    :returns: finite [steps of pressure], all 0 if nothing is known
    """
    known = [value for value in keys if value is not None and value != HOPELESS]
    # Whole, so that the mean of equals is their equal.
    default = 0 if not known else sum(known) // len(known) if unknown == MEAN else max(known)
    least = max(known, default=0) + UNIT
    return [
        -(default if value is None else least if value == HOPELESS else value) / UNIT
        for value in keys
    ]
