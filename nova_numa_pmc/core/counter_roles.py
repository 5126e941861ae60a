# SPDX-License-Identifier: Apache-2.0
"""What is counted: the roles that events have, whatever CPU they are of."""

from __future__ import annotations

# What an event tells us; several events of one role on one scope are added up.
LOCAL_DRAM, REMOTE_DRAM, REMOTE_CACHE = 'local_dram', 'remote_dram', 'remote_cache'
CYCLES, INSTRUCTIONS = 'cycles', 'instructions'
STALLED_CYCLES, LLC_MISSES = 'stalled_cycles', 'llc_misses'
MEM_READ, MEM_WRITE, MEM_TRAFFIC = 'mem_read', 'mem_write', 'mem_traffic'
LINK_TX = 'link_tx'
READS_LOCAL, READS_REMOTE = 'reads_local', 'reads_remote'
IO_READ, IO_WRITE, IO_HIT, IO_MISS = 'io_read', 'io_write', 'io_hit', 'io_miss'

#: Counted on a core: per CPU, per thread, per control group.
CORE_ROLES = (
    CYCLES,
    INSTRUCTIONS,
    LOCAL_DRAM,
    REMOTE_DRAM,
    REMOTE_CACHE,
    STALLED_CYCLES,
    LLC_MISSES,
)
#: Counted in a package's uncore, for all that happens there. ``mem_traffic`` is
#: read and write together, where hardware doesn't tell them apart.
UNCORE_ROLES = (
    MEM_READ,
    MEM_WRITE,
    MEM_TRAFFIC,
    LINK_TX,
    READS_LOCAL,
    READS_REMOTE,
    IO_READ,
    IO_WRITE,
    IO_HIT,
    IO_MISS,
)
ROLES = CORE_ROLES + UNCORE_ROLES
