# SPDX-License-Identifier: Apache-2.0
"""Determine which nodes may be in a ``cpuset.mems`` that we write.

These are the nodes that have memory. Nodes whose memory belongs to a device or to a slower tier
are only included if they were requested or if an operator has granted them.

The libvirt hook imports this module at ``started``, so it imports only light modules.
"""

from __future__ import annotations

import os

from nova_numa_pmc.cpulist import format_cpulist, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError
from nova_numa_pmc.host import memory_kinds, writes
from nova_numa_pmc.host.cpusets import cpuset_path
from nova_numa_pmc.host.files import read_kernel_file

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from nova_numa_pmc.host.cgroups import GuestGroups


def only_with_memory(groups: GuestGroups, mems: frozenset[int]) -> frozenset[int] | None:
    """Return the requested nodes except for those without memory; None if none of them has any.

    The kernel refuses nodes without memory (EINVAL) on v1 and, in older releases, on v2.
    """
    with_memory = memory_kinds.nodes_with_memory(_root(groups))
    return mems if with_memory is None else mems & with_memory or None


def unbound_mems(groups: GuestGroups) -> str:
    """Return the nodes that memory may come from when it is unbound (v2).

    These are the nodes that the guest's own group inherits, all of which have memory, except for
    those whose memory is not for guests. If a group above names such a node, an operator has
    granted it, and it is included.

    :returns: text in the kernel's list format, or '' if the inherited nodes need no change or
        cannot be read
    """
    withheld = memory_kinds.withheld_nodes(_root(groups))
    try:
        inherited = parse_cpulist(writes.read_inherited(cpuset_path(groups.parent, 'mems')))
        if not withheld & inherited:
            return ''
        directory = groups.scope
        while os.path.exists(cpuset_path(directory, 'mems')):
            withheld -= parse_cpulist(read_kernel_file(cpuset_path(directory, 'mems')))
            directory = os.path.dirname(directory)
    except (OSError, CpuListError):
        return ''
    return format_cpulist(inherited - withheld)


def _root(groups: GuestGroups) -> str:
    return os.path.join(groups.proc, '../..')
