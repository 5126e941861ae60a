/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A KVM guest that boots in milliseconds: a multiboot kernel that works
 * forever and reports on its serial port: 'A' at start, 'B' when it has
 * touched its share of memory, then '.' after each pass, so that the growth
 * of the serial log is its throughput.
 *
 * Options on its command line (`<cmdline>` in the domain's XML):
 *   mode=walk   a pass adds to each cache line of the touched memory (default)
 *   mode=cpu    a pass is a loop in registers, as long as a 16 MiB walk
 *   touch=N     touch and walk N % of the memory (default 100)
 *   duty=N      work N % of each half second, sleep the rest (default 100)
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { LOAD_END = 0x400000, CHUNK = 1 << 16, LINE = 64, PAGE = 4096, CPU_LOOP = (16 << 20) / LINE };
enum { PIC1 = 0x20, PIC2 = 0xa0, RTC = 0x70, SERIAL = 0x3f8, VECTOR_BASE = 0x20, RTC_IRQ = 8,
       CALIBRATION_TICKS = 4 };

__attribute__((section(".mb"), used, aligned(4)))
static const u32 multiboot[] = { 0x1BADB002u, 2u, (u32)-(0x1BADB002u + 2u) };

static volatile u32 ticks;	/* half seconds, counted while asleep */
static u32 duty = 100;

static inline void out(u16 port, u8 value)
{
	__asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port));
}

static inline u8 in(u16 port)
{
	u8 value;

	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline u64 tsc(void)
{
	u64 t;

	__asm__ volatile("rdtsc" : "=A"(t));
	return t;
}

__attribute__((used)) static void on_tick(void)
{
	ticks++;
	out(RTC, 0x0c);		/* reading register C lets the clock interrupt again */
	in(RTC + 1);
	out(PIC2, 0x20);
	out(PIC1, 0x20);
}

__attribute__((naked)) static void tick_entry(void)
{
	__asm__ volatile("pusha\n cld\n call on_tick\n popa\n iret\n");
}

/* Flat segments and one interrupt: the real-time clock, twice a second. */
static void start_clock(void)
{
	static const u64 gdt[] = { 0, 0x00cf9a000000ffffULL, 0x00cf92000000ffffULL };
	static u64 idt[VECTOR_BASE + 16];
	struct { u16 size; u32 base; } __attribute__((packed)) gdtr = { sizeof gdt - 1, (u32)gdt },
		idtr = { sizeof idt - 1, (u32)idt };
	u32 entry = (u32)tick_entry;

	idt[VECTOR_BASE + RTC_IRQ] =
		(entry & 0xffff) | 0x00080000u | (u64)((entry & 0xffff0000) | 0x8e00) << 32;
	__asm__ volatile("lgdt %0\n lidt %1\n ljmp $8, $1f\n1:\n mov $16, %%eax\n mov %%eax, %%ds\n"
			 "mov %%eax, %%es\n mov %%eax, %%ss\n" ::"m"(gdtr), "m"(idtr) : "eax", "memory");
	out(0x43, 0x30);			/* stop the PIT, which the firmware left running */
	out(PIC1, 0x11); out(PIC2, 0x11);
	out(PIC1 + 1, VECTOR_BASE); out(PIC2 + 1, VECTOR_BASE + 8);
	out(PIC1 + 1, 4); out(PIC2 + 1, 2);
	out(PIC1 + 1, 1); out(PIC2 + 1, 1);
	out(PIC1 + 1, 0xff & ~(1 << 2)); out(PIC2 + 1, 0xff & ~1);
	out(RTC, 0x8a); out(RTC + 1, 0x2f);	/* 32,768 Hz / 2^14: 2 Hz */
	out(RTC, 0x8b); out(RTC + 1, 0x42);	/* periodic interrupt, 24 h */
	out(RTC, 0x0c); in(RTC + 1);
}

static void sleep_until_tick(void)
{
	u32 seen = ticks;

	while (ticks == seen)
		__asm__ volatile("sti\n hlt\n cli\n" ::: "memory");
}

/* Sleep to the next half second once this one's share of work is done. */
static void rest(void)
{
	static u64 began, half_second;

	if (duty >= 100)
		return;
	if (!half_second) {
		/* Over several ticks: one alone may come late while other guests start. */
		sleep_until_tick();
		began = tsc();
		for (int i = 0; i < CALIBRATION_TICKS; i++)
			sleep_until_tick();
		half_second = (tsc() - began) / CALIBRATION_TICKS;
		began = tsc();
	}
	if (tsc() - began < half_second / 100 * duty)
		return;
	sleep_until_tick();
	began = tsc();
}

static void walk(u32 end)
{
	for (u32 chunk = LOAD_END; chunk < end; chunk += CHUNK) {
		for (u32 p = chunk; p < chunk + CHUNK; p += LINE)
			*(volatile u32 *)p += 1;
		rest();
	}
}

static void spin(void)
{
	for (u32 i = 0; i < CPU_LOOP; i++) {
		__asm__ volatile("" ::: "memory");
		if (i % (CHUNK / LINE) == 0)
			rest();
	}
}

/* The number or the letter behind `key` in the command line, else `otherwise`. */
static u32 option(const char *line, const char *key, u32 otherwise)
{
	for (; line && *line; line++) {
		u32 i = 0, n = 0;

		while (key[i] && line[i] == key[i])
			i++;
		if (key[i])
			continue;
		if (line[i] < '0' || line[i] > '9')
			return line[i];
		for (; line[i] >= '0' && line[i] <= '9'; i++)
			n = n * 10 + line[i] - '0';
		return n;
	}
	return otherwise;
}

__attribute__((used)) static void guest(u32 magic, const u32 *info)
{
	const char *line = info[0] & 4 ? (const char *)info[4] : 0;
	u32 memory = info[2] * 1024u + 0x100000 - LOAD_END;	/* info[2]: KiB above 1 MiB */
	u32 end = LOAD_END + memory / 100 * option(line, "touch=", 100) / CHUNK * CHUNK;
	u32 mode = option(line, "mode=", 'w');

	duty = option(line, "duty=", 100);
	out(SERIAL, 'A');
	if (duty < 100)
		start_clock();
	for (u32 p = LOAD_END; p < end; p += PAGE)
		*(volatile u32 *)p = p;
	out(SERIAL, 'B');
	for (;;) {
		if (mode == 'c')
			spin();
		else
			walk(end);
		out(SERIAL, '.');
	}
}

__attribute__((naked, section(".start"))) void _start(void)
{
	__asm__ volatile("cli\n mov $0x200000, %esp\n push %ebx\n push %eax\n call guest\n");
}
