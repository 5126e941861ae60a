/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The page that the TCG plugin writes, the kernel module reads through an
 * ivshmem BAR, and the host fills in at start: one layout for all three
 * (machine/counters.py is the Python side).
 */
#ifndef NUMALAB_COUNTERS_H
#define NUMALAB_COUNTERS_H

#ifndef __KERNEL__
#include <stdint.h>
typedef uint64_t u64;
typedef uint32_t u32;
typedef uint8_t u8;
#endif

#define NUMALAB_MAGIC 0x42414c414d554eULL	/* "NUMALAB" */
#define NUMALAB_MAX_VCPUS 64
#define NUMALAB_MAX_NODES 16
#define NUMALAB_MAX_RANGES 64
#define NUMALAB_HEADER_BYTES 4096
#define NUMALAB_VCPU_BYTES 2048
#define NUMALAB_BAR_BYTES (256 << 10)	/* a BAR's size is a power of two */

/* Whose access: bit 0 the kernel's (else user's), bit 1 a KVM guest's (else the host's). */
enum { NUMALAB_KERNEL = 1, NUMALAB_GUEST = 2, NUMALAB_MODES = 4 };

struct numalab_range {			/* a RAM block, in the plugin API's addresses */
	u64 start, end;
	u32 node, pad;
};

struct numalab_header {
	u64 magic;
	u32 vcpus, nodes;
	u64 pace_per_sec;		/* instructions per second of each vCPU; 0: unpaced */
	u32 ranges, pad;
	u8 vcpu_node[NUMALAB_MAX_VCPUS];
	struct numalab_range range[NUMALAB_MAX_RANGES];
};

struct numalab_counts {
	u64 instructions, hits;
	u64 reads[NUMALAB_MAX_NODES], writes[NUMALAB_MAX_NODES];	/* by the memory's node */
};

struct numalab_vcpu {
	struct numalab_counts mode[NUMALAB_MODES];
	u8 pad[NUMALAB_VCPU_BYTES - NUMALAB_MODES * sizeof(struct numalab_counts)];
};

#endif
