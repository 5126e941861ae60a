// SPDX-License-Identifier: GPL-2.0
/*
 * perf PMUs for the emulated machine, over the counts that the TCG plugin
 * publishes through an ivshmem BAR (plugin/counters.h).
 *
 * numa_emu: a core PMU. Events local_dram, remote_dram, hits, instructions;
 *   per CPU, per task, per cgroup; exclude_{user,kernel,host,guest} honoured;
 *   at most `counters` at a time on a CPU, so more are multiplexed.
 * numa_emu_imc_N: node N's memory controller. Events cas_reads, cas_writes,
 *   from all CPUs; counted on one CPU (cpumask), like an uncore PMU.
 */
#include <linux/cpumask.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/perf_event.h>
#include <linux/topology.h>

#include "counters.h"

static unsigned int counters = 4;
module_param(counters, uint, 0444);
MODULE_PARM_DESC(counters, "events that a CPU counts at a time");

static void __iomem *bar;
static DEFINE_PER_CPU(unsigned int, busy_counters);

enum { LOCAL_DRAM, REMOTE_DRAM, HITS, INSTRUCTIONS, CORE_EVENTS };
enum { CAS_READS, CAS_WRITES, IMC_EVENTS };

static u64 vcpu_u64(unsigned int cpu, unsigned int mode, size_t offset)
{
	return readq(bar + NUMALAB_HEADER_BYTES + cpu * NUMALAB_VCPU_BYTES +
		     mode * sizeof(struct numalab_counts) + offset);
}

static u64 dram(unsigned int cpu, unsigned int mode, unsigned int node)
{
	return vcpu_u64(cpu, mode, offsetof(struct numalab_counts, reads[node])) +
	       vcpu_u64(cpu, mode, offsetof(struct numalab_counts, writes[node]));
}

static bool excluded(const struct perf_event_attr *attr, unsigned int mode)
{
	return (mode & NUMALAB_KERNEL ? attr->exclude_kernel : attr->exclude_user) ||
	       (mode & NUMALAB_GUEST ? attr->exclude_guest : attr->exclude_host);
}

static u64 core_count(unsigned int event, unsigned int cpu, unsigned int mode)
{
	unsigned int node, nodes = readl(bar + offsetof(struct numalab_header, nodes));
	u64 sum = 0;

	if (event == HITS)
		return vcpu_u64(cpu, mode, offsetof(struct numalab_counts, hits));
	if (event == INSTRUCTIONS)
		return vcpu_u64(cpu, mode, offsetof(struct numalab_counts, instructions));
	for (node = 0; node < nodes && node < NUMALAB_MAX_NODES; node++)
		if ((node == cpu_to_node(cpu)) == (event == LOCAL_DRAM))
			sum += dram(cpu, mode, node);
	return sum;
}

static u64 core_now(struct perf_event *event)
{
	unsigned int mode;
	u64 sum = 0;

	for (mode = 0; mode < NUMALAB_MODES; mode++)
		if (!excluded(&event->attr, mode))
			sum += core_count(event->attr.config, smp_processor_id(), mode);
	return sum;
}

struct imc {
	struct pmu pmu;
	unsigned int node;
	char name[24];
};

static u64 imc_now(struct perf_event *event)
{
	unsigned int node = container_of(event->pmu, struct imc, pmu)->node;
	size_t offset = event->attr.config == CAS_READS ?
		offsetof(struct numalab_counts, reads[node]) :
		offsetof(struct numalab_counts, writes[node]);
	unsigned int cpu, mode;
	u64 sum = 0;

	for (cpu = 0; cpu < NUMALAB_MAX_VCPUS; cpu++)
		for (mode = 0; mode < NUMALAB_MODES; mode++)
			sum += vcpu_u64(cpu, mode, offset);
	return sum;
}

static struct pmu core_pmu;

static u64 count_now(struct perf_event *event)
{
	return event->pmu == &core_pmu ? core_now(event) : imc_now(event);
}

static void emu_read(struct perf_event *event)
{
	u64 now = count_now(event);

	local64_add(now - local64_xchg(&event->hw.prev_count, now), &event->count);
}

static void emu_start(struct perf_event *event, int flags)
{
	local64_set(&event->hw.prev_count, count_now(event));
	event->hw.state = 0;
}

static void emu_stop(struct perf_event *event, int flags)
{
	if (event->hw.state & PERF_HES_STOPPED)
		return;
	emu_read(event);
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
}

static int emu_add(struct perf_event *event, int flags)
{
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	if (flags & PERF_EF_START)
		emu_start(event, flags);
	return 0;
}

static void emu_del(struct perf_event *event, int flags)
{
	emu_stop(event, PERF_EF_UPDATE);
}

static int core_add(struct perf_event *event, int flags)
{
	if (this_cpu_read(busy_counters) >= counters)
		return -EAGAIN;
	this_cpu_inc(busy_counters);
	return emu_add(event, flags);
}

static void core_del(struct perf_event *event, int flags)
{
	emu_del(event, flags);
	this_cpu_dec(busy_counters);
}

static int event_init(struct perf_event *event, u64 events)
{
	if (event->attr.type != event->pmu->type)
		return -ENOENT;
	if (is_sampling_event(event))
		return -EOPNOTSUPP;
	return event->attr.config < events ? 0 : -EINVAL;
}

static int core_init(struct perf_event *event)
{
	struct perf_event *sibling;
	unsigned int n = 1;
	int err = event_init(event, CORE_EVENTS);

	/* A group that could never be counted at once is refused, as hardware's drivers do. */
	if (!err && event->group_leader != event) {
		n++;
		for_each_sibling_event(sibling, event->group_leader)
			n++;
	}
	return err ?: n > counters ? -EINVAL : 0;
}

static unsigned int imc_cpu(unsigned int node)
{
	unsigned int cpu = cpumask_first_and(cpumask_of_node(node), cpu_online_mask);

	return cpu < nr_cpu_ids ? cpu : cpumask_first(cpu_online_mask);
}

static int imc_init(struct perf_event *event)
{
	int err = event_init(event, IMC_EVENTS);

	if (err)
		return err;
	if (event->cpu < 0 || event->attach_state & PERF_ATTACH_TASK)
		return -EINVAL;
	event->cpu = imc_cpu(container_of(event->pmu, struct imc, pmu)->node);
	return 0;
}

static ssize_t cpumask_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct pmu *pmu = dev_get_drvdata(dev);

	return sysfs_emit(buf, "%u\n", imc_cpu(container_of(pmu, struct imc, pmu)->node));
}
static DEVICE_ATTR_RO(cpumask);

PMU_FORMAT_ATTR(event, "config:0-7");
PMU_EVENT_ATTR_STRING(local_dram, attr_local, "event=0x0");
PMU_EVENT_ATTR_STRING(remote_dram, attr_remote, "event=0x1");
PMU_EVENT_ATTR_STRING(hits, attr_hits, "event=0x2");
PMU_EVENT_ATTR_STRING(instructions, attr_instructions, "event=0x3");
PMU_EVENT_ATTR_STRING(cas_reads, attr_reads, "event=0x0");
PMU_EVENT_ATTR_STRING(cas_writes, attr_writes, "event=0x1");

static struct attribute *format_attrs[] = { &format_attr_event.attr, NULL };
static struct attribute *core_attrs[] = {
	&attr_local.attr.attr, &attr_remote.attr.attr, &attr_hits.attr.attr,
	&attr_instructions.attr.attr, NULL
};
static struct attribute *imc_attrs[] = { &attr_reads.attr.attr, &attr_writes.attr.attr, NULL };
static struct attribute *mask_attrs[] = { &dev_attr_cpumask.attr, NULL };
static const struct attribute_group format_group = { .name = "format", .attrs = format_attrs };
static const struct attribute_group core_events = { .name = "events", .attrs = core_attrs };
static const struct attribute_group imc_events = { .name = "events", .attrs = imc_attrs };
static const struct attribute_group mask_group = { .attrs = mask_attrs };
static const struct attribute_group *core_groups[] = { &format_group, &core_events, NULL };
static const struct attribute_group *imc_groups[] = {
	&format_group, &imc_events, &mask_group, NULL
};

static struct pmu core_pmu = {
	.module = THIS_MODULE, .task_ctx_nr = perf_hw_context, .attr_groups = core_groups,
	.event_init = core_init, .add = core_add, .del = core_del,
	.start = emu_start, .stop = emu_stop, .read = emu_read,
	.capabilities = PERF_PMU_CAP_NO_INTERRUPT,
};

static const struct pmu imc_template = {
	.module = THIS_MODULE, .task_ctx_nr = perf_invalid_context, .attr_groups = imc_groups,
	.event_init = imc_init, .add = emu_add, .del = emu_del,
	.start = emu_start, .stop = emu_stop, .read = emu_read,
	.capabilities = PERF_PMU_CAP_NO_INTERRUPT | PERF_PMU_CAP_NO_EXCLUDE,
};

static struct imc imcs[NUMALAB_MAX_NODES];

static int emu_probe(struct pci_dev *dev, const struct pci_device_id *id)
{
	unsigned int node;
	int err = pcim_enable_device(dev);

	if (err)
		return err;
	if (pci_resource_len(dev, 2) < NUMALAB_BAR_BYTES)
		return -ENODEV;
	bar = pcim_iomap(dev, 2, 0);
	if (!bar)
		return -ENOMEM;
	if (readq(bar) != NUMALAB_MAGIC)
		return -ENODEV;
	err = perf_pmu_register(&core_pmu, "numa_emu", -1);
	if (err)
		return err;
	for_each_online_node(node) {
		if (node >= NUMALAB_MAX_NODES)
			break;
		imcs[node].pmu = imc_template;
		imcs[node].node = node;
		snprintf(imcs[node].name, sizeof(imcs[node].name), "numa_emu_imc_%u", node);
		if (perf_pmu_register(&imcs[node].pmu, imcs[node].name, -1))
			dev_warn(&dev->dev, "no counters for node %u\n", node);
	}
	return 0;
}

static void emu_remove(struct pci_dev *dev)
{
	unsigned int node;

	perf_pmu_unregister(&core_pmu);
	for (node = 0; node < NUMALAB_MAX_NODES; node++)
		if (imcs[node].pmu.type)
			perf_pmu_unregister(&imcs[node].pmu);
}

static const struct pci_device_id ids[] = { { PCI_DEVICE(0x1af4, 0x1110) }, { 0 } };
MODULE_DEVICE_TABLE(pci, ids);
static struct pci_driver numa_emu_driver = {
	.name = "numa_emu", .id_table = ids, .probe = emu_probe, .remove = emu_remove,
};
module_pci_driver(numa_emu_driver);
MODULE_DESCRIPTION("perf PMUs of the emulated NUMA lab machine");
MODULE_LICENSE("GPL");
