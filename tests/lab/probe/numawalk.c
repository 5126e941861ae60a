/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numawalk CPU NODE MIB PASSES: on that CPU, walk that much memory of that
 * node, one access a cache line, so that its DRAM accesses are known:
 * MIB·2^20/64 a pass. Ends with the node that the kernel says the pages are on.
 * With PASSES 0 it walks until killed and prints a line each pass.
 *
 * numawalk spin CPU SECONDS: a loop in registers; prints its iterations.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BIND = 2, LINE = 64, PAGE = 4096 };

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

static int spin(int cpu, double seconds)
{
	struct timespec start, now;
	unsigned long long loops = 0;

	run_on(cpu);
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		for (int i = 0; i < 100000; i++)
			__asm__ volatile("" ::: "memory");
		loops += 100000;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
	printf("%llu\n", loops);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "spin"))
		return spin(atoi(argv[2]), atof(argv[3]));
	if (argc != 5) {
		fprintf(stderr, "usage: numawalk CPU NODE MIB PASSES | numawalk spin CPU SECONDS\n");
		return 2;
	}
	size_t bytes = (size_t)atol(argv[3]) << 20;
	unsigned long mask = 1UL << atoi(argv[2]);
	long passes = atol(argv[4]);
	char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	run_on(atoi(argv[1]));
	if (memory == MAP_FAILED ||
	    syscall(SYS_mbind, memory, bytes, BIND, &mask, sizeof mask * 8, 0)) {
		perror("mbind");
		return 1;
	}
	for (size_t i = 0; i < bytes; i += PAGE)
		memory[i] = 1;
	void *page = memory;
	int node = -1;
	syscall(SYS_move_pages, 0, 1UL, &page, NULL, &node, 0);
	printf("node %d\n", node);
	fflush(stdout);
	for (long pass = 0; !passes || pass < passes; pass++) {
		for (size_t i = 0; i < bytes; i += LINE)
			*(volatile unsigned *)(memory + i) += 1;
		if (!passes) {
			puts(".");
			fflush(stdout);
		}
	}
	return 0;
}
