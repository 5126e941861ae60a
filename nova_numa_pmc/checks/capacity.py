# SPDX-License-Identifier: Apache-2.0
"""Check that Nova offers the CPUs and the memory on which guests are placed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.checks import nova
from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.core import finding, host_view
from nova_numa_pmc.core.finding import Finding
from nova_numa_pmc.cpulist import format_cpulist, name_nodes
from nova_numa_pmc.exceptions import DomainError, NumaPmcError, OptionsError
from nova_numa_pmc.host import allowed, guests, nova_conf, topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nova_numa_pmc.host.nova_conf import NovaConf

#: Ratios that differ by less than this count as equal.
_RATIO_STEP = 0.01
#: A finding names at most this many guests.
_NAMES_MAX = 5


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
