# SPDX-License-Identifier: Apache-2.0
"""Find out which nodes a ``cpuset.mems`` that we write may hold.

These are the nodes with memory, except for memory of a device or of a slower tier, unless that
was requested.

Imported by the libvirt hook at ``started``: light modules only.
"""

from __future__ import annotations

import os

from nova_numa_pmc.cpulist import format_cpulist, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError
from nova_numa_pmc.host import memory_kinds, writes
from nova_numa_pmc.host.cgroups import GuestGroups
from nova_numa_pmc.host.files import read_kernel_file
from nova_numa_pmc.host.held import file_of


def only_with_memory(groups: GuestGroups, mems: frozenset[int] | None) -> frozenset[int] | None:
    """Leave out nodes without memory, which v1 and older v2 refuse (EINVAL).

    :param mems: ids of the requested nodes; None: none are requested
    :returns: None: none of them has any, so memory is left alone
    """
    if not mems:
        return mems
    with_memory = memory_kinds.nodes_with_memory(_root(groups))
    return mems if with_memory is None else mems & with_memory or None


def unbound_mems(groups: GuestGroups) -> str:
    """Return the nodes that memory may come from when it is unbound (v2); '': as inherited.

    These are the nodes that the guest's own group inherits, which all have memory, without those
    whose memory is not for guests. If a group above names such a node, an operator has granted it.
    """
    withheld = memory_kinds.withheld_nodes(_root(groups))
    try:
        inherited = parse_cpulist(writes.read_inherited(file_of(groups.target, 'mems')))
        if not withheld & inherited:
            return ''
        directory = groups.scope
        while os.path.exists(file_of(directory, 'mems')):
            withheld -= parse_cpulist(read_kernel_file(file_of(directory, 'mems')))
            directory = os.path.dirname(directory)
    except (OSError, CpuListError):
        return ''
    return format_cpulist(inherited - withheld)


def _root(groups: GuestGroups) -> str:
    return os.path.join(groups.proc, '../..')
