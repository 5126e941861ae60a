# SPDX-License-Identifier: Apache-2.0
"""Describe each decision in shadow mode in a line of JSON: what the weigher would have changed.

A line is shorter than 1 KB. doc/source/admin/shadow.rst summarises a log of such lines with jq.
"""

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.scheduler.losses import Loss
    from nova_numa_pmc.scheduler.request import GuestRequest

#: Precedes the JSON in a line of the log.
MARK = 'numa_pmc decision: '
VERSION = 1
#: Number of hosts that a line names besides the chosen one, and of characters of a name.
_TOP, _NAME_MAX = 3, 64


class ShadowHost(Record):
    """A host of a decision.

    :param nodename: the name of the host's compute node (Nova's hypervisor_hostname), as all nodes
        of an ironic nova-compute have the same host
    :param other_weight: weight that the weighers before ours have given to the host
    :param added_weight: weight that our weigher would add, at most 0
    :param counted_weight: weight that our weigher does add
    :param loss: the guest's loss there, assumed if the host's figures are unknown
    :param age_s: age of the host's metrics; None if it has none
    :param why_unknown: why its figures are unknown; None if they are known
    """

    nodename: str
    other_weight: float
    added_weight: float
    counted_weight: float
    loss: Loss
    age_s: float | None
    why_unknown: str | None


def line(guest_request: GuestRequest, hosts: Sequence[ShadowHost], realtime_s: float) -> str:
    """Return the line about a decision.

    Of equal hosts, the first one counts, as with ``host_subset_size = 1``; with a larger value,
    Nova draws one of the first few.
    """
    guest = guest_request.guest
    by_preference = heapq.nsmallest(
        _TOP, hosts, key=lambda host: -(host.other_weight + host.added_weight)
    )
    chosen = max(hosts, key=lambda host: host.other_weight + host.counted_weight)
    data = {
        'version': VERSION,
        'at': round(realtime_s),
        'instance': guest_request.instance_uuid,
        'vcpus': guest and guest.vcpus,
        'memory_mb': guest and guest.memory_mib,
        'hosts': len(hosts),
        'unknown': sum(host.why_unknown is not None for host in hosts),
        'changed': by_preference[0].nodename != chosen.nodename,
        'chosen': _host_data(chosen),
        'top': [_host_data(host) for host in by_preference],
    }
    return MARK + json.dumps(data, separators=(',', ':'))


def _host_data(host: ShadowHost) -> dict[str, Any]:
    """Return what a line says about a host.

    ``host`` is the name of its compute node. ``others`` is the weight that the weighers before
    ours have given to the host, and ``share`` the weight that our weigher would add, at most 0;
    neither is a share of anything.
    """
    loss, age_s, is_known = host.loss, host.age_s, host.why_unknown is None
    return {
        'host': host.nodename[:_NAME_MAX],
        'others': round(host.other_weight, 3),
        'share': round(host.added_weight, 3),
        # It is infinite if guests may use none of the host's CPUs; JSON has no infinity.
        'pressure': round(min(loss.pressure, 1e6), 3) if is_known else None,
        'loss': round(loss.ratio, 4),
        'age_s': None if age_s is None else round(age_s),
        'nodes': loss.nodes,
        'why': (host.why_unknown or '')[:40],
    }
