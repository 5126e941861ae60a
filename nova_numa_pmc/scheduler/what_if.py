# SPDX-License-Identifier: Apache-2.0
"""Replay an operator's own requests on saved rows of compute_nodes, with the weigher and without.

Each side fills its own copy of the hosts. Nova's filters are left out but for room, and of its
weighers the four that differ between hosts without server groups and PCI devices take part: free
vCPUs, RAM and disk, and instances being built (nova/scheduler/weights/{cpu,ram,disk,io_ops}.py).
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from nova_numa_pmc import checked
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler import comparison, replay, request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Nova's ``initial_…_allocation_ratio``, for rows that have none.
_CPU_RATIO, _RAM_RATIO, _DISK_RATIO = 4.0, 1.0, 1.0
_AMOUNT_MAX, _RATIO_MAX, _REQUESTS_MAX = 1 << 50, 1000.0, 1_000_000


class WhatIfRequest(Record):
    """A create: a flavor's size, in GiB of disk, for this many instances."""

    flavor: replay.SavedFlavor
    disk_gb: float
    instances: int


class WhatIfHost:
    """A host that is filled.

    :ivar saved: as the weigher reads it
    :ivar vcpus, memory_mb, disk_gb: what may be promised, with Nova's ratios
    """

    def __init__(self, row: Any) -> None:
        """Take a row.

        :raises ValueError, TypeError, KeyError: it can't be used
        """
        self.saved = replay.host(row)

        def amount(name: str, least: float = 0.0) -> float:
            return max(least, replay.amount(row, name, 0) or 0.0)

        self.vcpus = amount('vcpus') * (self._ratio(row, 'cpu') or _CPU_RATIO)
        self.memory_mb = amount('memory_mb') * (self._ratio(row, 'ram') or _RAM_RATIO)
        self.disk_gb = amount('local_gb') * (self._ratio(row, 'disk') or _DISK_RATIO)
        self._ram_mb = amount('memory_mb')
        self.disk_used_gb = amount('local_gb_used')
        self.memory_mb_used = amount('memory_mb_used')
        stats = row.get('stats') or {}
        if type(stats) is str:
            stats = json.loads(stats)
        self.io_ops = max(0.0, float((stats or {}).get('io_workload') or 0))

    @staticmethod
    def _ratio(row: Any, name: str) -> float:
        value = row.get(name + '_allocation_ratio')
        return checked.number(value, _RATIO_MAX) if value else 0.0

    def has_room(self, create: WhatIfRequest) -> bool:
        """Return whether Placement would let one instance go there."""
        return (
            self.saved.vcpus_used + create.flavor.vcpus <= self.vcpus
            and self.memory_mb_used + create.flavor.memory_mb <= self.memory_mb
            and self.disk_used_gb + create.disk_gb <= self.disk_gb
        )

    @property
    def free_mb(self) -> float:
        """Return Nova's free RAM, which knows of no ratio [MiB]."""
        return self._ram_mb - self.memory_mb_used

    def take(self, create: WhatIfRequest) -> None:
        """Count an instance."""
        self.saved.consume(create.flavor)
        self.memory_mb_used += create.flavor.memory_mb
        self.disk_used_gb += create.disk_gb


class WhatIfChoice(Record):
    """Which host would get an instance, with the weigher and without; None: none has room.

    :param pressure, pressure_without: of :func:`comparison.pressures`, None: unknown, or no CPU
        there that guests may use
    """

    request: int
    host: str | None
    without: str | None
    pressure: float | None
    pressure_without: float | None

    @property
    def changed(self) -> bool:
        """Return whether another host gets it."""
        return self.host != self.without


def read_hosts(text: str) -> list[WhatIfHost]:
    """Read rows as :func:`replay.read`.

    :raises RowsError: says which row is wrong, and how
    """
    hosts = []
    for number, row in enumerate(replay.rows(text), 1):
        try:
            hosts.append(WhatIfHost(row))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise replay.RowsError('row %d: %s' % (number, error)) from None
    if not hosts:
        raise replay.RowsError('no rows')
    return hosts


def read_requests(text: str) -> list[WhatIfRequest]:
    """Read requests: objects with vcpus, memory_mb, and disk_gb, count, extra_specs if any.

    :raises RowsError: says which request is wrong, and how
    """
    found = []
    for number, row in enumerate(replay.rows(text), 1):
        try:
            specs = row.get('extra_specs') or {}
            found.append(
                WhatIfRequest(
                    replay.SavedFlavor(
                        checked.named('vcpus', checked.whole, row['vcpus'], 1 << 20),
                        checked.named('memory_mb', checked.whole, row['memory_mb'], _AMOUNT_MAX),
                        {str(key): str(value) for key, value in specs.items()},
                    ),
                    replay.amount(row, 'disk_gb', 0),
                    checked.named('count', checked.whole, row.get('count', 1), _REQUESTS_MAX),
                )
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise replay.RowsError('request %d: %s' % (number, error)) from None
    if not found:
        raise replay.RowsError('no requests')
    return found


def choices(
    text: str, creates: Sequence[WhatIfRequest], conf: Mapping[str, Any], now_s: float
) -> list[WhatIfChoice]:
    """Return the host that would get each instance.

    :param text: of :func:`read_hosts`
    :param conf: option → value, of the group ``[numa_pmc]``
    :param now_s: the time of the decisions [s since the epoch]
    """
    ours, others = read_hosts(text), read_hosts(text)
    neutral = {**conf, 'weight_multiplier': 0.0}
    found = []
    for number, create in enumerate(creates, 1):
        for _ in range(create.instances):
            host, pressure = _place(ours, create, conf, now_s)
            without, pressure_without = _place(others, create, neutral, now_s)
            found.append(WhatIfChoice(number, host, without, pressure, pressure_without))
    return found


def _place(
    hosts: Sequence[WhatIfHost], create: WhatIfRequest, conf: Mapping[str, Any], now_s: float
) -> tuple[str | None, float | None]:
    """Give an instance its host; return the host's name and the pressure it would be left with."""
    roomy = [host for host in hosts if host.has_room(create)]
    guest_request = request.read(replay.SavedRequest(create.flavor))
    estimate_options = request.EstimateOptions(conf['stale_after'], conf['charge_new_guests'])
    estimates = [
        request.estimate(host.saved, guest_request, estimate_options, now_s) for host in roomy
    ]
    filter_options = request.filter_options(guest_request, conf)
    passing = [
        at
        for at, estimate in enumerate(estimates)
        if guest_request.neutral
        or guest_request.pinned
        or not request.objection(estimate, filter_options)
    ]
    if not passing:
        return None, None
    roomy, estimates = [roomy[at] for at in passing], [estimates[at] for at in passing]
    pressures = (
        comparison.pressures(estimates, guest_request.guest) if guest_request.guest else None
    )
    penalties = replay.penalties(
        [host.saved for host in roomy], None if guest_request.neutral else pressures, conf
    )
    multiplier = conf['weight_multiplier']
    weights = [stock - multiplier * one for stock, one in zip(_stock(roomy), penalties)]
    best = max(range(len(roomy)), key=weights.__getitem__)
    roomy[best].take(create)
    pressure = pressures[best] if pressures else None
    return roomy[best].saved.host, None if pressure == math.inf else pressure


def _stock(hosts: Sequence[WhatIfHost]) -> list[float]:
    """Return the sum of Nova's own weights, with the default multipliers, of each host."""
    columns = (
        (1.0, [max(0.0, host.vcpus - host.saved.vcpus_used) for host in hosts]),
        (1.0, [max(0.0, host.free_mb) for host in hosts]),
        (1.0, [max(0.0, host.disk_gb - host.disk_used_gb) for host in hosts]),
        (-1.0, [host.io_ops for host in hosts]),
    )
    total = [0.0] * len(hosts)
    for multiplier, column in columns:
        most = max(column)
        if most:
            total = [sum_ + multiplier * value / most for sum_, value in zip(total, column)]
    return total
