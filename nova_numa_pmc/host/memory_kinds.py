# SPDX-License-Identifier: Apache-2.0
"""Determine whose memory a node without CPUs has: the host's own, a device's or a slower tier's.

The first of these sources that knows a node decides:

* ``node/has_generic_initiator`` (5.10) and ``nodeN/access0/initiators``: ACPI's SRAT and HMAT list
  devices that access memory by themselves. Memory is a device's if such a device, and no CPU, is
  nearest to it (Documentation/admin-guide/mm/numaperf.rst)
* ``/sys/bus/dax/devices/*``: memory that the kmem driver has given to the kernel, namely CXL
  memory, persistent memory, and memory that firmware has reserved for special purposes
* ``/sys/devices/virtual/memory_tiering`` (6.1): a tier is slower if its number is higher than that
  of any node with CPUs (Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers)
* ``/proc/driver/nvidia/gpus/*/numa_status``: NVIDIA's driver reports the node of a GPU's memory
  (nv_procfs_read_numa_status() in its kernel-open/nvidia/nv-procfs.c). To do so, it waits for the
  GPU's lock without a time limit, so this is read last, and only if a node is still unexplained

A file that is missing or malformed is ignored. If no file gives the kind, the memory is the host's
own.

The libvirt hook imports this module if a node has memory but no CPUs, so it imports only light
modules.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.host.files import NODES, list_names, optional_cpus, read_fields, read_optional

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    #: A node's id and the kind of its memory.
    _Kind = tuple[int, model.NodeMemory]

_GPUS = 'proc/driver/nvidia/gpus'
_DAX = 'sys/bus/dax/devices'
_TIERS = 'sys/devices/virtual/memory_tiering'


def with_memory_kinds(nodes: tuple[model.Node, ...], root: str) -> tuple[model.Node, ...]:
    """Return the nodes with the kind of their memory filled in.

    No file is opened unless a node has memory but no CPUs.
    """
    memory_only = {node.id for node in nodes if node.memory_bytes and not node.online_cpus}
    if not memory_only:
        return nodes
    kinds = _kinds(root, memory_only, {node.id for node in nodes if node.online_cpus})
    return tuple(
        node._replace(memory=kinds[node.id]) if node.id in kinds else node for node in nodes
    )


def withheld_nodes(root: str = '/') -> frozenset[int]:
    """Return the nodes whose memory is not for guests.

    The kernel and the operator's options determine these. This function is for writers of
    ``cpuset.mems`` that have not read the whole topology.
    """
    with_cpus = optional_cpus(root, '%s/has_cpu' % NODES)
    memory_only = (nodes_with_memory(root) or frozenset()) - with_cpus
    if not memory_only or not with_cpus:
        return frozenset()
    from nova_numa_pmc.conf import host_options  # few hosts have such nodes

    placement_options = host_options.read_under_root(root).placement_options
    return (
        frozenset(_kinds(root, memory_only, with_cpus))
        | placement_options.device_memory_nodes & memory_only
    ) - placement_options.guest_memory_nodes


def _kinds(root: str, memory_only: Set[int], with_cpus: Set[int]) -> dict[int, model.NodeMemory]:
    """Return {node id: kind} of the nodes whose memory is not the host's own."""
    kinds: dict[int, model.NodeMemory] = {}
    for source in (
        _from_initiators(root, memory_only, with_cpus),
        _from_dax(root),
        _from_tiers(root, with_cpus),
        _from_gpus(root),
    ):
        if memory_only <= kinds.keys():
            break
        for node_id, memory in source:
            if node_id in memory_only:
                kinds.setdefault(node_id, memory)
    return kinds


def nodes_with_memory(root: str = '/') -> frozenset[int] | None:
    """Return the nodes with memory, which may be in a ``cpuset.mems``, or None if not reported."""
    # Before 4.14, has_memory only exists on kernels with movable nodes.
    for name in ('has_memory', 'has_normal_memory'):
        node_ids = optional_cpus(root, '%s/%s' % (NODES, name))
        if node_ids:
            return node_ids
    return None


def _from_gpus(root: str) -> Iterator[_Kind]:
    for name in list_names(os.path.join(root, _GPUS)):
        # A GPU that is not in use also has its node; a GPU without a node reports -1.
        status = read_fields(root, '%s/%s/numa_status' % (_GPUS, name))
        node_text = status.get('Node', '').strip()
        if is_number(node_text):
            yield int(node_text), model.NodeMemory(model.DEVICE_MEMORY, 'GPU %s' % name[:40])


def _from_initiators(root: str, memory_only: Set[int], with_cpus: Set[int]) -> Iterator[_Kind]:
    initiators = optional_cpus(root, '%s/has_generic_initiator' % NODES)
    if not initiators:
        return
    for node_id in sorted(memory_only):
        path = '%s/node%d/access0/initiators' % (NODES, node_id)
        nearest = {
            int(name[4:])
            for name in list_names(os.path.join(root, path))
            if name[:4] == 'node' and is_number(name[4:])
        } or {node_id}
        if nearest & initiators and not nearest & with_cpus:
            yield node_id, model.NodeMemory(model.DEVICE_MEMORY, 'ACPI: nearest to a device')


def _from_dax(root: str) -> Iterator[_Kind]:
    for name in list_names(os.path.join(root, _DAX)):
        try:
            driver = os.path.basename(os.readlink(os.path.join(root, _DAX, name, 'driver')))
        except OSError:
            continue
        target = read_optional(root, '%s/%s/target_node' % (_DAX, name)) or ''
        if driver == 'kmem' and is_number(target):
            yield int(target), model.NodeMemory(model.SLOW_MEMORY, name[:40])


def _from_tiers(root: str, with_cpus: Set[int]) -> Iterator[_Kind]:
    tiers: dict[int, frozenset[int]] = {}
    for name in list_names(os.path.join(root, _TIERS)):
        digits = name.removeprefix('memory_tier')
        if digits != name and is_number(digits):
            tiers[int(digits)] = optional_cpus(root, '%s/%s/nodelist' % (_TIERS, name))
    slowest_cpu_tier = max(
        (tier for tier, node_ids in tiers.items() if node_ids & with_cpus), default=None
    )
    for tier in sorted(tiers):
        if slowest_cpu_tier is not None and tier > slowest_cpu_tier:
            for node_id in sorted(tiers[tier]):
                yield node_id, model.NodeMemory(model.SLOW_MEMORY, 'memory_tier%d' % tier)
