# SPDX-License-Identifier: Apache-2.0
"""Send what the agent measured to Nova's scheduler.

nova-compute runs this in its resource tracker's audit (each ``update_resources_interval``),
holding the semaphore that every claim waits for. The monitor therefore reads one small file, waits
for nothing and makes no RPC. Nova loads only one monitor of the namespace
``nova.compute.monitors.cpu``, so this one replaces ``virt_driver`` and, with the option
``cpu_metrics``, does its work as well.

Nova saves the compute node if anything in it differs from the last save. Metrics that have hardly
changed are therefore sent again exactly as before.
"""

from __future__ import annotations

import datetime
import re
import time
from typing import TYPE_CHECKING

import nova.conf
from nova import objects
from nova.compute import vm_states
from nova.compute.monitors.cpu import virt_driver
from oslo_config import cfg
from oslo_log import log as logging

from nova_numa_pmc.compute import metrics_encoder
from nova_numa_pmc.conf import compute as compute_conf, host_options
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import publication

if TYPE_CHECKING:
    from nova.compute.resource_tracker import ResourceTracker

    from nova_numa_pmc.state.publication import Publication

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

compute_conf.register_opts(CONF)

SOURCE = 'nova_numa_pmc'
#: Nova's states of instances that get a domain here when their task ends (of shelved instances,
#: Nova counts only those that are being unshelved), and of those that have one.
_STARTING = vm_states.BUILDING, vm_states.SHELVED_OFFLOADED
_RUNNING = vm_states.ACTIVE, vm_states.PAUSED, vm_states.RESCUED, vm_states.RESIZED
#: Warnings about a publication that is not fresh.
_NOT_FRESH = {
    publication.STALE: 'the publication in %s was taken %.0f s ago: is nova-numa-agent running?',
    publication.FUTURE: 'the publication in %s is dated %.0f s in the future: was the clock set '
    'back?',
}


class _Inputs(Record):
    """The inputs of the metrics: the agent's publication, and Nova's own counts.

    :param vcpus, memory_mb: usage without that of instances that the agent has not seen
    :param interval_s: time after which the scheduler may expect new metrics [s]
    """

    publication: Publication
    vcpus: int
    memory_mb: int
    interval_s: int
    nova_counts: metrics_encoder.NovaCounts


class Monitor(virt_driver.Monitor):
    """Nova's compute monitor ``numa_pmc``: ``numa.membw.current`` and ``numa.membw.max``.

    If the publication is missing, stale or not to be trusted, one warning is logged, and the last
    known figures stay with the time of their measurement. An agent is late just where CPUs are
    short: without them, the host would look better than when it is measured. The scheduler knows
    how old is too old. Nova instantiates every installed monitor, enabled or
    not, so the constructor reads nothing.
    """

    def __init__(self, resource_tracker: ResourceTracker) -> None:
        super().__init__(resource_tracker)
        self._directory: str | None = None
        self._problem: str | None = None
        #: The metrics that were sent last, preceded by their inputs.
        self._sent: tuple[_Inputs, list[objects.MonitorMetric]] | None = None

    def populate_metrics(self, metric_list: objects.MonitorMetricList) -> None:
        """Append the CPU metrics, if they are enabled, and then the NUMA metrics.

        :raises nova.exception.ResourceMonitorError: by ``virt_driver``, if the driver has no CPU
            statistics; the NUMA metrics are appended nevertheless
        """
        try:
            if CONF.numa_pmc.cpu_metrics:
                super().populate_metrics(metric_list)
        finally:
            metric_list.objects.extend(self._numa_metrics())

    def _numa_metrics(self) -> list[objects.MonitorMetric]:
        """Return the two metrics by the last usable publication, if there was one; never raise."""
        try:
            published = publication.read(self._state_dir())
            realtime_s = time.time()
            freshness = publication.freshness(published, realtime_s)
            if freshness != publication.FUTURE:
                self._renew(published)
            if freshness != publication.FRESH:
                age_s = abs(realtime_s - published.taken_s)
                self._warn(freshness, _NOT_FRESH[freshness], self._directory, age_s)
            elif self._problem:
                LOG.info('NUMA metrics are renewed again')
                self._problem = None
        except StateError as error:
            # Numbers in the message may change with each publication of the agent.
            self._warn(re.sub(r'\d+', '', str(error)), '%s', error)
        except cfg.ConfigFileValueError as error:
            self._warn('options', '[numa_pmc] %s', error)
        except Exception as error:  # a fault of ours must not cost the host its audit
            self._warn(
                'failed', 'this is a bug in nova-numa-pmc: %s: %s', type(error).__name__, error
            )
        return [] if self._sent is None else self._sent[1]

    def _renew(self, published: Publication) -> None:
        """Make the metrics of a publication, unless those that were sent last will do."""
        # Nova passes its resource tracker, whatever the base class calls it. With libvirt, it has
        # one compute node, whose usage has just been summed up over the instances and is saved
        # together with these metrics. If the scheduler later finds a higher usage, the difference
        # is due to instances that came afterwards, or that the publication did not include yet.
        nodes = list(self.compute_manager.compute_nodes.values())
        if len(nodes) != 1:
            raise StateError(
                'nova-compute manages %d compute nodes, but the agent measures only this host: '
                'remove cpu.numa_pmc from [DEFAULT] compute_monitors' % len(nodes)
            )
        (node,) = nodes
        seen_ratio = _seen_ratio(node, self.compute_manager, published.uuids)
        reserved_cpus, reserved_mb = CONF.reserved_host_cpus, CONF.reserved_host_memory_mb
        inputs = _Inputs(
            published,
            reserved_cpus + round(seen_ratio * max(0, node.vcpus_used - reserved_cpus)),
            reserved_mb + round(seen_ratio * max(0, node.memory_mb_used - reserved_mb)),
            _interval_s(),
            _nova_counts(node, seen_ratio),
        )
        if self._sent is None or not _may_resend(self._sent[0], inputs):
            self._sent = inputs, _make_metrics(inputs)

    def _state_dir(self) -> str:
        """Return the state directory, reading the agent's configuration the first time."""
        if self._directory is None:
            options = host_options.read(host_options.PATH)
            for problem in options.problems:
                LOG.warning('%s', problem)
            self._directory = options.state_dir
        return self._directory

    def _warn(self, problem: str, message: str, *values: object) -> None:
        """Log a warning when a problem begins.

        :param problem: identifies the problem; as long as it stays the same, nothing is logged
        """
        if problem != self._problem:
            self._problem = problem
            LOG.warning(
                'NUMA metrics are not renewed until this is fixed; the scheduler uses the last '
                'ones, if any, until they are too old: ' + message,
                *values,
            )


def _seen_ratio(
    node: objects.ComputeNode, tracker: ResourceTracker, published: tuple[str, ...] | None
) -> float:
    """Return the share of the instances counted by Nova that the agent has seen, from 0 to 1.

    Nova counts an instance from its claim on (nova/compute/resource_tracker.py). It counts as
    seen if the publication includes it, or if it has no domain, such as a stopped one. The sizes
    of the others are not available here, so they are assumed to be as large as the seen ones.

    :param published: uuids of the publication, as those of its domains are the instances'; None:
        those here count as seen, unless they are being built or unshelved
    """
    stats = tracker.stats.get(node.hypervisor_hostname)
    known_states = stats.states if stats is not None else {}
    states = {
        uuid: known_states.get(uuid, {}).get('vm_state') for uuid in tracker.tracked_instances
    }
    incoming = {
        uuid
        for uuid, migration in tracker.tracked_migrations.items()
        if migration.dest_compute == tracker.host and uuid not in states
    }
    awaited = _STARTING if published is None else _STARTING + _RUNNING
    unseen = incoming.union(uuid for uuid, state in states.items() if state in awaited)
    unseen.difference_update(published or ())
    total = len(states) + len(incoming)
    return 1 - len(unseen) / total if total else 1.0


def _nova_counts(node: objects.ComputeNode, seen_ratio: float) -> metrics_encoder.NovaCounts:
    """Return Nova's counts of the instances that the agent has seen.

    :param seen_ratio: as :func:`_seen_ratio` returns it
    """
    pinned_cpus, huge_page_mb = 0, None
    if node.obj_attr_is_set('numa_topology') and node.numa_topology:
        topology = objects.NUMATopology.obj_from_db_obj(node.numa_topology)
        pinned_cpus = round(seen_ratio * metrics_encoder.count_pinned_cpus(topology))
        huge_page_mb = metrics_encoder.used_huge_page_mb(topology)
    return metrics_encoder.NovaCounts(
        pinned_cpus,
        CONF.reserved_host_cpus,
        None if huge_page_mb is None else round(seen_ratio * huge_page_mb),
    )


def _interval_s() -> int:
    """Return the longest time between two sets of metrics [s].

    Nova runs the audit each ``update_resources_interval``; 0 stands for the default, -1 for never.
    """
    interval_s = CONF.update_resources_interval
    audit_s = metrics_encoder.INTERVAL_DEFAULT_S if interval_s == 0 else max(interval_s, 0)
    return audit_s + metrics_encoder.RESEND_S


def _may_resend(sent: _Inputs, now: _Inputs) -> bool:
    """Return whether the metrics sent last may be sent again."""
    age_s = now.publication.taken_s - sent.publication.taken_s
    return (
        0 <= age_s < metrics_encoder.RESEND_S
        and now._replace(publication=sent.publication) == sent
        and metrics_encoder.may_reuse(sent.publication, now.publication)
    )


def _make_metrics(inputs: _Inputs) -> list[objects.MonitorMetric]:
    """Return the two metrics of a publication."""
    published = inputs.publication
    current, maximum = metrics_encoder.to_values(
        published, inputs.vcpus, inputs.memory_mb, inputs.interval_s, inputs.nova_counts
    )
    timestamp = datetime.datetime.fromtimestamp(published.taken_s, datetime.timezone.utc)
    ids = [str(node.id) for node in published.view.nodes]
    return [
        _metric(
            metrics_encoder.CURRENT,
            current,
            metrics_encoder.total(current, ids, metrics_encoder.UNKNOWN_MB),
            timestamp,
        ),
        _metric(
            metrics_encoder.MAXIMUM, maximum, metrics_encoder.total(maximum, ids, 0), timestamp
        ),
    ]


def _metric(
    name: str, values: dict[str, int], total: int, timestamp: datetime.datetime
) -> objects.MonitorMetric:
    """Return a metric with everything that its readers need.

    Nova's MetricsWeigher and its versioned notifications read ``value`` of every metric, and fail
    if it is not set. However, MonitorMetric.to_dict(), which fills the compute node's column,
    leaves out ``numa_membw_values`` if ``value`` is set. Nova's list would not accept a subclass.
    """
    metric = objects.MonitorMetric(
        name=name, value=total, numa_membw_values=values, timestamp=timestamp, source=SOURCE
    )
    metric.to_dict = lambda: dict(  # type: ignore[method-assign]
        objects.MonitorMetric.to_dict(metric), numa_membw_values=values
    )
    return metric
