# SPDX-License-Identifier: Apache-2.0
"""Estimate the pressure that a guest would leave on a host, from Nova's HostState.

This module imports nothing from Nova. The objects that it takes have the attributes of Nova's,
whether they come from Nova or from a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nova_numa_pmc import model
from nova_numa_pmc.compute import metrics_decoder
from nova_numa_pmc.core import extra_specs, missing
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, expected_per_vcpu
from nova_numa_pmc.core.placement import reasons
from nova_numa_pmc.core.placement.ranking import PRESSURE_MAX
from nova_numa_pmc.core.scheduling.charges import add_arrivals, subtract_guest
from nova_numa_pmc.core.scheduling.outcome import (
    expected_guest,
    outcome,
    pressures_elsewhere,
    with_cores_per_vcpu,
)
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler.arrivals import arrived_and_freed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from nova_numa_pmc.core.scheduling.host_columns import HostColumns
    from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, Outcome
    from nova_numa_pmc.scheduler.request import GuestRequest

    #: vCPUs and memory [MiB].
    _Size = tuple[float, int]
    #: What an estimate depends on besides the metrics: vCPUs and MiB of guests that have arrived
    #: since, the guest's size if it is on the host already, the guest, and MiB of guests that have
    #: left.
    _Key = tuple[float, float, _Size | None, ExpectedGuest, float]

#: Memory above this multiple of what Nova may allocate is implausible.
_MEMORY_MAX_RATIO = 2.0
#: CPUs or cores above this multiple of Nova's CPUs are implausible. Nova counts only those of
#: cpu_shared_set; an agent that could not read nova.conf reports all that are online. 8 leaves the
#: shared set an eighth of them.
_CPUS_MAX_RATIO = 8
#: Demand below this is implausible [cores per vCPU of the guests that run]. The timer of an idle
#: guest alone takes more (assumed; Linux guests take some 0.005).
IDLE_CORES_PER_VCPU = 0.0005
#: By how much the metrics round the demand on a node down [cores].
ROUNDED_CORES = 0.005
#: {code of an outcome: its text for operators}; with any other code, the guest would be left
#: floating.
TEXTS = {
    reasons.ON_ONE_NODE: 'on one node',
    reasons.ON_SPAN: 'on several nodes',
    reasons.ON_ALL_NODES: 'spread over all nodes',
    reasons.CPUS_ONLY: 'its memory does not fit',
}
#: Nova's state of an instance that has no domain (nova/compute/vm_states.py), its count in
#: ``stats``, and those of all instances whose vCPUs do not run.
_STOPPED, _STOPPED_KEY = 'stopped', 'num_vm_stopped'
_ASLEEP_KEYS = _STOPPED_KEY, 'num_vm_paused', 'num_vm_suspended', 'num_vm_shelved', 'num_vm_error'
#: Attribute of a HostState that keeps its decoded metrics and the last estimate. Nova creates new
#: HostStates for each request, so the cache does not outlive the request.
_PLACEMENT_OPTIONS = model.PlacementOptions()
_CACHE_ATTRIBUTE = '_numa_pmc_estimate'


class HostStateLike(Protocol):
    """The fields of a HostState that are read."""

    @property
    def host(self) -> str:
        """Return the host's name."""

    @property
    def metrics(self) -> object:
        """Return Nova's metrics, as :func:`metrics_decoder.decode` takes them."""

    @property
    def instances(self) -> Mapping[str, Any]:
        """Return the host's guests, as Nova's instances by uuid."""

    @property
    def vcpus_used(self) -> float:
        """Return the number of its guests' vCPUs."""

    @property
    def vcpus_total(self) -> float:
        """Return the number of its CPUs that guests may use; 0 if it is not known."""

    @property
    def total_usable_ram_mb(self) -> float:
        """Return its memory [MiB]."""

    @property
    def free_ram_mb(self) -> float:
        """Return its memory that is not used by guests [MiB]."""

    @property
    def ram_allocation_ratio(self) -> float | None:
        """Return the RAM allocation ratio; None if it is not known."""

    @property
    def updated(self) -> datetime | None:
        """Return when Nova saved this state, with a time zone; None if it is not known."""

    @property
    def stats(self) -> Mapping[str, Any]:
        """Return Nova's counts of its instances by state."""

    @property
    def num_instances(self) -> int:
        """Return the number of its instances, with those that the same request has put there."""

    @property
    def numa_topology(self) -> Any:
        """Return Nova's NUMATopology; None if it is not known."""


class EstimateOptions(Record):
    """How metrics are used for an estimate; no operator has to vary it.

    :param stale_after: number of update intervals (an audit and a heartbeat: 11 minutes) after
        which metrics are unknown. Five are missed only if the agent or nova-compute has stopped
    :param charge_new_guests: whether guests that have arrived since are charged; without it, all
        guests of one request go to the same host
    """

    stale_after: float = 5.0
    charge_new_guests: bool = True


class HostEstimate(Record):
    """Pressures that a guest would leave on a host, as far as its metrics show.

    :param outcome: the pressures and the guest's place; None if they are unknown
    :param why_unknown: why the outcome is unknown; None if it is known
    :param arrived_vcpus, arrived_mib: vCPUs and memory [MiB] of the guests that have arrived since
        the metrics were recorded
    :param measured: whether the CPU demand on the host's nodes is measured, not assumed
    :param history: (number of guests, sum of their cores per vCPU), by which the host expects the
        demand of new guests; None if it is unknown
    :param freed_mib: memory that ``reported_host`` includes on unknown nodes, although the guest
        may have it: that of guests that have left since the metrics were recorded, and its own if
        it is on the host already [MiB]
    :param reported_host: the columns of the metrics, without the guests that have arrived since;
        None if the outcome is unknown
    :param demand_cores: the demand that a report names that is implausible or too old, which a
        host of unknown pressure has at least; 0.0 if there is none
    :param host: the columns on which the outcome is based, and whose positions it has; None if it
        is unknown
    """

    outcome: Outcome | None
    why_unknown: str | None
    arrived_vcpus: float = 0
    arrived_mib: float = 0
    measured: bool = False
    history: tuple[int, float] | None = None
    freed_mib: float = 0
    reported_host: HostColumns | None = None
    demand_cores: float = 0.0
    host: HostColumns | None = None


def estimate(
    host_state: HostStateLike,
    guest_request: GuestRequest,
    options: EstimateOptions,
    realtime_s: float,
) -> HostEstimate:
    """Return the estimate of a host with the guest; never raise, as that would fail the boot.

    A second estimate of the same host, by the weigher after the filter or for the next instance of
    the same request, takes only a look-up unless the host has changed.

    :param realtime_s: CLOCK_REALTIME [s since the epoch]
    """
    try:
        return _estimate_cached(host_state, guest_request, options, realtime_s)
    except Exception as error:
        return HostEstimate(None, '%.200r' % error)


def estimates(
    host_states: Sequence[HostStateLike], guest_request: GuestRequest, realtime_s: float
) -> list[HostEstimate]:
    """Return the estimate of each host.

    :param realtime_s: CLOCK_REALTIME [s since the epoch]
    """
    options = EstimateOptions()
    return [estimate(host_state, guest_request, options, realtime_s) for host_state in host_states]


def _estimate_cached(
    host_state: HostStateLike,
    guest_request: GuestRequest,
    options: EstimateOptions,
    realtime_s: float,
) -> HostEstimate:
    """Return the estimate kept on the HostState, or a new one if its input has changed."""
    reported = host_state.metrics
    cached: _CachedEstimate | None = host_state.__dict__.get(_CACHE_ATTRIBUTE)
    if cached is None or cached.reported is not reported:
        cached = _CachedEstimate(reported)
        setattr(host_state, _CACHE_ATTRIBUTE, cached)
    decoded = cached.decoded
    if decoded is None:
        return HostEstimate(None, 'no metrics from nova-numa-pmc')
    guest = guest_request.guest
    if guest is None:
        return HostEstimate(None, guest_request.why_not_weighed)
    metrics_age_s = realtime_s - decoded.taken_s
    # A clock that is ahead is as wrong as a clock that is behind.
    if not abs(metrics_age_s) <= options.stale_after * decoded.interval_s:  # NaN counts as 0
        age_text = 'dated %.0f s in the future' if metrics_age_s < 0 else '%.0f s old'
        return HostEstimate(
            None,
            'metrics are ' + age_text % abs(metrics_age_s),
            # Agents starve where hosts are saturated. Some of the guests may have left since.
            demand_cores=min(_demand_cores(decoded), max(0.0, host_state.vcpus_used)),
        )
    why_implausible = _why_implausible(decoded, host_state)
    if why_implausible is not None:
        return HostEstimate(
            None, 'implausible: ' + why_implausible, demand_cores=_demand_cores(decoded)
        )
    vcpus, memory_mb, freed_mib = arrived_and_freed(decoded, host_state)
    if not options.charge_new_guests:
        vcpus = memory_mb = 0
    present_size = _present_size(host_state, guest_request.instance_uuid, guest)
    key = (vcpus, memory_mb, present_size, guest, freed_mib)
    host_estimate = cached.estimate
    if host_estimate is None or cached.key != key:
        host_estimate = cached.estimate = _estimate(decoded, *key)
        cached.key = key
    return host_estimate


def age_s(host_state: HostStateLike, realtime_s: float) -> float | None:
    """Return the age of the metrics that :func:`estimate` has read [s]; None if there are none."""
    cached: _CachedEstimate | None = host_state.__dict__.get(_CACHE_ATTRIBUTE)
    return (
        realtime_s - cached.decoded.taken_s
        if cached is not None and cached.decoded is not None
        else None
    )


def _demand_cores(decoded: metrics_decoder.HostMetrics) -> float:
    """Return the sum of the demand that is known."""
    return sum(filter(None, decoded.columns.demand_cores or ()))


def _why_implausible(
    decoded: metrics_decoder.HostMetrics, host_state: HostStateLike
) -> str | None:
    """Return why the reported figures of a host make it look better than it can be; else None.

    Figures that make it look worse are believed, however high: a host that reports them must not
    be preferred for that. The number of nodes is not compared with Nova's: libvirt without NUMA
    support reports one cell for any host.
    """
    host, cpus = decoded.columns, host_state.vcpus_total
    demand = host.demand_cores
    # Few hosts have so little demand that their instances have to be counted.
    known_demand = missing.all_known(demand) if demand else None
    if known_demand:
        demand_cores = sum(known_demand, ROUNDED_CORES * len(known_demand))
        if demand_cores < IDLE_CORES_PER_VCPU * decoded.vcpus_used and (
            demand_cores < IDLE_CORES_PER_VCPU * _running_vcpus(decoded, host_state)
        ):
            return 'less CPU demand than its idle guests cause'
    if 0 < _CPUS_MAX_RATIO * cpus < max(sum(host.cpu_counts), sum(host.cores)):
        return 'more CPUs than Nova knows of'
    # The agent multiplies capacity by the same ratio, but Nova does not.
    memory_mib = host_state.total_usable_ram_mb * max(1.0, host_state.ram_allocation_ratio or 1.0)
    if 0 < _MEMORY_MAX_RATIO * memory_mib < sum(host.capacity_mib):
        return 'more memory than Nova knows of'
    return None


def _running_vcpus(decoded: metrics_decoder.HostMetrics, host_state: HostStateLike) -> float:
    """Return the vCPUs of the counted guests that run on shared CPUs.

    Those of guests that are asleep are not known, and assumed to be as many as others have.
    """
    stats = host_state.stats
    instances = int(stats.get('num_instances') or 0)
    asleep = sum(int(stats.get(key) or 0) for key in _ASLEEP_KEYS)
    shared_vcpus = decoded.vcpus_used - decoded.reserved[0] - decoded.pinned_cpus
    return shared_vcpus * (1 - min(1.0, asleep / instances) if instances else 1.0)


def _present_size(
    host_state: HostStateLike, uuid: str | None, guest: ExpectedGuest
) -> _Size | None:
    """Return the guest's size on a host that it is already on; None if it is not there.

    Before a resize, it differs from the requested size. If the scheduler knows only the guest's
    uuid, the flavor is read from the database, once per request. After a resize that was reverted,
    the scheduler may know the size that was given up. For guests that Nova pins, the requested
    size is returned.

    :returns: None also for a guest that is not in the host's figures, because it is stopped or all
        its CPUs are dedicated; 0 MiB for other guests that Nova pins, whose memory may be huge
        pages, which promised memory does not include
    """
    if uuid is None or uuid not in host_state.instances:
        return None
    instance = host_state.instances[uuid]
    try:
        # What nova-compute has reported about an instance may be older than the host's last audit.
        if int(host_state.stats.get(_STOPPED_KEY) or 0) and instance.vm_state == _STOPPED:
            return None
        flavor = instance.flavor
        size = int(flavor.vcpus), int(flavor.memory_mb)
        if extra_specs.dedicate_all(flavor.extra_specs):
            return None
        if extra_specs.pinning_specs(flavor.extra_specs):
            topology = instance.numa_topology
            return extra_specs.shared_vcpus(size[0], flavor.extra_specs, topology), 0
    except Exception:  # the database does not answer, or the guest is gone
        size = 0, 0
    return size if all(size) and guest.memory_mib else (guest.vcpus, guest.memory_mib)


class _CachedEstimate:
    """A host's decoded metrics, and the last estimate that was made from them."""

    __slots__ = ('reported', 'decoded', 'key', 'estimate')

    def __init__(self, reported: object) -> None:
        self.reported = reported
        self.decoded = metrics_decoder.decode(reported)
        self.key: _Key | None = None
        self.estimate: HostEstimate | None = None


def _estimate(
    decoded: metrics_decoder.HostMetrics,
    vcpus: float,
    memory_mb: float,
    present_size: _Size | None,
    guest: ExpectedGuest,
    freed_mib: float,
) -> HostEstimate:
    host, placement_options = decoded.columns, _PLACEMENT_OPTIONS
    history, cores_per_vcpu = decoded.history, PRIOR_CORES_PER_VCPU
    if history is not None:
        cores_per_vcpu = expected_per_vcpu(*history)
        guest = with_cores_per_vcpu(guest, cores_per_vcpu)
    if present_size is not None:
        present_guest = expected_guest(
            *present_size, guest.policy, guest.intensity, cores_per_vcpu
        )
        host = subtract_guest(host, present_guest)
        freed_mib += present_guest.memory_mib
    if vcpus > 0 or memory_mb > 0:
        host = add_arrivals(host, vcpus, memory_mb, guest, placement_options, cores_per_vcpu)
    # As in outcome(), the record's check of its arguments would take too long.
    return HostEstimate._make(
        (
            outcome(host, guest, placement_options),
            None,
            max(0, vcpus),
            max(0, memory_mb),
            host.demand_cores is not None,
            history,
            freed_mib,
            decoded.columns,
            0.0,
            host,
        )
    )


def describe(host_estimate: HostEstimate) -> str:
    """Return an estimate as one line of text."""
    host_outcome, host = host_estimate.outcome, host_estimate.host
    if host_outcome is None or host is None:
        return 'unknown: %s' % host_estimate.why_unknown
    if host_outcome.pressures[0] >= PRESSURE_MAX:
        return 'no CPU there that guests may use'
    nodes = tuple(node for position in host_outcome.positions for node in host.members[position])
    arrivals = ''
    if host_estimate.arrived_vcpus:
        arrivals = (
            ', with %g vCPUs that arrived after the measurement' % host_estimate.arrived_vcpus
        )
    return '%s: pressure %s there, %s elsewhere (%s)%s' % (
        name_nodes(nodes),
        _join_pressures(host_outcome.pressures),
        _join_pressures(pressures_elsewhere(host, host_outcome)) or 'none',
        TEXTS.get(host_outcome.code, 'left floating'),
        arrivals,
    )


def _join_pressures(pressures: Iterable[float]) -> str:
    return ','.join('%.2f' % pressure for pressure in pressures)
