# SPDX-License-Identifier: Apache-2.0
"""The roles of counted events: names for what is counted, independent of the CPU."""

from __future__ import annotations

# The meaning of an event; several events of one role on one scope are added up.
LOCAL_DRAM, REMOTE_DRAM, REMOTE_CACHE = 'local_dram', 'remote_dram', 'remote_cache'
CYCLES, INSTRUCTIONS = 'cycles', 'instructions'
STALLED_CYCLES = 'stalled_cycles'
MEM_READ, MEM_WRITE, MEM_TRAFFIC = 'mem_read', 'mem_write', 'mem_traffic'
LINK_TX = 'link_tx'
IO_READ, IO_HIT, IO_MISS = 'io_read', 'io_hit', 'io_miss'

#: Counted on a core: per CPU, per thread, per control group.
CORE_ROLES = (CYCLES, INSTRUCTIONS, LOCAL_DRAM, REMOTE_DRAM, REMOTE_CACHE, STALLED_CYCLES)
#: Roles counted on guests only, each in a group of its own. The group takes turns with the others
#: where the hardware has too few counters.
GUEST_ROLES = (REMOTE_CACHE, STALLED_CYCLES)
#: Counted in a package's uncore, for all that happens there. ``mem_traffic`` is
#: read and write together, where hardware does not distinguish them.
UNCORE_ROLES = (MEM_READ, MEM_WRITE, MEM_TRAFFIC, LINK_TX, IO_READ, IO_HIT, IO_MISS)
ROLES = CORE_ROLES + UNCORE_ROLES
#: Roles of earlier releases that were never counted; an operator's event for one is passed over.
FORMER_ROLES = ('llc_misses', 'reads_local', 'reads_remote', 'io_write')
