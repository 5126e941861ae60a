# SPDX-License-Identifier: Apache-2.0
"""Check a compute host: its kernel and daemons, our options, and what Nova offers of it.

Kernel features and daemons may move guests or pages, too, or slow guests down; the figures quoted
are from eBay's KVM tuning deck (2013). Nova should offer the CPUs and the memory on which guests
are placed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.checks import nova
from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.core import finding, host_view, memory_domains
from nova_numa_pmc.core.finding import Finding
from nova_numa_pmc.cpulist import format_cpulist, is_number, name_nodes
from nova_numa_pmc.exceptions import DomainError, NumaPmcError, OptionsError
from nova_numa_pmc.host import allowed, files, guests, nova_conf, services, topology
from nova_numa_pmc.host.perf import perf_event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nova_numa_pmc.host.nova_conf import NovaConf

_KSM = 'sys/kernel/mm/ksm'
_THP = 'sys/kernel/mm/transparent_hugepage/enabled'
_BALANCING = 'proc/sys/kernel/numa_balancing'
#: The bit for all pages; the other one, memory tiering, is only for those of slow memory.
_BALANCES = 1
#: Bit of the capability in CapEff (linux/capability.h).
_SYS_ADMIN = 21
#: Ratios that differ by less than this count as equal.
_RATIO_STEP = 0.01
#: A finding names at most this many guests.
_NAMES_MAX = 5


def check_nodes(root: str) -> Iterator[Finding]:
    """Check that there are nodes to choose between, and that they are what they seem to be."""
    try:
        host = topology.read(root)
    except NumaPmcError as error:
        yield Finding(
            'topology-unreadable',
            finding.ERROR,
            str(error),
            'without the nodes no guest is placed: check that sysfs is mounted',
        )
        return
    if len(host.nodes) < 2:
        yield Finding(
            'one-node',
            finding.NOTE,
            'the host has only one NUMA node: there is nothing to place',
            'if it has several sockets, enable NUMA (and disable node interleaving) in the '
            'firmware',
        )
    yield from _memory_domains(topology.with_caches(host, root))


def _memory_domains(host: model.Topology) -> Iterator[Finding]:
    """Say which nodes are taken for one place because they share their memory channels."""
    domains = memory_domains.domains(host)
    groups = [
        [position for position, other in enumerate(domains) if other == label]
        for label in sorted(set(domains))
    ]
    shared_groups = [group for group in groups if len(group) > 1]
    if not shared_groups:
        return
    yield Finding(
        'memory-domains',
        finding.NOTE,
        '%s are taken to share their memory channels, and count as one place: each is one L3 '
        'cache, and the distances of the firmware do not divide them'
        % '; '.join(name_nodes([host.nodes[at].id for at in group]) for group in shared_groups),
        'compare with the firmware\'s setting "NUMA nodes per socket" (NPS); if it divides the '
        'memory otherwise, report the CPU model as a bug',
    )


def check_numad(root: str) -> Iterator[Finding]:
    """Check that numad does not move the same guests."""
    process = services.find(root, services.NUMAD)
    if process is not None:
        yield Finding(
            'numad-running',
            finding.ERROR,
            'numad is running (pid %d): it moves guests that the hook has placed, based on free '
            'memory alone' % process.pid,
            'systemctl disable --now numad',
        )


def check_balancing(root: str) -> Iterator[Finding]:
    """Check that automatic NUMA balancing does not move the pages of placed guests.

    Its other mode, memory tiering (Documentation/admin-guide/sysctl/kernel.rst), only promotes the
    pages of slow memory: that one stays on.
    """
    digits = files.read_optional(root, _BALANCING) or ''
    mode = int(digits) if is_number(digits) else 0
    if not mode & _BALANCES:
        return
    events = files.read_fields(root, 'proc/vmstat', ' ')
    uptime_s = float((files.read_optional(root, 'proc/uptime') or '0').split()[0])
    costs = [
        '%.0f %s' % (int(events[name]) / uptime_s, what)
        for name, what in (('numa_pte_updates', 'unmapped pages'), ('numa_hint_faults', 'faults'))
        if uptime_s and events.get(name, '').isdigit()
    ]
    yield Finding(
        'numa-balancing',
        finding.WARNING,
        'kernel.numa_balancing is %d: the kernel unmaps pages of guests to see which CPUs use '
        'them, and moves pages by itself (not the vCPUs, which nova-numa-pmc holds)%s'
        % (mode, '; here, since boot, %s per second' % ' and '.join(costs) if costs else ''),
        'sysctl kernel.numa_balancing=%d, unless guests that are not placed need it (to keep it, '
        'install sysctl.d/60-nova-numa-pmc.conf)' % (mode & ~_BALANCES),
        os.path.join(root, _BALANCING),
    )


def check_ksm(root: str) -> Iterator[Finding]:
    """Check that KSM does not merge pages across nodes."""
    if (
        files.read_optional(root, _KSM + '/run') == '1'
        and files.read_optional(root, _KSM + '/merge_across_nodes') != '0'
    ):
        yield Finding(
            'ksm-across-nodes',
            finding.WARNING,
            'KSM merges identical pages across nodes: a guest may then read them from a node '
            'other than its own',
            'echo 2 > /sys/kernel/mm/ksm/run; echo 0 > /sys/kernel/mm/ksm/merge_across_nodes; '
            'echo 1 > /sys/kernel/mm/ksm/run',
            os.path.join(root, _KSM, 'merge_across_nodes'),
        )


def check_huge_pages(root: str) -> Iterator[Finding]:
    """Check that guests can get transparent huge pages."""
    if '[never]' in (files.read_optional(root, _THP) or ''):
        yield Finding(
            'thp-off',
            finding.WARNING,
            'transparent huge pages are off: with six busy guests on a host, enabling them gave '
            '12 % more transactions',
            'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (QEMU asks for them)',
            os.path.join(root, _THP),
        )


def check_governor(root: str, conf: NovaConf) -> Iterator[Finding]:
    """Check that each CPU with a frequency governor has the performance governor.

    :param conf: of nova-compute, which may set the governors of dedicated CPUs itself
    """
    if conf.get('cpu_power_management', 'libvirt'):
        return
    slow: dict[str, list[int]] = {}
    for name in files.list_names(os.path.join(root, files.CPUS)):
        governor = files.read_optional(
            root, os.path.join(files.CPUS, name, 'cpufreq/scaling_governor')
        )
        if (
            name[:3] == 'cpu'
            and name[3:].isdigit()
            and governor is not None
            and governor != 'performance'
        ):
            slow.setdefault(governor, []).append(int(name[3:]))
    for governor, cpus in sorted(slow.items()):
        yield Finding(
            'governor',
            finding.NOTE,
            'the frequency governor of CPUs %s is %s: with the performance governor and no idle '
            'state deeper than C1, busy guests completed 6.8 %% more transactions, at the cost '
            'of more power' % (format_cpulist(cpus), governor[:40]),
            'cpupower frequency-set -g performance',
            os.path.join(root, files.CPUS, 'cpu%d' % cpus[0], 'cpufreq/scaling_governor'),
        )


def check_devices(root: str) -> Iterator[Finding]:
    """Check that guests' disks and network cards are not emulated, and that vhost-net is there."""
    emulated = [
        '%s (%s)' % (guest.name, ', '.join(guest.emulated))
        for guest in guests.read_running(root)[0]
        if guest.emulated
    ]
    if emulated:
        yield Finding(
            'devices-emulated',
            finding.NOTE,
            'QEMU emulates disks or network cards of %d guests, which costs several exits for '
            'each request: %s' % (len(emulated), ', '.join(emulated[:_NAMES_MAX])),
            'openstack image set --property hw_disk_bus=virtio --property hw_vif_model=virtio '
            'IMAGE; existing servers have to be rebuilt',
        )
    if not os.path.exists(os.path.join(root, 'dev/vhost-net')):
        yield Finding(
            'vhost-net-absent',
            finding.NOTE,
            'there is no /dev/vhost-net: QEMU itself copies the packets of virtio network cards',
            'modprobe vhost_net',
        )


def check_counting(root: str) -> Iterator[Finding]:
    """Check that the agent may open counters on kernels that are stricter than mainline.

    Mainline has no perf_event_paranoid above 2 (Documentation/admin-guide/sysctl/kernel.rst). With
    such a value, Debian's and Ubuntu's kernels require CAP_SYS_ADMIN even of a process that has
    CAP_PERFMON.
    """
    level, agent = perf_event.read_paranoid(root), services.find(root, services.AGENT)
    if agent is None or level is None or level <= 2:
        return
    if files.has_capability(root, str(agent.pid), _SYS_ADMIN) is False:
        yield Finding(
            'counters-refused',
            finding.WARNING,
            'kernel.perf_event_paranoid is %s, and nova-numa-agent lacks CAP_SYS_ADMIN, which '
            'this kernel then requires: the agent measures without counters' % level,
            'copy share/nova-numa-pmc/systemd/perf-paranoid.conf to '
            '/etc/systemd/system/nova-numa-agent.service.d, or sysctl '
            'kernel.perf_event_paranoid=2',
            os.path.join(root, perf_event.PARANOID),
        )


def check_options(path: str) -> Iterator[Finding]:
    """Check that our own configuration file can be used, and that all that it sets has an effect.

    :param path: the file; there may be none
    """
    try:
        opts.read(path)
    except OptionsError as error:
        yield Finding(
            'option-invalid',
            finding.ERROR,
            str(error),
            'correct it; until then the agent does not start, or keeps the options that it has',
            path,
        )
    for problem in host_options.read(path).problems:
        yield Finding(
            'option-invalid',
            finding.WARNING,
            problem,
            'correct it; until then the hook uses the default',
            path,
        )
    known = {
        (group.name, option.dest) for group, options in opts.list_opts() for option in options
    }
    yield from nova.check_unknown(path, known)


def check_ram_ratio(root: str, conf: NovaConf) -> Iterator[Finding]:
    """Check that our RAM allocation ratio agrees with Nova's.

    The ratio in Placement may have been set through its API; nova.conf has the ratio that the host
    reports to Placement, unless it sets none.

    :param conf: configuration of nova-compute
    """
    path = host_options.path_under_root(root, host_options.PATH)
    ours = host_options.read(path).placement_options.ram_ratio
    name = 'ram_allocation_ratio'
    nova = conf.get(name)
    if not nova:  # Nova treats 0.0 as not set
        name = 'initial_ram_allocation_ratio'
        nova = conf.get(name)
    if abs(ours - nova) >= _RATIO_STEP:
        consequence = (
            'a guest that Nova sends here may not fit on a node, and then only its CPUs are placed'
            if ours < nova
            else 'more may be promised on a node than Nova offers'
        )
        yield Finding(
            'ram-ratio',
            finding.WARNING,
            "Nova's %s is %g, but [placement] ram_allocation_ratio is %g: %s"
            % (name, nova, ours, consequence),
            'in %s: [placement] ram_allocation_ratio = %g (or what "openstack resource provider '
            'inventory show RP MEMORY_MB" says)' % (host_options.PATH, nova),
            path,
        )


def check_withheld_memory(root: str, conf: NovaConf) -> Iterator[Finding]:
    """Check that Nova does not offer memory that is not for guests: that of nodes without CPUs.

    libvirt reports all memory that is online to Nova (virNodeGetInfo()).
    """
    path = host_options.path_under_root(root, host_options.PATH)
    try:
        nodes = topology.read(root).nodes
    except NumaPmcError:
        return  # check_nodes reports this
    withheld = host_view.list_withheld(nodes, host_options.read(path).placement_options)
    if not withheld:
        return
    withheld_mib = sum(node.memory_bytes for node in withheld) >> 20
    withheld_ids = [node.id for node in withheld]
    reserved_mib, name = conf.get('reserved_host_memory_mb'), 'reserved_host_memory_mb'
    message = '%s: no guest is placed there' % '; '.join(
        'node %d has %d MiB of memory, but no CPUs online' % (node.id, node.memory_bytes >> 20)
        for node in withheld
    )
    remedy = 'if guests may use it, set [placement] guest_memory_nodes = %s in %s' % (
        format_cpulist(withheld_ids),
        host_options.PATH,
    )
    if reserved_mib >= withheld_mib:
        yield Finding('memory-withheld', finding.NOTE, message, remedy, path)
        return
    yield Finding(
        'memory-withheld',
        finding.WARNING,
        "%s, but Nova offers this memory: Nova's %s is %d" % (message, name, reserved_mib),
        'set %s = %d or more in nova.conf; systemctl set-property machine.slice '
        'AllowedMemoryNodes=%s keeps guests with full nodes off this memory (cgroup v2); %s'
        % (
            name,
            withheld_mib + max(0, reserved_mib),
            format_cpulist(
                node.id for node in nodes if node.memory_bytes and node.id not in withheld_ids
            ),
            remedy,
        ),
        path,
    )


def check_limits(root: str) -> Iterator[Finding]:
    """Report which control groups take CPUs or memory nodes from guests.

    A limit on a guest's own group is a warning: it was set by hand or left behind, and ends with
    the guest.
    """
    running, _ = guests.read_running(root)
    names_by_limits: dict[tuple[str, ...], list[str]] = {}
    for guest in running:
        if guest.granted_cpus is not None or guest.granted_mems is not None:
            names_by_limits.setdefault(tuple(allowed.limits(guest, root)), []).append(guest.name)
    future = tuple(allowed.limits(model.Guest('', '', 1, 0), root))
    if future:
        names_by_limits.setdefault(future, []).append('those that have yet to start')
    for limits, names in names_by_limits.items():
        of_own_group = [text for text in limits if '.scope ' in text]
        yield Finding(
            'cpus-limited',
            finding.WARNING if of_own_group else finding.NOTE,
            '%s; this applies to %s%s'
            % (
                '; '.join(limits),
                ', '.join(names[:_NAMES_MAX]),
                ' and %d more guests' % (len(names) - _NAMES_MAX)
                if len(names) > _NAMES_MAX
                else '',
            ),
            'none if this is intended: guests are placed within it; otherwise systemctl '
            'set-property UNIT AllowedCPUs= (or AllowedMemoryNodes=) with an empty value ends it',
        )


def check_shared_set(root: str, conf: NovaConf) -> Iterator[Finding]:
    """Check that the set of shared CPUs has CPUs of each node, and none that are isolated."""
    name, group = nova_conf.shared_set(conf)
    text, file = conf.get(name, group), conf.file_of(name, group)
    if not text:
        return
    try:
        shared = nova_conf.parse_set(name, text)
        nodes = [node for node in topology.read(root).nodes if node.online_cpus]
    except DomainError as error:
        yield Finding(
            'cpu-shared-set-invalid', finding.ERROR, str(error), 'write it as 4-12,^8,15', file
        )
        return
    except NumaPmcError:
        return  # check_nodes reports this
    isolated_by = {
        why: shared & cpus for why, cpus in topology.isolated_cpus(root).items() if shared & cpus
    }
    if isolated_by:
        isolated = frozenset[int]().union(*isolated_by.values())
        yield Finding(
            'cpu-shared-set-isolated',
            finding.WARNING,
            '%s contains CPUs %s, which are isolated by %s: unpinned guests are kept off them'
            % (name, format_cpulist(isolated), ' and '.join(isolated_by)),
            'remove them from %s, or do not isolate them' % name,
            file,
        )
    ids_without = [node.id for node in nodes if not node.cpus & shared]
    if ids_without:
        yield Finding(
            'cpu-shared-set-nodes',
            finding.WARNING,
            '%s has no CPU on %s: no guest is placed there, but Nova offers its memory'
            % (name, name_nodes(ids_without)),
            'add CPUs of each node to %s' % name,
            file,
        )
