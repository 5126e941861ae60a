# SPDX-License-Identifier: Apache-2.0
"""Decide which nodes have memory for guests.

The memory of a node without CPUs may belong to a device or to a slower tier. No guest is placed on
such a node and no promise is counted there, unless the operator has configured it.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc import model

#: {kind of memory: its text for operators}
TEXTS = {model.DEVICE_MEMORY: "a device's", model.SLOW_MEMORY: 'of a slower tier'}
#: Source of the kind of a node's memory: the operator's option of this name.
BY_OPTION = 'device_memory_nodes'


def memory_of(node: model.Node, placement_options: model.PlacementOptions) -> model.NodeMemory:
    """Return the kind of a node's memory, as the operator's options or else the kernel states it.

    The memory of a node with CPUs is always the host's own.
    """
    if node.online_cpus or node.cpus or node.id in placement_options.guest_memory_nodes:
        return model.NodeMemory()
    if node.id in placement_options.device_memory_nodes:
        return model.NodeMemory(model.DEVICE_MEMORY, BY_OPTION)
    return node.memory


def is_for_guests(node: model.Node, placement_options: model.PlacementOptions) -> bool:
    """Return whether a node has memory that guests may be promised."""
    return bool(node.memory_bytes) and memory_of(node, placement_options).kind == model.HOST_MEMORY


def with_guest_memory_only(
    nodes: tuple[model.Node, ...], placement_options: model.PlacementOptions
) -> tuple[model.Node, ...]:
    """Return the nodes, with memory that is not for guests counted as none."""
    return tuple(
        node
        if is_for_guests(node, placement_options) or not node.memory_bytes
        else node._replace(memory_bytes=0, free_bytes=0, huge_pages=())
        for node in nodes
    )


def list_withheld(
    nodes: tuple[model.Node, ...], placement_options: model.PlacementOptions
) -> tuple[tuple[model.Node, model.NodeMemory], ...]:
    """List (node, kind of its memory) for each node whose memory is not for guests."""
    return tuple(
        (node, memory_of(node, placement_options))
        for node in nodes
        if node.memory_bytes and not is_for_guests(node, placement_options)
    )


def list_unexplained(
    nodes: tuple[model.Node, ...], placement_options: model.PlacementOptions
) -> tuple[model.Node, ...]:
    """List the nodes without CPUs whose memory is used for guests for want of information."""
    return tuple(
        node
        for node in nodes
        if not node.online_cpus
        and is_for_guests(node, placement_options)
        and node.id not in placement_options.guest_memory_nodes
    )
