# SPDX-License-Identifier: Apache-2.0
"""Decide which nodes' memory is for guests.

A node without CPUs may have a device's memory, or that of a slower tier: no guest is placed there
and no promise is counted on it, unless the operator says so.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model

#: What a kind of memory is called.
IN_WORDS = {model.DEVICE: "a device's", model.SLOW: 'of a slower tier'}
#: The source of the operator's option.
BY_OPTION = 'device_memory_nodes'


def memory_of(node: model.Node, limits: model.PlacementOptions) -> model.NodeMemory:
    """Return the kind of a node's memory, by the operator's options or else by the kernel.

    A node with CPUs always has memory of the host's own.
    """
    if node.online_cpus or node.cpus or node.id in limits.guest_memory_nodes:
        return model.NodeMemory()
    if node.id in limits.device_memory_nodes:
        return model.NodeMemory(model.DEVICE, BY_OPTION)
    return node.memory


def is_for_guests(node: model.Node, limits: model.PlacementOptions) -> bool:
    """Return whether a node has memory that guests may be promised."""
    return bool(node.memory_bytes) and memory_of(node, limits).kind == model.HOST


def without_withheld(
    nodes: tuple[model.Node, ...], limits: model.PlacementOptions
) -> tuple[model.Node, ...]:
    """Return the nodes without the memory that :func:`list_withheld` lists."""
    return tuple(
        node
        if is_for_guests(node, limits) or not node.memory_bytes
        else node._replace(memory_bytes=0, free_bytes=0, huge_pages=())
        for node in nodes
    )


def list_withheld(
    nodes: tuple[model.Node, ...], limits: model.PlacementOptions
) -> tuple[tuple[model.Node, model.NodeMemory], ...]:
    """List (node, kind of its memory) of the nodes whose memory is not for guests."""
    return tuple(
        (node, memory_of(node, limits))
        for node in nodes
        if node.memory_bytes and not is_for_guests(node, limits)
    )
