# SPDX-License-Identifier: Apache-2.0
"""The kernel's record of NUMA hinting faults: on which nodes each vCPU thread hit pages lately.

NUMA balancing unmaps some pages and counts for each thread on which nodes it then accessed
them (``numa_faults node=N task_private=… task_shared=…`` in
``/proc/PID/task/TID/sched``: kernel/sched/debug.c). The counts decay with each scan. Only
they are per thread *and* by node: ``/proc/vmstat`` has ``numa_hint_faults_local`` of the whole
host, and a control group's ``memory.stat`` (6.12) has ``numa_hint_faults`` without where. A
guest whose memory is bound by a policy is not scanned, and nothing is known of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.core.evidence import Evidence
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import SourceUnavailable
from nova_numa_pmc.host import files
from nova_numa_pmc.sample_records import INFERRED

if TYPE_CHECKING:
    from nova_numa_pmc.host.sources import SourceTick

#: Below the root.
SWITCH = 'proc/sys/kernel/numa_balancing'


class NumaFaults:
    """The source."""

    name = 'NUMA faults'
    problems: tuple[str, ...] = ()

    def __init__(self, root: str = '/') -> None:
        self._root = root

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, a ratio without rates.

        :raises SourceUnavailable: NUMA balancing is off, or not built in
        """
        if not is_balancing(self._root):
            raise SourceUnavailable('NUMA balancing is off: kernel.numa_balancing is 0 or absent')
        node_of_cpu = {cpu: node.id for node in tick.host.nodes for cpu in node.online_cpus}
        evidence = {}
        for running in tick.guests:
            if not running.cores:
                continue
            hits = [
                hit
                for tid, ran in running.threads.items()
                for hit in (self._hits(running.guest.pid, tid, node_of_cpu.get(ran.cpu)),)
                if hit
            ]
            total = sum(local + remote for local, remote in hits)
            if total:
                evidence[running.guest.uuid] = Evidence(
                    self.name, INFERRED, remote_ratio=sum(remote for _, remote in hits) / total
                )
        return evidence

    def _hits(self, pid: int | None, tid: int, node: int | None) -> tuple[int, int] | None:
        """Return (pages met on a node, on others); None: the kernel noted none."""
        if pid is None or node is None:
            return None
        path = os.path.join(self._root, 'proc/%d/task/%d/sched' % (pid, tid))
        try:
            by_node = parse(files.read_kernel_file(path))
        except OSError:
            return None
        if not by_node:
            return None
        local = by_node.get(node, 0)
        return local, sum(by_node.values()) - local

    def close(self) -> None:
        """Do nothing: nothing is open."""


def is_balancing(root: str = '/') -> bool:
    """Return whether the kernel's NUMA balancing is on."""
    return files.read_optional(root, SWITCH) not in (None, '', '0')


def parse(text: str) -> dict[int, int]:
    """Return {node id: pages met there} from a thread's ``sched``; empty: none, or garbage."""
    pages_by_node: dict[int, int] = {}
    for line in text.splitlines():
        if not line.startswith('numa_faults '):
            continue
        fields = dict(word.partition('=')[::2] for word in line.split()[1:])
        numbers = [fields.get(name, '') for name in ('node', 'task_private', 'task_shared')]
        if not all(map(is_number, numbers)):
            return {}
        node, private, shared = map(int, numbers)
        pages_by_node[node] = pages_by_node.get(node, 0) + private + shared
    return pages_by_node
