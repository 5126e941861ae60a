# SPDX-License-Identifier: Apache-2.0
"""Find out whose memory a node without CPUs has: the host's own, a device's, a slower tier's.

Evidence, the first that is found:

* ``node/has_generic_initiator`` (5.10) and ``nodeN/access0/initiators``: what ACPI's SRAT and
  HMAT list devices that read memory by themselves. The memory that such a device, and no
  CPU, is the nearest to is the device's (Documentation/admin-guide/mm/numaperf.rst)
* ``/sys/bus/dax/devices/*``: memory that the kmem driver has given to the kernel: CXL,
  persistent memory, and what firmware has reserved for special purposes
* ``/sys/devices/virtual/memory_tiering`` (6.1): a tier with a higher number than that of any
  node with CPUs is slower (Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers)
* ``/proc/driver/nvidia/gpus/*/numa_status``: NVIDIA's driver names the node that a GPU's memory
  is (nv_procfs_read_numa_status() in its kernel-open/nvidia/nv-procfs.c). It waits for the GPU's
  lock for that, without a bound, so it is read last, and only if the evidence above leaves a node
  unexplained

A file that is not there or is not understood is no evidence, and the memory is the host's.

Imported by the libvirt hook where a node has memory and no CPUs: light modules only.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.cpulist import is_number, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, TopologyError
from nova_numa_pmc.host.files import NODES, path_of, read_text

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    #: A node id, and whose memory that node has.
    _Kind = tuple[int, model.NodeMemory]

_GPUS = 'proc/driver/nvidia/gpus'
_DAX = 'sys/bus/dax/devices'
_TIERS = 'sys/devices/virtual/memory_tiering'


def with_memory(nodes: tuple[model.Node, ...], root: str) -> tuple[model.Node, ...]:
    """Return the nodes, each with the kind of its memory.

    Nothing is opened unless a node has memory and no CPUs.
    """
    alone = {node.id for node in nodes if node.memory_bytes and not node.online_cpus}
    if not alone:
        return nodes
    kinds = _kinds(root, alone, {node.id for node in nodes if node.online_cpus})
    return tuple(
        node._replace(memory=kinds[node.id]) if node.id in kinds else node for node in nodes
    )


def withheld_nodes(root: str = '/') -> frozenset[int]:
    """Return the nodes whose memory is not for guests, by the kernel and the operator's options.

    For a writer of ``cpuset.mems`` that has not read the whole topology.
    """
    with_cpus = _list(root, '%s/has_cpu' % NODES)
    alone = (nodes_with_memory(root) or frozenset()) - with_cpus
    if not alone or not with_cpus:
        return frozenset()
    from nova_numa_pmc.conf import host_options  # few hosts have such nodes

    limits = host_options.read_below(root).limits
    return (
        frozenset(_kinds(root, alone, with_cpus)) | limits.device_memory_nodes & alone
    ) - limits.guest_memory_nodes


def _kinds(root: str, alone: Set[int], with_cpus: Set[int]) -> dict[int, model.NodeMemory]:
    """Return {node id: kind} of the nodes with memory that is not the host's own."""
    kinds: dict[int, model.NodeMemory] = {}
    for evidence in (
        _of_initiators(root, alone, with_cpus),
        _of_dax(root),
        _of_tiers(root, with_cpus),
        _of_gpus(root),
    ):
        if alone <= kinds.keys():
            break
        for node_id, memory in evidence:
            if node_id in alone:
                kinds.setdefault(node_id, memory)
    return kinds


def nodes_with_memory(root: str = '/') -> frozenset[int] | None:
    """Return the nodes that may be in a ``cpuset.mems``, those with memory; None: not reported."""
    # Before 4.14 has_memory is there only on kernels with movable nodes.
    for name in ('has_memory', 'has_normal_memory'):
        numbers = _list(root, '%s/%s' % (NODES, name))
        if numbers:
            return numbers
    return None


def _of_gpus(root: str) -> Iterator[_Kind]:
    for name in _names(root, _GPUS):
        # A GPU that is not in use has its node, too, and -1 where it has none.
        for line in (_text(root, '%s/%s/numa_status' % (_GPUS, name)) or '').splitlines():
            label, _, value = line.partition(':')
            if label == 'Node' and is_number(value.strip()):
                yield int(value), model.NodeMemory(model.DEVICE, 'GPU %s' % name[:40])


def _of_initiators(root: str, alone: Set[int], with_cpus: Set[int]) -> Iterator[_Kind]:
    initiators = _list(root, '%s/has_generic_initiator' % NODES)
    if not initiators:
        return
    for node_id in sorted(alone):
        nearest = {
            int(name[4:])
            for name in _names(root, '%s/node%d/access0/initiators' % (NODES, node_id))
            if name[:4] == 'node' and is_number(name[4:])
        } or {node_id}
        if nearest & initiators and not nearest & with_cpus:
            yield node_id, model.NodeMemory(model.DEVICE, 'ACPI: nearest to a device')


def _of_dax(root: str) -> Iterator[_Kind]:
    for name in _names(root, _DAX):
        try:
            driver = os.path.basename(os.readlink(path_of(root, '%s/%s/driver' % (_DAX, name))))
        except OSError:
            continue
        target = _text(root, '%s/%s/target_node' % (_DAX, name)) or ''
        if driver == 'kmem' and is_number(target):
            yield int(target), model.NodeMemory(model.SLOW, name[:40])


def _of_tiers(root: str, with_cpus: Set[int]) -> Iterator[_Kind]:
    tiers: dict[int, frozenset[int]] = {}
    for name in _names(root, _TIERS):
        digits = name.removeprefix('memory_tier')
        if digits != name and is_number(digits):
            tiers[int(digits)] = _list(root, '%s/%s/nodelist' % (_TIERS, name)) or frozenset()
    usual = max((tier for tier, numbers in tiers.items() if numbers & with_cpus), default=None)
    for tier in sorted(tiers):
        if usual is not None and tier > usual:
            for node_id in sorted(tiers[tier]):
                yield node_id, model.NodeMemory(model.SLOW, 'memory_tier%d' % tier)


def _names(root: str, path: str) -> list[str]:
    try:
        return sorted(os.listdir(path_of(root, path)))
    except OSError:
        return []


def _text(root: str, path: str) -> str | None:
    try:
        return read_text(root, path)
    except TopologyError:
        return None


def _list(root: str, path: str) -> frozenset[int]:
    try:
        return parse_cpulist(_text(root, path) or '')
    except CpuListError:
        return frozenset()
