# SPDX-License-Identifier: Apache-2.0
"""What the scheduler knows of a host: from its metrics, or else from Nova's counts.

This module imports nothing from Nova. The objects that it takes have the attributes of Nova's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from nova_numa_pmc.compute import metrics_decoder
from nova_numa_pmc.compute.metrics_decoder import HostFigures
from nova_numa_pmc.compute.metrics_encoder import count_pinned_cpus, used_huge_page_mb
from nova_numa_pmc.core import extra_specs
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc.compute.metrics_decoder import HostMetrics
    from nova_numa_pmc.scheduler.request import Guest, GuestRequest

#: Metrics are unknown after this many update intervals (an audit and a heartbeat: 11 minutes):
#: five are missed only if the agent or nova-compute has stopped.
STALE_AFTER = 5.0
#: Memory above this multiple of what Nova may allocate is implausible.
_MEMORY_MAX_RATIO = 2.0
#: CPUs above this multiple of Nova's CPUs are implausible. Nova counts only those of
#: cpu_shared_set; an agent that could not read nova.conf reports all that are online. 8 leaves the
#: shared set an eighth of them.
_CPUS_MAX_RATIO = 8
#: Demand below this is implausible [cores per vCPU of the guests that run]. The timer of an idle
#: guest alone takes more (assumed; Linux guests take some 0.005).
IDLE_CORES_PER_VCPU = 0.0005
#: By how much the metrics round the demand or the capacity of a node [cores].
ROUNDED_CORES = 0.005
#: Nova's state of an instance that has no domain (nova/compute/vm_states.py), its count in
#: ``stats``, and those of all instances whose vCPUs do not run.
_STOPPED, _STOPPED_KEY = 'stopped', 'num_vm_stopped'
_ASLEEP_KEYS = _STOPPED_KEY, 'num_vm_paused', 'num_vm_suspended', 'num_vm_shelved', 'num_vm_error'
#: Attribute of a HostState that keeps its decoded metrics. Nova creates new HostStates for each
#: request, so that what is kept does not outlive the request.
_CACHE_ATTRIBUTE = '_numa_pmc_metrics'
#: Assumed demand for each vCPU that Nova has allocated on the shared CPUs of an unknown host. It
#: is more than most guests want, because the host may have less room than its counts show: with
#: the demand that is measured on the other hosts, guests lose 0.8 % more in ``make arena``.
CORES_PER_VCPU = 0.3
#: Assumed cores for each CPU, which is taken to be one of the two threads of a core: 1.25 ÷ 2.
CORES_PER_CPU = 0.625
#: The least cores that are assumed of a host, so that its pressure is finite: 0.01 for each node.
_CORES_MIN = 0.02
#: Assumed number of vCPUs allocated per CPU if the number of the host's CPUs is not known.
_VCPUS_PER_CPU = 0.625
_DISTANCES = (10.0, 21.0), (21.0, 10.0)  # as most firmware of two-socket hosts reports them
_RAM_MIB = 1 << 40  # if it is not known, so that any guest fits


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
    def stats(self) -> Mapping[str, Any]:
        """Return Nova's counts of its instances by state."""

    @property
    def numa_topology(self) -> Any:
        """Return Nova's NUMATopology; None if it is not known."""


class Host(Record):
    """A host of a request.

    :param figures: of the metrics, or, if these are not known, assumed from Nova's counts
    :param why_unknown: why the metrics are not known; None if they are
    :param arrived_vcpus, arrived_mib: vCPUs and memory [MiB] of the guests that have arrived since
        the metrics were recorded
    :param own_vcpus, own_mib: those of the guest itself, if it is in the host's figures already
    :param freed_mib: by how much Nova's count of used memory has fallen since then [MiB]
    :param history: (number of guests, sum of their cores per vCPU), by which the host expects the
        demand of new guests; None if the metrics are not known
    :param metrics: None if they are not known
    """

    figures: HostFigures
    why_unknown: str | None
    arrived_vcpus: float = 0.0
    arrived_mib: float = 0.0
    own_vcpus: float = 0.0
    own_mib: float = 0.0
    freed_mib: float = 0.0
    history: tuple[int, float] | None = None
    metrics: HostMetrics | None = None


def read(host_state: HostStateLike, guest_request: GuestRequest, realtime_s: float) -> Host:
    """Return what is known of a host.

    :param realtime_s: CLOCK_REALTIME [s since the epoch]
    :raises Exception: Nova's object lacks what each of them has
    """
    metrics = _metrics(host_state)
    if metrics is None:
        return Host(_assumed(host_state), 'no metrics from nova-numa-pmc')
    age_s = realtime_s - metrics.taken_s
    # A clock that is ahead is as wrong as a clock that is behind.
    if not abs(age_s) <= STALE_AFTER * metrics.interval_s:  # NaN counts as 0
        age_text = 'dated %.0f s in the future' if age_s < 0 else '%.0f s old'
        # Agents starve where hosts are saturated. Some of the guests may have left since.
        least = min(metrics.figures.demand_cores or 0.0, max(0.0, host_state.vcpus_used))
        figures = _assumed(host_state, least, metrics.figures.cores)
        return Host(figures, 'metrics are ' + age_text % abs(age_s))
    why_implausible = _why_implausible(metrics, host_state)
    if why_implausible is not None:
        least = metrics.figures.demand_cores or 0.0
        return Host(_assumed(host_state, least), 'implausible: ' + why_implausible)
    figures = metrics.figures
    if figures.demand_cores is None:
        # Its demand will follow from its vCPUs, so these must not be hidden with it.
        figures = figures._replace(vcpus=max(figures.vcpus, _running_vcpus(metrics, host_state)))
    vcpus, memory_mib = _arrived(metrics, host_state)
    own_vcpus, own_mib = _own_size(host_state, guest_request.instance_uuid, guest_request.guest)
    # A record's check of its arguments takes as long as the rest of this.
    return Host._make(
        (
            figures,
            None,
            vcpus if vcpus > 0 else 0.0,
            memory_mib if memory_mib > 0 else 0.0,
            own_vcpus,
            own_mib,
            max(0.0, -memory_mib),
            metrics.history or (0, 0.0),
            metrics,
        )
    )


def age_s(host_state: HostStateLike, realtime_s: float) -> float | None:
    """Return the age of a host's metrics [s]; None if there are none."""
    metrics = _metrics(host_state)
    return None if metrics is None else realtime_s - metrics.taken_s


def _metrics(host_state: HostStateLike) -> HostMetrics | None:
    """Return a host's decoded metrics, which are kept for the next instance of the request."""
    reported = host_state.metrics
    kept = host_state.__dict__.get(_CACHE_ATTRIBUTE)
    if kept is None or kept[0] is not reported:
        kept = reported, metrics_decoder.decode(reported)
        setattr(host_state, _CACHE_ATTRIBUTE, kept)
    metrics: HostMetrics | None = kept[1]
    return metrics


def _assumed(
    host_state: HostStateLike, least_cores: float = 0.0, most_cores: float = math.inf
) -> HostFigures:
    """Assume the figures of a host whose own are unknown, based on Nova's counts.

    Such a host counts as two equal nodes whose guests have the usual demand. It is therefore
    neither the best host, which would attract all guests, nor avoided.

    :param least_cores: the demand that figures name that are implausible or too old
    :param most_cores: the capacity that figures name that are too old
    """
    # Nova's vcpus_used counts the vCPUs of all guests. Its vcpus_total does not count the CPUs of
    # cpu_dedicated_set; without that, guests are pinned to CPUs that it counts.
    topology = host_state.numa_topology
    pinned_cpus = 0 if topology is None else count_pinned_cpus(topology)
    vcpus = max(0.0, host_state.vcpus_used - pinned_cpus)
    cpus = host_state.vcpus_total
    if not cpus > 0:
        cpus = vcpus / _VCPUS_PER_CPU
    elif pinned_cpus:
        cpus -= sum(len(cell.pinned_cpus & cell.cpuset) for cell in topology.cells)
    cpus = max(2.0, cpus)  # each node has one
    used_mib = max(0.0, host_state.total_usable_ram_mb - host_state.free_ram_mb)
    # Nova allocates up to the RAM multiplied by this ratio.
    ram_mib = host_state.total_usable_ram_mb * (host_state.ram_allocation_ratio or 1.0)
    free_mib = (ram_mib if ram_mib > 0 else _RAM_MIB) - used_mib
    cores = max(_CORES_MIN, min(most_cores, CORES_PER_CPU * cpus))
    demand_cores = max(least_cores, CORES_PER_VCPU * vcpus)
    return HostFigures(
        2,
        cores,
        vcpus,
        demand_cores,
        None,
        None,
        [(int(cpus // 2), cores / 2, free_mib / 2, demand_cores / 2)] * 2,
        _DISTANCES,
        ram_mib,
    )


def _why_implausible(metrics: HostMetrics, host_state: HostStateLike) -> str | None:
    """Return why the reported figures of a host make it look better than it can be; else None.

    Figures that make it look worse are believed, however high: a host that reports them must not
    be preferred for that. The number of nodes is not compared with Nova's: libvirt without NUMA
    support reports one cell for any host.
    """
    figures, cpus = metrics.figures, host_state.vcpus_total
    nodes, cores, _, demand_cores, _, _, rooms, _, capacity_mib = figures
    # Few hosts have so little demand that their instances have to be counted.
    if demand_cores is not None:
        demand_cores += ROUNDED_CORES * nodes
        if demand_cores < IDLE_CORES_PER_VCPU * metrics.vcpus_used and (
            demand_cores < IDLE_CORES_PER_VCPU * _running_vcpus(metrics, host_state)
        ):
            return 'less CPU demand than its idle guests cause'
    shared_cpus = sum([room[0] for room in rooms])
    if cores > shared_cpus + ROUNDED_CORES * nodes:
        return 'more cores than CPUs'
    if 0 < _CPUS_MAX_RATIO * cpus < shared_cpus:
        return 'more CPUs than Nova knows of'
    # The agent multiplies capacity by the same ratio, but Nova does not.
    memory_mib = host_state.total_usable_ram_mb * max(1.0, host_state.ram_allocation_ratio or 1.0)
    if 0 < _MEMORY_MAX_RATIO * memory_mib < capacity_mib:
        return 'more memory than Nova knows of'
    return None


def _running_vcpus(metrics: HostMetrics, host_state: HostStateLike) -> float:
    """Return the vCPUs of the counted guests that run on shared CPUs.

    Those of guests that are asleep are not known, and assumed to be as many as others have.
    """
    stats = host_state.stats
    instances = int(stats.get('num_instances') or 0)
    asleep = sum(int(stats.get(key) or 0) for key in _ASLEEP_KEYS)
    shared_vcpus = metrics.vcpus_used - metrics.reserved_cpus - metrics.pinned_cpus
    return shared_vcpus * (1 - min(1.0, asleep / instances) if instances else 1.0)


def _own_size(
    host_state: HostStateLike, uuid: str | None, guest: Guest | None
) -> tuple[float, float]:
    """Return the vCPUs and the memory [MiB] that a host's figures include of the guest itself.

    Before a resize, they differ from the requested ones. If the scheduler knows only the guest's
    uuid, the flavor is read from the database, once per request. After a resize that was reverted,
    the scheduler may know the size that was given up. For guests that Nova pins, the requested
    size is returned.

    :returns: 0 for a guest that is not there, and for one that is not in the host's figures,
        because it is stopped or all its CPUs are dedicated; 0 MiB for other guests that Nova pins,
        whose memory may be huge pages, which promised memory does not include
    """
    if guest is None or uuid is None or uuid not in host_state.instances:
        return 0.0, 0.0
    instance = host_state.instances[uuid]
    try:
        # What nova-compute has reported about an instance may be older than the host's last audit.
        if int(host_state.stats.get(_STOPPED_KEY) or 0) and instance.vm_state == _STOPPED:
            return 0.0, 0.0
        flavor = instance.flavor
        size = int(flavor.vcpus), int(flavor.memory_mb)
        if extra_specs.dedicate_all(flavor.extra_specs):
            return 0.0, 0.0
        if extra_specs.pinning_specs(flavor.extra_specs):
            topology = instance.numa_topology
            return extra_specs.shared_vcpus(size[0], flavor.extra_specs, topology), 0.0
    except Exception:  # the database does not answer, or the guest is gone
        size = 0, 0
    return size if all(size) and guest.memory_mib else (guest.vcpus, guest.memory_mib)


def _arrived(metrics: HostMetrics, host_state: HostStateLike) -> tuple[float, float]:
    """Return by how much Nova's counts have grown since the metrics were sent [vCPUs, MiB].

    Guests that have left are subtracted from those that have arrived, as they are still part of
    the measurement. CPUs that are dedicated to a guest do not count, because they are not among
    the shared ones, and neither do huge pages, because the metrics' capacity is that of normal
    memory.

    :returns: negative amounts if more has left than has arrived
    """
    vcpus = host_state.vcpus_used - metrics.vcpus_used
    # Nova's own sum: HostState has no memory_mb_used (nova/scheduler/host_manager.py).
    memory_mb_used = host_state.total_usable_ram_mb - host_state.free_ram_mb
    growth_mb = memory_mb_used - metrics.memory_mb_used
    topology = host_state.numa_topology
    if topology is not None:
        vcpus -= count_pinned_cpus(topology) - metrics.pinned_cpus
        if metrics.huge_page_mb is not None:
            growth_mb -= (used_huge_page_mb(topology) or 0) - metrics.huge_page_mb
    return vcpus, growth_mb
