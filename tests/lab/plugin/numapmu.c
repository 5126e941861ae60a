/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * QEMU TCG plugin: counters and speed of an emulated NUMA machine.
 *
 * Counting: every guest memory access is looked up in a model of its node's
 * last-level cache (physical tags, shared by the node's vCPUs); a miss is a
 * DRAM access of that vCPU to the node that owns the RAM block. Accesses are
 * kept apart by privilege (of the code's address) and by host or KVM guest.
 * Not modelled: coherence (a line may sit in two nodes' caches), prefetch,
 * page walks, write-backs, instruction fetch, what most instructions access that
 * end a block: calls, returns.
 *
 * Pacing: a vCPU that has executed its budget of instructions sleeps, so each
 * runs at one fixed speed whether or not its neighbours idle.
 *
 * Argument: counters=FILE (NUMALAB_BAR_BYTES, see counters.h).
 *
 * Written against plugin API version 1 of QEMU 7.2 (Debian 12), which packages
 * no header: the prototypes are declared by hand from its qemu-plugin.h.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "counters.h"

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
typedef uint32_t meminfo;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
/*
 * QEMU 7.2's include/qemu/plugin-memory.h. The public accessor finds the RAM
 * block by a list walk, too slow for each access, so hits compare the host
 * address here; each miss checks it against the accessor.
 */
struct qemu_plugin_hwaddr {
	_Bool is_io, is_store;
	union {
		struct { void *section; uint64_t offset; } io;
		struct { void *hostaddr; } ram;
	} v;
};

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *),
					  int cb_flags, void *);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *),
					    int cb_flags, void *);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
				      void (*)(unsigned, meminfo, uint64_t, void *),
				      int cb_flags, int rw, void *);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(meminfo, uint64_t vaddr);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);
_Bool qemu_plugin_mem_is_store(meminfo);

enum { CB_NO_REGS = 0, MEM_RW = 3 };
enum { LLC_LINES = 1 << 14, LINE_SHIFT = 6 };	/* 1 MiB a node, direct-mapped */

EXPORT int qemu_plugin_version = 1;

static volatile struct numalab_header *header;
static struct numalab_vcpu *vcpus;
static _Atomic uint64_t (*llc)[LLC_LINES];	/* per node: line numbers in host addresses */
static uint64_t range_delta[NUMALAB_MAX_RANGES];	/* API address − host address, once seen */

static struct vcpu {
	const void *after_vmrun;	/* the host's next instruction while a KVM guest runs */
	uint64_t executed, checked;	/* instructions, for pacing */
	uint64_t epoch_ns;		/* when `executed` would have been 0 at full speed */
	unsigned mode;			/* of the block that runs: NUMALAB_KERNEL | NUMALAB_GUEST */
	char pad[28];
} state[NUMALAB_MAX_VCPUS] __attribute__((aligned(64)));

static __attribute__((noreturn)) void die(const char *what)
{
	fprintf(stderr, "numapmu: %s\n", what);
	exit(1);
}

static unsigned node_of(const struct qemu_plugin_hwaddr *hw)
{
	uint64_t addr = qemu_plugin_hwaddr_phys_addr(hw);

	for (unsigned i = 0; i < header->ranges; i++) {
		if (addr < header->range[i].start || addr >= header->range[i].end)
			continue;
		uint64_t delta = addr - (uintptr_t)hw->v.ram.hostaddr;
		if (!range_delta[i])
			range_delta[i] = delta;
		else if (range_delta[i] != delta)
			die("struct qemu_plugin_hwaddr is not that of QEMU 7.2");
		return header->range[i].node;
	}
	return NUMALAB_MAX_NODES;	/* firmware, video memory: no node's DRAM */
}

static void on_access(unsigned cpu, meminfo info, uint64_t vaddr, void *unused)
{
	struct qemu_plugin_hwaddr *hw = qemu_plugin_get_hwaddr(info, vaddr);

	if (!hw || hw->is_io)
		return;
	struct numalab_counts *counts = &vcpus[cpu].mode[state[cpu].mode];
	uint64_t line = (uintptr_t)hw->v.ram.hostaddr >> LINE_SHIFT;
	_Atomic uint64_t *tag = &llc[header->vcpu_node[cpu]][line % LLC_LINES];

	if (atomic_load_explicit(tag, memory_order_relaxed) == line) {
		counts->hits++;
		return;
	}
	atomic_store_explicit(tag, line, memory_order_relaxed);
	unsigned node = node_of(hw);
	if (node >= NUMALAB_MAX_NODES)
		return;
	if (qemu_plugin_mem_is_store(info))
		counts->writes[node]++;
	else
		counts->reads[node]++;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

/*
 * Hold the vCPU to pace_per_sec. Checked every half millisecond of budget:
 * the other vCPUs wait for a sleeping one in QEMU's exclusive sections.
 */
static void keep_pace(struct vcpu *v, uint64_t pace_per_sec)
{
	enum { CHECKS_PER_SEC = 2000, SAVED_NS = 2000000 };

	if (v->executed - v->checked < pace_per_sec / CHECKS_PER_SEC)
		return;
	v->checked = v->executed;
	uint64_t now = now_ns();
	uint64_t due = v->epoch_ns + (uint64_t)(v->executed * 1e9 / pace_per_sec);
	if (due > now && due - now < 1000000000ULL) {
		struct timespec t = { .tv_nsec = (long)(due - now) };
		nanosleep(&t, NULL);
	} else if (due > now || now - due > SAVED_NS) {
		/* It idled, or the pace changed: idle time is not saved up. */
		v->executed = v->checked = 0;
		v->epoch_ns = now;
	}
}

/* A block's instructions, its privilege and its host address, packed in the callback's pointer. */
#define BLOCK_ADDRESS 0x0000ffffffffffffULL
#define BLOCK_KERNEL (1ULL << 63)
#define BLOCK_INSNS(b) (((b) >> 48) & 0x7fff)

static void on_block(unsigned cpu, void *packed)
{
	uint64_t block = (uintptr_t)packed;
	struct vcpu *v = &state[cpu];
	unsigned mode = block & BLOCK_KERNEL ? NUMALAB_KERNEL : 0;

	/* #VMEXIT continues behind VMRUN with interrupts off, so a block starts right there. */
	if (v->after_vmrun) {
		if ((block & BLOCK_ADDRESS) == (uintptr_t)v->after_vmrun)
			v->after_vmrun = NULL;
		else
			mode |= NUMALAB_GUEST;
	}
	v->mode = mode;
	vcpus[cpu].mode[mode].instructions += BLOCK_INSNS(block);
	uint64_t pace = header->pace_per_sec;
	if (pace) {
		v->executed += BLOCK_INSNS(block);
		keep_pace(v, pace);
	}
}

static void on_vmrun(unsigned cpu, void *next)
{
	state[cpu].after_vmrun = next;
}

/*
 * Whether a block's last instruction may have a callback for its accesses.
 *
 * One that leaves its block by itself and calls a helper (a jump to another
 * page does: it looks up the next block; VMRUN and SYSCALL do) leaves a pointer
 * to its callbacks in the CPU. Flushing translated code frees them, and the next
 * access that a helper makes reads what lies there by then and aborts: QEMU's
 * issue 1381, fixed in 8.0. Of such instructions only the repeated string
 * operations have accesses that matter; they stay in their page, and call none.
 */
static int last_may_count(const struct qemu_plugin_insn *insn, uint64_t block_vaddr)
{
	static const unsigned char prefixes[] = "\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3";
	enum { PAGE_SHIFT = 12 };
	const unsigned char *code = qemu_plugin_insn_data(insn);
	size_t n = qemu_plugin_insn_size(insn), i = 0;

	if ((qemu_plugin_insn_vaddr(insn) + n) >> PAGE_SHIFT != block_vaddr >> PAGE_SHIFT)
		return 0;
	while (i < n && memchr(prefixes, code[i], sizeof prefixes - 1))
		i++;
	if (i < n && code[i] >> 4 == 4)		/* REX */
		i++;
	/* MOVS, CMPS; STOS, LODS, SCAS */
	return i < n && ((code[i] >= 0xa4 && code[i] <= 0xa7) ||
			 (code[i] >= 0xaa && code[i] <= 0xaf));
}

static void on_translate(plugin_id id, struct qemu_plugin_tb *tb)
{
	static const unsigned char vmrun[] = { 0x0f, 0x01, 0xd8 };
	size_t n = qemu_plugin_tb_n_insns(tb);
	uint64_t block = (uintptr_t)qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(tb, 0));

	block = (block & BLOCK_ADDRESS) | (uint64_t)n << 48;
	/* Linux: the upper half is the kernel's. A guest without one is all user. */
	if (qemu_plugin_tb_vaddr(tb) >> 63)
		block |= BLOCK_KERNEL;
	qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, CB_NO_REGS, (void *)(uintptr_t)block);
	for (size_t i = 0; i < n; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		if (i < n - 1 || last_may_count(insn, qemu_plugin_tb_vaddr(tb)))
			qemu_plugin_register_vcpu_mem_cb(insn, on_access, CB_NO_REGS, MEM_RW, NULL);
		if (qemu_plugin_insn_size(insn) == sizeof vmrun &&
		    !memcmp(qemu_plugin_insn_data(insn), vmrun, sizeof vmrun))
			qemu_plugin_register_vcpu_insn_exec_cb(
				insn, on_vmrun, CB_NO_REGS,
				(char *)qemu_plugin_insn_haddr(insn) + sizeof vmrun);
	}
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	static const char key[] = "counters=";
	int fd = -1;

	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], key, sizeof key - 1))
			fd = open(argv[i] + sizeof key - 1, O_RDWR);
	if (fd < 0)
		return -1;
	char *page = mmap(0, NUMALAB_BAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return -1;
	header = (void *)page;
	vcpus = (void *)(page + NUMALAB_HEADER_BYTES);
	llc = calloc(NUMALAB_MAX_NODES, sizeof *llc);
	if (header->magic != NUMALAB_MAGIC || !llc)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
	return 0;
}
