# SPDX-License-Identifier: Apache-2.0
"""Replay an operator's own requests on saved rows of compute_nodes, with the weigher and without.

Each side fills its own copy of the hosts. Of Nova's filters only the check for room is simulated,
and of its weighers the four that tell hosts apart without server groups and PCI devices: free
vCPUs, RAM and disk, and instances being built (nova/scheduler/weights/{cpu,ram,disk,io_ops}.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nova_numa_pmc import checked
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler import request, saved_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_AMOUNT_MAX, _ALLOCATION_MAX_RATIO, _REQUESTS_MAX = 1 << 50, 1000.0, 1_000_000


class WhatIfRequest(Record):
    """A create request: a flavor, its disk [GiB], and the number of instances."""

    flavor: saved_hosts.SavedFlavor
    disk_gb: float
    instances: int


class WhatIfHost:
    """A host that replayed requests fill up.

    :ivar saved: as the weigher reads it
    :ivar vcpus, memory_mb, disk_gb: what may be promised, with Nova's ratios
    """

    def __init__(self, row: Any) -> None:
        """Take a row.

        :raises ValueError, TypeError, KeyError: it cannot be used
        """
        self.saved = saved_hosts.parse_host(row)

        def amount(name: str, minimum: float = 0.0) -> float:
            return max(minimum, saved_hosts.amount(row, name, 0) or 0.0)

        self.vcpus = amount('vcpus') * self._ratio(row, 'cpu')
        self.memory_mb = amount('memory_mb') * self._ratio(row, 'ram')
        self.disk_gb = amount('local_gb') * self._ratio(row, 'disk')
        self._ram_mb = amount('memory_mb')
        self.disk_used_gb = amount('local_gb_used')
        self.memory_mb_used = amount('memory_mb_used')
        self.io_ops = max(0.0, float(saved_hosts.stats_of(row).get('io_workload') or 0))

    @staticmethod
    def _ratio(row: Any, name: str) -> float:
        value = row.get(name + '_allocation_ratio')
        ratio = checked.number(value, _ALLOCATION_MAX_RATIO) if value else 0.0
        return ratio or saved_hosts.INITIAL_RATIOS[name]

    def has_room(self, create: WhatIfRequest) -> bool:
        """Return whether Placement would let one instance go there."""
        return (
            self.saved.vcpus_used + create.flavor.vcpus <= self.vcpus
            and self.memory_mb_used + create.flavor.memory_mb <= self.memory_mb
            and self.disk_used_gb + create.disk_gb <= self.disk_gb
        )

    @property
    def free_mb(self) -> float:
        """Return the free RAM as Nova weighs it, without the allocation ratio [MiB]."""
        return self._ram_mb - self.memory_mb_used

    def consume(self, create: WhatIfRequest) -> None:
        """Count an instance."""
        self.saved.consume(create.flavor)
        self.memory_mb_used += create.flavor.memory_mb
        self.disk_used_gb += create.disk_gb


class WhatIfChoice(Record):
    """Which host would get an instance, with the weigher and without; None: none has room.

    :param pressure, pressure_without: highest utilisation of the nodes that it would use, None:
        unknown, or no CPU there that guests may use
    :param loss, loss_without: what guests would lose there because of it, as a share of the CPU
        that it wants
    """

    request: int
    host: str | None
    without: str | None
    pressure: float | None = None
    pressure_without: float | None = None
    loss: float | None = None
    loss_without: float | None = None

    @property
    def changed(self) -> bool:
        """Return whether another host gets it."""
        return self.host != self.without


def read_hosts(text: str) -> list[WhatIfHost]:
    """Read rows as :func:`saved_hosts.read`.

    :raises RowsError: says which row is wrong, and how
    """
    return saved_hosts.parse_each(text, 'row', WhatIfHost)


def read_requests(text: str) -> list[WhatIfRequest]:
    """Read requests: objects with vcpus, memory_mb, and disk_gb, count, extra_specs if any.

    :raises RowsError: says which request is wrong, and how
    """
    return saved_hosts.parse_each(text, 'request', _parse_request)


def _parse_request(row: Any) -> WhatIfRequest:
    specs = row.get('extra_specs') or {}
    return WhatIfRequest(
        saved_hosts.SavedFlavor(
            checked.member('vcpus', checked.integer, row['vcpus'], 1 << 20),
            checked.member('memory_mb', checked.integer, row['memory_mb'], _AMOUNT_MAX),
            {str(key): str(value) for key, value in specs.items()},
        ),
        saved_hosts.amount(row, 'disk_gb', 0),
        checked.member('count', checked.integer, row.get('count', 1), _REQUESTS_MAX),
    )


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
    chosen = []
    for request_number, create in enumerate(creates, 1):
        for _ in range(create.instances):
            mine = _place(ours, create, conf, now_s)
            without = _place(others, create, neutral, now_s)
            chosen.append(
                WhatIfChoice(
                    request_number,
                    mine and mine.host,
                    without and without.host,
                    mine and mine.pressure,
                    without and without.pressure,
                    mine and mine.loss,
                    without and without.loss,
                )
            )
    return chosen


def _place(
    hosts: Sequence[WhatIfHost], create: WhatIfRequest, conf: Mapping[str, Any], now_s: float
) -> saved_hosts.HostDecision | None:
    """Give an instance its host; return the decision on it, None: none has room."""
    roomy = [host for host in hosts if host.has_room(create)]
    guest_request = request.read(saved_hosts.SavedRequest(create.flavor))
    decisions = saved_hosts.decide([host.saved for host in roomy], guest_request, conf, now_s)
    passing = [at for at, decision in enumerate(decisions) if decision.passes]
    if not passing:
        return None
    roomy, decisions = [roomy[at] for at in passing], [decisions[at] for at in passing]
    multiplier = conf['weight_multiplier']
    weights = [
        stock - multiplier * decision.penalty
        for stock, decision in zip(_stock_weights(roomy), decisions)
    ]
    best = max(range(len(roomy)), key=weights.__getitem__)
    roomy[best].consume(create)
    return decisions[best]


def _stock_weights(hosts: Sequence[WhatIfHost]) -> list[float]:
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
