# SPDX-License-Identifier: Apache-2.0
"""Replay an operator's own requests on saved rows of compute_nodes, with and without the weigher.

Each of the two runs fills its own copy of the hosts. Of Nova's filters, only the check for room is
simulated; of its weighers, only those for free vCPUs, RAM and disk, and for instances being built
(nova/scheduler/weights/{cpu,ram,disk,io_ops}.py), without the multipliers of aggregates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nova_numa_pmc import json_values
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler import penalty, request, saved_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Options of ``[filter_scheduler]`` with the multipliers of the weighers that are simulated.
MULTIPLIERS = (
    'cpu_weight_multiplier',
    'ram_weight_multiplier',
    'disk_weight_multiplier',
    'io_ops_weight_multiplier',
)
_MEMORY_MAX_MB, _REQUESTS_MAX = 1 << 50, 1_000_000


class WhatIfRequest(Record):
    """A create request: a flavor, its disk [GiB], and the number of instances."""

    flavor: saved_hosts.SavedFlavor
    disk_gb: float
    instances: int


class WhatIfHost:
    """A host that is filled by replayed requests.

    :ivar saved: the host as the weigher reads it
    :ivar vcpus_used: vCPUs of all guests, including those with CPUs of their own
    :ivar vcpus, memory_mb, disk_gb: amounts that may be allocated, by Nova's allocation ratios
    :ivar free_disk_gb: disk that Nova weighs, without the allocation ratio
    :ivar io_ops: number of instances that are built or moved there, with those of the present
        request
    """

    def __init__(self, row: Any) -> None:
        """Read a row.

        :raises ValueError, TypeError, KeyError: the row cannot be used
        """
        self.saved = saved_hosts.SavedHost(row)
        self.vcpus_used = self.saved.vcpus_used
        self.vcpus = self.saved.vcpus_total * saved_hosts.allocation_ratio(row, 'cpu')
        self.memory_mb = self.saved.total_usable_ram_mb * self.saved.ram_allocation_ratio
        self.disk_gb = saved_hosts.amount(row, 'local_gb', 0) * saved_hosts.allocation_ratio(
            row, 'disk'
        )
        self.disk_used_gb: float = saved_hosts.amount(row, 'local_gb_used', 0)
        self.free_disk_gb = _free_disk_gb(row)
        self._saved_io_ops = max(0.0, float(saved_hosts.stats_of(row).get('io_workload') or 0))
        self.io_ops = self._saved_io_ops

    def has_room(self, create_request: WhatIfRequest) -> bool:
        """Return whether Placement would allow one more instance on the host."""
        memory_mb_used = self.saved.total_usable_ram_mb - self.saved.free_ram_mb
        return (
            self.vcpus_used + create_request.flavor.vcpus <= self.vcpus
            and memory_mb_used + create_request.flavor.memory_mb <= self.memory_mb
            and self.disk_used_gb + create_request.disk_gb <= self.disk_gb
        )

    def consume(self, create_request: WhatIfRequest) -> None:
        """Count one instance of a request, as one that is being built as well."""
        self.saved.consume(create_request.flavor)
        self.vcpus_used += create_request.flavor.vcpus
        self.disk_used_gb += create_request.disk_gb
        self.free_disk_gb -= create_request.disk_gb
        self.io_ops += 1

    def end_builds(self) -> None:
        """Count the instances of the present request as built."""
        self.io_ops = self._saved_io_ops


class ChosenHost(Record):
    """Host that an instance would get.

    :param host: its name; None if no host has room, or if our filter refuses all that have
    :param pressure: the highest utilisation of the nodes that the instance would use there; None
        if it is unknown, or if guests may use none of the host's CPUs
    :param loss: what guests would lose there because of the instance, as a share of the CPU time
        that it wants
    :param refused: whether hosts have room, but our filter refuses all of them
    """

    host: str | None = None
    pressure: float | None = None
    loss: float | None = None
    refused: bool = False


class WhatIfChoice(Record):
    """Hosts that an instance would get with and without the weigher.

    :param request: the number of the request, from 1
    """

    request: int
    weighed: ChosenHost
    unweighed: ChosenHost

    @property
    def changed(self) -> bool:
        """Return whether the instance gets another host with the weigher."""
        return self.weighed.host != self.unweighed.host


def read_requests(text: str) -> list[WhatIfRequest]:
    """Read requests, which are objects with ``vcpus``, ``memory_mb`` and optional members.

    The optional members are ``disk_gb``, ``count`` and ``extra_specs``.

    :raises RowsError: a request cannot be used; the message says which one and why
    """
    return saved_hosts.parse_each(text, 'request', _parse_request)


def _parse_request(row: Any) -> WhatIfRequest:
    specs = row.get('extra_specs') or {}
    return WhatIfRequest(
        saved_hosts.SavedFlavor(
            json_values.member('vcpus', json_values.integer, row['vcpus'], 1 << 20),
            json_values.member('memory_mb', json_values.integer, row['memory_mb'], _MEMORY_MAX_MB),
            {str(key): str(value) for key, value in specs.items()},
        ),
        saved_hosts.amount(row, 'disk_gb', 0),
        json_values.member('count', json_values.integer, row.get('count', 1), _REQUESTS_MAX),
    )


def choices(
    text: str,
    create_requests: Sequence[WhatIfRequest],
    conf: Mapping[str, Any],
    multipliers: Mapping[str, float],
    realtime_s: float,
) -> list[WhatIfChoice]:
    """Return the hosts that each instance would get.

    :param text: rows, as :func:`saved_hosts.read` takes them
    :param conf: {option: value} of the group ``[numa_pmc]``
    :param multipliers: {option: value} for each of :data:`MULTIPLIERS`
    :param realtime_s: the time of the decisions [s since the epoch]
    :raises RowsError: a row cannot be used; the message says which one and why
    """
    copies = saved_hosts.parse_each(text, 'row', lambda row: (WhatIfHost(row), WhatIfHost(row)))
    weighed_hosts, unweighed_hosts = zip(*copies)
    unweighed_conf = {**conf, 'weight_multiplier': 0.0}
    numbers = (
        number
        for number, create_request in enumerate(create_requests, 1)
        for _ in range(create_request.instances)
    )
    return [
        WhatIfChoice(number, weighed, unweighed)
        for number, weighed, unweighed in zip(
            numbers,
            _replay(weighed_hosts, create_requests, conf, multipliers, realtime_s),
            _replay(unweighed_hosts, create_requests, unweighed_conf, multipliers, realtime_s),
        )
    ]


def _replay(
    hosts: Sequence[WhatIfHost],
    create_requests: Sequence[WhatIfRequest],
    conf: Mapping[str, Any],
    multipliers: Mapping[str, float],
    realtime_s: float,
) -> Iterator[ChosenHost]:
    """Place the instances, and yield the host of each.

    Requests have no times. The instances of one request are built at the same time, and all of
    them are taken to be built before the next request.
    """
    for create_request in create_requests:
        for _ in range(create_request.instances):
            yield _place_instance(hosts, create_request, conf, multipliers, realtime_s)
        for host in hosts:
            host.end_builds()


def _place_instance(
    hosts: Sequence[WhatIfHost],
    create_request: WhatIfRequest,
    conf: Mapping[str, Any],
    multipliers: Mapping[str, float],
    realtime_s: float,
) -> ChosenHost:
    """Place an instance, and return its host."""
    hosts_with_room = [host for host in hosts if host.has_room(create_request)]
    guest_request = request.read(saved_hosts.SavedRequest(create_request.flavor))
    decisions = saved_hosts.decide(
        [host.saved for host in hosts_with_room], guest_request, conf, realtime_s
    )
    passing = [position for position, decision in enumerate(decisions) if decision.passes]
    if not passing:
        return ChosenHost(refused=bool(decisions))
    hosts_with_room = [hosts_with_room[position] for position in passing]
    decisions = [decisions[position] for position in passing]
    multiplier = penalty.valid_multiplier(conf['weight_multiplier'])
    nova_weights = _nova_weights(hosts_with_room, multipliers)
    weights = [
        nova_weight - multiplier * decision.penalty
        for nova_weight, decision in zip(nova_weights, decisions)
    ]
    best = max(range(len(hosts_with_room)), key=weights.__getitem__)
    hosts_with_room[best].consume(create_request)
    return ChosenHost(decisions[best].host, decisions[best].pressure, decisions[best].loss)


def _nova_weights(hosts: Sequence[WhatIfHost], multipliers: Mapping[str, float]) -> list[float]:
    """Return the sum of each host's weights by the weighers that :data:`MULTIPLIERS` names."""
    columns = (
        [max(0.0, host.vcpus - host.vcpus_used) for host in hosts],
        [max(0.0, host.saved.free_ram_mb) for host in hosts],
        [max(0.0, host.free_disk_gb) for host in hosts],
        [host.io_ops for host in hosts],
    )
    weights = [0.0] * len(hosts)
    for name, column in zip(MULTIPLIERS, columns):
        multiplier, maximum = multipliers[name], max(column)
        if maximum:
            weights = [
                weight + multiplier * (value / maximum) for weight, value in zip(weights, column)
            ]
    return weights


def _free_disk_gb(row: Any) -> float:
    """Return the disk that HostState would have as free (nova/scheduler/host_manager.py) [GiB].

    What would be free if all disk images had their full size is in ``disk_available_least``, which
    some drivers do not report. Both it and ``free_disk_gb`` may be below 0.
    """

    def read(name: str) -> float | None:
        return saved_hosts.amount(row, name, None, -saved_hosts.AMOUNT_MAX)

    free_gb, least_gb = read('free_disk_gb'), read('disk_available_least')
    if free_gb is None:  # as nova-compute computes it (nova/compute/resource_tracker.py)
        total_gb, used_gb = (
            saved_hosts.amount(row, name, 0) for name in ('local_gb', 'local_gb_used')
        )
        free_gb = total_gb - used_gb
    return free_gb if least_gb is None else min(free_gb, least_gb)
