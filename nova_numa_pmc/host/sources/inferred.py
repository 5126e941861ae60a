# SPDX-License-Identifier: Apache-2.0
"""Sources that only have a ratio: the kernel's NUMA hinting faults, and where pages are.

NUMA balancing unmaps some pages, and counts for each thread the nodes of those that it then
accesses (``numa_faults node=N task_private=… task_shared=…`` in ``/proc/PID/task/TID/sched``:
kernel/sched/debug.c). The counts decay with each scan. Only these counts are by thread *and* by
node: ``/proc/vmstat`` has ``numa_hint_faults_local`` for the whole host, and a control group's
``memory.stat`` (since 6.12) has ``numa_hint_faults`` without nodes. A guest whose memory is bound
by a policy is not scanned, so nothing is known about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import rates
from nova_numa_pmc.core.sample_records import INFERRED, Evidence
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import SourceUnavailable
from nova_numa_pmc.host import files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc.host.sources.ladder import SourceTick


#: Path relative to the root.
BALANCING = 'proc/sys/kernel/numa_balancing'
#: The bit for all pages; the other one, memory tiering, is only for those of slow memory.
NORMAL = 1


class NumaFaults:
    """The source ``numa_faults``."""

    name = 'numa_faults'
    problems: tuple[str, ...] = ()

    def __init__(self, root: str = '/') -> None:
        self._root = root

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, which has a ratio but no rates.

        :raises SourceUnavailable: NUMA balancing is off, or the kernel was built without it
        """
        if not read_mode(self._root):
            raise SourceUnavailable('NUMA balancing is off: kernel.numa_balancing is 0 or absent')
        node_of_cpu = {cpu: node.id for node in tick.host.nodes for cpu in node.online_cpus}
        evidence = {}
        for running in tick.guests:
            if not running.cores:
                continue
            faults_by_thread = [
                faults
                for tid, times in running.threads.items()
                for faults in (self._faults(running.guest.pid, tid, node_of_cpu.get(times.cpu)),)
                if faults
            ]
            total = sum(local + remote for local, remote in faults_by_thread)
            if total:
                evidence[running.guest.uuid] = Evidence(
                    self.name,
                    INFERRED,
                    remote_ratio=sum(remote for _, remote in faults_by_thread) / total,
                )
        return evidence

    def _faults(self, pid: int | None, tid: int, node: int | None) -> tuple[int, int] | None:
        """Return a thread's faults as (on a node's pages, on others' pages); None if unknown."""
        if pid is None or node is None:
            return None
        path = 'proc/%d/task/%d/sched' % (pid, tid)
        faults_by_node = parse_faults(files.read_optional(self._root, path) or '')
        if not faults_by_node:
            return None
        local = faults_by_node.get(node, 0)
        return local, sum(faults_by_node.values()) - local

    def close(self) -> None:
        """Do nothing, since nothing is open."""


def read_mode(root: str = '/') -> int:
    """Return the kernel's mode of NUMA balancing, of which :data:`NORMAL` is one bit; 0: off."""
    digits = files.read_optional(root, BALANCING) or ''
    return int(digits) if is_number(digits) else 0


def parse_faults(text: str) -> dict[int, int]:
    """Return {node id: faults} from a thread's ``sched`` file; empty if it has none or is bad."""
    faults_by_node: dict[int, int] = {}
    for line in text.splitlines():
        if not line.startswith('numa_faults '):
            continue
        fields = dict(word.partition('=')[::2] for word in line.split()[1:])
        numbers = [fields.get(name, '') for name in ('node', 'task_private', 'task_shared')]
        if not all(map(is_number, numbers)):
            return {}
        node, private, shared = map(int, numbers)
        faults_by_node[node] = faults_by_node.get(node, 0) + private + shared
    return faults_by_node


class Pages:
    """The source ``pages``, which assumes that a guest accesses all its pages equally often."""

    name = 'pages'
    problems: tuple[str, ...] = ()

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, which has a ratio but no rates."""
        evidence = {}
        for running in tick.guests:
            ratio = remote_ratio_of_pages(running.cores_by_node, running.bytes_by_node)
            if ratio is not None:
                evidence[running.guest.uuid] = Evidence(self.name, INFERRED, remote_ratio=ratio)
        return evidence

    def close(self) -> None:
        """Do nothing, since nothing is open."""


def remote_ratio_of_pages(
    cores_by_node: Mapping[int, float], bytes_by_node: Mapping[int, int]
) -> float | None:
    """Return 1 − Σ_n (cores_n ÷ Σ cores) · (bytes_n ÷ Σ bytes).

    :param cores_by_node, bytes_by_node: {node id: amount}
    :returns: None if the guest did not run or none of its memory is known
    """
    cpu_shares, mem_shares = rates.shares(cores_by_node), rates.shares(bytes_by_node)
    if not cpu_shares or not mem_shares:
        return None
    local = sum(share * mem_shares.get(node, 0.0) for node, share in cpu_shares.items())
    return min(1.0, max(0.0, 1.0 - local))
