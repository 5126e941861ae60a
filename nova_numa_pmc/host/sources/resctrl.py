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
from nova_numa_pmc.core.measurements import (
    ATTRIBUTED,
    COUNTED,
    Evidence,
    attribute_accesses_of_nodes,
)
from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.core.pressure import LINE_BYTES
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import SourceUnavailable
from nova_numa_pmc.host import files, topology
from nova_numa_pmc.host.files import read_optional

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Optional

    from nova_numa_pmc.core.measurements import RunningGuest
    from nova_numa_pmc.host.sources.ladder import SourceTick
    from nova_numa_pmc.model import Topology

    #: The directory name of an L3 domain, or of a node below it, where the domain has several.
    _Domain = str
    #: {(domain, file): bytes so far or in an interval; None: not reported}
    Traffic = dict[tuple[_Domain, str], Optional[int]]

#: The hardware counts in fewer than 64 bits; the kernel extends its counts.
_PATH = '/sys/fs/resctrl'
_TRAFFIC_MAX_BYTES = 1 << 63
_GROUPS_MAX = 4096
_NOT_GROUPS = ('info', 'mon_groups', 'mon_data')
_DOMAIN = re.compile(r'mon_L3_\d{2,5}')
_NODE = re.compile(r'mon_sub_L3_')
#: Traffic in total, and to or from local memory, which CPUs with MPAM do not count.
_TOTAL, _LOCAL = 'mbm_total_bytes', 'mbm_local_bytes'


class Resctrl:
    """The source ``resctrl``."""

    name = 'resctrl'
    problems: tuple[str, ...] = ()

    def __init__(self, root: str = '/') -> None:
        self._root = root
        self._path = host_options.path_under_root(root, _PATH)
        #: CLOCK_MONOTONIC [ns] of the last sample, the groups that added up to all traffic, and
        #: {group's directory: what was read}.
        self._before: tuple[int, list[str], dict[str, Traffic]] | None = None
        #: The nodes' online CPUs, and {domain: nodes that they are on}.
        self._cached_nodes: tuple[tuple[frozenset[int], ...] | None, dict[_Domain, set[int]]] = (
            None,
            {},
        )
        #: CLOCK_MONOTONIC [ns] of the last sample, and {node id: evidence}.
        self._last_nodes: tuple[int | None, dict[int, Evidence]] = (None, {})

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}.

        :raises SourceUnavailable: resctrl is not mounted, or does not count total bandwidth
        """
        ctrl_mon_groups, tids_by_group = self._groups()
        readings = {group: self._read(group) for group in tids_by_group}
        if not any(_counts_total(reading) for reading in readings.values()):
            raise SourceUnavailable('%s: total bandwidth is not counted' % self._path)
        before, self._before = self._before, (tick.monotonic_ns, ctrl_mon_groups, readings)
        if before is None or before[0] != tick.before_ns or not tick.elapsed_ns:
            return {}
        traffic = {
            group: _difference(before[2].get(group, {}), reading)
            for group, reading in readings.items()
        }
        # If a group was created or removed since the last tick, part of the sums is lost with it.
        is_whole = before[1] == ctrl_mon_groups
        sums = _sum([traffic[group] for group in ctrl_mon_groups]) if is_whole else {}
        nodes = self._evidence_by_node(sums, tick)
        self._last_nodes = tick.monotonic_ns, nodes
        found = {
            running.guest.uuid: self._evidence_of(running, tids_by_group, traffic, nodes, tick)
            for running in tick.guests
        }
        return {uuid: evidence for uuid, evidence in found.items() if evidence}

    def evidence_by_node_at(self, monotonic_ns: int) -> dict[int, Evidence]:
        """Return {node id: evidence} of the sample taken at this time; {}: none was."""
        return self._last_nodes[1] if self._last_nodes[0] == monotonic_ns else {}

    def _evidence_of(
        self,
        running: RunningGuest,
        tids_by_group: Mapping[str, frozenset[int]],
        traffic: Mapping[str, Traffic],
        nodes: Mapping[int, Evidence],
        tick: SourceTick,
    ) -> Evidence | None:
        """Return a guest's evidence from its own groups, or else from its share of the nodes."""
        tids = set(running.threads)
        own = [group for group, members in tids_by_group.items() if tids & members]
        # The counts of a monitoring group are included in those of the group that contains it.
        own = [group for group in own if os.path.dirname(os.path.dirname(group)) not in own]
        members = frozenset[int]().union(*(tids_by_group[group] for group in own))
        if tids and tids == members:
            own_traffic = _sum([traffic[group] for group in own])
            domains = {domain for domain, _ in own_traffic}
            return _evidence(own_traffic, domains, tick.elapsed_ns)
        attributed = attribute_accesses_of_nodes(running.cores_by_node, nodes, tick.busy_cores)
        if attributed is None:
            return None
        return Evidence(
            self.name,
            ATTRIBUTED,
            *attributed,
            bandwidth_bytes_per_sec=sum(attributed) * LINE_BYTES,
        )

    def _evidence_by_node(self, sums: Traffic, tick: SourceTick) -> dict[int, Evidence]:
        """Return {node id: evidence} of the nodes whose domains are all known, with local traffic.

        Where several nodes share a domain whose nodes are not counted one by one, whose traffic it
        is cannot be told.
        """
        nodes_by_domain = self._nodes_by_domain(tick.host)
        is_by_node = any(_NODE.match(domain) for domain, _ in sums)
        found = {}
        for node in tick.host.nodes:
            domains = [
                domain
                for domain, nodes in nodes_by_domain.items()
                if node.id in nodes and bool(_NODE.match(domain)) == is_by_node
            ]
            if all(len(nodes_by_domain[domain]) == 1 for domain in domains):
                found[node.id] = _evidence(sums, domains, tick.elapsed_ns)
        return {
            node_id: evidence
            for node_id, evidence in found.items()
            if evidence and evidence.covers_memory
        }

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

    def _read(self, group: str) -> Traffic:
        """Return the traffic of a group so far."""
        traffic: Traffic = {}
        data = os.path.join(group, 'mon_data')
        for name in files.list_names(data):  # none if the group was removed
            if not _DOMAIN.fullmatch(name):
                continue
            # With sub-NUMA clusters, Linux 6.11 and later count each node of a domain.
            nodes = [sub for sub in files.list_names(os.path.join(data, name)) if _NODE.match(sub)]
            for domain in [os.path.join(name, node) for node in nodes] or [name]:
                for kind in (_TOTAL, _LOCAL):
                    amount = _amount(os.path.join(data, domain, kind))
                    traffic[os.path.basename(domain), kind] = amount
        return traffic

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
        self._last_nodes = (None, {})


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


def _counts_total(traffic: Traffic) -> bool:
    return any(kind == _TOTAL and amount is not None for (_, kind), amount in traffic.items())


def _difference(before: Traffic, now: Traffic) -> Traffic:
    """Return the traffic between two readings."""
    traffic: Traffic = {}
    for key, amount in now.items():
        earlier = before.get(key)
        traffic[key] = None
        if amount is not None and earlier is not None and amount >= earlier:
            traffic[key] = amount - earlier
    return traffic


def _sum(parts: Collection[Traffic]) -> Traffic:
    """Return the sum over groups, in which a figure is unknown if it is of any of them."""
    total: Traffic = {}
    for key in {key for part in parts for key in part}:
        known_amounts = all_known([part.get(key) for part in parts])
        total[key] = None if known_amounts is None else sum(known_amounts)
    return total


def _evidence(traffic: Traffic, domains: Iterable[_Domain], elapsed_ns: int) -> Evidence | None:
    """Return what the traffic in some domains shows; None if the total of one is unknown."""
    totals = all_known([traffic.get((domain, _TOTAL)) for domain in domains])
    locals_ = all_known([traffic.get((domain, _LOCAL)) for domain in domains])
    if not totals:
        return None
    total_per_sec = sum(totals) * 1e9 / elapsed_ns
    if locals_ is None:
        return Evidence(Resctrl.name, COUNTED, bandwidth_bytes_per_sec=total_per_sec)
    # They are read one after the other, so the local traffic may be larger.
    local_per_sec = min(sum(locals_) * 1e9 / elapsed_ns, total_per_sec)
    return Evidence(
        Resctrl.name,
        COUNTED,
        local_per_sec / LINE_BYTES,
        (total_per_sec - local_per_sec) / LINE_BYTES,
        bandwidth_bytes_per_sec=total_per_sec,
    )
