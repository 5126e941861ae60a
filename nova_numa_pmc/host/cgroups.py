# SPDX-License-Identifier: Apache-2.0
"""Find a guest's control groups and read its memory per node.

No path is built from a guest's name. The path of QEMU's main thread is read from
``/proc/PID/cgroup`` and joined to the mount point that ``/proc/self/mountinfo`` reports for that
hierarchy, so partitions, truncated or escaped names and mounts of containers need no special
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
from nova_numa_pmc.host.files import process_start_ns, read_kernel_file
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from nova_numa_pmc.model import Guest

#: The longest name that libvirt gives to a machine.
_MACHINE_MAX = 64
#: Errors of listing a group that no longer exists.
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

    :param pid: id of QEMU's main process
    :param version: version of the hierarchy, 1 or 2
    :param scope: the group's directory
    :param tail: the components below it of the path of QEMU's main thread
    """

    pid: int
    version: int
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
    for suffix in ('.scope', '.libvirt-qemu'):
        name_in_scope = name_in_scope.removesuffix(suffix)
    machine = name_in_scope.removeprefix('machine-')
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
        machine.pid,
        scope,
        parent,
        thread_cgroups,
        main,
        os.path.join(root, 'proc', '%d' % machine.pid),
        start_ns,
    )


def find_machine_group(pid: int | None, controller: str, root: str = '/') -> MachineGroup:
    """Find a guest's machine group in a controller's hierarchy.

    The unified hierarchy is used if the controller has none of its own.

    :raises CpusetError: the process's group is not a libvirt guest's, or the hierarchy is not
        mounted
    :raises GuestGone: the process no longer exists
    """
    if pid is None:
        raise GuestGone("the guest's process is not known")
    proc = os.path.join(root, 'proc', '%d' % pid)
    paths = _hierarchies(proc)
    version = 1 if controller in paths else 2
    key = controller if version == 1 else ''
    if key not in paths:
        raise CpusetError(
            '%s/cgroup: no %s controller and no unified hierarchy: enable the %s controller'
            % (proc, controller, controller)
        )
    mounts = _read(os.path.join(root, 'proc/self/mountinfo'))
    return MachineGroup(pid, version, *_locate(paths[key], key, mounts, root))


def read_memory_by_node(groups: GuestGroups) -> dict[int, int] | None:
    """Return :func:`memory_by_node` of the guest with these groups."""
    return memory_by_node(find_memory_group(groups.pid, os.path.join(groups.proc, '../..')))


def find_memory_group(pid: int | None, root: str = '/') -> MachineGroup | None:
    """Return the machine's group that counts a guest's memory, or None if there is none.

    Finding it takes many times as long as reading it on a host with hundreds of mounts, such as
    those of containers.

    :param pid: id of QEMU's main process; None if it is not known
    """
    try:
        return find_machine_group(pid, 'memory', root)
    except CpusetError:
        return None


def memory_by_node(machine: MachineGroup | None) -> dict[int, int] | None:
    """Read how much anonymous and shared memory a guest has on each node.

    Source: ``memory.numa_stat``, which is in bytes on v2 and in pages on v1, where shared pages
    count as anonymous and locked pages are counted separately
    (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst). Page cache is left out,
    because a cpuset only moves mapped pages. Huge pages of a pool are not counted there.

    :param machine: as :func:`find_memory_group` returned it
    :returns: {node id: bytes}, or None if the kernel does not report it
    """
    if machine is None:
        return None
    names, unit_bytes, directory = ('anon', 'shmem'), 1, machine.scope
    if machine.version == 1:
        names = 'hierarchical_anon', 'hierarchical_unevictable'
        unit_bytes = os.sysconf('SC_PAGE_SIZE')
        # The scope's totals may not include the groups below it (use_hierarchy).
        directory = os.path.join(machine.scope, *machine.tail)
    bytes_by_node: dict[int, int] = {}
    try:
        for line in read_kernel_file(os.path.join(directory, 'memory.numa_stat')).splitlines():
            fields = line.split(' ')
            if fields[0].partition('=')[0] not in names:
                continue
            for field in fields[1:]:
                node, _, count = field.partition('=')
                node_id = int(node[1:])
                bytes_by_node[node_id] = bytes_by_node.get(node_id, 0) + int(count) * unit_bytes
    except (OSError, ValueError):
        return None
    return bytes_by_node or None


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


def add_huge_pages(
    bytes_by_node: Mapping[int, int], pid: int | None, root: str = '/'
) -> dict[int, int] | None:
    """Return all memory of a guest that is backed by huge pages from a pool, with these pages.

    :param bytes_by_node: the rest of its memory, as read by :func:`read_memory_by_node`
    :returns: {node id: bytes}; None if its huge pages are unknown, since the rest is then QEMU's
        own memory and not the guest's
    """
    huge_bytes = read_huge_pages_by_node(pid, root)
    if not huge_bytes:
        return None
    return {
        node: bytes_by_node.get(node, 0) + huge_bytes.get(node, 0)
        for node in {*bytes_by_node, *huge_bytes}
    }


def bytes_elsewhere(bytes_by_node: Mapping[int, int], nodes: Container[int]) -> int:
    """Return the bytes on all nodes except ``nodes``.

    :param bytes_by_node: {node id: bytes}
    """
    return sum(size for node, size in bytes_by_node.items() if node not in nodes)


def _read(path: str) -> str:
    try:
        return read_kernel_file(path)
    except OSError as error:
        error_class = GuestGone if error.errno in (errno.ENOENT, errno.ESRCH) else CpusetError
        raise error_class('%s: %s' % (path, error.strerror or error)) from None


def _hierarchies(proc: str) -> dict[str, str]:
    """Return {controller: the process's path}; '' is the key of the unified hierarchy."""
    paths = {}
    for line in _read(os.path.join(proc, 'cgroup')).splitlines():
        number, _, rest = line.partition(':')
        controllers, colon, path = rest.partition(':')
        if not (colon and number.isdigit() and path.startswith('/')):
            raise CpusetError('%s/cgroup: unreadable line %.80r' % (proc, line))
        if path.endswith(' (deleted)'):
            raise GuestGone('%s/cgroup: the group has been deleted' % proc)
        for controller in controllers.split(',') if controllers else ('',):
            paths[controller] = path
    return paths


def _locate(path: str, controller: str, mounts: str, root: str) -> tuple[str, list[str]]:
    """Split the path of a process's group at its machine's group.

    :returns: (directory of the machine's group, path components below it)
    """
    parts = path.split('/')
    position = max((i for i, part in enumerate(parts) if _is_machine(part)), default=None)
    if position is None or parts[position + 1 :] not in (
        [],
        ['libvirt'],
        ['emulator'],
        ['libvirt', 'emulator'],
    ):
        raise CpusetError("%s is not a libvirt guest's control group: left alone" % path)
    scope = '/'.join(parts[: position + 1])
    is_mounted = False
    for mount_root, mount_point in _mounts(mounts, controller):
        is_mounted = True
        prefix = mount_root.rstrip('/') + '/'
        relative = scope[len(prefix) :] if scope.startswith(prefix) else ''
        directory = os.path.join(root, mount_point.lstrip('/'), relative)
        if relative and '..' not in relative.split('/') and os.path.isdir(directory):
            return directory, parts[position + 1 :]
    if not is_mounted:
        raise CpusetError(
            'no cgroup %s is mounted: mount it'
            % ('v1 hierarchy with %s' % controller if controller else 'v2 hierarchy')
        )
    if '..' in parts:
        raise CpusetError(
            "%s is outside the control groups that this process sees: run in the host's control "
            'group namespace' % path
        )
    raise GuestGone('%s: the group no longer exists' % scope)


def _is_machine(name: str) -> bool:
    return (name.startswith('machine-qemu') and name.endswith('.scope')) or name.endswith(
        '.libvirt-qemu'
    )


def _mounts(text: str, controller: str) -> Iterator[tuple[str, str]]:
    """Yield (root, mount point) of each mount of a hierarchy.

    :param text: text of ``mountinfo``
    :param controller: a controller of the hierarchy, or '' for the unified one
    """
    for line in text.splitlines():
        left, dash, right = line.partition(' - ')
        fields, filesystem = left.split(' '), right.split(' ')
        if not dash or len(fields) < 6 or len(filesystem) < 3:
            continue
        if (
            filesystem[0] == 'cgroup2'
            if not controller
            else (filesystem[0] == 'cgroup' and controller in filesystem[-1].split(','))
        ):
            yield _unescape(fields[3]), _unescape(fields[4])


def _unescape(text: str) -> str:
    """Undo mountinfo's octal escapes of space, tab, newline and backslash."""
    for code, char in (('\\040', ' '), ('\\011', '\t'), ('\\012', '\n'), ('\\134', '\\')):
        text = text.replace(code, char)
    return text


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
