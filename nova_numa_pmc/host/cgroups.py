# SPDX-License-Identifier: Apache-2.0
"""Find a guest's control groups and read its memory per node.

No path is built from a guest's name. The path of QEMU's main thread is read from
``/proc/PID/cgroup`` and joined to where systemd, libvirt and the runtimes of containers mount that
hierarchy (file-hierarchy(7)), so partitions and truncated or escaped names need no special
treatment.

libvirt creates these layouts (src/util/vircgroup.c, src/hypervisor/domain_cgroup.c)::

    MACHINE/libvirt/{emulator,vcpuN,iothreadN}   since 7.1.0 under systemd
    MACHINE/{emulator,vcpuN,iothreadN}           earlier, and without systemd

where MACHINE is ``machine-qemu\\x2d<id>\\x2d<name>.scope`` or
``qemu-<id>-<name>.libvirt-qemu``. A group with any other path is not considered a guest's.
"""

from __future__ import annotations

import errno
import os

from nova_numa_pmc.exceptions import CpusetError, GuestGone
from nova_numa_pmc.host.files import list_names, process_start_ns, read_kernel_file
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from nova_numa_pmc.model import Guest

#: The longest name that libvirt gives to a machine.
_MACHINE_MAX = 64
#: Where the hierarchies are mounted: v2 here or, beside v1, in ``unified``; v1 by controller.
_MOUNTS = 'sys/fs/cgroup'
#: The group of QEMU's main thread below its machine's group.
_TAILS: tuple[list[str], ...] = ([], ['libvirt'], ['emulator'], ['libvirt', 'emulator'])
#: Errors of reading what belongs to a process or group that no longer exists.
_GONE = (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENOTDIR)


class GuestGroups(Record):
    """A guest's own control groups, as absolute directories.

    :param version: version of the hierarchy that has the cpuset controller, 1 or 2
    :param pid: id of QEMU's main process
    :param scope: the machine's group, the outermost one that belongs to the guest
    :param parent: the group directly above the thread cgroups, which stays wide: libvirt's
        delegated ``libvirt/`` if it exists, else the scope
    :param thread_cgroups: the emulator, vcpuN and iothreadN groups, to which cpusets are written:
        libvirt's own commands write these, and fail if a group above them is narrower
    :param main: that of them in which QEMU's main thread is
    :param proc: the process's directory in procfs
    :param start_ns: CLOCK_BOOTTIME at which the process began [ns]; None: not reported
    """

    version: int
    pid: int
    scope: str
    parent: str
    thread_cgroups: tuple[str, ...]
    main: str
    proc: str
    start_ns: int | None = None


class MachineGroup(Record):
    """A guest's machine group in the hierarchy of a controller.

    :param version: version of the hierarchy, 1 or 2
    :param base: the hierarchy's root group
    :param scope: the group's directory
    :param tail: the components below it of the path of QEMU's main thread
    """

    version: int
    base: str
    scope: str
    tail: list[str]


def of_guest(guest: Guest, root: str = '/') -> GuestGroups:
    """Find the groups of a guest, to write to them or to act on their process.

    A status file may outlive its QEMU, whose pid then belongs to another process, even to another
    guest's QEMU. A guest that has taken over its QEMU can change the command line of the process,
    but neither its start time nor its group, whose name contains the guest's id and name.

    :param guest: with its ``pid``
    :raises GuestGone: the process no longer exists, or is not the guest's
    :raises CpusetError: as :func:`find`
    """
    groups = find(guest.pid, root)
    if guest.start_ns not in (None, groups.start_ns):
        raise GuestGone('%s: the id of the process has been reused' % groups.proc)
    if not is_scope_of(os.path.basename(groups.scope), guest.name, guest.id):
        raise GuestGone('%s: not the control group of guest %s' % (groups.scope, guest.name))
    return groups


def is_scope_of(scope: str, name: str, guest_id: int | None) -> bool:
    """Return whether a machine's group is that of a guest.

    libvirt names it qemu-ID-NAME, without the characters of the name that no host's name may have,
    and cuts it off at 64 characters (virDomainDriverGenerateMachineName in
    src/hypervisor/domain_driver.c). systemd's form of it escapes characters.

    :param scope: the group's own name
    :param guest_id: libvirt's id of the running guest; None: not reported
    """
    first, *escaped = scope.split('\\x')
    try:
        name_in_scope = first + ''.join(chr(int(text[:2], 16)) + text[2:] for text in escaped)
    except ValueError:
        return False
    # A guest's own name may end like the other manager's groups.
    suffix = '.scope' if scope.endswith('.scope') else '.libvirt-qemu'
    machine = name_in_scope.removesuffix(suffix).removeprefix('machine-')
    kind, _, rest = machine.partition('-')
    digits, _, shown = rest.partition('-')
    if kind != 'qemu' or not digits.isdigit() or guest_id not in (None, int(digits)):
        return False
    shown, wanted = (
        ''.join(char for char in text if char.isascii() and char.isalnum())
        for text in (shown, name)
    )
    is_cut_off = len(machine) >= _MACHINE_MAX - 1
    return shown == wanted or (is_cut_off and wanted.startswith(shown))


def find(pid: int | None, root: str = '/') -> GuestGroups:
    """Find the groups of the guest whose QEMU main process is ``pid``, whichever it is.

    :param pid: None if it is not known, which raises :class:`GuestGone`
    :param root: root of the host's file system
    :raises CpusetError: the process's group is not a libvirt guest's, or has no cpuset
    :raises GuestGone: the process no longer exists
    """
    start_ns = process_start_ns(pid, root)  # before its group, which may be a later process's
    machine = find_machine_group(pid, 'cpuset', root)
    scope, tail = machine.scope, machine.tail
    if not tail:
        raise CpusetError(
            "%s: QEMU is not in any of libvirt's control groups there: it has not started yet, or "
            'is not a libvirt guest' % scope
        )
    main = os.path.join(scope, *tail)
    parent = os.path.join(scope, 'libvirt') if tail[0] == 'libvirt' else scope
    thread_cgroups = find_thread_cgroups(parent)
    if main not in thread_cgroups:
        raise CpusetError(
            "%s: no cpuset in the guest's own groups: cpuset is missing in its "
            'cgroup.controllers (v2), or libvirt is configured not to use it '
            '(cgroup_controllers in qemu.conf)' % main
        )
    return GuestGroups(
        machine.version,
        pid or 0,
        scope,
        parent,
        thread_cgroups,
        main,
        os.path.join(root, 'proc', '%d' % (pid or 0)),
        start_ns,
    )


def find_machine_group(pid: int | None, controller: str, root: str = '/') -> MachineGroup:
    """Find a guest's machine group in a controller's hierarchy.

    The unified hierarchy is used if the controller has none of its own.

    :raises CpusetError: the process's group is not a libvirt guest's, or cannot be seen
    :raises GuestGone: the process no longer exists
    """
    if pid is None:
        raise GuestGone("the guest's process is not known")
    proc = os.path.join(root, 'proc', '%d' % pid)
    paths = _hierarchies(proc)
    version = 1 if controller in paths else 2
    path = paths.get(controller, paths.get(''))
    if path is None:
        raise CpusetError(
            '%s/cgroup: no %s controller and no unified hierarchy: enable the %s controller'
            % (proc, controller, controller)
        )
    parts = path.split('/')
    position = max((i for i, part in enumerate(parts) if _is_machine(part)), default=len(parts))
    tail = parts[position + 1 :]
    if position == len(parts) or tail not in _TAILS:
        raise CpusetError("%s is not a libvirt guest's control group: left alone" % path)
    if '..' in parts:
        raise CpusetError(
            "%s is outside the control groups that this process sees: run in the host's control "
            'group namespace' % path
        )
    base = os.path.join(root, _MOUNTS, controller if version == 1 else 'unified')
    if version == 2 and not os.path.isdir(base):
        base = os.path.join(root, _MOUNTS)
    scope = os.path.join(base, *parts[: position + 1])
    if not os.path.isdir(scope):
        if not list_names(base):
            raise CpusetError('%s: no control groups are mounted there' % base)
        raise GuestGone('%s: the group no longer exists' % scope)
    return MachineGroup(version, base, scope, tail)


def memory_by_node(
    pid: int | None, root: str = '/', page_bytes: int | None = None
) -> dict[int, int] | None:
    """Read how much memory a guest has on each node.

    :param pid: id of QEMU's main process; None if it is not known
    :param page_bytes: size of the huge pages that back the guest; None: none do
    :returns: {node id: bytes}, or None if the kernel does not report it. If the huge pages of a
        guest are unknown, the rest is QEMU's own memory and not the guest's
    """
    bytes_by_node = _normal_pages_by_node(pid, root)
    if page_bytes is None:
        return bytes_by_node or None
    huge_bytes = read_huge_pages_by_node(pid, root)
    for node, size in huge_bytes.items():
        bytes_by_node[node] = bytes_by_node.get(node, 0) + size
    return bytes_by_node if huge_bytes else None


def _normal_pages_by_node(pid: int | None, root: str) -> dict[int, int]:
    """Return the anonymous and shared memory of a guest; empty if it is not reported.

    Source: ``memory.numa_stat``, which is in bytes on v2 and in pages on v1, where shared pages
    count as anonymous and locked pages are counted separately
    (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst). Page cache is left out,
    because a cpuset only moves mapped pages. Huge pages of a pool are not counted there.
    """
    bytes_by_node: dict[int, int] = {}
    try:
        machine = find_machine_group(pid, 'memory', root)
        names, unit_bytes, directory = ('anon', 'shmem'), 1, machine.scope
        if machine.version == 1:
            names = 'hierarchical_anon', 'hierarchical_unevictable'
            unit_bytes = os.sysconf('SC_PAGE_SIZE')
            # The scope's totals may not include the groups below it (use_hierarchy).
            directory = os.path.join(machine.scope, *machine.tail)
        for line in read_kernel_file(os.path.join(directory, 'memory.numa_stat')).splitlines():
            fields = line.split(' ')
            if fields[0].partition('=')[0] not in names:
                continue
            for field in fields[1:]:
                node, _, count = field.partition('=')
                node_id = int(node[1:])
                bytes_by_node[node_id] = bytes_by_node.get(node_id, 0) + int(count) * unit_bytes
    except (CpusetError, OSError, ValueError):
        return {}
    return bytes_by_node


def read_huge_pages_by_node(pid: int | None, root: str = '/') -> dict[int, int]:
    """Return the bytes of a process's huge pages on each node, from ``/proc/PID/numa_maps``.

    ``memory.numa_stat`` does not include huge pages from a pool, and libvirt's control groups have
    no hugetlb controller. The kernel walks the page tables for this file, which is cheap for a
    guest on huge pages, but not for others.

    :param pid: id of the process, or None if it is not known
    :returns: {node id: bytes}; empty if there are none or the kernel does not report them
    """
    bytes_by_node: dict[int, int] = {}
    if pid is None:
        return bytes_by_node
    try:
        lines = read_kernel_file(os.path.join(root, 'proc/%d/numa_maps' % pid)).splitlines()
        for line in lines:
            words = line.split(' ')
            counts = [
                (int(node[1:]), int(pages))
                for node, equals, pages in [word.partition('=') for word in words]
                if equals and node[:1] == 'N' and node[1:].isdigit()
            ]
            if 'huge' not in words or not counts:  # the kernel names no size if there are no pages
                continue
            page_bytes = next(
                int(word[18:]) << 10 for word in words if word.startswith('kernelpagesize_kB=')
            )
            for node, pages in counts:
                bytes_by_node[node] = bytes_by_node.get(node, 0) + pages * page_bytes
    except (OSError, ValueError, StopIteration):
        return {}
    return bytes_by_node


def bytes_elsewhere(bytes_by_node: Mapping[int, int], nodes: Container[int]) -> int:
    """Return the bytes on all nodes except ``nodes``.

    :param bytes_by_node: {node id: bytes}
    """
    return sum(size for node, size in bytes_by_node.items() if node not in nodes)


def _hierarchies(proc: str) -> dict[str, str]:
    """Return {controller: the process's path}; '' is the key of the unified hierarchy."""
    path = os.path.join(proc, 'cgroup')
    try:
        text = read_kernel_file(path)
    except OSError as error:
        error_class = GuestGone if error.errno in _GONE else CpusetError
        raise error_class('%s: %s' % (path, error.strerror or error)) from None
    paths = {}
    for line in text.splitlines():
        number, _, rest = line.partition(':')
        controllers, colon, path = rest.partition(':')
        if not (colon and number.isdigit() and path.startswith('/')):
            raise CpusetError('%s/cgroup: unreadable line %.80r' % (proc, line))
        if path.endswith(' (deleted)'):
            raise GuestGone('%s/cgroup: the group has been deleted' % proc)
        for controller in controllers.split(',') if controllers else ('',):
            paths[controller] = path
    return paths


def _is_machine(name: str) -> bool:
    return (name.startswith('machine-qemu') and name.endswith('.scope')) or name.endswith(
        '.libvirt-qemu'
    )


def find_thread_cgroups(base: str) -> tuple[str, ...]:
    """Return the groups of the emulator, the vCPUs and the I/O threads that have a cpuset.

    :raises GuestGone: the group above them no longer exists
    :raises CpusetError: it cannot be listed
    """
    groups = []
    try:
        names = sorted(os.listdir(base))
    except OSError as error:
        error_class = GuestGone if error.errno in _GONE else CpusetError
        raise error_class('%s: %s' % (base, error.strerror)) from None
    for name in names:
        if _is_thread_cgroup(name) and _has_cpuset(os.path.join(base, name)):
            groups.append(os.path.join(base, name))
    return tuple(groups)


def thread_ids(directory: str) -> tuple[int, ...]:
    """Return the ids of a group's threads; empty if they cannot be read."""
    # In a threaded group of v2, ``cgroup.procs`` cannot be read; v1 has only ``tasks``.
    for name in ('cgroup.threads', 'tasks'):
        try:
            return tuple(map(int, read_kernel_file(os.path.join(directory, name)).split()))
        except (OSError, ValueError):
            continue
    return ()


def _is_thread_cgroup(name: str) -> bool:
    for kind in ('vcpu', 'iothread'):
        if name.startswith(kind):
            return name[len(kind) :].isdigit()
    return name == 'emulator'


def _has_cpuset(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, 'cpuset.cpus'))
