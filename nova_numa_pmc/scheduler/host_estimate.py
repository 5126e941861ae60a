# SPDX-License-Identifier: Apache-2.0
"""Estimate the pressure that a guest would leave on a host, from Nova's HostState.

Imports nothing of Nova: its arguments have the same attributes, from Nova or from a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nova_numa_pmc.compute import host_metrics
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, expected_per_vcpu
from nova_numa_pmc.core.placement.ranking import PRESSURE_MAX
from nova_numa_pmc.core.scheduling.charges import add_new_guests, subtract_guest
from nova_numa_pmc.core.scheduling.outcome import expected_guest, outcome, with_cores_per_vcpu
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from nova_numa_pmc.core.scheduling.aggregates import Aggregates
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, Outcome
    from nova_numa_pmc.scheduler.request import GuestRequest

    #: What an estimate depends on besides the metrics: vCPUs and MiB that came since, whether
    #: the guest is there, the guest.
    _Size = tuple[float, int]  # vCPUs, MiB
    _Key = tuple[float, float, _Size | None, ExpectedGuest]

#: More CPU than this many times a host's CPUs and its guests' vCPUs cannot be wanted there.
PLAUSIBLE_MAX_RATIO = 2.0
#: Attribute in which a HostState keeps its decoded metrics and the last estimate. Nova creates new
#: HostStates for each request, so the cache does not outlive it.
_KEPT = '_numa_pmc_estimate'


class HostStateLike(Protocol):
    """Fields read of a HostState."""

    @property
    def host(self) -> str:
        """Return its name."""

    @property
    def metrics(self) -> object:
        """Return Nova's metrics, as :func:`host_metrics.decode` takes them."""

    @property
    def instances(self) -> Mapping[str, Any]:
        """Return its guests by uuid: Nova's instances."""

    @property
    def vcpus_used(self) -> float:
        """Return the vCPUs of its guests."""

    @property
    def vcpus_total(self) -> float:
        """Return its CPUs that guests may use; 0: not known."""

    @property
    def total_usable_ram_mb(self) -> float:
        """Return its memory [MiB]."""

    @property
    def free_ram_mb(self) -> float:
        """Return its memory that guests do not use [MiB]."""

    @property
    def updated(self) -> datetime | None:
        """Return when Nova saved this, with its zone; None: not known."""

    @property
    def stats(self) -> Mapping[str, Any]:
        """Return Nova's counts of its instances by their state."""

    @property
    def numa_topology(self) -> Any:
        """Return Nova's NUMATopology, None: not known."""


class EstimateOptions(Record):
    """Which of a host's metrics count in an estimate; see ``conf/scheduler.py``."""

    stale_after: float = 5.0
    charge_new_guests: bool = True


def estimate_options(conf: Mapping[str, Any]) -> EstimateOptions:
    """Return the options of the group ``[numa_pmc]``."""
    return EstimateOptions(conf['stale_after'], conf['charge_new_guests'])


class HostEstimate(Record):
    """Pressures that a guest would leave on a host, as far as its metrics show.

    :param outcome: what the guest would leave, None: not known
    :param unknown: why the outcome is unknown; None: it is known
    :param charged_vcpus: vCPUs of guests that came since the metrics were recorded
    :param measured: the CPU wanted on the host's nodes is measured, not estimated
    :param members: node ids of each position in ``outcome.at``
    :param history: (guests, sum of their cores per vCPU) by which the host expects new ones,
        None: nothing is known
    :param host: the aggregates that it was estimated with; None: unknown
    """

    outcome: Outcome | None
    unknown: str | None
    charged_vcpus: float = 0
    measured: bool = False
    members: tuple[tuple[int, ...], ...] = ()
    history: tuple[int, float] | None = None
    host: Aggregates | None = None


def estimate(
    host_state: HostStateLike, guest_request: GuestRequest, options: EstimateOptions, now_s: float
) -> HostEstimate:
    """Return the estimate of a host with the guest; never raise: that would fail the boot.

    A second estimate of the same host, by the weigher after the filter or for the next instance
    of one request, costs a look-up unless the host has changed.

    :param now_s: CLOCK_REALTIME [s since the epoch]
    """
    try:
        return _estimate_cached(host_state, guest_request, options, now_s)
    except Exception as error:
        return HostEstimate(None, '%.200r' % error)


def estimates(
    host_states: Sequence[HostStateLike],
    guest_request: GuestRequest,
    conf: Mapping[str, Any],
    now_s: float,
) -> list[HostEstimate]:
    """Return the estimate of each host.

    :param conf: option → value, of the group ``[numa_pmc]``
    :param now_s: as :func:`estimate`
    """
    options = estimate_options(conf)
    return [estimate(host_state, guest_request, options, now_s) for host_state in host_states]


def _estimate_cached(
    host_state: HostStateLike, guest_request: GuestRequest, options: EstimateOptions, now_s: float
) -> HostEstimate:
    """Return the estimate kept on the HostState; make it where what it depends on has changed."""
    reported = host_state.metrics
    kept: _KeptEstimate | None = host_state.__dict__.get(_KEPT)
    if kept is None or kept.reported is not reported:
        kept = _KeptEstimate(reported)
        setattr(host_state, _KEPT, kept)
    decoded = kept.decoded
    if decoded is None:
        return HostEstimate(None, 'no metrics from nova-numa-pmc')
    guest = guest_request.guest
    if guest is None:
        return HostEstimate(None, guest_request.neutral)
    age_s = now_s - decoded.taken_s
    # A clock that is ahead is as wrong as one that is behind.
    if abs(age_s) > options.stale_after * decoded.interval_s:
        when = 'dated %.0f s in the future' if age_s < 0 else '%.0f s old'
        return HostEstimate(None, 'metrics are ' + when % abs(age_s))
    if not _is_plausible(decoded.aggregates, host_state):
        return HostEstimate(None, 'implausible: more CPU demand than its CPUs and vCPUs can cause')
    vcpus: float = 0
    memory_mb: float = 0
    if options.charge_new_guests:
        vcpus, memory_mb = _arrivals(decoded, host_state)
    key = (vcpus, memory_mb, _present_size(host_state, guest_request.instance_uuid, guest), guest)
    current = kept.estimate
    if current is None or kept.key != key:
        current = kept.estimate = _estimate(decoded, *key)
        kept.key = key
    return current


def age_s(host_state: HostStateLike, now_s: float) -> float | None:
    """Return the age of the metrics that :func:`estimate` has read [s], None: there are none."""
    kept: _KeptEstimate | None = host_state.__dict__.get(_KEPT)
    return now_s - kept.decoded.taken_s if kept is not None and kept.decoded is not None else None


def _arrivals(decoded: host_metrics.HostMetrics, host_state: HostStateLike) -> tuple[float, float]:
    """Return vCPUs and MiB of the guests that have come since the metrics were sent.

    Nova's counts are arrivals less departures. A departed guest is still measured, so departures
    are added back, each with the mean size of the counted guests. CPUs that are
    dedicated to a guest are not among the shared ones.

    :returns: 0 or below where none came
    """
    vcpus = host_state.vcpus_used - decoded.vcpus_used
    memory_mb = _memory_mb_used(host_state) - decoded.memory_mb_used
    if decoded.sent_s is None:  # metrics of an older release
        return vcpus, memory_mb
    left = 0.0  # of what was counted
    saved = host_state.updated
    if saved is not None and saved.timestamp() > decoded.sent_s:
        gone, counted = decoded.count_departed(host_state.instances)
        left = max(0, gone - _count_unlisted(host_state)) / max(1, counted)
    if vcpus <= 0 and not left:
        return vcpus, memory_mb
    shared = decoded.vcpus_used
    topology = host_state.numa_topology
    if topology is not None:
        vcpus -= sum(len(cell.pinned_cpus) for cell in topology.cells) - decoded.pinned_cpus
        shared -= decoded.pinned_cpus
    return vcpus + left * shared, memory_mb + left * decoded.memory_mb_used


def _count_unlisted(host_state: HostStateLike) -> int:
    """Return the number of instances that Nova counts on the host but does not list.

    Those being built may be missing there. The list is sent by nova-compute or read from the
    cell's database, the counts are of the compute node: after a message that was lost, and while
    an instance leaves, they differ. What the same request has put there is in neither.
    """
    building = int(host_state.stats.get('num_vm_building') or 0)
    counted = int(host_state.stats.get('num_instances') or 0)
    return max(0, counted - building - len(host_state.instances))


def _is_plausible(host: Aggregates, host_state: HostStateLike) -> bool:
    """Return whether the reported demand on a host is plausible.

    A vCPU wants one CPU at most, its guest's other threads hardly more than that again, and the
    demand of everything but guests is what it ran.
    """
    demand, cpus = host.demand, host_state.vcpus_total
    if not demand or cpus <= 0:
        return True
    wanted = sum(filter(None, demand))
    return wanted <= PLAUSIBLE_MAX_RATIO * (cpus + max(0, host_state.vcpus_used))


def _present_size(
    host_state: HostStateLike, uuid: str | None, guest: ExpectedGuest
) -> _Size | None:
    """Return the guest's size on a host that has it already, None: it is not there.

    Before a resize that is not the requested size. The scheduler may know no more than the guest's
    uuid: its flavor is then read from the database, once a request. After a resize that was
    reverted it may know the size that was given up. Guests that Nova pins are compared by the
    requested size only.
    """
    if uuid is None or uuid not in host_state.instances:
        return None
    try:
        flavor = host_state.instances[uuid].flavor
        size = int(flavor.vcpus), int(flavor.memory_mb)
    except Exception:  # the database does not answer, or the guest is gone
        size = 0, 0
    return size if all(size) and guest.memory_mib else (guest.vcpus, guest.memory_mib)


class _KeptEstimate:
    """A host's metrics, decoded, and the last estimate."""

    __slots__ = ('reported', 'decoded', 'key', 'estimate')

    def __init__(self, reported: object) -> None:
        self.reported = reported
        self.decoded = host_metrics.decode(reported)
        self.key: _Key | None = None
        self.estimate: HostEstimate | None = None


def _estimate(
    decoded: host_metrics.HostMetrics,
    vcpus: float,
    memory_mb: float,
    present: _Size | None,
    guest: ExpectedGuest,
) -> HostEstimate:
    host, limits = decoded.aggregates, decoded.limits
    history, cores_per_vcpu = decoded.history, PRIOR_CORES_PER_VCPU
    if history is not None:
        cores_per_vcpu = expected_per_vcpu(*history)
        guest = with_cores_per_vcpu(guest, cores_per_vcpu)
    if present is not None:
        size = expected_guest(*present, guest.policy, guest.intensity, cores_per_vcpu)
        host = subtract_guest(host, size)
    if vcpus > 0 or memory_mb > 0:
        host = add_new_guests(host, vcpus, memory_mb, guest, limits, cores_per_vcpu)
    # As in outcome(): without the record's own check of its arguments.
    return tuple.__new__(
        HostEstimate,
        (
            outcome(host, guest, limits),
            None,
            max(0, vcpus),
            host.demand is not None,
            host.members,
            history,
            host,
        ),
    )


def _memory_mb_used(host_state: HostStateLike) -> float:
    # Nova's own sum: HostState has no memory_mb_used (nova/scheduler/host_manager.py).
    return host_state.total_usable_ram_mb - host_state.free_ram_mb


def describe(estimate: HostEstimate) -> str:
    """Return an estimate as one line of text."""
    estimated = estimate.outcome
    if estimated is None:
        return 'unknown: %s' % estimate.unknown
    if estimated.used[0] >= PRESSURE_MAX:
        return 'no CPU there that guests may use'
    nodes = tuple(node for at in estimated.at for node in estimate.members[at])
    since = ''
    if estimate.charged_vcpus:
        since = ', with %g vCPUs that arrived after the measurement' % estimate.charged_vcpus
    return '%s: pressure %s there, %s elsewhere (%s)%s' % (
        name_nodes(nodes),
        _join_pressures(estimated.used),
        _join_pressures(estimated.rest) or 'none',
        estimated.code,
        since,
    )


def _join_pressures(pressures: Iterable[float]) -> str:
    return ','.join('%.2f' % pressure for pressure in pressures)
