# SPDX-License-Identifier: Apache-2.0
"""Repeat the scheduler's decision on saved rows of Nova's compute_nodes, without Nova.

The functions of our filter and our weigher run on hosts and a request that look like Nova's.
Nova's other filters and weighers are left out.
"""

from __future__ import annotations

import functools
import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

from nova_numa_pmc import extra_specs, json_values
from nova_numa_pmc.compute import metrics_decoder
from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.core import rates
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler import comparison, host_estimate, penalty, refusals, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_Default = TypeVar('_Default', int, None)
_Parsed = TypeVar('_Parsed')

#: Limits on the input. Ten thousand hosts have rows with a few kilobytes of metrics each.
SIZE_MAX_BYTES, _HOSTS_MAX = 256 << 20, 100_000
AMOUNT_MAX = 1 << 50
#: Nova's defaults of ``initial_…_allocation_ratio``, for rows without a ratio.
INITIAL_RATIOS = {'cpu': 4.0, 'ram': 1.0, 'disk': 1.0}


class RowsError(NumaPmcError):
    """Saved rows of hosts cannot be used."""


class SavedHost:
    """A saved host, with the attributes of Nova's HostState that are read.

    :ivar row: the row, which is never changed
    :ivar host: the host's name
    :ivar metrics: a list of dicts, as in the column; anything else is refused only when it is
        decoded
    :ivar vcpus_used: what the row shows, and the shared vCPUs of :meth:`consume`
    """

    def __init__(self, row: Any) -> None:
        """Read a row.

        :raises ValueError, TypeError, KeyError, AttributeError, RecursionError: the row cannot be
            used
        """
        name = row.get('host') or row.get('hypervisor_hostname')
        if type(name) is not str or not name.isprintable():
            raise ValueError('no host')
        reported = row['metrics']
        if type(reported) is str:
            reported = json.loads(reported)
        self.row: Mapping[str, Any] = row
        self.host = name[:255]
        self.metrics: object = reported or []
        self.vcpus_total = amount(row, 'vcpus', 0)
        self.vcpus_used = amount(row, 'vcpus_used', 0)
        self.total_usable_ram_mb = amount(row, 'memory_mb', 0)
        self.free_ram_mb = self.total_usable_ram_mb - amount(row, 'memory_mb_used', 0)
        self.ram_allocation_ratio = allocation_ratio(row, 'ram')
        self.instances: Mapping[str, Any] = {}
        # Rows do not list the host's instances, so departures are not added back.
        self.updated, self.numa_topology = None, None
        self.stats, self.num_instances = dict[str, Any](), 0

    def consume(self, flavor: SavedFlavor) -> None:
        """Count a guest, as Nova's ``consume_from_request()`` does for each instance.

        Nova counts dedicated CPUs as used and as pinned, and the latter are subtracted from the
        former wherever demand is derived. Rows have no NUMATopology, so neither is counted here.
        """
        self.vcpus_used += extra_specs.shared_vcpus(flavor.vcpus, flavor.extra_specs, None)
        self.free_ram_mb -= flavor.memory_mb


class SavedFlavor(Record):
    """A flavor, with the attributes of Nova's that are read."""

    vcpus: int
    memory_mb: int
    extra_specs: dict[str, str] = {}


class SavedRequest(Record):
    """A request, with the attributes of Nova's RequestSpec that are read."""

    flavor: SavedFlavor
    instance_uuid: str | None = None
    numa_topology: object = None


class HostDecision(Record):
    """Decision of the filter and the weigher about one host.

    :param host: the host's name
    :param why_refused: why the filter refuses the host; empty if it passes
    :param pressure: the highest utilisation of the nodes that the guest would use; None if it is
        unknown, if the host is refused, or if guests may use none of its CPUs
    :param loss: what guests would lose there because of the new one, as a share of the CPU time
        that it wants, assumed if the pressure is unknown; None if the host is refused or the
        request was not understood
    :param penalty: 0 to 1; 0 if the host is refused or hosts are not compared for the request
    :param added_weight: what Nova adds to the host's weight, at most 0; None if the host is
        refused
    """

    host: str
    estimate: host_estimate.HostEstimate
    why_refused: str
    pressure: float | None = None
    loss: float | None = None
    penalty: float = 0.0
    added_weight: float | None = None

    @property
    def passes(self) -> bool:
        """Return whether the host passes the filter."""
        return not self.why_refused


def read(text: str) -> tuple[list[SavedHost], float]:
    """Read saved rows, from a JSON array of objects or from one object per line.

    :returns: (hosts, the time at which they were saved [s since the epoch]). The time is the
        latest ``saved_at`` of the rows, or else that of the latest measurement, or 0
    :raises RowsError: a row cannot be used; the message says which one and why
    """
    names: set[str] = set()

    def parse(row: Any) -> tuple[SavedHost, float | None]:
        host = SavedHost(row)
        if host.host in names:
            raise ValueError('%s occurs twice' % host.host)
        if len(names) == _HOSTS_MAX:
            raise ValueError('more than %d hosts' % _HOSTS_MAX)
        names.add(host.host)
        return host, amount(row, 'saved_at', None)

    rows = parse_each(text, 'row', parse)
    times_s = [saved_s for _, saved_s in rows if saved_s is not None] or [
        decoded.taken_s
        for decoded in (metrics_decoder.decode(host.metrics) for host, _ in rows)
        if decoded
    ]
    return [host for host, _ in rows], max(times_s, default=0)


def parse_each(text: str, noun: str, parse: Callable[[Any], _Parsed]) -> list[_Parsed]:
    """Parse each row of a JSON array of objects, or of one object per line.

    :param noun: the word for a row in error messages
    :raises RowsError: there is no row, or one cannot be used; the message says which one and why
    """
    parsed = []
    for number, row in enumerate(_rows(text), 1):
        try:
            parsed.append(parse(row))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RowsError('%s %d: %s' % (noun, number, error)) from None
    if not parsed:
        raise RowsError('no %ss' % noun)
    return parsed


def rank(
    hosts: Sequence[SavedHost], flavor: SavedFlavor, conf: Mapping[str, Any], realtime_s: float
) -> list[HostDecision]:
    """Filter and weigh hosts, and sort them.

    :param conf: {option: value} of the group ``[numa_pmc]``
    :param realtime_s: the time of the decision [s since the epoch]
    :returns: the decisions in the order in which Nova would try the hosts: the best host first,
        equal hosts in the given order, refused hosts last
    """
    guest_request = request.read(SavedRequest(flavor))
    decisions = decide(hosts, guest_request, conf, realtime_s)
    if guest_request.why_not_weighed:
        estimate = host_estimate.HostEstimate(None, guest_request.why_not_weighed)
        decisions = [decision._replace(estimate=estimate) for decision in decisions]
    return sorted(
        decisions, key=lambda decision: (not decision.passes, -(decision.added_weight or 0.0))
    )


def decide(
    hosts: Sequence[SavedHost],
    guest_request: request.GuestRequest,
    conf: Mapping[str, Any],
    realtime_s: float,
) -> list[HostDecision]:
    """Filter and weigh hosts, and return the decisions in the order of the hosts.

    Jitter is left out, because the uuid of a future instance is not known.

    :param conf: {option: value} of the group ``[numa_pmc]``
    :param realtime_s: the time of the decision [s since the epoch]
    """
    filter_options = refusals.filter_options(guest_request, conf)
    estimates = host_estimate.estimates(hosts, guest_request, conf, realtime_s)
    decisions = [
        HostDecision(
            host.host, estimate, refusals.why_refused(estimate, guest_request, filter_options)
        )
        for host, estimate in zip(hosts, estimates)
    ]
    passing = [position for position, decision in enumerate(decisions) if decision.passes]
    if guest_request.guest is None:
        for position in passing:
            decisions[position] = decisions[position]._replace(added_weight=0.0)
        return decisions
    losses = comparison.compare(
        [hosts[position] for position in passing],
        [estimates[position] for position in passing],
        guest_request.guest,
    )
    options = penalty.PenaltyOptions(conf['penalty_floor'], 0.0)
    multiplier = (
        penalty.valid_multiplier(conf['weight_multiplier'])
        if conf['mode'] == scheduler_conf.ON
        else 0.0
    )
    for position, loss in zip(passing, losses):
        host_penalty = (
            0.0
            if guest_request.why_not_weighed
            else penalty.penalty(loss, options, hosts[position].host)
        )
        is_known = estimates[position].outcome is not None and loss.pressure < math.inf
        decisions[position] = decisions[position]._replace(
            pressure=loss.pressure if is_known else None,
            loss=loss.loss_ratio,
            penalty=host_penalty,
            added_weight=0.0 - multiplier * host_penalty,
        )
    return decisions


def defaults() -> dict[str, Any]:
    """Return the options of ``[numa_pmc]`` with their defaults."""
    return {option.name: option.default for option in scheduler_conf.OPTIONS}


def node_metrics(host: SavedHost) -> list[dict[str, int | float | None]]:
    """Return the metrics of each node, without guests that have arrived since.

    :returns: for each node, the utilisations that make up pressure, what is promised, and the
        share of remote accesses, each None if it is unknown; an empty list if the host has no
        metrics of ours
    """
    decoded = metrics_decoder.decode(host.metrics)
    if decoded is None:
        return []
    return [
        {
            'node': node.id,
            'cpu_ratio': rates.ratio(node.demand_cores, node.cores),
            'bandwidth_ratio': rates.ratio(
                node.bandwidth_bytes_per_sec, node.bandwidth_max_bytes_per_sec
            ),
            'link_ratio': node.link_ratio,
            'promised_ratio': rates.ratio(node.promised_bytes, node.capacity_bytes),
            'vcpus': node.vcpus,
            'remote_ratio': remote_ratio,
        }
        for node, remote_ratio in zip(decoded.view.nodes, decoded.remote_ratios)
    ]


def _rows(text: str) -> Iterator[Any]:
    """Yield the rows of a JSON array, or of lines of JSON.

    :raises RowsError: the text is neither
    """
    start = text.lstrip()[:1]
    try:
        if start == '[':
            yield from json.loads(text)
            return
        for line in text.splitlines():
            if line.strip():
                yield json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowsError('not JSON: %s' % error) from None


def amount(row: Any, name: str, default: _Default, minimum: float = 0) -> float | _Default:
    """Return an amount from a row, or the default if the row does not have it.

    :param minimum: below 0 for a free amount, because more than there is may be allocated
    :raises ValueError: it is not a number, or out of range
    """
    value = row.get(name, default)
    check = functools.partial(json_values.number, minimum=minimum)
    return default if value is None else json_values.member(name, check, value, AMOUNT_MAX)


def allocation_ratio(row: Any, kind: str) -> float:
    """Return an allocation ratio of a row's host, or Nova's default if the row has none.

    :param kind: a key of :data:`INITIAL_RATIOS`
    :raises ValueError: it is not a number, or out of range
    """
    return amount(row, kind + '_allocation_ratio', 0) or INITIAL_RATIOS[kind]


def stats_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's ``stats``, which Nova keeps as JSON.

    :raises ValueError, RecursionError: they are not JSON, or nested too deeply
    """
    stats = row.get('stats') or {}
    return (json.loads(stats) if type(stats) is str else stats) or {}
