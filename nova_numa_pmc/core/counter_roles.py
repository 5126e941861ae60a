# SPDX-License-Identifier: Apache-2.0
"""Roles of counted events: names for what an event counts, independent of the CPU model."""

from __future__ import annotations

# What an event counts. Events with the same role and scope are added up.
LOCAL_DRAM, REMOTE_DRAM = 'local_dram', 'remote_dram'
CYCLES, INSTRUCTIONS = 'cycles', 'instructions'
STALLED_CYCLES = 'stalled_cycles'
MEM_READ, MEM_WRITE, MEM_TRAFFIC = 'mem_read', 'mem_write', 'mem_traffic'
LINK_TX = 'link_tx'
# Clocks of memory controllers and links, in bytes that could have been carried.
MEM_MAX, LINK_MAX = 'mem_max', 'link_max'
IO_HIT, IO_MISS = 'io_hit', 'io_miss'

#: Roles counted in a core: per CPU, per thread or per control group.
CORE_ROLES = (CYCLES, INSTRUCTIONS, LOCAL_DRAM, REMOTE_DRAM, STALLED_CYCLES)
#: The role counted for guests only, in an event group of its own, which the kernel multiplexes
#: with the other groups if the hardware has too few counters.
GUEST_ROLE = STALLED_CYCLES
#: Roles counted in the uncore of a package, for everything that runs on it. ``mem_traffic`` is
#: reads and writes together, for hardware that does not distinguish them.
UNCORE_ROLES = (MEM_READ, MEM_WRITE, MEM_TRAFFIC, MEM_MAX, LINK_TX, LINK_MAX, IO_HIT, IO_MISS)
#: Those of them whose counts are amounts of memory traffic, those of a link, and all amounts.
MEMORY_ROLES = (MEM_READ, MEM_WRITE, MEM_TRAFFIC)
LINK_ROLES = (LINK_TX, LINK_MAX)
DATA_ROLES = (*MEMORY_ROLES, MEM_MAX, *LINK_ROLES)
ROLES = CORE_ROLES + UNCORE_ROLES
