# SPDX-License-Identifier: Apache-2.0
"""One line of JSON for each decision in shadow mode: what the weigher would have changed.

A line is shorter than 1 KB. :mod:`shadow_log` sums a log of them up.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.scheduling.added_loss import AddedLoss
    from nova_numa_pmc.scheduler.host_estimate import HostEstimate
    from nova_numa_pmc.scheduler.request import GuestRequest

#: Precedes the JSON in a line of the log.
MARK = 'numa_pmc decision: '
VERSION = 1
#: Hosts that a line names besides the chosen ones; characters of a name.
_TOP, _NAME_MAX = 3, 64


class ShadowHost(Record):
    """A host of a decision.

    :param others: weight that Nova's weighers before ours have given it
    :param share: weight that ours would add, 0 or below; ``counted``: weight that it does add
    :param loss: what the guest would meet there, assumed where the estimate is unknown
    :param age_s: of its metrics, None: it has none
    """

    host: str
    others: float
    share: float
    counted: float
    loss: AddedLoss
    age_s: float | None
    estimate: HostEstimate


def line(guest_request: GuestRequest, candidates: Sequence[ShadowHost], now_s: float) -> str:
    """Return the line about a decision.

    Of equals the first counts, as with ``host_subset_size = 1``: a larger one draws among the
    first few.
    """
    guest = guest_request.guest
    would = sorted(candidates, key=lambda candidate: -(candidate.others + candidate.share))
    chosen = max(candidates, key=lambda candidate: candidate.others + candidate.counted)
    data = {
        'version': VERSION,
        'at': round(now_s),
        'instance': guest_request.instance_uuid,
        'vcpus': guest and guest.vcpus,
        'memory_mb': guest and guest.memory_mib,
        'hosts': len(candidates),
        'unknown': sum(candidate.estimate.outcome is None for candidate in candidates),
        'changed': would[0].host != chosen.host,
        'chosen': _host_data(chosen),
        'top': [_host_data(candidate) for candidate in would[:_TOP]],
    }
    return MARK + json.dumps(data, separators=(',', ':'))


def _host_data(candidate: ShadowHost) -> dict[str, Any]:
    outcome = candidate.estimate.outcome
    loss, age_s = candidate.loss, candidate.age_s
    return {
        'host': candidate.host[:_NAME_MAX],
        'others': round(candidate.others, 3),
        'share': round(candidate.share, 3),
        # JSON has no infinity: no CPU there that guests may use.
        'pressure': None if outcome is None else round(min(loss.pressure, 1e6), 3),
        'loss': round(loss.loss_ratio, 4),
        'age_s': None if age_s is None else round(age_s),
        'why': (candidate.estimate.unknown or '')[:40] if outcome is None else outcome.code,
    }
