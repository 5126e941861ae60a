# SPDX-License-Identifier: Apache-2.0
"""Write a guest's place once its QEMU runs (the hook's ``started``).

CPUs follow the decision of its start, and memory follows the CPUs, unless the
memory lies somewhere already: then the CPUs follow it.
"""

import os

from nova_numa_pmc import model, promises
from nova_numa_pmc.exceptions import CpusetError, GuestGone, StateError, TopologyError
from nova_numa_pmc.host import cgroups, cpuset, guests, hugetlb, journal, topology


def settle(call, xml):
    """Write what was decided at the start, or decide now where nothing was.

    :param call: :class:`nova_numa_pmc.hook.Call`
    :param xml: the domain's XML, bytes
    :raises NumaPmcError: the guest is left as it is, and its promise says so
    """
    guest = guests.parse(xml)
    decision = promises.recall(guest, call.options, call.root)
    if decision is None:
        decision = promises.decide(guest, call.options, call.root, call.lock_timeout_s())
    if decision.promise.origin != model.PLACED:
        promises.settle(decision.promise, call.options, call.root, call.lock_timeout_s())
        if decision.problems:
            call.log_decision(decision)
        return
    try:
        if decision.cpus is None:
            decision = decision._replace(
                cpus=promises.cpus_of(decision.promise, guest, call.root))
        groups = cgroups.find(_qemu_pid(guest, call.root), call.root)
        pool = _pool_by_node(call, guest, groups)
        decision = _beside_memory(call, guest, groups, decision, pool)
        applied = _apply(call, guest, groups, decision, pool)
    except (CpusetError, TopologyError):
        promises.settle(decision.promise._replace(cpu_nodes=(), mem_nodes=(),
                                                  origin=model.FLOATING),
                        call.options, call.root, call.lock_timeout_s())
        raise
    call.log_decision(decision, _before(applied), _after(applied))
    try:
        promises.settle(decision.promise._replace(bound=applied.memory == cpuset.BOUND),
                        call.options, call.root, call.lock_timeout_s())
    except StateError as error:
        call.log(journal.WARNING, '%s; the guest is placed, but not recorded as started' % error)


def _pool_by_node(call, guest, groups):
    """Return {node id: bytes} of the guest's huge pages, None where that isn't told."""
    return hugetlb.bytes_by_node(groups.pid, call.root) or None if guest.page_bytes else None


def _beside_memory(call, guest, groups, decision, pool):
    """Decide again where memory lies already that can't, or may not here, be moved."""
    lying = dict(cgroups.memory_by_node(groups) or {})
    for node, size in (pool or {}).items():
        lying[node] = lying.get(node, 0) + size
    homes = decision.promise.mem_nodes or decision.promise.cpu_nodes
    away = sum(size for node, size in lying.items() if node not in homes)
    stays = (guest.locked or guest.page_bytes or guest.preallocated
             or away > call.options.bring_over_limit_mib << 20)
    if not stays or 2 * away <= sum(lying.values()):
        return decision
    return promises.decide(guest, call.options, call.root, call.lock_timeout_s(), lying)


def _apply(call, guest, groups, decision, pool):
    mems = frozenset(decision.promise.mem_nodes) or None
    if guest.locked:
        mems = None  # the kernel would try each page, in vain
    return cpuset.confine(
        groups, decision.cpus, mems, call.options.bring_over_limit_mib << 20,
        stay_bound=call.options.bind and mems is not None, pool_by_node=pool)


def _before(applied):
    for change in applied.changes if applied else ():
        if change.path.endswith('cpuset.cpus'):
            return 'from %s to ' % (change.before or 'any')
    return ''


def _after(applied):
    told = ' (%s' % applied.memory
    if applied.off_bytes:
        told += ', %d KiB lay elsewhere' % (applied.off_bytes >> 10)
    if applied.left_bytes:
        told += ', %d KiB still do' % (applied.left_bytes + 1023 >> 10)
    told += ')'
    if applied.cpus_effective is not None and not applied.cpus_effective >= applied.cpus:
        told += '; the kernel allows cpus %s only' % topology.format_cpulist(
            applied.cpus_effective)
    return told


def _qemu_pid(guest, root):
    """Return the pid of the guest's QEMU, from libvirt's pid file, checked against its uuid."""
    path = os.path.join(root, guests.STATUS_FILES, guest.name + '.pid')
    try:
        pid = int(cgroups.read_text(path))
        command = cgroups.read_text(os.path.join(root, 'proc/%d/cmdline' % pid))
    except (OSError, ValueError) as error:
        raise GuestGone('%s: %s: no process to place' % (path, error)) from None
    # libvirt passes the uuid since 0.4.6, and its guests' names may be reused.
    if guest.uuid not in command.split('\0'):
        raise GuestGone('%s: process %d is not QEMU of %s' % (path, pid, guest.uuid))
    return pid
