# SPDX-License-Identifier: Apache-2.0
"""Let the CPUs of a running guest follow its memory if that has to stay where it is.

The libvirt hook imports this module at ``started``, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.conf.host_options import FOLLOW_MEMORY_OVER_BYTES
from nova_numa_pmc.host import cgroups
from nova_numa_pmc.placing import decide

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from nova_numa_pmc.conf.host_options import HostOptions


def decide_again_if_memory_stays(
    guest: model.Guest,
    groups: cgroups.GuestGroups,
    decision: decide.Decision,
    host_options: HostOptions,
    root: str,
    lock_timeout_s: float,
) -> tuple[decide.Decision, dict[int, int]]:
    """Decide again if most of the guest's memory is elsewhere and has to stay there.

    It has to stay if it cannot be moved, if the operator has pinned the guest, or if it exceeds
    :data:`host_options.FOLLOW_MEMORY_OVER_BYTES`.

    :returns: the new decision, or ``decision`` itself if the memory can follow it or is unknown;
        and where the memory is, {node id: bytes}
    :raises NumaPmcError: as :func:`decide.decide_promise`
    """
    bytes_by_node = dict(cgroups.read_memory_by_node(groups) or {})
    if guest.page_bytes:
        from nova_numa_pmc.host.page_moves import hugetlb  # few guests have such pages

        huge_bytes_by_node = hugetlb.read_bytes_by_node(groups.pid, root)
        if not huge_bytes_by_node:  # the rest is QEMU's own memory
            return decision, bytes_by_node
        for node, size in huge_bytes_by_node.items():
            bytes_by_node[node] = bytes_by_node.get(node, 0) + size
    homes = decision.promise.mem_nodes or decision.promise.cpu_nodes
    elsewhere_bytes = cgroups.bytes_elsewhere(bytes_by_node, homes)
    must_stay = (
        guest.locked
        or guest.page_bytes
        or guest.preallocated
        or guest.override == model.PIN  # nothing fetches it
        or elsewhere_bytes > FOLLOW_MEMORY_OVER_BYTES
    )
    if must_stay and 2 * elsewhere_bytes > sum(bytes_by_node.values()):
        decision = decide.decide_promise(guest, host_options, root, lock_timeout_s, bytes_by_node)
    return decision, bytes_by_node
