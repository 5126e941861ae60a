# SPDX-License-Identifier: Apache-2.0
"""Memory bandwidth monitoring: a group's total traffic and its traffic to local memory, in bytes.

The hardware counts the traffic of each L3 domain by resource groups, which consist of threads.
libvirt creates a group for a guest with ``<memorytune>`` or ``<cachetune>``. For any other guest,
its share of a node's traffic is taken to be its share of the node's busy time. No group is created
here, because there are few of them and they belong to the operator.

Source: Documentation/filesystems/resctrl.rst (Documentation/arch/x86/resctrl.rst before 6.17).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import pressure, rates
from nova_numa_pmc.core.build_sample import CpuRates, attribute_accesses_of_nodes
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.sample_records import ATTRIBUTED, COUNTED, Evidence
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import SourceUnavailable
from nova_numa_pmc.host import files, topology
from nova_numa_pmc.host.files import read_optional
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nova_numa_pmc.core.sample_records import RunningGuest
    from nova_numa_pmc.host.sources.ladder import SourceTick
    from nova_numa_pmc.model import Topology

    #: The directory name of an L3 domain, or of a node below it, where the domain has several.
    _Domain = str
    #: Bytes by L3 domain; None: not reported.
    BytesByL3Domain = dict[_Domain, 'MonitoredBytes | None']

#: The hardware counts in fewer than 64 bits; the kernel extends its counts.
_PATH = '/sys/fs/resctrl'
_TRAFFIC_MAX_BYTES = 1 << 63
_GROUPS_MAX = 4096
_NOT_GROUPS = ('info', 'mon_groups', 'mon_data')
_DOMAIN = re.compile(r'mon_L3_\d{2,5}')
_NODE = re.compile(r'mon_sub_L3_')


class MonitoredBytes(Record):
    """Traffic of a group in an L3 domain [bytes], in total and to or from local memory.

    :param local: None: not counted, as by CPUs with MPAM or without cqm_mbm_local
    """

    total: int
    local: int | None


class Resctrl:
    """The source ``resctrl``.

    :param path: where resctrl is mounted, relative to ``root``
    """

    name = 'resctrl'
    problems: tuple[str, ...] = ()

    def __init__(self, root: str = '/') -> None:
        self._root = root
        self._path = host_options.path_under_root(root, _PATH)
        #: CLOCK_MONOTONIC [ns] of the last sample, and {group's directory: what was read}.
        self._before: tuple[int, dict[str, BytesByL3Domain]] | None = None
        self._ctrl_mon_groups: list[str] | None = None
        #: The nodes' online CPUs, and {L3 domain: nodes that they are on}.
        self._cached_nodes: tuple[tuple[frozenset[int], ...] | None, dict[_Domain, set[int]]] = (
            None,
            {},
        )
        #: CLOCK_MONOTONIC [ns] of the last sample, and {node id: rates [lines/s]}.
        self._last_node_rates: tuple[int | None, dict[int, CpuRates]] = (None, {})

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}.

        :raises SourceUnavailable: resctrl is not mounted, or does not count total bandwidth
        """
        ctrl_mon_groups, groups = self._groups()
        readings = {group: self._read(group) for group in groups}
        if not any(any(reading.values()) for reading in readings.values()):
            raise SourceUnavailable('%s: total bandwidth is not counted' % self._path)
        before, self._before = self._before, (tick.monotonic_ns, readings)
        if before is None or before[0] != tick.before_ns or not tick.elapsed_ns:
            self._ctrl_mon_groups = ctrl_mon_groups
            return {}
        traffic = {
            group: _traffic_between(before[1].get(group), now) for group, now in readings.items()
        }
        tids_by_group = {group: tids for group, tids in groups.items() if tids}
        # If a group was created or removed since the last tick, part of the sums is lost with it.
        unchanged = ctrl_mon_groups == self._ctrl_mon_groups
        domains = _sum([traffic[group] for group in ctrl_mon_groups]) if unchanged else {}
        self._ctrl_mon_groups = ctrl_mon_groups
        nodes = _by_node(domains, self._nodes_by_domain(tick.host), tick.elapsed_ns)
        self._last_node_rates = tick.monotonic_ns, nodes
        return {
            running.guest.uuid: evidence
            for running in tick.guests
            for evidence in (self._evidence_of(running, tids_by_group, traffic, nodes, tick),)
            if evidence
        }

    def rates_by_node_at(self, monotonic_ns: int) -> dict[int, CpuRates]:
        """Return {node id: rates [lines/s]} of the sample taken at this time; {}: none was."""
        return self._last_node_rates[1] if self._last_node_rates[0] == monotonic_ns else {}

    def _evidence_of(
        self,
        running: RunningGuest,
        groups: Mapping[str, frozenset[int]],
        traffic: Mapping[str, BytesByL3Domain],
        nodes: Mapping[int, CpuRates],
        tick: SourceTick,
    ) -> Evidence | None:
        """Return a guest's evidence from its own groups, or else from its share of the nodes."""
        tids = set(running.threads)
        own = [group for group, members in groups.items() if tids & members]
        # The counts of a monitoring group are included in those of the group that contains it.
        own = [group for group in own if os.path.dirname(os.path.dirname(group)) not in own]
        members = frozenset[int]().union(*(groups[group] for group in own))
        if tids and tids == members:
            known_bytes = all_known(_sum([traffic[group] for group in own]).values())
            if not known_bytes:
                return None
            per_sec = 1e9 / tick.elapsed_ns
            own_traffic = _add(known_bytes)
            total_per_sec = own_traffic.total * per_sec
            if own_traffic.local is None:
                return Evidence(self.name, COUNTED, bandwidth_bytes_per_sec=total_per_sec)
            return self._evidence(total_per_sec, own_traffic.local * per_sec, COUNTED)
        attributed = attribute_accesses_of_nodes(running.cores_by_node, nodes, tick.busy_cores)
        if attributed is None:
            return None
        local, remote = attributed
        line_bytes = pressure.LINE_BYTES
        return self._evidence((local + remote) * line_bytes, local * line_bytes, ATTRIBUTED)

    def _evidence(
        self, total_bytes_per_sec: float, local_bytes_per_sec: float, basis: str
    ) -> Evidence:
        line_bytes = pressure.LINE_BYTES
        # They are read one after the other, so the local traffic may be larger.
        local_bytes_per_sec = min(local_bytes_per_sec, total_bytes_per_sec)
        remote_bytes_per_sec = total_bytes_per_sec - local_bytes_per_sec
        return Evidence(
            self.name,
            basis,
            local_bytes_per_sec / line_bytes,
            remote_bytes_per_sec / line_bytes,
            rates.remote_ratio(local_bytes_per_sec, remote_bytes_per_sec),
            total_bytes_per_sec,
        )

    def _groups(self) -> tuple[list[str], dict[str, frozenset[int]]]:
        """Return (directories of the groups that add up to all traffic, {directory: threads})."""
        if not os.path.isdir(os.path.join(self._path, 'mon_data')):
            raise SourceUnavailable(
                '%s: no memory bandwidth monitoring: mount it with "mount -t resctrl resctrl '
                '%s", if the CPU has it (cqm_mbm_total and cqm_mbm_local in /proc/cpuinfo)'
                % (self._path, self._path)
            )
        ctrl_mon_groups = [self._path, *self._below(self._path)]
        directories = ctrl_mon_groups + [
            group
            for ctrl_mon_group in ctrl_mon_groups
            for group in self._below(os.path.join(ctrl_mon_group, 'mon_groups'))
        ]
        # The root group has all other threads of the host, so they are not read.
        return ctrl_mon_groups, {
            group: frozenset() if group == self._path else _tasks(group)
            for group in directories[:_GROUPS_MAX]
        }

    def _below(self, directory: str) -> list[str]:
        try:
            return sorted(
                entry.path
                for entry in os.scandir(directory)
                if entry.name not in _NOT_GROUPS
                and os.path.isdir(os.path.join(entry.path, 'mon_data'))
            )
        except OSError:
            return []

    def _read(self, group: str) -> BytesByL3Domain:
        """Return the traffic of a group so far, by L3 domain."""
        domains: BytesByL3Domain = {}
        data = os.path.join(group, 'mon_data')
        for name in files.list_names(data):  # none if the group was removed
            if not _DOMAIN.fullmatch(name):
                continue
            # With sub-NUMA clusters, Linux 6.11 and later count each node of a domain.
            nodes = [sub for sub in files.list_names(os.path.join(data, name)) if _NODE.match(sub)]
            for domain in [os.path.join(name, node) for node in nodes] or [name]:
                total, local = (
                    _amount(os.path.join(data, domain, kind))
                    for kind in ('mbm_total_bytes', 'mbm_local_bytes')
                )
                domains[os.path.basename(domain)] = (
                    None if total is None else MonitoredBytes(total, local)
                )
        return domains

    def _nodes_by_domain(self, host: Topology) -> dict[_Domain, set[int]]:
        """Return {L3 domain: the nodes that its CPUs are on}, and each node as its own."""
        online = tuple(node.online_cpus for node in host.nodes)
        if self._cached_nodes[0] != online:
            nodes_by_domain: dict[_Domain, set[int]] = {}
            for node in host.nodes:
                for cpu in node.online_cpus:
                    domain = topology.l3_id(cpu, self._root)
                    if domain is not None:
                        nodes_by_domain.setdefault('mon_L3_%02d' % domain, set()).add(node.id)
                nodes_by_domain['mon_sub_L3_%02d' % node.id] = {node.id}
            self._cached_nodes = online, nodes_by_domain
        return self._cached_nodes[1]

    def close(self) -> None:
        """Forget the readings."""
        self._before = None
        self._last_node_rates = (None, {})


def _amount(path: str) -> int | None:
    """Return a counter; None if it is no number (the kernel writes 'Unavailable' or 'Error')."""
    text = read_optional('/', path)
    if text is None or not is_number(text) or int(text) >= _TRAFFIC_MAX_BYTES:
        return None
    return int(text)


def _tasks(group: str) -> frozenset[int]:
    """Return the ids of a group's threads; empty if it has none or was removed."""
    words = (read_optional(group, 'tasks') or '').split()
    return frozenset(int(word) for word in words if is_number(word, 11))


def _traffic_between(before: BytesByL3Domain | None, now: BytesByL3Domain) -> BytesByL3Domain:
    """Return the traffic between two readings, by L3 domain."""
    traffic: BytesByL3Domain = {}
    for domain, new in now.items():
        old = (before or {}).get(domain)
        traffic[domain] = None
        if old is not None and new is not None and old.total <= new.total:
            is_known = old.local is not None and new.local is not None and old.local <= new.local
            local = (new.local or 0) - (old.local or 0) if is_known else None
            traffic[domain] = MonitoredBytes(new.total - old.total, local)
    return traffic


def _sum(parts: Collection[BytesByL3Domain]) -> BytesByL3Domain:
    """Return the sum over groups, in which a domain is unknown if any of them does not know it."""
    domains = {domain for part in parts for domain in part}
    total: BytesByL3Domain = {}
    for domain in domains:
        known_amounts = all_known([part.get(domain) for part in parts])
        total[domain] = None if known_amounts is None else _add(known_amounts)
    return total


def _add(amounts: Collection[MonitoredBytes]) -> MonitoredBytes:
    local = all_known([amount.local for amount in amounts])
    return MonitoredBytes(
        sum(amount.total for amount in amounts), None if local is None else sum(local)
    )


def _by_node(
    domains: BytesByL3Domain, nodes_by_domain: Mapping[_Domain, set[int]], elapsed_ns: int
) -> dict[int, CpuRates]:
    """Return {node id: rates [lines/s]} of the nodes whose domains are all known.

    Where several nodes share a domain whose nodes are not counted one by one, whose traffic it is
    cannot be told.
    """
    local: dict[int, float] = {}
    remote: dict[int, float] = {}
    unknown: set[int] = set()
    by_node = any(_NODE.match(domain) for domain in domains)
    lines_per_byte = 1e9 / (elapsed_ns * pressure.LINE_BYTES)
    for domain, nodes in nodes_by_domain.items():
        if bool(_NODE.match(domain)) != by_node:
            continue
        traffic = domains.get(domain)
        if traffic is None or traffic.local is None or len(nodes) > 1:
            unknown |= nodes
            continue
        for node in nodes:
            local[node] = local.get(node, 0.0) + lines_per_byte * min(traffic.local, traffic.total)
            remote[node] = remote.get(node, 0.0) + lines_per_byte * max(
                0, traffic.total - traffic.local
            )
    return {
        node: CpuRates(local[node], remote[node], None, None, None)
        for node in local
        if node not in unknown
    }
