# SPDX-License-Identifier: Apache-2.0
"""Decide which nodes have memory for guests.

The memory of a node without CPUs is that of a device (a GPU), of a slower tier (CXL), or far from
all CPUs in another way. No guest is placed on such a node and no promise is counted there, unless
the operator has configured it.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from nova_numa_pmc import model


def is_for_guests(node: model.Node, placement_options: model.PlacementOptions) -> bool:
    """Return whether a node has memory that guests may be promised."""
    is_withheld = node.is_far and node.id not in placement_options.guest_memory_nodes
    return bool(node.memory_bytes) and not is_withheld


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
) -> tuple[model.Node, ...]:
    """List the nodes whose memory is not for guests."""
    return tuple(
        node for node in nodes if node.memory_bytes and not is_for_guests(node, placement_options)
    )
